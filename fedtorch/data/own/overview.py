"""Overview of clients' rows before training: sizes, labels, lengths, rows that stand where they should not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtorch.data.paths import folder_name

NAMED = 20
"""So many leaks and problems are named; more are counted."""
LABELS_NAMED = 5
"""So many labels are named that a split lacks."""


@dataclass
class ClientRows:
    """One client's rows in figures."""

    rows: dict[str, int] = field(default_factory=dict)
    """split -> rows"""
    labels: Counter[str] = field(default_factory=Counter)
    """label -> rows of train"""
    evaluated: dict[str, Counter[str]] = field(default_factory=dict)
    """dev, test -> label -> rows; a shared split's stand with the first client"""
    tokens: list[int] = field(default_factory=list)
    """of each row of all splits that are the client's own, before anything is cut"""
    cut: int = 0
    """of these rows, those longer than `task.max_length`"""
    unsupervised: int = 0
    """rows of train from which nothing is learnt"""
    inside: int = 0
    """rows that the client has more than once, counted from the second time"""
    across: int = 0
    """rows that another client has too"""
    leaks: int = 0
    """rows of dev and test that are in some client's train"""
    divergence: float | None = None
    """Jensen–Shannon divergence of the labels to those of all clients, in bits; None without labels"""

    def quantile(self, share: float) -> int:
        """The tokens that so many of the rows do not exceed; 0 of no rows."""
        return sorted(self.tokens)[min(len(self.tokens) - 1, int(share * len(self.tokens)))] if self.tokens else 0


@dataclass
class Overview:
    """All clients, and what is wrong with them."""

    name: str
    """`task.name`"""
    clients: dict[str, ClientRows]
    """client -> its rows, in the manifest's order"""
    shared: Mapping[str, Collection[str]] = field(default_factory=dict)
    """split -> clients that have the same rows in it, because it is a file for all"""
    left_out: int = 0
    """rows that could not be used"""
    leaks: list[str] = field(default_factory=list)
    """the first ones: file and line of both rows"""
    problems: list[str] = field(default_factory=list)
    """why training would refuse"""

    def total(self) -> ClientRows:
        """All clients together; splits that are shared count once."""
        found = ClientRows()
        counted = set[str]()
        for name, client in self.clients.items():
            for split, count in client.rows.items():
                is_shared = name in self.shared.get(split, ())
                found.rows[split] = found.rows.get(split, 0) + (0 if is_shared and split in counted else count)
                counted |= {split} if is_shared else set()
            found.labels.update(client.labels)
            for split, labels in client.evaluated.items():
                found.evaluated.setdefault(split, Counter()).update(labels)
            found.tokens += client.tokens
            for key in ("cut", "unsupervised", "inside", "across", "leaks"):
                setattr(found, key, getattr(found, key) + getattr(client, key))
        return found

    def remarks(self) -> list[str]:
        """Remarks on what may spoil a run without stopping it."""
        total, lines = self.total(), []
        if self.left_out:
            lines.append(f"{self.left_out} rows could not be used and are left out (task.data.skip_bad_rows)")
        if empty := [name for name, client in self.clients.items() if not client.rows.get("train")]:
            lines.append(f"{len(empty)} clients have nothing to train on: {', '.join(empty[:10])}")
        for split in ("dev", "test"):
            lines += self._about(split, total)
        if total.leaks:
            lines.append(f"{total.leaks} rows of dev and test are in some client's train: their scores are too good")
        if total.across:
            lines.append(f"{total.across} rows stand with several clients")
        if total.cut:
            share = total.cut / len(total.tokens)
            lines.append(f"{share:.1%} of the rows are longer than task.max_length and are cut")
        if total.unsupervised:
            lines.append(f"{total.unsupervised} rows of train have nothing to learn from")
        return lines

    def _about(self, split: str, total: ClientRows) -> Iterator[str]:
        """Who has no rows of a split that others have, and which labels it lacks."""
        if not total.rows.get(split):
            return
        if without := [name for name, client in self.clients.items() if not client.rows.get(split)]:
            yield f"{_number(without, 'client')} no rows of {split} and no score there: {', '.join(without[:10])}"
        trained, found = +total.labels, +total.evaluated.get(split, Counter[str]())
        if not (trained and found):
            return
        if missing := sorted(set(trained) - set(found)):
            yield f"{_number(missing, 'label')} no rows in {split}: {_labels(missing, trained, 'train')}"
        if missing := sorted(set(found) - set(trained)):
            yield f"{_number(missing, 'label')} no rows in train: {_labels(missing, found, split)}"


