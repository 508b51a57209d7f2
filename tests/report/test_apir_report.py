"""`report apir`: tables against a base, seeds in one row, costs, and what cannot be compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fedtorch.metrics.apir import compare
from fedtorch.report.apir_plots import energies, moved
from fedtorch.report.command_line import main
from fedtorch.report.published.fewfedweight import row_of
from fedtorch.tracking.run_folder import read_run

SCORES = {"client1": {"a/acc": 0.5, "b/f1": 0.0}, "client2": {"a/acc": 0.4}}


def write_run(folder: Path, scores: Any, *, name: str, seed: int = 0, **client: float) -> str:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(json.dumps({"run": {"name": name, "seed": seed}, "algorithm": {"name": name}}))
    records: list[dict[str, Any]] = [{"kind": "run", "clients": list(scores), "rounds": 2}]
    for number in (1, 2):
        for index, one in enumerate(scores):
            facts = {"status": "ok", "weight": 0.3 + 0.4 * index, "steps": 3, "examples": 10, "seconds": 2.0}
            records.append({"kind": "client", "round": number, "client": one, **facts, **client})
        records.append({"kind": "round", "round": number, "bytes_up": 6000000, "bytes_down": 4000000})
    for one, tasks in scores.items():
        metrics = {task: [value * 10, 10] for task, value in tasks.items()}
        extra = {"tasks_mean": [0.5, 1], "loss": [3.0, 10], "b/undefined": [1.0, 1], "received/a/acc": [1.0, 10]}
        records.append(
            {"kind": "eval", "label": "final", "split": "test", "round": 2, "client": one, "metrics": metrics | extra}
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder)


def changed(**values: float) -> dict[str, dict[str, float]]:
    return {"client1": {"a/acc": values["a"], "b/f1": values["b"]}, "client2": {"a/acc": values["c"]}}


@pytest.mark.long
def test_rows_stand_beside_the_papers_and_undefined_rates_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write_run(tmp_path / "silo", SCORES, name="ffw_silo")
    cost = {"rows": 20.0, "generate_s": 1.25, "train_s": 0.5, "sent_bytes": 2e6, "received_bytes": 1e6}
    full = write_run(tmp_path / "full", changed(a=0.6, b=0.1, c=0.4), name="ffw_full", **cost)
    mine = write_run(tmp_path / "mine", changed(a=0.4, b=0.0, c=0.2), name="mine")
    assert main(["apir", "--base", base, "--new", full, mine, "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    # client1: +20 % and undefined; client2: 0. Then −20 % and 0 by 0 at client1, −50 % at client2
    assert "| ffw_full | 10.0 | 10.0 | 2 | 0 | 1 | 1 | 3 | 30.5 (72/7/39) |" in lines
    assert "| mine | -30.0 | -23.3 | 0 | 2 | 1 | 0 | 3 | - |" in lines
    assert "| ffw_full | 1.25 | 0.50 | 20 | 2.00 | 1.00 | 13/4 |" in lines
    assert "| ffw_silo | 0.00 | 2.00 | 10 | 3.00 | 2.00 | - |" in lines  # two clients share a round's traffic
    assert (tmp_path / "out" / "apir.md").read_text().splitlines() == lines
    assert "- ffw_full: 3 pairs of task and client (paper: 118)" in lines
    assert any(line.startswith("- ffw_full: differs from fewfedweight/ffw_full: algorithm.name ffw") for line in lines)
    assert any(line.startswith("- base ffw_silo: differs from fewfedweight/ffw_silo: ") for line in lines)
    pictures = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
    assert pictures == ["ffw_full_tasks.png", "ffw_full_weights.png", "mine_tasks.png", "mine_weights.png"]


def test_ties_have_no_bar_and_a_base_of_zero_a_cross() -> None:
    comparisons = [compare(SCORES, changed(a=a, b=b, c=0.4)) for a, b in ((0.5, 0.0), (0.6, 0.1))]
    assert moved("client1", comparisons[:1]) == {}  # all ties: 0.5 against 0.5, and 0 against 0
    assert moved("client1", comparisons[1:]) == {"a/acc": pytest.approx(0.2), "b/f1": None}
    assert moved("client1", comparisons) == {"a/acc": pytest.approx(0.1), "b/f1": 0.0}
    assert moved("client2", comparisons) == {}


def test_energies_of_all_rounds_are_drawn_for_every_client(tmp_path: Path) -> None:
    bins = {"histogram/energy_top/-3": 2.0, "histogram/energy_top/-2": 1.0, "histogram/energy_all/-9": 3.0}
    base = write_run(tmp_path / "silo", SCORES, name="ffw_silo")
    full = write_run(tmp_path / "full", SCORES, name="ffw_full", **bins)
    found = energies(read_run(Path(full)))
    assert found == {c: {"energy_top": {-3: 4, -2: 2}, "energy_all": {-9: 6}} for c in ("client1", "client2")}
    assert main(["apir", "--base", base, "--new", full, "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "ffw_full_energies.png").stat().st_size > 1000


def test_seeds_share_a_row_and_each_has_its_own_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bases = [write_run(tmp_path / f"s{i}", SCORES, name="ffw_silo", seed=i) for i in (1, 2)]
    runs = [
        write_run(tmp_path / f"r{i}", changed(a=0.5 + 0.1 * i, b=0.0, c=0.4), name="ffw_meta", seed=i) for i in (1, 2)
    ]
    command = ["apir", "--no-plots", "--out", str(tmp_path / "out")]
    assert main([*command, "--base", *bases, "--new", *runs]) == 0
    # rates of client1: 20 % and 0, then 40 % and 0; of client2: 0
    assert "| ffw_meta (n=2) | 7.5 ± 3.5 | 10.0 ± 4.7 | 1.0 ± 0.0 |" in capsys.readouterr().out
    other = write_run(tmp_path / "r3", SCORES, name="ffw_meta", seed=3)
    assert main([*command, "--base", *bases, "--new", other]) == 2
    assert "has run.seed 3, of which there is no run among --base" in capsys.readouterr().err


def test_runs_over_other_tasks_or_without_tasks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = write_run(tmp_path / "silo", SCORES, name="ffw_silo")
    fewer = write_run(tmp_path / "fewer", {"client1": SCORES["client1"]}, name="x")
    assert main(["apir", "--base", base, "--new", fewer]) == 2
    assert "do not fit: client client2, task a/acc has a score in only one" in capsys.readouterr().err
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "metrics.jsonl").write_text('{"kind": "run", "clients": [], "rounds": 1}\n')
    assert main(["apir", "--base", str(tmp_path / "none"), "--new", base]) == 2
    assert "has no scores of single tasks; name finished runs of task.name: fewshot" in capsys.readouterr().err


def test_published_rows_are_found_by_the_end_of_a_runs_name() -> None:
    for name, row in (
        ("real_small_ffw_meta", "ffw_meta"),
        ("seed3-abl_da_w", "abl_da_w"),
        ("clients_12", "clients_12"),
        ("ffw_meta+fewfedweight_small,seed=0", "ffw_meta"),
    ):
        match = row_of(name)
        assert match is not None and match[0] == row
    assert row_of("my_clients_22") is None and row_of("silo") is None


def test_a_run_that_has_not_finished_is_named_below_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [write_run(tmp_path / name, SCORES, name=name) for name in ("base", "whole", "going")]
    records = (tmp_path / "going" / "metrics.jsonl").read_text()
    (tmp_path / "going" / "metrics.jsonl").write_text(records.replace('"label": "final"', '"label": "training"'))
    command = ["apir", "--no-plots", "--out", str(tmp_path / "out"), "--base", folders[0], "--new"]
    assert main([*command, *folders[1:]]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "not finished" in line] == [
        "- going: not finished"
    ]


def test_a_base_has_to_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["apir", "--new", write_run(tmp_path / "new", SCORES, name="x")])
    assert "--base" in capsys.readouterr().err


def test_without_matplotlib_there_are_tables_and_no_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [write_run(tmp_path / name, changed(a=a, b=0.1, c=0.4), name=name) for name, a in (("b", 0.5), ("n", 1))]
    monkeypatch.delitem(sys.modules, "fedtorch.report.figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    command = ["apir", "--base", folders[0], "--new", folders[1], "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "the plots need matplotlib" in capsys.readouterr().err
    assert main([*command, "--no-plots"]) == 0
