"""Tables of clients whose rows all lie in one place, as `fedtorch data check` has looked at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fedtorch.data.own.overview import ClientRows, Overview
from fedtorch.stats.counting import bin_of
from fedtorch.stats.questions import bins, shown_bins
from fedtorch.stats.table import Stats, Table


def stats_of(overview: Overview, max_length: int, tokenizer: str) -> Stats:
    """Exact numbers of rows, labels of train, and tokens, all shown. tokenizer: its name, for people."""
    total, clients = overview.total(), overview.clients
    splits = tuple(total.rows)
    edges = bins(max(total.tokens, default=1) + 1, [max_length])
    labels = tuple(label for label, count in total.labels.most_common() if count)
    is_one = total.labels.total() == total.rows.get("train", 0)
    counts = {name: [own.rows.get(split, 0) for split in splits] for name, own in clients.items()}
    tables = [
        _table("rows", "rows", splits, counts, pooled=[total.rows[split] for split in splits]),
        _table("twice", "rows that stand twice", ("twice",), {name: [own.inside] for name, own in clients.items()}),
    ]
    counts = {name: [own.labels[label] for label in labels] for name, own in clients.items()}
    tables.append(_table("labels", "labels of train", labels, counts, parts=is_one))
    counts = {name: _binned(own, edges) for name, own in clients.items()}
    tables.append(_table("tokens", f"tokens, by {tokenizer}", shown_bins(edges), counts, edges=edges, parts=True))
    kept = tuple(table for table in tables if table.cells)
    return Stats("row", tuple(clients), kept, None, tokenizer, max_length, task=overview.name)


def _binned(rows: ClientRows, edges: Sequence[float]) -> list[int]:
    counts = Counter(bin_of(edges, tokens) for tokens in rows.tokens)
    return [counts[place] for place in range(len(edges) - 1)]


def _table(
    name: str,
    title: str,
    cells: tuple[str, ...],
    clients: Mapping[str, Sequence[int]],
    *,
    pooled: Sequence[int] | None = None,
    edges: tuple[float, ...] = (),
    parts: bool = False,
) -> Table:
    """pooled: None is the sum over clients."""
    whole = [sum(column) for column in zip(*clients.values(), strict=True)] if pooled is None else pooled
    silos = {client: tuple(map(float, numbers)) for client, numbers in clients.items()}
    kind = "bins" if edges else "names"
    return Table(name, title, kind, cells, edges, 1, parts, tuple(map(float, whole)), 0.0, silos)
