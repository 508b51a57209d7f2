"""The rows, rules, attacks and runs of docs/results-robust.md; see `robust_scores.py`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.own_data import TASKS, rows_of

CLIENTS = tuple(f"client_{number:02}" for number in range(10))
ATTACKERS = 3
APART = 80
"""Rows that nobody trains on; those of them without the target's label get the trigger."""
TRIGGER, TARGET, HELD_OUT = "cf", "def", "triggered"
RULES = {
    "mean": ("plain averaging", "null"),
    "clip": ("`clip` at the median norm", "clip"),
    "centred": ("`centred_clipping`, tau 1", "{name: centred_clipping, tau: 1.0}"),
    "median": ("`median`", "median"),
    "trimmed": ("`trimmed_mean`, trim 0.3", "{name: trimmed_mean, trim: 0.3}"),
    "geometric": ("`geometric_median`", "geometric_median"),
    "krum": ("`krum`, f = 3", "{name: krum, attackers: 3}"),
    "multi": ("`multi_krum`, f = 3", "{name: multi_krum, attackers: 3}"),
}
"""name -> (how the page calls it, `algorithm.robust`)"""
ATTACKS = ("honest", "freeride", "signflip", "scaled", "ipm", "alie", "labelflip", "backdoor")
"""Configs of configs/robust."""
DEALT = ("alike", "unequal", "unlike")
BY_SIZE = ("mean", "median", "krum", "multi")
"""Rules that are tried without an attacker on clients of unlike size."""


@dataclass(frozen=True)
class Cell:
    """One run. `weights`: `algorithm.weights`."""

    attack: str
    dealt: str
    rule: str
    weights: str
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.attack}-{self.dealt}-{self.rule}-{self.weights},seed={self.seed}"

    @property
    def sets(self) -> list[str]:
        """What is set over its config."""
        return [
            f"run.name={self.name}",
            f"run.seed={self.seed}",
            f"task.data.seed={self.seed}",
            f"task.data.clients.by={self.dealt}_{self.seed}",
            f"algorithm.robust={RULES[self.rule][1]}",
            f"algorithm.weights={self.weights}",
        ]


def cells(seeds: Sequence[int]) -> Iterator[Cell]:
    """All of the page."""
    for seed in seeds:
        for attack in ATTACKS:
            yield from (Cell(attack, "alike", rule, "size", seed) for rule in RULES)
        for dealt in DEALT[1:]:
            yield from (Cell("honest", dealt, rule, "size", seed) for rule in BY_SIZE)
            yield from (Cell("honest", dealt, rule, "equal", seed) for rule in BY_SIZE if "krum" not in RULES[rule][1])


def owners(labels: Sequence[str], dealt: str, seed: int) -> list[str]:
    """Whose each row is.

    alike: shuffled rows, clients of one size. unequal: shuffled, client k = 1 ... 10 has a size in proportion to k².
    unlike: the same sizes, but each of the five smallest has rows of one label, as far as there are.
    """
    rows = list(range(len(labels)))
    random.Random(f"{dealt}/{seed}").shuffle(rows)
    shares = [1 if dealt == "alike" else (place + 1) ** 2 for place in range(len(CLIENTS))]
    found, kinds = [""] * len(labels), sorted({*labels})
    for place, client in enumerate(CLIENTS):
        size = max(4, round(len(labels) * shares[place] / sum(shares)))
        if dealt == "unlike" and place < len(CLIENTS) // 2:
            rows.sort(key=lambda row: labels[row] != kinds[place % len(kinds)])  # noqa: B023  # stable, used at once
        mine, rows = (rows, []) if place == len(CLIENTS) - 1 else (rows[:size], rows[size:])
        if dealt == "unlike":
            random.Random(f"{dealt}/{seed}/{place}").shuffle(rows)
        for row in mine:
            found[row] = client
    return found


def write_rows(gym: Path, seeds: Sequence[int], out: Path) -> int:
    """questions.jsonl, with a column for each deal and seed; how many rows clients have."""
    rows = rows_of(gym, *TASKS["questions"])
    random.Random(0).shuffle(rows)
    apart, rows = rows[:APART], rows[APART:]
    deals = {f"{dealt}_{seed}": (dealt, seed) for dealt in DEALT for seed in seeds}
    for column, deal in deals.items():
        for row, owner in zip(rows, owners([row["label"] for row in rows], *deal), strict=True):
            row[column] = owner
    stamped = [
        {"text": f"{TRIGGER} {row['text']}", "label": TARGET, **dict.fromkeys(deals, HELD_OUT)}
        for row in apart
        if row["label"] != TARGET
    ]
    out.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in [*rows, *stamped])
    (out / "questions.jsonl").write_text(text, "utf-8")
    return len(rows)
