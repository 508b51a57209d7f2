"""The tables of a page: what runs came to, how clients spread, and every client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from fedtorch.core.scores import LOSS, RECEIVED
from fedtorch.core.terminal import NOTHING, Cell
from fedtorch.metrics.about import about, counts_hits, less_is_better
from fedtorch.metrics.intervals import of_mean, wilson
from fedtorch.report.groups import Group
from fedtorch.report.html_table import interval, note, number, table
from fedtorch.report.svg import Bar, bar_chart
from fedtorch.tracking.run_folder import Evaluation, Pair

MOST_BARS, MOST_SCORES = 60, 60
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def splits(groups: Sequence[Group], metric: str) -> list[str]:
    """Which splits the evaluations that count are on, of all groups."""
    return list(dict.fromkeys(found.split for group in groups for found in group.evaluations(metric)))


def runs_table(groups: Sequence[Group], metric: str) -> str:
    """A row for each group: averages with their interval, losses with their split, bytes and seconds."""
    on = splits(groups, metric)
    where = f"{on[0]} " if len(on) == 1 else ""
    heads = ["run", "seeds", "rounds", "chosen round", *([] if where else ["split"]), f"{where}rows"]
    heads += [f"{where}{metric}, micro", "95 % interval of micro", f"{where}{metric}, macro", f"{where}loss"]
    heads += ["train loss, last round", "MB up", "MB down", "seconds"]
    rows = [_run_cells(group, metric, has_split=not where) for group in groups]
    kept = [place for place in range(len(heads)) if place < 2 or any(row[place] != NOTHING for row in rows)]
    has_ends = any(row[heads.index("95 % interval of micro")] != NOTHING for row in rows)
    several = max(len(group.runs) for group in groups) > 1
    told = ["A mean over seeds has its standard deviation beside it."] if several else []
    told += ["95 % interval over seeds: Student's t, of their mean."] if has_ends and several else []
    if has_ends and counts_hits(metric):
        seeds = "of one seed, or of seeds that are all alike" if several else "of one run"
        told.append(f"95 % interval {seeds}: Wilson's, of the share of {where}rows, taken as independent draws.")
    told += [f"{metric}: {about(metric)}."] if about(metric) else []
    shared = max(group.shared_by(metric) for group in groups)
    told += [f"{where}rows: the same ones for {shared} clients; they count once in micro."] if shared else []
    told += ["micro: all rows together; macro: the mean over clients."]
    text = table([heads[place] for place in kept], [[row[place] for place in kept] for row in rows])
    return text + note(" ".join(told))


def _run_cells(group: Group, metric: str, *, has_split: bool) -> list[Cell]:
    found = group.evaluations(metric)
    averages = [evaluation.average(metric) for evaluation in found]
    rounds = sorted({run.last_round for run in group.runs})
    done = all(run.is_finished for run in group.runs)
    shown = "/".join(map(str, rounds)) + ("" if done else f" of {group.runs[0].rounds}, not finished")
    ends = [record for run in group.runs for record in run.of_kind("round")[-1:]]
    sent = [
        [sum(r.get(key) or 0 for r in run.records) / 1e6 for run in group.runs] for key in ("bytes_up", "bytes_down")
    ]
    on = "/".join(dict.fromkeys(evaluation.split for evaluation in found))
    return [
        (group.name, group.name),
        (str(len(group.runs)), len(group.runs)),
        (shown, rounds[-1]),
        _listed(group.chosen_rounds),
        *([(on, on) if on else NOTHING] if has_split else []),
        _listed([int(average["count"]) for average in averages]),
        number([a["micro"] for a in averages if a["micro"] is not None]),
        interval(_of_micro(found, metric)),
        number([a["macro"] for a in averages if a["macro"] is not None]),
        number([e.average(LOSS)["micro"] for e in found if e.of(LOSS)]),
        number([record["loss"] for record in ends if record["loss"] is not None]),
        *(number(values, 2) for values in sent),
        number([sum(sum(r["seconds"].values()) for r in run.of_kind("round")) for run in group.runs], 1),
    ]


def _listed(values: Sequence[int]) -> Cell:
    """Whole numbers, each once."""
    found = sorted(set(values))
    return ("/".join(map(str, found)), found[-1]) if found else NOTHING


def _of_micro(found: Sequence[Evaluation], metric: str) -> tuple[float, float] | None:
    """Interval of the mean over seeds; of one run, or of seeds that all came to the same, that of the share of rows."""
    if not found:
        return None
    ends = of_mean([mean for e in found if (mean := e.average(metric)["micro"]) is not None])
    if ends:
        return (max(0.0, ends[0]), min(1.0, ends[1])) if counts_hits(metric) else ends
    average = found[0].average(metric)  # in which rows that clients share count once
    return _of_share(((average["micro"] or 0.0) * average["count"], average["count"]), metric)


def _of_share(pair: Pair, metric: str) -> tuple[float, float] | None:
    """Wilson's interval of right rows; None of what does not count rows."""
    return wilson(min(pair), pair[1]) if counts_hits(metric) and pair[1] else None


