"""The page of results over one's own data: its rows from files as the few-shot gym has them, its tables from runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is not part of the package

from benchmarks.own_data import TASKS, figures_of, rows_of, tables, write_rows
from fedtorch.config.load import companions, load


def gym(folder: Path) -> Path:
    """Two samples and a test file of each task: 150 rows of three labels, one of them rare."""
    for task, _ in TASKS.values():
        (folder / task).mkdir(parents=True)
        for seed in (13, 21):
            rows = [f"text {i}\t{'ab'[i % 2]}" for i in range(seed, seed + 129)]
            (folder / task / f"{task}_16_{seed}_train.tsv").write_text("\n".join(rows) + "\n")
        (folder / task / f"{task}_16_13_test.tsv").write_text(
            'a "quoted" one\ta\n' + "said of two\ta\nsaid of two\tb\n"
        )
        (folder / task / f"{task}_16_21_test.tsv").write_text('a "quoted" one\ta\nrare\tc\n')
    return folder


def test_rows_are_all_different_ones_of_the_frequent_labels(tmp_path: Path) -> None:
    rows = rows_of(gym(tmp_path), "hate_speech_offensive", 2)
    assert len(rows) == len({row["text"] for row in rows}) == 138  # texts 13 to 149, and one of a test file
    assert {"text": 'a "quoted" one', "label": "a"} in rows
    assert not {"said of two", "rare"} & {row["text"] for row in rows}


def test_what_nobody_owns_is_in_a_file_of_its_own(tmp_path: Path) -> None:
    write_rows(gym(tmp_path / "gym"), tmp_path / "rows")
    parts = [(tmp_path / "rows" / f"posts{end}.jsonl").read_text().splitlines() for end in ("", "_everybodys")]
    assert [len(part) for part in parts] == [39, 100] and not set(parts[0]) & set(parts[1])


def test_gains_are_draw_by_draw(tmp_path: Path) -> None:
    def run(name: str, own: float, **beside: float) -> None:
        def scored(micro: float) -> dict[str, object]:
            return {"averages": {"accuracy": {"micro": micro}}}

        (tmp_path / name).mkdir()
        results = {**scored(own), "compare": {label: scored(micro) for label, micro in beside.items()}}
        (tmp_path / name / "results.json").write_text(json.dumps(results))

    run("posts_iid_fedavg,task.data.seed=1", 0.5, start=0.25, local=0.375, centralized=0.75)
    run("posts_iid_fedavg,task.data.seed=2", 0.75, start=0.25, local=0.5, centralized=0.75)
    run("posts_iid_fedadam,task.data.seed=2", 0.5)
    lines = tables(figures_of(tmp_path)).splitlines()
    assert "| untrained | 25.0 ± 0.0 |" in lines and "| FedAvg | 62.5 ± 17.7 |" in lines
    assert "| FedAvg | every client alone | 18.8 ± 8.8 |" in lines
    assert "| FedAdam | every client alone | 0.0 |" in lines and "| FedProx | every client alone | - |" in lines


@pytest.mark.parametrize("task", ["questions", "posts"])
def test_clients_alone_train_on_as_many_rows_wherever_they_are_evaluated(task: str) -> None:
    rows, alone = load(f"own_data/{task}_dirichlet_fedavg"), load(f"own_data/{task}_dirichlet_alone")
    assert list(companions(rows)) == ["start", "local", "centralized"]
    splits = rows.task.data.splits
    assert splits.dev + splits.test == pytest.approx(alone.task.data.splits.dev)
