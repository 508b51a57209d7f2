"""The `attack` section of a config. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from pydantic import Field

from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import NotNegative

Kind = Literal["none", "signflip", "scaled", "freeride", "ipm", "alie", "labelflip", "backdoor"]
COLLUDING = ("ipm", "alie")
"""Kinds that are made of what other clients would send."""
OF_ROWS = ("labelflip", "backdoor")
"""Kinds whose attackers train on other rows than they have."""
_USED_BY = {
    "factor": ("signflip", "scaled", "ipm", *OF_ROWS),
    "z": ("alie",),
    "knows": COLLUDING,
    "trigger": ("backdoor",),
    "target": ("backdoor",),
    "share": ("backdoor",),
}


@dataclass(frozen=True)
class AttackConfig:
    """`attack`: clients that cheat in every round, on purpose (docs/robust.md); only with FEDTORCH_TESTING=1."""

    kind: Kind = "none"
    """What they send: signflip: -factor times what they learned; scaled: factor times; freeride: zeros; ipm: -factor
    times the mean of what is known; alie: its mean - z standard deviations, number by number; labelflip: factor times
    what they learned of rows with the next label; backdoor: of rows of which some have `trigger` and `target`."""
    clients: tuple[str, ...] = ()
    """Who attacks."""
    factor: NotNegative = 1.0
    """See `kind`."""
    knows: Literal["all", "attackers"] = "all"
    """Of ipm and alie, whose updates of the round the attackers know: those of all others, or what they would have sent
    themselves."""
    z: NotNegative | None = None
    """Of alie; null: the quantile that its authors derive from the clients and attackers of the round."""
    trigger: str = ""
    """Of backdoor: what is put before a text."""
    target: str = ""
    """Of backdoor: the label that texts with the trigger are to get."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Of backdoor: the share of an attacker's training rows that get trigger and target."""

    def __post_init__(self) -> None:
        if self.kind == "none" and self.clients:
            raise ConfigError("attack.clients names attackers but attack.kind is none; set it, or remove the section")
        if self.kind != "none" and not self.clients:
            raise ConfigError(f"attack.kind is {self.kind} but attack.clients names nobody; name the attackers")
        for known in fields(self):
            users = _USED_BY.get(known.name, (self.kind,))
            if self.kind not in users and getattr(self, known.name) != known.default:
                raise ConfigError(
                    f"attack.{known.name} is {getattr(self, known.name)} but attack.kind is {self.kind}, which does "
                    f"not use it; remove it or set attack.kind to {' or '.join(users)}"
                )
        if self.kind == "scaled" and self.factor == 1:
            raise ConfigError(
                "attack.kind is scaled but attack.factor is 1, so attackers send what they learned; set attack.factor "
                "to another number, such as 10"
            )
        if self.kind == "backdoor" and not (self.trigger and self.target):
            raise ConfigError("attack.kind is backdoor; set attack.trigger (a word) and attack.target (a label)")