def _number(found: Sequence[str], what: str) -> str:
    return f"1 {what} has" if len(found) == 1 else f"{len(found)} {what}s have"


def _labels(names: Sequence[str], counts: Mapping[str, int], where: str) -> str:
    """The most frequent ones first, with their rows elsewhere."""
    ordered = sorted(names, key=lambda name: -counts[name])[:LABELS_NAMED]
    more = ", ..." if len(names) > LABELS_NAMED else ""
    return ", ".join(f"{name[:20]} ({counts[name]} of {where})" for name in ordered) + more


def split_digests(digests: Mapping[tuple[str, str], Sequence[bytes]], overview: Overview, folder: Path) -> None:
    """Count rows that stand twice, with several clients, or both in a train and in a split of evaluation.

    digests: (client, split) -> `content_digest` of every row, in the order of its file; a shared split stands there
    once, under the first client.
    """
    owners: dict[bytes, str | None] = {}  # None: several
    trained: set[bytes] = set()
    for (client, split), found in digests.items():
        for digest in found:
            if owners.setdefault(digest, client) != client:
                owners[digest] = None
        if split == "train":
            trained.update(found)
    seen: dict[str, set[bytes]] = {}
    for (client, split), found in digests.items():
        facts = overview.clients[client]
        if client not in overview.shared.get(split, ()):
            own = seen.setdefault(client, set())
            facts.inside += len(found) - len(set(found)) + len(own.intersection(found))
            own.update(found)
            facts.across += sum(owners[digest] is None for digest in found)
        if split != "train":
            facts.leaks += sum(digest in trained for digest in found)
    overview.leaks = list(_named(digests, trained, folder))


def _named(digests: Mapping[tuple[str, str], Sequence[bytes]], trained: set[bytes], folder: Path) -> Iterator[str]:
    """The first leaks as two places each: file and line."""
    found = [
        (digest, client, split, line)
        for (client, split), rows in digests.items() if split != "train"
        for line, digest in enumerate(rows, start=1) if digest in trained
    ][:NAMED]  # fmt: skip
    wanted = {digest for digest, *_ in found}
    places: dict[bytes, str] = {}
    for (client, split), rows in digests.items():
        if split == "train" and not wanted.isdisjoint(rows):
            for line, digest in enumerate(rows, start=1):
                if digest in wanted:
                    places.setdefault(digest, _place(folder, client, split, line))
    for digest, client, split, line in found:
        yield f"{_place(folder, client, split, line)} is {places[digest]}"


def _place(folder: Path, client: str, split: str, line: int) -> str:
    return f"{folder / folder_name(client) / split}.jsonl:{line}"


def set_divergences(overview: Overview) -> None:
    """Set the divergence of every client with labels."""
    counts = {name: dict[int | str, int](client.labels.items()) for name, client in overview.clients.items()}
    found = label_divergence(counts)
    for name, value in found.items():
        overview.clients[name].divergence = value


def label_divergence(counts: Mapping[str, Mapping[Any, int]]) -> dict[str, float]:
    """Jensen–Shannon divergence of each client's label distribution to the pooled one, in bits.

    JS(p, q) = ½ KL(p ‖ m) + ½ KL(q ‖ m), m = ½ (p + q), with logarithms to base 2: 0 where a client's labels are
    distributed as all are, at most 1. It is the divergence, not its square root, the distance.

    counts: client -> label -> rows. A client without rows has no distribution and is left out of the result.
    """
    pooled: Counter[Any] = Counter()
    for own in counts.values():
        pooled.update(own)
    total = sum(pooled.values())
    result = {}
    for client, own in counts.items():
        if size := sum(own.values()):
            shares = [(own.get(label, 0) / size, rows / total) for label, rows in pooled.items() if rows]
            result[client] = max(0.0, 0.5 * math.fsum(_part(p, q) + _part(q, p) for p, q in shares))
    return result


def _part(share: float, other: float) -> float:
    return share * math.log2(2 * share / (share + other)) if share else 0.0
