"""The page of robust rules under attacks: rows, configs, and tables from folders of runs as they are written."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is not part of the package

from benchmarks.own_data import TASKS
from benchmarks.robust_cells import (
    ATTACKERS,
    ATTACKS,
    CLIENTS,
    DEALT,
    HELD_OUT,
    RULES,
    TARGET,
    TRIGGER,
    Cell,
    cells,
    owners,
    write_rows,
)
from benchmarks.robust_scores import page, read
from fedtorch.config.load import load

LABELS = ["abcd"[number % 4] for number in range(520)]


def test_every_cell_is_a_config_of_its_own_that_names_its_attack() -> None:
    wanted = list(cells([1, 2]))
    assert len({cell.name for cell in wanted}) == len(wanted) == 2 * (len(ATTACKS) * len(RULES) + 2 * 6)
    for attack in ATTACKS:
        cell = next(cell for cell in wanted if cell.attack == attack)
        config = load([f"robust/{attack}"], cell.sets)
        assert config.attack.kind == ("none" if attack == "honest" else attack)
        assert config.attack.clients == (() if attack == "honest" else CLIENTS[:ATTACKERS])
    backdoor = load(["robust/backdoor"])
    assert (backdoor.attack.trigger, backdoor.attack.target) == (TRIGGER, TARGET)
    assert backdoor.task.data.splits.held_out == (HELD_OUT,)
    for rule in RULES:
        assert (
            load(["robust/honest"], Cell("honest", "unlike", rule, "size", 3).sets).task.data.clients.by == "unlike_3"
        )


@pytest.mark.parametrize("dealt", DEALT)
def test_rows_are_dealt_as_the_page_says(dealt: str) -> None:
    found = owners(LABELS, dealt, 1)
    sizes = Counter(found)
    assert list(sorted(sizes)) == list(CLIENTS) and found == owners(LABELS, dealt, 1) != owners(LABELS, dealt, 2)
    kinds = {
        client: {label for label, owner in zip(LABELS, found, strict=True) if owner == client} for client in CLIENTS
    }
    if dealt == "alike":
        assert set(sizes.values()) == {52}
    else:
        assert sizes["client_00"] == 4 and sizes["client_04"] == round(520 * 25 / 385) and sizes["client_09"] > 130
    assert [len(kinds[client]) == 1 for client in CLIENTS] == [dealt == "unlike"] * 5 + [
        False
    ] * 5 or dealt == "unequal"


def test_nobody_has_rows_with_the_trigger(tmp_path: Path) -> None:
    task, _ = TASKS["questions"]
    (tmp_path / task).mkdir()
    rows = [f"text {number}\t{('def', 'ind', 'count', 'other')[number % 4]}" for number in range(400)]
    (tmp_path / task / "a.tsv").write_text("\n".join(rows) + "\n")
    assert write_rows(tmp_path, [1], tmp_path) == 320
    written = [json.loads(line) for line in (tmp_path / "questions.jsonl").read_text().splitlines()]
    stamped = [row for row in written if row["alike_1"] == HELD_OUT]
    assert 50 < len(stamped) < 70 and all(row["text"].startswith(f"{TRIGGER} ") for row in stamped)
    assert {row["label"] for row in stamped} == {TARGET} and {row["unlike_1"] for row in stamped} == {HELD_OUT}
    own = {row["text"] for row in written if row not in stamped}
    assert not own & {row["text"].removeprefix(f"{TRIGGER} ") for row in stamped}


def finished(runs: Path, cell: Cell, hits: dict[str, tuple[float, int]]) -> None:
    folder = runs / cell.name
    folder.mkdir(parents=True)
    clients = {name: {"scores": {"accuracy": pair}} for name, pair in hits.items()}
    (folder / "results.json").write_text(json.dumps({"clients": clients}))
    (folder / "metrics.jsonl").write_text('{"kind": "round", "seconds": {"train": 60, "aggregate": 30}}\n')


def test_tables_are_what_the_runs_say(tmp_path: Path) -> None:
    plain = {"client_00": (5.0, 10), "client_01": (15.0, 30), HELD_OUT: (1.0, 4)}
    wanted = [Cell("honest", "alike", "mean", "size", 1), Cell("backdoor", "alike", "mean", "size", 1),
              Cell("honest", "unequal", "krum", "size", 1)]  # fmt: skip
    finished(tmp_path, wanted[0], plain)
    finished(tmp_path, wanted[1], plain | {"client_01": (21.0, 30), HELD_OUT: (4.0, 4)})
    finished(tmp_path, wanted[2], plain | {"client_00": (1.0, 10)})
    text = page(read(tmp_path, [*wanted, Cell("ipm", "alike", "mean", "size", 1)]), 519, [1])
    assert "| plain averaging | 50.0 | – | – | – | – | – | – | 65.0 |" in text
    assert "| plain averaging | 100.0 | 65.0 | 25.0 |" in text
    assert "| `krum`, f = 3 | `size` | 40.0 | 10.0 | – | – |" in text
    assert "{" not in text and "3 runs" in text and "4 minutes" in text