def scores_table(groups: Sequence[Group], metric: str) -> str:
    """Every score of the evaluation that counts, where there are more than the one shown above and the loss."""
    names: dict[str, None] = {}
    for group in groups:
        for evaluation in group.evaluations(metric):
            names |= {name: None for name in evaluation.averages if not name.startswith(RECEIVED)}
    kept = sorted(names, key=lambda name: "/" in name)
    if not [name for name in kept if name not in (metric, LOSS)]:
        return ""
    several = len(groups) > 1
    heads = ["score", "of"]
    for group in groups:
        heads += [f"{group.label}, {kind}" if several else kind for kind in ("micro", "macro")]
    rows: list[list[Cell]] = []
    for name in kept[:MOST_SCORES]:
        means = [[e.averages[name] for e in group.evaluations(metric) if name in e.averages] for group in groups]
        cells: list[Cell] = [(name, name), _listed([m["count"] for own in means for m in own if m["count"]])]
        for own in means:
            cells += [number([m[kind] for m in own if m[kind] is not None]) for kind in ("micro", "macro")]
        rows.append(cells)
    told = [note(f"{MOST_SCORES} of {len(kept)} scores.")] if len(kept) > MOST_SCORES else []
    told += [note(f"{name}: {about(name)}") for name in kept[:MOST_SCORES] if name != metric and about(name)]
    return table(heads, rows) + "".join(told)


def clients_values(groups: Sequence[Group], metric: str) -> tuple[dict[str, list[list[float]]], Counter[str]]:
    """(client -> its figures over seeds in each group, client -> examples of the split)."""
    values: dict[str, list[list[float]]] = {}
    sizes: Counter[str] = Counter()
    for place, group in enumerate(groups):
        for evaluation in group.evaluations(metric):
            for client, (total, count) in evaluation.of(metric).items():
                values.setdefault(client, [[] for _ in groups])[place].append(total / count)
                sizes[client] = max(sizes[client], count)
    return values, sizes


