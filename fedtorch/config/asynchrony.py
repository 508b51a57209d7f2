"""The `async` section of a config: rounds in which nobody waits for the slowest client. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from fedtorch.core.choices import Named
from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import Count, NotNegative, Positive, Whole

_LONGEST_S = 1e9  # seconds of one training: whole microseconds of all of a run are exact far beyond
Seconds = Annotated[float, Field(ge=0, le=_LONGEST_S)]


@dataclass(frozen=True)
class StalenessConfig:
    """`async.staleness`: what an update counts that was made τ versions ago, as a factor s(τ) of its weight."""

    kind: Literal["constant", "polynomial", "hinge", "threshold"] = "constant"
    """constant: 1; polynomial: (1 + τ)^-a (FedBuff, FedAsync); hinge: 1 up to τ = b, then 1 / (a (τ - b) + 1)
    (FedAsync); threshold: 1 up to τ = b, then `after` (FLSim)."""
    a: NotNegative | None = None
    """Exponent of polynomial, slope of hinge; null: 0.5 and 10."""
    b: Whole | None = None
    """Largest τ that counts whole, of hinge and threshold; null: 4."""
    after: Annotated[float, Field(ge=0, le=1)] | None = None
    """Factor of older updates, of threshold; null: 0, which makes them arrivals of weight 0."""

    def __post_init__(self) -> None:
        used = {"polynomial": ("a",), "hinge": ("a", "b"), "threshold": ("b", "after")}.get(self.kind, ())
        for key in ("a", "b", "after"):
            if getattr(self, key) is not None and key not in used:
                raise ConfigError(
                    f"async.staleness.{key} is {getattr(self, key)} but async.staleness.kind is {self.kind}, which "
                    f"does not use it; remove async.staleness.{key}"
                )

    def factor(self, staleness: int) -> float:
        """s(τ) in [0, 1]. With a = ½ it is 1/√(1+τ), whose bits are the same on every machine."""
        if self.kind == "polynomial":
            a = 0.5 if self.a is None else self.a
            return 1.0 / math.sqrt(1 + staleness) if a == 0.5 else float((1.0 + staleness) ** -a)
        limit = 4 if self.b is None else self.b
        if self.kind == "constant" or staleness <= limit:
            return 1.0
        if self.kind == "threshold":
            return 0.0 if self.after is None else self.after
        return 1.0 / ((10.0 if self.a is None else self.a) * (staleness - limit) + 1.0)


@dataclass(frozen=True)
class DurationConfig:
    """`async.clock.duration`: how long a client's training takes by the virtual clock, in whole microseconds."""

    kind: Literal["half_normal", "log_normal", "table", "rows"] = "half_normal"
    """half_normal: min + |N(0, sd)| (FLSim); log_normal: min + median · exp(N(0, sd)); table: `seconds` of each client;
    rows: `per_row` for each row that the client trains on."""
    sd: Positive | None = None
    """Deviation of half_normal in seconds, that of log_normal of the logarithm; null: 1."""
    min: Seconds | None = None
    """Seconds that every training takes at least, of half_normal and log_normal; null: 0.01."""
    median: Annotated[float, Field(gt=0, le=_LONGEST_S)] | None = None
    """Median of log_normal, beyond `min`, in seconds; null: 1."""
    seconds: dict[str, Annotated[float, Field(gt=0, le=_LONGEST_S)]] = field(default_factory=dict)
    """Table of durations: client -> seconds."""
    per_row: Annotated[float, Field(gt=0, le=_LONGEST_S)] | None = None
    """Seconds for a row, of rows: times the client's rows and epochs, or the rows of `client.steps`; null: 0.001."""
    per: Literal["visit", "client"] = "visit"
    """How often half_normal and log_normal draw. visit: anew for every training; client: once for each client."""

    def __post_init__(self) -> None:
        used = {
            "half_normal": ("sd", "min", "per"),
            "log_normal": ("sd", "min", "median", "per"),
            "table": ("seconds",),
            "rows": ("per_row",),
        }[self.kind]
        for key, unset in (("sd", None), ("min", None), ("median", None), ("seconds", {}), ("per_row", None)):
            if getattr(self, key) != unset and key not in used:
                raise ConfigError(
                    f"async.clock.duration.{key} is set but async.clock.duration.kind is {self.kind}, which does not "
                    f"use it; remove async.clock.duration.{key}"
                )
        if self.per == "client" and "per" not in used:
            raise ConfigError(
                f"async.clock.duration.per is client but async.clock.duration.kind is {self.kind}, which draws "
                "nothing; remove async.clock.duration.per"
            )
        if self.kind == "table" and not self.seconds:
            raise ConfigError(
                "async.clock.duration.kind is table but async.clock.duration.seconds is empty; give the seconds of "
                "each client"
            )


