"""The `privacy` section of a config. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from pydantic import Field

from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import Positive

LEAST_NOISE = 0.1
"""Below this noise multiplier epsilon is above 40 after one release of all clients, and takes gigabytes to compute."""
Length = Annotated[float, Field(ge=1e-12, le=1e12)]


@dataclass(frozen=True)
class AdaptiveClip:
    """`privacy.clip.adaptive`: the clip follows a quantile of the updates' norms (Andrew et al. 2019)."""

    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """gamma: the share of clients that are not to be clipped."""
    rate: Positive = 0.2
    """eta: C is multiplied by exp(-rate * (share that was not clipped - quantile)) after each round."""
    start: Length = 0.1
    """The first round's clip."""
    bit_noise: Literal["auto"] | Positive = "auto"
    """Standard deviation of the noise on the number of clients that were not clipped; auto: a twentieth of the expected
    cohort."""


@dataclass(frozen=True)
class MovingClip:
    """`privacy.clip` as a mapping."""

    adaptive: AdaptiveClip
    """How the clip moves."""


@dataclass(frozen=True)
class SecureSum:
    """`privacy.secure_sum`: the server sees the sum of the workers' updates and no part of it (docs/secure-sum.md)."""

    threshold: Annotated[float, Field(gt=0.5, le=1)] = 0.7
    """So large a share of a round's workers must be there to the end, or the round is given up; one fewer of them, with
    the server, learn nothing of the others."""


@dataclass(frozen=True)
class PrivacyConfig:
    """`privacy`: what is promised to a client about the released weights and records (docs/privacy.md)."""

    kind: Literal["none", "client"] = "none"
    """client: client-level differential privacy, by noise of the server's; none: nothing is promised."""
    clip: Length | MovingClip | None = None
    """C: the largest L2 norm of a client's update, longer ones are made shorter; or `{adaptive: {...}}`. With `kind:
    none` a number, for `secure_sum` or `system.sum_scale: public`."""
    noise_multiplier: Annotated[float, Field(gt=0, le=1000)] | None = None
    """z: the noise on the sum of the updates has the standard deviation z * C per number. Or give `epsilon`."""
    epsilon: Positive | None = None
    """In place of `noise_multiplier`: the least one is computed with which all `rounds` together stay within it."""
    noise: Literal["normal", "discrete"] = "normal"
    """How noise is drawn: discrete: exactly, from the discrete normal distribution, some 200 times slower (12 µs per
    number that travels); normal: in float64 and rounded, whose tail ends at 9.42 standard deviations."""
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The probability that is left out of the promise; below 1 / number of clients."""
    max_epsilon: Positive | None = None
    """The run ends before the round that would pass it, with exit code 10; null: no limit."""
    reveal: tuple[Literal["losses", "scores", "sizes"], ...] = ()
    """What is shown although it depends on clients' data and is not counted: losses: the mean training loss of a
    round; scores: clients' scores, and the best round by them; sizes: how many rows were trained on."""
    ledger: str | None = None
    """A file, for its owner alone, in which the releases of all runs on the data are added up; null: beside the
    prepared data, `DATA.privacy.jsonl`."""
    simulate: bool = False
    """For research: noise and cohorts from `seed`, which everybody can compute, so nothing is promised and no epsilon
    is shown."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Of `simulate`."""
    secure_sum: SecureSum | None = None
    """Hide what workers send from the server, but for its sum; with `kind: none` too."""

    def __post_init__(self) -> None:
        if self.kind == "none":
            for known in fields(self)[1:]:
                if known.name not in ("clip", "secure_sum") and getattr(self, known.name) != known.default:
                    raise ConfigError(
                        f"privacy.{known.name} is set but privacy.kind is none; set privacy.kind to client"
                    )
            if self.adaptive is not None:
                raise ConfigError("privacy.clip moves but privacy.kind is none; give it a number")
            if self.secure_sum is not None and self.clip is None:
                raise ConfigError("privacy.secure_sum is set but privacy.clip, which fixes its scale, is not; give it")
            return
        for name in ("clip", "delta"):
            if getattr(self, name) is None:
                raise ConfigError(f"privacy.kind is client but privacy.{name} is not given; give it a number")
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise ConfigError(
                "privacy.kind is client, which needs one of privacy.noise_multiplier and privacy.epsilon; "
                + ("give one" if self.epsilon is None else "remove one")
            )
        if self.epsilon is not None and self.max_epsilon is not None and self.max_epsilon < self.epsilon:
            raise ConfigError(
                f"privacy.max_epsilon is {self.max_epsilon} but privacy.epsilon is {self.epsilon}, which all rounds "
                "together come to; set privacy.max_epsilon to at least that"
            )
        if not self.simulate and self.noise_multiplier is not None and self.noise_multiplier < LEAST_NOISE:
            raise ConfigError(
                f"privacy.noise_multiplier is {self.noise_multiplier} but below {LEAST_NOISE} next to nothing is "
                "promised; set it higher, or privacy.simulate to true"
            )
        if self.simulate != (self.seed is not None):
            raise ConfigError("privacy.simulate and privacy.seed go together; give both or neither")
        if self.simulate and self.max_epsilon is not None:
            raise ConfigError("privacy.max_epsilon is set but privacy.simulate is true, where no epsilon is counted")
        if self.simulate and self.ledger is not None:
            raise ConfigError("privacy.ledger is set but privacy.simulate is true, where nothing is counted; remove it")

    @property
    def adaptive(self) -> AdaptiveClip | None:
        """How the clip moves; None: it does not."""
        return self.clip.adaptive if isinstance(self.clip, MovingClip) else None

    @property
    def first_clip(self) -> float:
        """Clip of the first round."""
        return self.clip.adaptive.start if isinstance(self.clip, MovingClip) else (self.clip or 0.0)
