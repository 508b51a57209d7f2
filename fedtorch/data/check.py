"""Checks of prepared text-to-SQL data before any training: does every gold query survive the tokenizer?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from fedtorch.core.extras import require
from fedtorch.data.text2sql import target_text
from fedtorch.metrics.exact_match import exact_match
from fedtorch.text.sentencepiece import decode

REASONS = {
    "target": "the training target itself is no exact match of the gold query",
    "truncated": "longer than the limit",
    "unknown": "characters that the vocabulary lacks",
    "spaces": "comes back with other spaces",
    "other": "comes back changed",
}
_BATCH = 256


@dataclass
class RoundTrip:
    """How many gold queries survive encoding and decoding, and why the others do not."""

    total: int = 0
    """gold queries that were looked at"""
    matched: int = 0
    """of them, those that come back as an exact match"""
    longest: int = 0
    """tokens of the longest target, end token included"""
    misses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    """reason of `REASONS` -> how many"""
    first: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, -1))
    """reason -> index of the first query missed for it, -1 for none"""

    @property
    def percent(self) -> float:
        """Share of survivors in percent: the ceiling of exact match on these queries. 100 if there are none."""
        return 100.0 * self.matched / self.total if self.total else 100.0

    def as_record(self) -> dict[str, object]:
        """Plain values for a manifest; only the reasons that occur."""
        misses = {reason: count for reason, count in self.misses.items() if count}
        return {"total": self.total, "matched": self.matched, "longest": self.longest, "misses": misses}


def round_trip(tokenizer: PreTrainedTokenizerBase, golds: Sequence[str], *, max_length: int) -> RoundTrip:
    """Encodes and decodes the training target of each gold query and compares with the gold query itself.

    Every miss is an answer no model can give, so a ceiling on every result. A miss has one reason, the first that
    applies in the order of `REASONS`.

    Args:
        golds: raw SQL of the data set.
        max_length: tokens of a target, end token included; longer ones are cut as in training.
    """
    result = RoundTrip(total=len(golds))
    for start in range(0, len(golds), _BATCH):
        targets = [target_text(gold) for gold in golds[start : start + _BATCH]]
        for offset, (target, ids) in enumerate(zip(targets, tokenizer(targets).input_ids, strict=True)):
            gold = golds[start + offset]
            result.longest = max(result.longest, len(ids))
            back = decode(tokenizer, ids[:max_length])
            if exact_match(back, gold):
                result.matched += 1
                continue
            if not exact_match(target, gold):
                reason = "target"
            elif len(ids) > max_length:
                reason = "truncated"
            elif tokenizer.unk_token_id in ids:
                reason = "unknown"
            else:
                reason = "spaces" if "".join(back.split()) == "".join(target.split()) else "other"
            result.misses[reason] += 1
            if result.first[reason] < 0:
                result.first[reason] = start + offset
    return result


def count_parsed(golds: Iterable[str], *, dialect: str = "mysql") -> tuple[int, int]:
    """How many of the *different* queries sqlglot can parse, and how many there are; about 2 ms each.

    A diagnosis of the data only: exact match compares strings.

    Raises:
        ConfigError: sqlglot is not installed.
    """
    require("parsing SQL", "sqlglot", extra="lorar")
    import sqlglot

    queries = set(golds)
    parsed = 0
    for query in queries:
        try:
            parsed += sqlglot.parse_one(query, dialect=dialect) is not None
        except sqlglot.errors.SqlglotError:
            pass
    return parsed, len(queries)
