"""Remarks on silos whose data look broken, and on labels that may mean the same; nothing is corrected by itself."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from fedtorch.core.shown import shortened
from fedtorch.stats.bins import SIGMAS, Bins, in_words
from fedtorch.stats.shown import label_table, number
from fedtorch.stats.table import Stats

TWICE = 0.5
"""Share of a silo's rows from which on rows that stand twice are told."""
FAR_OFF = 8.0
"""How many times a median length must be above, or below, those of all other silos."""


def remarks(stats: Stats) -> list[str]:
    """A sentence for each thing that looks wrong, the silo's name first; none rests on what noise could have made."""
    return [
        *_without_rows(stats),
        *_one_label(stats),
        *_twice(stats),
        *_lengths(stats),
        *_own_labels(stats),
        *_labels_alike(stats),
    ]


def surely(count: float | None, deviation: float) -> bool:
    """Is a number shown, and more than noise could have made of nothing: 3 standard deviations?"""
    return count is not None and count > SIGMAS * deviation


def alike(name: str) -> str:
    """A name without what people write differently: case, spaces, forms of the same letter in Unicode."""
    return "".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).split())


def _without_rows(stats: Stats) -> Iterator[str]:
    table = stats.table("rows")
    place = table.cells.index("train") if table is not None and "train" in table.cells else None
    if table is None or place is None:
        return
    for silo, numbers in table.silos.items():
        count = numbers[place]
        if count is not None and not surely(count, table.silo_deviation):
            shown, _ = number(count, table.silo_deviation, None)
            more = (
                f"no more rows of train than noise could make ({shown})" if table.silo_deviation else "no rows of train"
            )
            yield f"{silo}: has {more}"


def _one_label(stats: Stats) -> Iterator[str]:
    table = label_table(stats)
    if table is None or table.name == "entities":  # a row may have none
        return
    found = {
        silo: [name for name, count in zip(table.cells, numbers, strict=True) if surely(count, table.silo_deviation)]
        for silo, numbers in table.silos.items()
    }
    several = [silo for silo, names in found.items() if len(names) > 1]
    for silo, names in found.items():
        if len(names) == 1 and several and None not in table.silos[silo]:
            noise = ", as far as noise shows," if table.silo_deviation else ""
            yield f"{silo}: all its rows{noise} have the label {shortened(names[0])}; others have several"


def _twice(stats: Stats) -> Iterator[str]:
    table, rows = stats.table("twice"), stats.table("rows")
    if table is None or rows is None:
        return
    for silo, numbers in table.silos.items():
        count, total = numbers[0], sum(each or 0.0 for each in rows.silos.get(silo, ()))
        if count is not None and surely(count, table.silo_deviation) and total > 0 and count >= TWICE * total:
            yield f"{silo}: {number(count, table.silo_deviation, None)[0]} of its {round(total)} rows stand twice"


def _lengths(stats: Stats) -> Iterator[str]:
    table = stats.table("characters") or stats.table("tokens")
    if table is None:
        return
    medians = {silo: bounds for silo in table.silos if (bounds := Bins.of(stats, table, silo).quantile(0.5))}
    for silo, (low, high) in medians.items():
        others = [bounds for other, bounds in medians.items() if other != silo]
        if not others:
            continue
        lows, highs = zip(*others, strict=True)
        if low > FAR_OFF * max(highs) or high * FAR_OFF < min(lows):
            whole = in_words((min(lows), max(highs)))
            yield (
                f"{silo}: the median of its {table.name} is {in_words((low, high))}, those of the others are within "
                f"{whole}"
            )


def _own_labels(stats: Stats) -> Iterator[str]:
    table = label_table(stats)
    if table is None or len(table.silos) < 2:
        return
    for place, name in enumerate(table.cells):
        owners = [silo for silo, each in table.silos.items() if surely(each[place], table.silo_deviation)]
        if len(owners) == 1 and all(each[place] is not None for each in table.silos.values()):
            noise = ", as far as noise shows" if table.silo_deviation else ""
            yield f"{owners[0]}: it alone has the label {shortened(name)}{noise}"


def _labels_alike(stats: Stats) -> Iterator[str]:
    table = label_table(stats)
    if table is None:
        return
    groups: dict[str, list[str]] = {}
    for name in table.cells:
        groups.setdefault(alike(name), []).append(name)
    for names in groups.values():
        if len(names) > 1:
            named = ", ".join(map(shortened, names))
            yield (
                f"labels {named} differ in case, spaces or the form of letters alone; if they mean the same, write "
                "them alike in all rows. They are not merged"
            )