@dataclass(frozen=True)
class ClockConfig:
    """`async.clock`: what decides who is done first."""

    kind: Literal["virtual", "real"] = "virtual"
    """virtual: durations that are drawn before anything is trained, so that who trains when is known then; real: who is
    done first, which RUN/arrivals.jsonl then has."""
    duration: Annotated[DurationConfig, Named("half_normal", keys=("kind",))] = DurationConfig()
    """Duration of one client's training, by the virtual clock."""

    def __post_init__(self) -> None:
        if self.kind == "real" and self.duration != DurationConfig():
            raise ConfigError(
                "async.clock.duration is set but async.clock.kind is real, where trainings take as long as they take; "
                "remove async.clock.duration"
            )


@dataclass(frozen=True)
class AsyncConfig:
    """`async`: clients start and arrive at any time; every `buffer` arrivals make a new version of the weights."""

    buffer: Count
    """Arrivals that fill the buffer, after which the server takes its step (K of FedBuff); `rounds` counts steps."""
    concurrent: Count
    """Clients that train at a time (M)."""
    staleness: Annotated[StalenessConfig, Named("constant", keys=("kind",))] = StalenessConfig()
    """Factor of an update that starts from an older version."""
    normalise: Literal["count", "weights"] = "count"
    """What the sum of a buffer is divided by. count: the clients' own weights, so that stale buffers take smaller steps
    (FedBuff); weights: these times what staleness leaves of them (FLSim)."""
    towards: Literal["update", "model"] = "update"
    """update: the server steps along what the client has changed (FedBuff); model: from its present weights towards
    the client's (FedAsync), with `buffer: 1`."""
    max_staleness: Whole | None = None
    """An update from more versions ago is dropped: it takes no place in a buffer, and its client's state stays as it
    was; null: no limit."""
    starts: Literal["uniform", "longest"] = "uniform"
    """Which idle client starts. uniform: drawn from the seed; longest: who has not started for longest, then the first
    by name."""
    waits: bool = False
    """true: nobody starts before the step, so that rounds are synchronous and take as long as their slowest client, by
    the same clock; with `buffer` as large as `concurrent`."""
    clock: Annotated[ClockConfig, Named("virtual", keys=("kind",))] = ClockConfig()
    """When clients are done."""
    replay: str | None = None
    """A run's folder or its arrivals.jsonl, of a run by the real clock: clients arrive as they did there, whatever the
    clocks say, so that the result has the same bits."""

    def __post_init__(self) -> None:
        if self.buffer > self.concurrent:
            raise ConfigError(
                f"async.buffer is {self.buffer} but async.concurrent is {self.concurrent}, so that a client would have "
                f"to arrive twice before anybody may step; set async.buffer to at most {self.concurrent}"
            )
        if self.waits and self.buffer != self.concurrent:
            raise ConfigError(
                f"async.waits is true but async.buffer is {self.buffer} and async.concurrent {self.concurrent}, so "
                f"that no step would come; set async.buffer to {self.concurrent}"
            )
        if self.waits and (self.clock.kind == "real" or self.replay is not None):
            raise ConfigError(
                "async.waits is true but async.clock.kind is real or async.replay is set; remove async.waits"
            )
        if self.towards == "model" and self.buffer != 1:
            raise ConfigError(
                f"async.towards is model but async.buffer is {self.buffer}, and a step towards the model of one client "
                "has one client in it; set async.buffer to 1 or async.towards to update"
            )
