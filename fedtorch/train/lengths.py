"""Batches by the examples' lengths: those of like length together, and as many as a budget of tokens holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Lengths = tuple[int, ...]
"""Tokens of one example in each of the rows that a batch pads for themselves: (text,), or (source, target)."""

STRETCH = 50
"""Steps of an epoch's order that are sorted together; what Hugging Face's trainers have."""


def grouped(order: Sequence[int], lengths: Sequence[Lengths], size: int) -> list[int]:
    """An epoch's order with examples of like length side by side, as Hugging Face's trainers have it.

    The order is cut into stretches of `STRETCH` times `size` examples (fewer where there are less than four such
    stretches), each sorted by falling length, ties in the given order. The longest example of all comes first, so that
    what does not fit into memory shows at once.
    """
    sums = [sum(each) for each in lengths]
    stretch = max(1, min(len(order) // (size * 4), STRETCH)) * size
    parts = [
        sorted(order[start : start + stretch], key=sums.__getitem__, reverse=True)
        for start in range(0, len(order), stretch)
    ]
    longest = max(range(len(parts)), key=lambda place: sums[parts[place][0]], default=0)
    if longest:
        parts[0][0], parts[longest][0] = parts[longest][0], parts[0][0]
    return [example for part in parts for example in part]


def filled(order: Iterable[int], lengths: Sequence[Lengths], budget: int) -> list[tuple[int, ...]]:
    """The order cut into batches of at most `budget` tokens, padding counted; an example above it is one alone."""
    batches: list[tuple[int, ...]] = []
    batch: list[int] = []
    longest: Lengths = ()
    for example in order:
        grown = tuple(map(max, longest, lengths[example])) if batch else lengths[example]
        if batch and sum(grown) * (len(batch) + 1) > budget:
            batches.append(tuple(batch))
            batch, grown = [], lengths[example]
        batch.append(example)
        longest = grown
    return [*batches, tuple(batch)] if batch else batches


def padded(batch: Sequence[int], lengths: Sequence[Lengths]) -> int:
    """Tokens of a batch with its padding."""
    return len(batch) * sum(max(each) for each in zip(*(lengths[example] for example in batch), strict=True))


def usual_size(lengths: Sequence[Lengths], budget: int) -> int:
    """Examples of a batch within `budget` if all were of mean length; at least 1."""
    return max(1, budget * len(lengths) // max(1, sum(map(sum, lengths))))
