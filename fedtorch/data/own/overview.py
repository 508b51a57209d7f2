"""Overview of clients' rows before training: sizes, labels, lengths, rows that stand where they should not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedtorch.data.own.divergence import label_divergence
from fedtorch.data.paths import folder_name

NAMED = 20
"""So many leaks and problems are named; more are counted."""


@dataclass
class ClientRows:
    """One client's rows in figures."""

    rows: dict[str, int] = field(default_factory=dict)
    """split -> rows"""
    labels: Counter[str] = field(default_factory=Counter)
    """label -> rows of train"""
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
    shared: tuple[str, ...] = ()
    """splits that all clients have alike, because they are files of their own"""
    left_out: int = 0
    """rows that could not be used"""
    leaks: list[str] = field(default_factory=list)
    """the first ones: file and line of both rows"""
    problems: list[str] = field(default_factory=list)
    """why training would refuse"""

    def total(self) -> ClientRows:
        """All clients together; splits that are shared count once."""
        found = ClientRows()
        for client in self.clients.values():
            for split, count in client.rows.items():
                found.rows[split] = count if split in self.shared else found.rows.get(split, 0) + count
            found.labels.update(client.labels)
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
        if split not in overview.shared:
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
