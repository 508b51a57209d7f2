"""A run counts once: what has one config and one seed is one seed, whatever its folder is called."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.update import Report
from fedtorch.report.command_line import main
from fedtorch.report.compared import out_folder
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.tracker import Tracker


def make_run(
    folder: Path, *, seed: int = 0, lr: float = 0.1, right: int = 3, rounds: int = 2, digest: str = "d"
) -> Path:
    """A finished run of two rounds, or one that stopped after the first."""
    config = {"run": {"name": folder.name, "seed": seed}, "client": {"lr": lr}, "eval": {"select_by": "accuracy"}}
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    track = Tracker(folder, clients=["a", "b"], rounds=2, settings=TrackConfig(tensorboard=False, progress="off"))
    for round in range(rounds):
        track.round(
            round, RoundFacts([Report(c, examples=5, loss_mean=1.0) for c in "ab"], {"a": 0.5, "b": 0.5}, {}, {})
        )
    track.evaluation(rounds - 1, "test", {c: {"accuracy": (right, 4)} for c in "ab"}, "final" if rounds == 2 else "x")
    if rounds == 2:
        track.result({"digest": digest})
    track.close()
    return folder


def rows(text: str) -> list[str]:
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][1:]


def test_a_run_that_is_named_twice_is_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "a")
    assert main([str(run), f"{run}/../a", "--no-plots"]) == 0
    said = capsys.readouterr()
    assert rows(said.out) == ["a"] and "±" not in said.out
    assert f"merged: {run}/../a: named twice, counted once" in said.err
    assert (run / "report" / "table.md").is_file()  # one folder, so it is that run's report


def test_the_same_seed_of_one_config_is_one_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "five"):
        make_run(tmp_path / name)
    make_run(tmp_path / "other", seed=1, right=4)
    assert main([str(tmp_path), "--no-plots", "--html"]) == 0
    said = capsys.readouterr()
    assert len(rows(said.out)) == 1 and "(n=2)" in said.out and "87.50 ± 17.68" in said.out  # of 75 and 100
    merged = f"{tmp_path / 'one'}: the same config and seed 0 as {tmp_path / 'five'}, counted once"
    assert f"merged: {merged}" in said.err
    page = (tmp_path / "report" / "report.html").read_text()
    assert merged in page and "2 runs" in page


@pytest.mark.parametrize("command", [["sweep", "--no-plots", "--over", "client.lr"], ["table", "--no-plots"]])
def test_every_report_counts_seeds_once(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, lr in (("a", 0.1), ("b", 0.1), ("c", 0.2)):
        make_run(tmp_path / name, lr=lr)
    assert main([command[0], str(tmp_path), *command[1:]]) == 0
    said = capsys.readouterr()
    assert "±" not in said.out and "n=2" not in said.out and said.err.count("merged: ") == 1


def test_of_two_runs_of_one_seed_the_finished_one_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a", rounds=1, right=1)
    make_run(tmp_path / "b", right=3)
    assert main([str(tmp_path), "--no-plots"]) == 0
    said = capsys.readouterr()
    assert rows(said.out) == ["b"] and "75.00" in said.out
    assert f"{tmp_path / 'a'}: the same config and seed 0 as {tmp_path / 'b'}, counted once" in said.err


def test_two_runs_of_one_seed_that_came_to_other_bits_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", digest="another")
    assert main([str(tmp_path), "--no-plots"]) == 0
    assert "counted once, although their digests differ" in capsys.readouterr().err


def test_the_local_runs_beside_two_rows_are_one_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, lr in (("a", 0.1), ("b", 0.2)):
        make_run(make_run(tmp_path / name, lr=lr) / "compare-local", lr=0.3)
    assert main([str(tmp_path), "--no-plots"]) == 0
    assert rows(capsys.readouterr().out) == ["a", "compare-local", "b"]


def test_a_report_of_two_runs_is_in_neither_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [make_run(tmp_path / "runs" / name, lr=lr) for name, lr in (("a", 0.1), ("b", 0.2))]
    before = {path: set(path.iterdir()) for path in folders}
    assert main([*map(str, folders), "--no-plots"]) == 0
    assert main(["sweep", *map(str, folders), "--no-plots"]) == 0
    assert {path: set(path.iterdir()) for path in folders} == before
    out = tmp_path / "runs" / "report" / "a-b"
    assert f"wrote {out / 'table.md'}" in capsys.readouterr().err
    assert (out / "table.csv").is_file() and (out / "sweep_client_lr_accuracy.csv").is_file()
    assert main([str(tmp_path / "runs"), "--no-plots"]) == 0  # and it is no run that is left out
    assert "left out" not in capsys.readouterr().err


def test_a_report_of_many_runs_has_a_short_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [make_run(tmp_path / f"a-long-name-{number:02}", lr=number) for number in range(1, 12)]
    assert main([*map(str, folders), "--no-plots"]) == 0
    assert (tmp_path / "report" / "a-long-name-01-and-10-others" / "table.md").is_file()


def test_a_report_of_several_folders_is_beside_the_first(tmp_path: Path) -> None:
    one, other = tmp_path / "x" / "a", tmp_path / "y" / "b"
    assert out_folder(None, [one, other]) == tmp_path / "x" / "report" / "a-b"
    assert out_folder(None, [other, one, other]) == tmp_path / "y" / "report" / "b-a"
    assert out_folder(None, [one, one]) == one / "report" and out_folder(other, [one]) == other
    assert out_folder(None, [one / "..", other]) == tmp_path / "report" / "x-b"