def spread_table(groups: Sequence[Group], metric: str) -> str:
    """The worst client and quantiles over clients, each client once however many rows it has."""
    values, sizes = clients_values(groups, metric)
    rows: list[list[Cell]] = []
    for place, group in enumerate(groups):
        found = {client: fmean(own[place]) for client, own in values.items() if own[place]}
        if len(found) < 2:
            continue
        sign = -1 if less_is_better(metric) else 1
        worst = min(found, key=lambda client: (sign * found[client], client))
        best = max(found, key=lambda client: (sign * found[client], client))
        ordered = sorted(found.values())
        cells: list[Cell] = [(group.label, group.label)]
        cells += [(f"{found[c]:.4f} of {sizes[c]}: {c}", found[c]) for c in (worst,)]
        cells += [(f"{value:.4f}", value) for value in (quantile(ordered, share) for share in QUANTILES)]
        cells += [(f"{found[c]:.4f} of {sizes[c]}: {c}", found[c]) for c in (best,)]
        rows.append(cells)
    if not rows:
        return ""
    heads = ["run", "worst client", *(f"{100 * q:.0f} %" if q != 0.5 else "median" for q in QUANTILES), "best client"]
    told = "Quantiles over clients, each client once however many rows it has; between two clients they are linear."
    return table(heads, rows) + note(told)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Quantile of values in ascending order, linear between two of them, as numpy's default."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def clients_table(groups: Sequence[Group], metric: str) -> str:
    """A table of all clients, and bars of the largest ones."""
    values, sizes = clients_values(groups, metric)
    if not values:
        return ""
    on = "/".join(splits(groups, metric))
    names = [group.label for group in groups]
    if len(groups) == 1:
        text = _of_one(groups[0], metric, values, sizes)
    else:
        rows: list[list[Cell]] = [
            [(client, client), (str(sizes[client]), sizes[client]), *map(number, found)]
            for client, found in values.items()
        ]
        text = table(["client", f"{on} rows", *names], rows)
    largest = [client for client, _ in sizes.most_common(MOST_BARS)]
    bars = {client: [_bar(own, sizes[client], metric) for own in values[client]] for client in largest}
    lengths = {len(own) for found in values.values() for own in found}
    over_seeds = "standard deviation over seeds" if max(lengths) > 1 else ""
    of_rows = "95 % interval (Wilson) of the client's rows" if 1 in lengths and counts_hits(metric) else ""
    lines = " or, of one seed, ".join(filter(None, (over_seeds, of_rows)))
    told = [f"Lines in the bars: {lines}."] if lines else []
    told += [f"Bars of the {len(largest)} largest of {len(values)} clients."] if len(values) > len(largest) else []
    is_share = all(0 <= value <= 1 for found in values.values() for own in found for value in own)
    return text + bar_chart(bars, names, f"{on} {metric}", is_share=is_share) + "".join(map(note, told))


def _bar(values: Sequence[float], count: int, metric: str) -> Bar | None:
    if not values:
        return None
    mean = fmean(values)
    if len(values) > 1:
        return mean, mean - stdev(values), mean + stdev(values)
    ends = _of_share((round(mean * count), count), metric)
    return (mean, *ends) if ends else (mean, mean, mean)


def _of_one(group: Group, metric: str, values: Mapping[str, list[list[float]]], sizes: Counter[str]) -> str:
    """List what is known of each client of one group: rows, figure with its interval, rounds, weight, loss."""
    on = "/".join(splits([group], metric))
    first = group.runs[0]
    train, weights, own_rounds = first.examples, first.mean_weights, group.own_rounds()
    drawn: Counter[str] = Counter(record["client"] for record in first.of_kind("client"))
    heads = ["client", "train rows", f"{on} rows", f"{on} {metric}", "95 % interval", "own best round", "rounds drawn"]
    heads += ["mean weight", "train loss, last drawn"]
    rows: list[list[Cell]] = []
    for client in dict.fromkeys((*values, *first.trained)):
        own = values.get(client, [[]])[0]
        bar = _bar(own, sizes[client], metric) if len(own) == 1 else None
        last = [run.last.get(client, {}).get("loss_mean") for run in group.runs]
        rows.append([
            (client, client),
            (str(train[client]), train[client]) if client in train else NOTHING,
            (str(sizes[client]), sizes[client]) if client in sizes else NOTHING,
            number(own),
            interval(None if bar is None or bar[1] == bar[2] else bar[1:]),
            _listed(own_rounds.get(client, [])),
            (str(drawn[client]), drawn[client]) if drawn else NOTHING,
            (f"{weights[client]:.4f}", weights[client]) if client in weights else NOTHING,
            number([loss for loss in last if loss is not None]),
        ])  # fmt: skip
    kept = [place for place in range(len(heads)) if any(row[place] != NOTHING for row in rows)]
    text = table([heads[place] for place in kept], [[row[place] for place in kept] for row in rows])
    told = ["mean weight: in the combined update, over all rounds, 0 in one in which the client did not count."] if (
        weights) else []  # fmt: skip
    if any(weights.values()) and (idle := [name for name in first.trained if not weights.get(name)]):
        more = f" and {len(idle) - 10} more" if len(idle) > 10 else ""
        told.append(f"Weight 0 in every round: {', '.join(idle[:10])}{more}.")
    if len(group.runs) > 1 and (drawn or weights):
        told.append(f"Rounds drawn and mean weights are of seed {first.setting('run.seed')}.")
    return text + "".join(map(note, told))
