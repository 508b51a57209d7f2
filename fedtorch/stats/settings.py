"""The `stats` section of a config: what `fedtorch stats` counts. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field

from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import Count, Positive
from fedtorch.privacy.settings import LEAST_NOISE, Noise, Share

BYTES = Annotated[int, Field(ge=1, le=255)]
LISTED = 64
"""Up to so many clients `by_silo: auto` lists each of them."""
PER_UNIT = 8
"""`stats.words.per_unit` by default, with `stats.privacy`."""
CAPPED = ("rows", "labels", "entities", "roles", "characters", "tokens", "turns", "chosen", "rejected")
"""Tables in several of whose cells a unit may be: a person with several rows, a row with several entities."""


@dataclass(frozen=True)
class Found:
    """Names that nobody declared, found byte by byte."""

    longest: BYTES = 24
    """Bytes of the longest name that is found; a round for each, and one more."""
    width: Annotated[int, Field(ge=1, le=1 << 14)] = 256
    """The most beginnings that are followed from one byte to the next."""


@dataclass(frozen=True)
class Words(Found):
    """`stats.words`: words of texts, or several words in a row."""

    n: Annotated[int, Field(ge=1, le=5)] = 1
    """Words in a row that count as one, with a space between."""
    lower: bool = False
    """Count words without regard to capitals."""
    per_unit: Count | None = None
    """So many words of a unit count, each once, drawn by its silo for all rounds; null: with `stats.privacy` 8, without
    it all, as often as they occur."""
    tokenizer: Literal["wordpiece", "bpe"] | None = None
    """Make a tokenizer of the words that are found, RUN/tokenizer, which `task.tokenizer` takes; null: none."""
    pieces: Count | None = None
    """Entries of it at most; null: as many as the words support."""


@dataclass(frozen=True)
class Recur:
    """`stats.recur`: count the rows that two silos both have."""

    key: str
    """A file with a key, for its owner alone, that all silos have and the server has not; see docs/stats.md."""
    rows: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """The most different rows of a silo; each takes 24 bytes of what it sends."""


@dataclass(frozen=True)
class PersonUnit:
    """`stats.privacy.unit` as a mapping: a unit is all rows of a person in a silo."""

    column: str
    """The column that says whose a row is."""


@dataclass(frozen=True)
class StatsPrivacy:
    """`stats.privacy`: what is promised about the numbers that `fedtorch stats` shows."""

    unit: Literal["row", "client"] | PersonUnit = "row"
    """Who is protected, and counted: a row, `{column: patient}`, or a client as a whole."""
    epsilon: Positive | None = None
    """Of all tables together: the least noise is computed with which they stay within it. Or give
    `noise_multiplier`."""
    noise_multiplier: Noise | None = None
    """z: noise on a number has the standard deviation z, times √m where a unit is in up to m cells of its table."""
    delta: Share = 1e-5
    """The probability that is left out of the promise; below 1 / units of a silo."""
    noise_at: Literal["local", "shared"] = "local"
    """Who adds the noise. local: each silo to its own numbers; shared: silos add a share each, and the server sees the
    sum alone (`privacy.secure_sum`)."""
    noise: Literal["normal", "discrete"] = "normal"
    """How noise is drawn, as `privacy.noise`."""
    max_epsilon: Positive | None = None
    """A silo whose ledger would pass it, by all that was ever released of its rows, takes no part; null: no limit."""
    ledger: str | None = None
    """A folder in which each silo has its key and its ledger; null: that of trainings with `privacy.kind: record`,
    `privacy.ledger` or one beside the prepared data."""

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ConfigError(
                "stats.privacy needs one of epsilon and noise_multiplier; "
                + ("give one" if self.epsilon is None else "remove one")
            )
        if self.noise_multiplier is not None and self.noise_multiplier < LEAST_NOISE:
            raise ConfigError(
                f"stats.privacy.noise_multiplier is {self.noise_multiplier} but below {LEAST_NOISE} next to nothing is "
                "promised; set it higher"
            )
        if None not in (self.epsilon, self.max_epsilon) and self.max_epsilon < self.epsilon:  # type: ignore[operator]
            raise ConfigError(
                f"stats.privacy.max_epsilon is {self.max_epsilon} but stats.privacy.epsilon is {self.epsilon}, which "
                "all tables together come to; set stats.privacy.max_epsilon to at least that"
            )


@dataclass(frozen=True)
class StatsConfig:
    """`stats`: what silos count together before anybody trains (docs/stats.md)."""

    tokenizer: str | None = None
    """Folder or name of the tokenizer whose tokens are counted; null: `task.tokenizer`, or that of `task.model.path`;
    where there is none, tokens are not counted."""
    max_lengths: tuple[Count, ...] = ()
    """Further lengths in tokens for which the share of rows is told that would be cut, beside `task.max_length`."""
    labels: Found = Found(longest=32, width=64)
    """How labels are found where `task.data.labels` declares none."""
    words: Words | None = None
    """Find words that many rows have; null: none."""
    by_silo: Literal["auto"] | bool = "auto"
    """Tell each silo's numbers, not their sum alone. auto: where nothing hides them, of at most 64 clients."""
    most_cells: Mapping[str, Count] = field(default_factory=dict)
    """Table -> in how many of its cells a unit counts at most, where `stats.privacy` bounds it; if not named: 1."""
    min_count: Count = 5
    """Without `stats.privacy`: smaller numbers, 0 among them, and those from which they would follow, are not shown,
    and names that are as rare are not found; 1: all are shown."""
    recur: Recur | None = None
    """Count rows that stand with two silos, by digests under a key that the server has not; null: not. Who has the key
    and the digests can try out rows."""
    privacy: StatsPrivacy | None = None
    """Noise on every number; null: none, and the page says who learns what."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.most_cells if name not in CAPPED]:
            raise ConfigError(
                f"stats.most_cells names {unknown[0]!r}; its tables are {', '.join(CAPPED)}, in each of which a unit "
                "may be in several cells"
            )
        if self.recur is not None and self.privacy is not None:
            raise ConfigError(
                "stats.recur is set but stats.privacy is too, with which no exact number of rows may leave; remove one"
            )
        if self.most_cells and self.privacy is None:
            raise ConfigError(
                "stats.most_cells is set but stats.privacy is not, without which units count in all their cells; "
                "remove it"
            )
        if self.words is not None and self.words.per_unit is None and self.privacy is not None:
            object.__setattr__(self, "words", replace(self.words, per_unit=PER_UNIT))

    @property
    def counts_occurrences(self) -> bool:
        """Does every occurrence of a word count?"""
        return self.words is not None and self.words.per_unit is None
