"""The table of dialog runs: perplexities with the FedAssistant paper's below ours, and bytes that were exchanged."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.update import Report
from fedtorch.report.command_line import main
from fedtorch.report.published.fedassistant import DOMAINS, TABLE, row_of
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.tracker import Tracker

SIX = {name: 10.0 + place for place, name in enumerate(DOMAINS)}
OTHERS = {"flights": 20.0, "events": 30.0}


def make_run(
    folder: Path, name: str, columns: dict[str, float], *, seed: int = 0, task: str = "dialog", idle: int = 0
) -> Path:
    """Two rounds of 1 MB up and 0.5 MB down, 2 MB of keys and values; the assistant's perplexity is the half.

    idle: how many clients, the last ones, never train.
    """
    folder.mkdir(parents=True)
    config: dict[str, Any] = {"run": {"name": name, "seed": seed}, "task": {"name": task, "model": {"name": "small"}}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    track = Tracker(folder, clients=list(columns), rounds=2, settings=TrackConfig(tensorboard=False, progress="off"))
    for round in range(2):
        reports = [Report(client, examples=4, steps=2) for client in list(columns)[: len(columns) - idle]]
        traffic = {"bytes_up": 1e6, "bytes_down": 5e5, "kv_bytes": 2e6, "kv_overhead_bytes": 1000, "broadcast/x": 9}
        traffic |= {"physical_up": 3e5, "physical_down": 4e5}
        track.round(round, RoundFacts(reports, {}, {}, traffic))
    row = {**columns, "All": fmean(columns.values()), "union": 1.0}
    summary = {"perplexity": row, "perplexity_assistant": {key: value / 2 for key, value in row.items()}}
    track.result({"summary": summary, "task": {"data": {"options": {"source": "sgd"}}}})
    track.close()
    return folder


def test_ours_stand_above_the_papers_and_bytes_are_summed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perplexity", str(make_run(tmp_path / "a", "feda_top50", SIX))]) == 0
    out = capsys.readouterr().out
    assert "| run | Repair | Coffee | Movie | Restaurant | Pizza | Ride | All | union |" in out
    lines = [line for line in out.splitlines() if line.startswith("| ")]
    assert lines[1:5] == [
        "| feda_top50 | 10.00 | 11.00 | 12.00 | 13.00 | 14.00 | 15.00 | 12.50 | 1.00 |",
        "| published: top 1/50 | 12.92 | 12.28 | 12.18 | 16.66 | 11.41 | 12.48 | 22.82 | - |",
        "| feda_top50 _A | 5.00 | 5.50 | 6.00 | 6.50 | 7.00 | 7.50 | 6.25 | 0.50 |",
        "| published: top 1/50 _A | 12.25 | 10.50 | 11.61 | 16.50 | 9.93 | 11.94 | 18.78 | - |",
    ]
    assert lines[-1] == "| feda_top50 | 2 | 2.000 | 1.000 | 4.000 | 0.002 | 7.002 | 3.501 | 0.600 | 0.800 |"
    assert "- feda_top50: data of sgd (paper: taskmaster1)\n- feda_top50: differs from fedassistant/feda_top50: " in out
    assert "task.model.name small (row: microsoft/DialoGPT-small)" in out and "(row: 2250)" in out
    assert "probably a slip" in out
    assert (tmp_path / "a" / "report" / "perplexity.md").read_text() == out


def test_seeds_share_a_row_and_other_domains_have_no_published_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [make_run(tmp_path / str(seed), "feda", OTHERS, seed=seed) for seed in (1, 2)]
    assert main(["perplexity", *map(str, folders)]) == 0
    out = capsys.readouterr().out
    assert "| feda (n=2) | 20.00 ± 0.00 | 30.00 ± 0.00 | 25.00 ± 0.00 |" in out
    assert "| run | flights | events | All | union |" in out and "published" not in out


def test_what_follows_the_last_round_is_in_the_sum_and_clients_that_never_trained_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "a", "feda", SIX, idle=2)
    track = Tracker(
        folder, clients=list(SIX), rounds=2, settings=TrackConfig(tensorboard=False, progress="off"), resume_round=2
    )
    track.end(1, {"bytes_down": 3e6, "broadcast/bytes_down": 3e6})
    track.result({"summary": {"perplexity": {**SIX, "All": 1.0}}})
    assert main(["perplexity", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "| feda | 2 | 2.000 | 4.000 | 4.000 | 0.002 | 10.002 | 3.501 |" in out  # a round's share is as it was
    idle = ", ".join(list(SIX)[-2:])
    assert f"- feda: All and the averages count 2 of 6 clients that never trained: {idle}\n" in out
    main(["perplexity", str(make_run(tmp_path / "b", "feda", SIX))])
    assert "never trained" not in capsys.readouterr().out


def test_of_many_clients_that_never_trained_ten_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = {f"domain_{number}": 10.0 for number in range(14)}
    assert main(["perplexity", str(make_run(tmp_path / "a", "feda", many, idle=12))]) == 0
    named = ", ".join(f"domain_{number}" for number in range(2, 12))
    assert f"count 12 of 14 clients that never trained: {named}\n" in capsys.readouterr().out


def test_a_run_that_is_not_finished_shows_its_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "a", "feda", SIX)
    records = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(line for line in records if '"result"' not in line) + "\n")
    assert main(["perplexity", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "- feda: not finished: 2 of 2 rounds" in out and "| feda | 2 | 2.000 |" in out
    assert "| published: FedA (No_TopK) | 10.62 |" in out


def test_a_run_of_another_task_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perplexity", str(make_run(tmp_path / "a", "x", SIX, task="wikisql"))]) == 2
    assert "is a run of task.name wikisql; name runs of dialog" in capsys.readouterr().err


def test_the_papers_all_of_a_shared_model_is_the_mean_of_its_domains() -> None:
    assert len(TABLE) == 13 and set(map(row_of, TABLE)) == set(TABLE)
    for name in ("gpt_all", "feda_both"):
        *domains, every = TABLE[name][1]
        assert fmean(domains) == pytest.approx(every, abs=0.01)
    assert row_of("seed3-feda_top12_freeze") == "feda_top12_freeze" and row_of("feda+small") == "feda"
    assert row_of("fedavg") is None
