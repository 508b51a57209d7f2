"""The `privacy` section of a config. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from dataclasses import Field as Known
from typing import Annotated, Literal

from pydantic import Field

from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import Count, Positive

LEAST_NOISE = 0.1
"""Below this noise multiplier epsilon is above 40 after one release of all clients, and takes gigabytes to compute."""
Length = Annotated[float, Field(ge=1e-12, le=1e12)]
Noise = Annotated[float, Field(gt=0, le=1000)]
Share = Annotated[float, Field(gt=0, lt=1)]


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
class Persons:
    """`privacy.unit` as a mapping: a unit is all rows of a person in a silo."""

    column: str
    """The column that says whose a row is; two silos' persons of one name are two units."""
    max_rows: Count = 8
    """A person with more rows gives so many of them, drawn anew in each step."""


@dataclass(frozen=True)
class SiloPrivacy:
    """An entry of `privacy.per_silo`: what differs for one silo."""

    epsilon: Positive | None = None
    """In place of `privacy.epsilon`."""
    noise_multiplier: Noise | None = None
    """In place of `privacy.noise_multiplier`."""
    delta: Share | None = None
    """In place of `privacy.delta`."""
    max_epsilon: Positive | None = None
    """In place of `privacy.max_epsilon`."""

    def __post_init__(self) -> None:
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise ConfigError("privacy.per_silo gives a silo epsilon and noise_multiplier; remove one of them")


