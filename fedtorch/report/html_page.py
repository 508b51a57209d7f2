"""One page about runs that needs nothing else: tables that sort, curves, bars, partitions, what sets the runs apart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean, stdev
from typing import Any

from fedtorch.report.groups import Group, charts, differences
from fedtorch.report.html_style import SORT, STYLE
from fedtorch.report.svg import bar_chart, line_chart
from fedtorch.tracking.privacy_statement import promise
from fedtorch.tracking.records import RECEIVED

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""What a browser may load: nothing but what stands in the page, whatever else should be in it."""
MOST_CHARTS, MOST_BARS, MOST_LABELS, MOST_PARTITIONS = 40, 60, 40, 6

Cell = tuple[str, str | float | None]
"""What is shown, and what a column is sorted by."""


def html_page(title: str, groups: Sequence[Group], metric: str, left_out: Sequence[str] = ()) -> str:
    """The page. metric: of the tables and bars. left_out: a line for each thing that is no run."""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{sum(len(group.runs) for group in groups)} runs; those that differ in nothing but the seed are one row, "
        "mean ± standard deviation over seeds. A click on a heading sorts.</p>",
        _section("Runs", _runs(groups, metric)),
        _section("Privacy", _privacy(groups)),
        _section("What sets them apart", _apart(groups)),
        _section("Curves", _curves(groups)),
        _section(f"{metric} of each client", _clients(groups, metric)),
        _section("Rows of train, clients by labels", _partitions(groups)),
        _section("Left out", "".join(f"<p class='note'>{escape(line)}</p>" for line in left_out)),
        f"<script>{SORT}</script></body></html>\n",
    ]
    return "".join(parts)


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], *, texts: bool = False, kind: str = "") -> str:
    """A table whose columns sort. texts: the cells are values of a config. kind: its class."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = []
    for row in rows:
        cells = []
        for place, (shown, value) in enumerate(row):
            looks = " class='text'" if texts and place else ""
            cells.append(f'<td data-v="{escape("" if value is None else str(value))}"{looks}>{escape(shown)}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    return _framed(head, "".join(body), kind)


def _framed(head: str, body: str, kind: str) -> str:
    start = f"<div class='wide'><table class='{kind}'><thead><tr>{head}</tr></thead>"
    return f"{start}<tbody>{body}</tbody></table></div>"


def _section(heading: str, body: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{body}</section>" if body else ""


def _privacy(groups: Sequence[Group]) -> str:
    """A line for each run that promised something."""
    runs = [run for group in groups for run in group.runs if run.privacy]
    return "".join(f"<p>{escape(run.name)}: {escape(promise(run.privacy))}</p>" for run in runs)


def _runs(groups: Sequence[Group], metric: str) -> str:
    heads = [
        "run",
        "seeds",
        "rounds",
        f"{metric} micro",
        f"{metric} macro",
        "rows",
        "of",
        "loss",
        "MB up",
        "MB down",
        "s",
    ]
    return table(heads, [_run_cells(group, metric) for group in groups])


def _run_cells(group: Group, metric: str) -> list[Cell]:
    found = group.evaluations(metric)
    averages = [evaluation.average(metric) for evaluation in found]
    rounds = sorted({run.last_round for run in group.runs})
    done = all(run.is_finished for run in group.runs)
    shown = "/".join(map(str, rounds)) + ("" if done else f" of {group.runs[0].rounds}, not finished")
    ends = [record for run in group.runs for record in run.of_kind("round")[-1:]]
    sent = [
        [sum(r.get(key) or 0 for r in run.records) / 1e6 for run in group.runs] for key in ("bytes_up", "bytes_down")
    ]
    counts = sorted({int(average["count"]) for average in averages})
    splits = "/".join(dict.fromkeys(evaluation.split for evaluation in found))
    return [
        (group.name, group.name),
        (str(len(group.runs)), len(group.runs)),
        (shown, rounds[-1]),
        *(_figure([a[kind] for a in averages if a[kind] is not None]) for kind in ("micro", "macro")),
        ("/".join(map(str, counts)), counts[-1] if counts else None),
        (splits, splits),
        _figure([record["loss"] for record in ends if record["loss"] is not None]),
        *(_figure(values, 3) for values in sent),
        _figure([sum(sum(r["seconds"].values()) for r in run.of_kind("round")) for run in group.runs], 1),
    ]


def _figure(values: Sequence[float], digits: int = 4) -> Cell:
    if not values:
        return "-", None
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}", fmean(values)


def _apart(groups: Sequence[Group]) -> str:
    if len(groups) < 2:
        return ""
    found = differences(groups)
    if not found:
        return "<p class='note'>No key of their configs differs.</p>"
    rows: list[list[Cell]] = []
    for key, values in found.items():
        texts = ["" if value is None else value if isinstance(value, str) else json.dumps(value) for value in values]
        rows.append([(key, key), *((text[:200], text[:200]) for text in texts)])
    return table(["key", *(group.name for group in groups)], rows, texts=True)


def _curves(groups: Sequence[Group]) -> str:
    pictures = [("training loss", line_chart({g.label: g.losses() for g in groups}, "mean loss in the round"))]
    known = [key for key in charts(groups) if not key[1].startswith(RECEIVED)][: MOST_CHARTS - 1]
    pictures += [
        (f"{metric} on {split}", line_chart({g.label: g.scores(split, metric) for g in groups}, metric))
        for split, metric in known
    ]
    figures = [f"<figure><figcaption>{escape(name)}</figcaption>{svg}</figure>" for name, svg in pictures if svg]
    return f"<div class='charts'>{''.join(figures)}</div>" if figures else ""


def _clients(groups: Sequence[Group], metric: str) -> str:
    """A table of all clients, and bars of the largest ones."""
    values: dict[str, list[list[float]]] = {}
    sizes: Counter[str] = Counter()
    for place, group in enumerate(groups):
        for evaluation in group.evaluations(metric):
            for client, (total, count) in evaluation.of(metric).items():
                values.setdefault(client, [[] for _ in groups])[place].append(total / count)
                sizes[client] = max(sizes[client], count)
    if not values:
        return ""
    names = [group.label for group in groups]
    rows: list[list[Cell]] = [
        [(client, client), (str(sizes[client]), sizes[client]), *(_figure(own) for own in found)]
        for client, found in values.items()
    ]
    largest = [client for client, _ in sizes.most_common(MOST_BARS)]
    bars = bar_chart(
        {
            client: [(fmean(own), stdev(own) if len(own) > 1 else 0.0) if own else None for own in values[client]]
            for client in largest
        },
        names,
    )
    note = f"<p class='note'>Bars of the {len(largest)} largest of {len(values)} clients.</p>"
    return table(["client", "rows", *names], rows) + (note if len(values) > len(largest) else "") + bars


def _partitions(groups: Sequence[Group]) -> str:
    """A heat map for each partition that was recorded, with the runs that have it."""
    found: dict[str, tuple[Mapping[str, Mapping[str, int]], list[str]]] = {}
    for group in groups:
        for run in group.runs:
            results = run.of_kind("result")
            labels = (results[-1].get("task") or {}).get("labels") if results else None
            if labels:
                names = found.setdefault(json.dumps(labels, sort_keys=True), (labels, []))[1]
                names += [group.name] if group.name not in names else []
    shown = list(found.values())[:MOST_PARTITIONS]
    return "".join(f"<h3>{escape(', '.join(names))}</h3>{_heat_map(labels)}" for labels, names in shown)


def _heat_map(clients: Mapping[str, Mapping[str, int]]) -> str:
    total: Counter[str] = sum((Counter(own) for own in clients.values()), Counter())
    labels = [label for label, _ in total.most_common(MOST_LABELS)]
    head = "".join(f"<th>{escape(text)}</th>" for text in ("client", "rows", *labels))
    body = []
    for client, own in sorted(clients.items(), key=lambda item: -sum(item[1].values())):
        rows = sum(own.values())
        cells = [f'<td data-v="{escape(client)}">{escape(client)}</td><td data-v="{rows}">{rows}</td>']
        for label in labels:
            count: Any = own.get(label, 0)
            share = count / rows if rows else 0.0
            cells.append(
                f'<td data-v="{count}" style="background:rgba(31,119,180,{share:.2f})" '
                f'title="{escape(f"{client}, {label}: {share:.0%} of its rows")}">{count}</td>'
            )
        body.append(f"<tr>{''.join(cells)}</tr>")
    more = (
        f"<p class='note'>The {len(labels)} most frequent of {len(total)} labels.</p>"
        if len(total) > len(labels)
        else ""
    )
    return _framed(head, "".join(body), "heat") + more
