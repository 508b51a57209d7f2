"""Demands of a run on a site: the facts that a policy is compared with, found from its config before any rank meets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedtorch.privacy.record.silo import Blocks

AskedNoise = tuple[str, str, str, int, Blocks]


@dataclass(frozen=True)
class Asked:
    """All that one run would have from one silo."""

    parameters: tuple[tuple[str, int], ...]
    """Name and number of elements of each parameter whose update leaves, in the order in which they lie there."""
    vectors: int
    """How many vectors of these a client sends, end to end."""
    kinds: tuple[str, ...]
    """Names of the other kinds that leave, of `kinds.KINDS`."""
    rounds: int
    """Rounds."""
    bytes_per_round: int
    """Bytes of updates that leave in a round, at most."""
    clients: int = 1
    """Clients that live here."""
    parties: int | None = None
    """The least number of silos whose parts a sum is opened with; None: there is no secure sum."""
    promise: str = "none"
    """As `privacy.kind`; none where it is simulated."""
    epsilon: float | None = None
    """ε of the run, with `record` and all that this site's ledger has; None: nothing is promised."""
    delta: float | None = None
    """δ of it."""
    clip: float | None = None
    """The largest norm of a client's update, or of a unit's gradient; None: none, or one that moves."""
    clips_updates: bool = False
    """Is `clip` that of a client's update, so that it can be measured?"""
    verified: float = 0.0
    """The share of the server's work that is checked."""
    declared: tuple[int, ...] = ()
    """Numbers of examples that the config itself declares, so that a report with one tells nothing."""
    figures: tuple[str, ...] = ()
    """Names of further numbers of a report that follow from the config and from noised steps alone."""
    noise: tuple[AskedNoise, ...] = ()
    """Noise that clients which live here add to their parts of a sum: name of the client, folder with its key, how it
    is drawn (`privacy.noise`), e, where a step is 2^-e, and blocks of numbers with its standard deviation in steps, of
    each round in turn, the last ones in all further rounds; with 0: each is 0 or 1 and has no noise."""
    code: tuple[tuple[str, str], ...] = ()
    """sha256:... of all code that runs, and which it is."""
    members: str = ""
    """sha256:... of the list of members."""
    initial: str = ""
    """sha256:... of the weights that this side would start from by itself; empty: not known."""

    @classmethod
    def read(cls, data: dict[str, Any]) -> Asked:
        """Facts that `dataclasses.asdict` has written and JSON has made lists of."""
        return cls(**{name: tuples(value) for name, value in data.items()})


def tuples(value: Any) -> Any:
    """The value with a tuple in place of each list."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value
