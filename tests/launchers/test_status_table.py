"""The table of a sweep, from folders as runs leave them."""

from __future__ import annotations

import fcntl
import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fedtorch.core.errors import ConfigError
from launchers.plan import save_plan
from launchers.status_table import read_row, read_rows, show, summary
from launchers.sweep import main


def leave(run: Path, state: str | None, *, rounds_done: int = 0, reason: str = "", locked: bool | None = None) -> None:
    run.mkdir(parents=True)
    if state is not None:
        (run / "status.json").write_text(json.dumps({"state": state, "reason": reason}))
    if rounds_done:
        records: list[dict[str, object]] = [{"kind": "run", "clients": ["x", "y"], "rounds": 4}]
        records += [{"kind": "round", "round": n + 1} for n in range(rounds_done)]
        for client, total in (("x", 1), ("y", 6)):
            metrics = {"exact_match": [total, 2 if client == "x" else 8]}
            records.append(
                {"kind": "eval", "label": "", "split": "dev", "round": rounds_done, "client": client}
                | {"metrics": metrics}
            )
        (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if locked is not None:
        (run / ".lock").touch()


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    folder = tmp_path / "sweep"
    folder.mkdir()
    leave(folder / "a", "done", rounds_done=4)
    leave(folder / "b", "failed", reason="client `x` sent NaN")
    leave(folder / "c", "running", rounds_done=1, locked=False)
    (folder / "sweep.json").write_text(json.dumps({"runs": ["a", "b", "c", "d"]}))
    return folder


@pytest.mark.processes
def test_every_run_has_a_row_also_those_that_have_not_begun(sweep: Path) -> None:
    rows = read_rows(sweep)
    assert [(row.name, row.state, row.round, row.rounds) for row in rows] == [
        ("a", "done", 4, 4),
        ("b", "failed", 0, 0),
        ("c", "died", 1, 4),
        ("d", "waiting", 0, 0),
    ]
    assert summary(rows) == "1 done, 1 failed, 1 died, 1 waiting"


@pytest.mark.processes
def test_the_score_is_that_of_a_runs_own_lines_and_says_of_how_many_examples(sweep: Path) -> None:
    row = read_rows(sweep)[0]
    assert (row.score, row.metric, row.count) == ((1 + 6) / 10, "dev exact_match", 10)


@pytest.mark.processes
def test_the_table_gives_reasons_and_numbers(sweep: Path) -> None:
    out = StringIO()
    show(sweep, Console(file=out, width=160))
    text = out.getvalue()
    assert text.startswith(f"{sweep}: 1 done, 1 failed, 1 died, 1 waiting\n")
    assert "client `x` sent NaN" in text and "dev exact_match 0.7000 of 10" in text and "4/4" in text
    assert "its process ended without a word" in text


@pytest.mark.processes
def test_a_run_whose_lock_is_held_is_running(sweep: Path) -> None:
    with (sweep / "c" / ".lock").open("w") as lock:  # an opening of its own excludes others in the same process too
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read_rows(sweep)[2].state == "running"
    assert read_rows(sweep)[2].state == "died"


@pytest.mark.parametrize(
    ("run", "queue", "expected"),
    [
        ("e", {"42_0"}, "running"),
        ("e", set(), "died"),
        ("e", None, "running"),  # on a machine from which the queue cannot be asked
        ("f", {"42_1"}, "requeued"),
        ("f", set(), "interrupted"),
        ("g", {"42_2"}, "waiting"),
        ("g", set(), "died"),
    ],
)
def test_what_slurm_has_in_its_queue_decides_what_a_job_is(
    run: str, queue: set[str] | None, expected: str, sweep: Path
) -> None:
    for number, (name, state) in enumerate((("e", "running"), ("f", "interrupted"), ("g", None))):
        leave(sweep / name, state, rounds_done=1)
        (sweep / name / "slurm_job").write_text(f"42_{number}\n")
    row = read_row(sweep / run, queue)
    assert row.state == expected and ("ended without a word" in row.reason) == (expected == "died")


@pytest.mark.processes
def test_a_single_run_can_be_asked_for_and_anything_else_is_an_error(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [row.state for row in read_rows(sweep / "a")] == ["done"]
    with pytest.raises(ConfigError, match="neither a sweep's folder nor a run's"):
        read_rows(tmp_path)
    assert main(["status", str(tmp_path)]) == 2
    assert "neither a sweep's folder" in capsys.readouterr().err


@pytest.mark.processes
def test_a_plan_of_nothing_is_no_sweep(tmp_path: Path) -> None:
    save_plan(tmp_path / "s", [])
    with pytest.raises(ConfigError):
        read_rows(tmp_path / "s")