@dataclass(frozen=True)
class NoisedScores:
    """`privacy.eval`: scores of silos' own held-out rows, noised where they are counted."""

    noise_multiplier: Noise
    """z of one score: the sum over a silo's units of a number from 0 to 1 has noise of this standard deviation."""
    units: Mapping[str, Mapping[Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")], Count]]
    """Silo -> split -> how many units it has there, declared and public, rounded: sums are divided by it. A silo that
    is not named, or whose split is not, has no scores there."""
    metrics: tuple[str, ...] = ()
    """Which scores, each of which counts by itself; empty: that which chooses the best model."""


OF_RECORDS = ("noise_at", "colluders", "unit", "units", "per_silo", "per_unit", "physical", "eval")
"""Keys of `kind: record` alone."""


@dataclass(frozen=True)
class PrivacyConfig:
    """`privacy`: what is promised about the released weights and records (docs/privacy.md)."""

    kind: Literal["none", "client", "record"] = "none"
    """client: client-level differential privacy, by noise of the server's; record: that of rows, or of persons, by
    noise of each silo's own in every step; none: nothing is promised."""
    clip: Length | MovingClip | None = None
    """C: the largest L2 norm of a client's update, longer ones are made shorter; or `{adaptive: {...}}`. With `kind:
    none` a number, for `secure_sum` or `system.sum_scale: public`."""
    noise_multiplier: Noise | None = None
    """z: the noise on a sum, of updates or of a step's gradients, has the standard deviation z * C per number. Or give
    `epsilon`."""
    epsilon: Positive | None = None
    """In place of `noise_multiplier`: the least one is computed with which all `rounds` together stay within it."""
    noise: Literal["normal", "discrete"] = "normal"
    """How noise is drawn: discrete: exactly, from the discrete normal distribution, some 200 times slower (12 µs per
    number that travels); normal: in float64 and rounded, whose tail ends at 9.49 standard deviations."""
    delta: Share | None = None
    """The probability that is left out of the promise; below 1 / number of clients, or of a silo's units."""
    max_epsilon: Positive | None = None
    """The run ends before the round that would pass it, with exit code 10; a silo of `kind: record` rests from then on,
    by all that was ever released of its rows; null: no limit."""
    noise_at: Literal["local", "shared"] = "local"
    """Where `kind: record` adds noise. local: every step of a silo has noise of its own; shared: a round is one
    gradient, silos add a share of the noise each, and the server sees the sum alone (`secure_sum`)."""
    colluders: Annotated[int, Field(ge=0)] = 1
    """How many silos may tell the server their parts under `noise_at: shared`; the noise of the others is enough. With
    `trust.members` as many may work with the server, and the others still have one past, and one sum of a round."""
    unit: Literal["row"] | Persons = "row"
    """Who is protected by `kind: record`: a row or `{column: patient, max_rows: 8}`, a person with all rows."""
    units: Mapping[str, Count] = field(default_factory=dict)
    """Silo -> how many units it has, declared and public, rounded: rates, steps, denominators and weights follow from
    it. At least half of what is there."""
    per_silo: Mapping[str, SiloPrivacy] = field(default_factory=dict)
    """Silo -> its own epsilon, noise_multiplier, delta or max_epsilon."""
    per_unit: Literal["auto", "loop", "vmap"] = "auto"
    """How the gradients of single units are taken: one after the other, by `torch.func.vmap`, or by that where the
    model can do it."""
    physical: Count = 16
    """How many units' gradients are in memory at once, 4 bytes a trained number each."""
    eval: NoisedScores | None = None
    """Evaluate silos on held-out rows of their own, with noise on every score; null: their rows have no scores."""
    reveal: tuple[Literal["losses", "scores", "sizes"], ...] = ()
    """What is shown although it depends on clients' data and is not counted: losses: the mean training loss of a
    round; scores: clients' scores, and the best round by them; sizes: how many rows were trained on."""
    ledger: str | None = None
    """A file, for its owner alone, in which the releases of all runs on the data are added up; null: beside the
    prepared data, `DATA.privacy.jsonl`. With `kind: record` a folder, in which each silo has its key and its ledger;
    null: `DATA.privacy`."""
    simulate: bool = False
    """For research: noise and cohorts from `seed`, which everybody can compute, so nothing is promised and no epsilon
    is shown."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Of `simulate`."""
    secure_sum: SecureSum | None = None
    """Hide what workers send from the server, but for its sum; with `kind: none` too."""

    def __post_init__(self) -> None:
        if self.kind == "none":
            self._check_none()
            return
        for name in ("clip", "delta"):
            if getattr(self, name) is None:
                raise ConfigError(f"privacy.kind is {self.kind} but privacy.{name} is not given; give it a number")
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise ConfigError(
                f"privacy.kind is {self.kind}, which needs one of privacy.noise_multiplier and privacy.epsilon; "
                + ("give one" if self.epsilon is None else "remove one")
            )
        if self.simulate != (self.seed is not None):
            raise ConfigError("privacy.simulate and privacy.seed go together; give both or neither")
        if self.simulate and self.max_epsilon is not None:
            raise ConfigError("privacy.max_epsilon is set but privacy.simulate is true, where no epsilon is counted")
        if self.simulate and self.ledger is not None:
            raise ConfigError("privacy.ledger is set but privacy.simulate is true, where nothing is counted; remove it")
        for where, limit, epsilon, noise in self._promises():
            self._check_promise(where, limit, epsilon, noise)
        if self.kind == "record":
            self._check_records()
        elif set_ := self._set(OF_RECORDS):
            raise ConfigError(f"privacy.{set_} is set but privacy.kind is client; set privacy.kind to record")

    def _check_none(self) -> None:
        """Where nothing is promised nothing is said about how."""
        names = [known.name for known in fields(self)[1:] if known.name not in ("clip", "secure_sum", "colluders")]
        if found := self._set(names):
            kind = "record" if found in OF_RECORDS else "client"
            raise ConfigError(f"privacy.{found} is set but privacy.kind is none; set privacy.kind to {kind}")
        if self.adaptive is not None:
            raise ConfigError("privacy.clip moves but privacy.kind is none; give it a number")
        if self.secure_sum is not None and self.clip is None:
            raise ConfigError("privacy.secure_sum is set but privacy.clip, which fixes its scale, is not; give it")

    def _set(self, names: Iterable[str]) -> str:
        """First of these keys that is not as it is by default; empty: none."""
        defaults = {known.name: _default(known) for known in fields(self)}
        return next((name for name in names if getattr(self, name) != defaults[name]), "")

    def _promises(self) -> Iterator[tuple[str, float | None, float | None, float | None]]:
        """(where it stands, max_epsilon, epsilon, noise multiplier) of the section and of each silo."""
        yield "privacy", self.max_epsilon, self.epsilon, self.noise_multiplier
        for name in self.per_silo:
            own = self.of_silo(name)
            yield f"privacy.per_silo.{name}", own.max_epsilon, own.epsilon, own.noise_multiplier

    def _check_promise(self, where: str, limit: float | None, epsilon: float | None, noise: float | None) -> None:
        if epsilon is not None and limit is not None and limit < epsilon:
            raise ConfigError(
                f"{where}.max_epsilon is {limit} but {where}.epsilon is {epsilon}, which all rounds together come to; "
                f"set {where}.max_epsilon to at least that"
            )
        if not self.simulate and noise is not None and noise < LEAST_NOISE:
            raise ConfigError(
                f"{where}.noise_multiplier is {noise} but below {LEAST_NOISE} next to nothing is promised; set it "
                "higher, or privacy.simulate to true"
            )

    def _check_records(self) -> None:
        if self.adaptive is not None:
            raise ConfigError("privacy.clip moves but privacy.kind is record, whose clip is one number; give a number")
        if self.secure_sum is not None and self.noise_at == "local":
            raise ConfigError(
                "privacy.secure_sum is set but privacy.kind is record and privacy.noise_at local, where every update "
                "is private alone; remove privacy.secure_sum, or set privacy.noise_at to shared"
            )
        if self.secure_sum is None and self.noise_at == "shared":
            raise ConfigError(
                "privacy.noise_at is shared but privacy.secure_sum is not set, which hides a silo's part of the noise "
                "and its gradient; set it, for example to {threshold: 1.0}"
            )
        if self.noise_at == "local" and self.colluders != 1:
            raise ConfigError("privacy.colluders is set but privacy.noise_at is local, where nobody's word counts")
        if "sizes" in self.reveal or "losses" in self.reveal:
            raise ConfigError(
                f"privacy.reveal is {list(self.reveal)} but privacy.kind is record, of which only `scores` may be "
                "revealed; sizes are declared in privacy.units"
            )
        if self.eval is not None and "scores" in self.reveal:
            raise ConfigError(
                "privacy.eval is set but privacy.reveal has scores, which are then told without noise; remove one"
            )
        if self.eval is not None and (unknown := [name for name in self.eval.units if name not in self.units]):
            raise ConfigError(f"privacy.eval.units names {unknown[0]!r}, which privacy.units does not; add it there")
        if unknown := [name for name in self.per_silo if name not in self.units]:
            raise ConfigError(f"privacy.per_silo names {unknown[0]!r}, which privacy.units does not; add it there")

    def of_silo(self, name: str) -> SiloPrivacy:
        """Promise to one silo's units, with `kind: record`."""
        own = self.per_silo.get(name, SiloPrivacy())
        has_own = own.epsilon is not None or own.noise_multiplier is not None
        return SiloPrivacy(
            own.epsilon if has_own else self.epsilon,
            own.noise_multiplier if has_own else self.noise_multiplier,
            own.delta or self.delta,
            own.max_epsilon or self.max_epsilon,
        )

    @property
    def adaptive(self) -> AdaptiveClip | None:
        """How the clip moves; None: it does not."""
        return self.clip.adaptive if isinstance(self.clip, MovingClip) else None

    @property
    def first_clip(self) -> float:
        """Clip of the first round."""
        return self.clip.adaptive.start if isinstance(self.clip, MovingClip) else (self.clip or 0.0)


def _default(known: Known[object]) -> object:
    return known.default if known.default_factory is MISSING else known.default_factory()
