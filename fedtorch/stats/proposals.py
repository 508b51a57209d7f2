"""Keys of a config that silos' counts propose, each with its reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fedtorch.core.shown import shortened
from fedtorch.data.own.first_config import LABELLED, escaped, listed, mapped
from fedtorch.data.own.guessed import Counted
from fedtorch.stats.bins import SIGMAS, Bins, longest_below
from fedtorch.stats.broken import remarks, surely
from fedtorch.stats.questions import FOUND_LABELS
from fedtorch.stats.said import how_often
from fedtorch.stats.shown import label_table
from fedtorch.stats.table import Stats, Table
from fedtorch.stats.tokenizer import FOLDER, MADE_OF

LONGER = 0.01
"""Share of the rows that may be longer than the proposed `max_length`."""
UNBALANCED = 3.0
"""How many times the rows of the rarest label the most frequent one must have, so that weights are proposed."""


def proposals(stats: Stats, run: Path) -> Counted:
    """Labels, `max_length`, weights of classes and a tokenizer; without what the numbers do not carry.

    run: the folder that the tables lie in, and the tokenizer if there is one. A number that noise could have made,
    within three standard deviations of 0, carries nothing; the reason says so.
    """
    why: dict[str, str] = {}
    table = label_table(stats)
    labels = _labels(stats, table, why) if table is not None and stats.task in LABELLED else ()
    length = _max_length(stats, why)
    weights = _class_weights(stats, table, why) if table is not None else {}
    made = _tokenizer(stats, run)
    if made is not None:
        why["tokenizer"] = "made of words that silos counted; it counts as public"
    return Counted(str(run), stats.task, labels, length, stats.tokenizer, weights, made, why)


def as_yaml(stats: Stats, run: Path) -> str:
    """Proposals as YAML that can be laid over a config, reasons and remarks on silos as comments.

    Every name in it, which others may have chosen, stands in one line and is shortened in comments.
    """
    found = proposals(stats, run)
    silos = f"{len(stats.silos)} silo{'s' * (len(stats.silos) != 1)}"
    lines = [f"# From the counts of {silos}: {escaped(found.run)}."]
    keys = {
        "max_length": str(found.max_length) if found.max_length is not None else None,
        "class_weights": mapped(found.class_weights) if found.class_weights else None,
        "tokenizer": escaped(json.dumps(found.tokenizer, ensure_ascii=False)) if found.tokenizer else None,
    }
    written = [line for key, value in keys.items() for line in _key("  ", key, value, found.why)]
    data = _key("    ", "labels", listed(found.labels) if found.labels else None, found.why)
    has_keys = bool(found.labels) or any(keys.values())
    lines += [
        "task:" if has_keys else "# Nothing is proposed.",
        *(["  data:"] if found.labels else []),
        *data,
        *written,
        *(f"# {escaped(line)}" for line in remarks(stats)),
    ]
    return "\n".join(lines) + "\n"


def _tokenizer(stats: Stats, run: Path) -> str | None:
    """The one that the run has made; else the one whose tokens it has counted, if such a run has made that."""
    counted = Path(stats.tokenizer) if stats.tokenizer else None
    for folder in (run / FOLDER, counted):
        if folder is not None and (folder / MADE_OF).is_file():
            return str(folder)
    return None


def _key(indent: str, key: str, value: str | None, why: Mapping[str, str]) -> list[str]:
    reason = [f"{indent}# {key}: {escaped(why[key])}"] if key in why else []
    return [*reason, *([f"{indent}{key}: {value}"] if value is not None else [])]


def _labels(stats: Stats, table: Table, why: dict[str, str]) -> tuple[str, ...]:
    """All of the table, in its order: declared ones are public, and only those are found that may be shown."""
    found = stats.table(FOUND_LABELS)
    why["labels"] = "those that silos counted by" if found is None else "found in silos' rows"
    if found is not None and (often := how_often(found)):
        why["labels"] += f", each {often}"
    return table.cells


def _max_length(stats: Stats, why: dict[str, str]) -> int | None:
    """The least length for which it is sure that at most one row in a hundred is longer."""
    table = stats.table("tokens")
    if table is None:
        return None
    whole, by = Bins.of(stats, table), f"tokens of {shortened(stats.tokenizer or '')}"
    if whole.total(least=True) <= 0:
        why["max_length"] = f"not proposed, as too few rows were counted to tell anything ({by})"
        return None
    for place, edge in enumerate(table.edges[:-1]):
        length = longest_below(edge) or 0
        if length > 0 and whole.most_share(place) <= LONGER:
            share, most = whole.share(place) or 0.0, whole.most_share(place)
            unsure = f", {most:.2%} at most" if most > share else ""
            why["max_length"] = f"{by}; {share:.2%} of {round(whole.total())} rows are longer{unsure}"
            return length
    return _length_of_what_is_shown(whole, by, why)


def _length_of_what_is_shown(whole: Bins, by: str, why: dict[str, str]) -> int | None:
    """The least length beyond which all numbers are noise or hidden, where these leave open what is longer."""
    shown = [place for place, each in enumerate(whole.numbers) if surely(each, whole.deviation)]
    length = longest_below(whole.table.edges[max(shown, default=-1) + 1])
    if not length:
        why["max_length"] = f"not proposed, as rows reach beyond the last bound ({by})"
        return None
    beyond = (
        f"no number is more than {SIGMAS:g} standard deviations of the noise above 0"
        if whole.deviation
        else "no number is shown"
    )
    why["max_length"] = (
        f"{by}; beyond it {beyond}, so it stays open whether more than {LONGER:.0%} of the rows are longer"
    )
    return length


def _class_weights(stats: Stats, table: Table, why: dict[str, str]) -> dict[str, float]:
    """rows / (labels · rows of the label), as `class_weights: balanced` has it; only where labels are unbalanced."""
    if stats.task != "text_classification" or not table.parts or len(table.cells) < 2:
        return {}
    counts = dict(zip(table.cells, table.pooled, strict=True))
    most = max((count for count in counts.values() if count is not None), default=0.0)
    if hidden := [name for name, count in counts.items() if count is None]:
        why["class_weights"] = f"not proposed, as the rows of {shortened(hidden[0])} are not shown"
        return {}
    known = {name: count for name, count in counts.items() if count is not None}
    if noise := [name for name, count in known.items() if not surely(count, table.deviation)]:
        than = f"within {SIGMAS:g} standard deviations of the noise from 0" if table.deviation else "none"
        why["class_weights"] = f"not proposed, as the rows of {shortened(noise[0])} are {than}"
        return {}
    least = min(known.values())
    if most <= UNBALANCED * least:
        return {}
    total = sum(known.values())
    why["class_weights"] = f"the most frequent label has {most / least:.1f} times the rows of the rarest"
    return {name: float(f"{total / (len(known) * count):.4g}") for name, count in known.items()}
