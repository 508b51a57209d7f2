"""Rows that preparing leaves out of a published set: counted in the manifest's record, and printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

OMITTED = "omitted"
"""Where a manifest's record has what was left out, each as a list of a LeftOut's fields."""


class LeftOut(NamedTuple):
    """Something that is in the publisher's files and not, or not on its own, in the prepared folder."""

    where: str
    """client, task or file, perhaps with a split"""
    number: int
    """how many"""
    of: int
    """of how many of the kind"""
    what: str
    """of which kind, and why"""


def lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    """A line for people about every kind of thing that a prepared folder lacks; none if it has everything."""
    record = manifest["record"]
    yield from _dropped(record.get("dropped", {}))
    for where, count, of, what in record.get(OMITTED, ()):
        if count:
            yield f"left out of {where}: {count} of {of} {what}"
    sizes = {name: client["splits"].get("train", {}).get("examples", 0) for name, client in manifest["clients"].items()}
    if empty := [name for name, size in sizes.items() if not size]:
        yield f"nothing to train on: {len(empty)} of {len(sizes)} clients ({', '.join(empty)})"


def _dropped(dropped: Mapping[str, int | Mapping[str, int]]) -> Iterator[str]:
    """Split -> number of rows whose query cannot be labelled (text-to-SQL), or -> reason -> number (dialogs)."""
    plain = [f"{count} {split}" for split, count in dropped.items() if not isinstance(count, Mapping)]
    if plain:
        yield f"left out, since the query cannot be labelled: {', '.join(plain)}"
    for split, reasons in dropped.items():
        if isinstance(reasons, Mapping) and reasons:
            from fedtorch.data.dialogs import DROPPED

            found = [f"{count} {reason} ({DROPPED[reason]})" for reason, count in sorted(reasons.items())]
            yield f"left out of {'all files' if split == 'all' else split}: {', '.join(found)}"
