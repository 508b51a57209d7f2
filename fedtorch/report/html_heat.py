"""A heat map of clients by labels: how many rows of each, and which part of the client's rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape

from fedtorch.report.html_table import framed, note

MOST_LABELS = 40
"""Labels that have a column; the others are counted."""
Counts = Mapping[str, float | None]
"""label -> rows; None: the number is not shown"""


def heat_map(clients: Mapping[str, Counts], shown: Callable[[float | None], str] = str, *, head: str = "client") -> str:
    """A table whose columns sort: clients with most rows first, labels with most rows first.

    A number that is not shown, or below 0 because of noise, has no colour.

    shown: how a number is written. head: heading of the first column.
    """
    labels = [label for label in dict.fromkeys(label for own in clients.values() for label in own)]
    pooled = {label: sum(own.get(label) or 0 for own in clients.values()) for label in labels}
    kept = sorted(labels, key=lambda label: -pooled[label])[:MOST_LABELS]
    sizes = {client: sum(count or 0 for count in own.values()) for client, own in clients.items()}
    body = []
    for client in sorted(clients, key=lambda name: -sizes[name]):
        rows = sizes[client]
        cells = [f'<td data-v="{escape(client)}">{escape(client)}</td><td data-v="{rows}">{escape(shown(rows))}</td>']
        cells += [_cell(client, label, clients[client].get(label, 0), rows, shown) for label in kept]
        body.append(f"<tr>{''.join(cells)}</tr>")
    more = note(f"The {len(kept)} most frequent of {len(labels)} labels.") if len(labels) > len(kept) else ""
    return framed([head, "rows", *kept], "".join(body), "heat") + more


def _cell(client: str, label: str, count: float | None, rows: float, shown: Callable[[float | None], str]) -> str:
    if count is None:
        return f'<td data-v="" title="{escape(f"{client}, {label}: not shown")}">{escape(shown(None))}</td>'
    share = min(1.0, max(0.0, count / rows)) if rows > 0 else 0.0
    told = f"{client}, {label}: {share:.0%} of its rows"
    return (
        f'<td data-v="{count}" style="background:rgba(31,119,180,{share:.2f})" title="{escape(told)}">'
        f"{escape(shown(count))}</td>"
    )
