"""Which rows of a client are for training, for choosing and for the final figures: a draw from a seed and row ids."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedtorch.data.own.keys import OwnData

Classes = Mapping[Any, Sequence[int]]
"""Label -> places of its rows."""


def split_names(
    names: Sequence[str], labels: Sequence[Any], ids: Sequence[str], data: OwnData, there: Collection[str]
) -> list[str]:
    """The split of each row of one client; drawn by (seed, row id), so that rows may be added.

    Nothing but the client's own rows is looked at, so who else has rows, and on which rank, changes nothing.

    Args:
        names: what is said of each row already: train, dev, test, or "".
        labels: of each row: a label, a list of them, or None.
        ids: of each row.
        there: splits that rows of the source are in already; only others are drawn, from rows of none or of train.
    """
    found = [name if name != "train" else "" for name in names]
    free = [i for i, name in enumerate(found) if not name]
    drawn = {i: hashlib.sha256(f"{data.seed}\0{ids[i]}".encode()).digest() for i in free}
    classes: dict[Any, list[int]] = {}
    for i, label in zip(free, classes_of([labels[i] for i in free], data.splits.stratify), strict=True):
        classes.setdefault(label, []).append(i)
    take = _take_of_every_label if data.splits.stratify else _take
    for split, share in (("test", data.splits.test), ("dev", data.splits.dev)):
        if not isinstance(share, str) and data.splits.column is None and share and split not in there:
            for i in take(share, len(free), classes, drawn, found):
                found[i] = split
    return [name or "train" for name in found]


def classes_of(labels: Sequence[Any], of_every_label: bool) -> list[Any]:
    """Class of each row of a client: its label, or all its labels together.

    of_every_label: of several labels the one that the fewest of these rows have, so that it is not lost among others.
    """
    if not of_every_label:
        return [json.dumps(label) if isinstance(label, list) else label for label in labels]
    counts = Counter(one for label in labels for one in (label if isinstance(label, list) else [label]))
    return [
        min(label, key=lambda one: (counts[one], one), default=None) if isinstance(label, list) else label
        for label in labels
    ]


def _take(share: float, rows: int, classes: Classes, drawn: Mapping[int, bytes], names: Sequence[str]) -> list[int]:
    """A share of the rows, of every class alike as far as whole rows allow."""
    wanted = int(share * rows + 0.5)
    free = _free(classes, drawn, names)
    exact = {label: share * len(own) for label, own in classes.items()}
    takes = {label: min(int(value), len(free[label])) for label, value in exact.items()}
    able = [label for label in classes if len(free[label]) > takes[label]]  # another split may have taken all
    by_rest = sorted(able, key=lambda label: (takes[label] - exact[label], drawn[free[label][0]]))
    for label in by_rest[: wanted - sum(takes.values())]:
        takes[label] += 1
    return [i for label, count in takes.items() for i in free[label][:count]]


def _take_of_every_label(
    share: float, rows: int, classes: Classes, drawn: Mapping[int, bytes], names: Sequence[str]
) -> list[int]:
    """Take the same share, with a row of every label that can give one: each label's last row stays in train.

    1. Every such label gives a row. Where the split has fewer places than that, rows are drawn one after the other,
       and each label's first counts: so small clients do not all choose the same frequent labels.
    2. Each further place goes to the label that is furthest below its share (largest remainder).
    3. Where labels cannot give enough, because they have a row each, the rest is drawn from all rows.
    """
    wanted = int(share * rows + 0.5)
    free = _free(classes, drawn, names)
    able = {label: len(own) - 1 for label, own in free.items() if len(own) > 1}
    first = sorted(able, key=lambda label: drawn[free[label][0]])[:wanted]
    takes = dict.fromkeys(first, 1)
    if len(takes) == len(able):
        below = [(1 - share * len(classes[label]), drawn[free[label][0]], label) for label in first if able[label] > 1]
        heapq.heapify(below)
        for _ in range(wanted - len(takes)):
            if not below:
                break
            above, draw, label = heapq.heappop(below)
            takes[label] += 1
            if takes[label] < able[label]:
                heapq.heappush(below, (above + 1, draw, label))
    taken = [i for label, count in takes.items() for i in free[label][:count]]
    left = {i for own in free.values() for i in own}.difference(taken)
    return [*taken, *sorted(left, key=drawn.__getitem__)[: max(0, wanted - len(taken))]]


def _free(classes: Classes, drawn: Mapping[int, bytes], names: Sequence[str]) -> dict[Any, list[int]]:
    """Label -> its rows that are in no split yet, in the order in which they are drawn."""
    return {label: sorted((i for i in rows if not names[i]), key=drawn.__getitem__) for label, rows in classes.items()}
