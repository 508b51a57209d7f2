"""The table of WikiSQL's measures, with the FedParsing paper's figures below ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtorch.config.load import load, to_yaml
from fedtorch.core.mechanism import RoundFacts
from fedtorch.report.command_line import main
from fedtorch.report.published.fedparsing import MEASURES, NAMES, TABLE
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.tracker import Tracker


def make_run(folder: Path, seed: int, right: int, name: str = "mine") -> Path:
    """Two parts of 10 questions; dev is evaluated after three rounds, the second the best one."""
    folder.mkdir(parents=True)
    given = [f"run.name={name}", f"run.seed={seed}", "task.encoder.name=random", "task.data=synthetic"]
    given += ["task.num_clients=200", "client.lr=1e-3"]
    (folder / "config.yaml").write_text(to_yaml(load("fedparsing/fedparsing_ema_500", given)))
    track = Tracker(
        folder, clients=["part0", "part1"], rounds=3, settings=TrackConfig(tensorboard=False, progress="off")
    )

    def scores(hits: int) -> dict[str, dict[str, tuple[float, int]]]:
        found: dict[str, tuple[float, int]] = dict.fromkeys((*MEASURES, "logical_form"), (float(hits), 10))
        return {"part0": found, "part1": found | {"overall": (0.0, 10)}}

    for round, hits in enumerate((0, 4, 2)):
        track.evaluation(round, "dev", scores(hits), "training")
        track.round(round, RoundFacts([], {}, {}, {}))
    track.evaluation(2, "test", scores(right), "final")
    track.close()
    return folder


def test_ours_stand_above_the_papers_and_seeds_share_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [make_run(tmp_path / str(seed), seed, right) for seed, right in ((1, 6), (2, 8))]
    assert main(["measures", *map(str, folders)]) == 0
    out = capsys.readouterr().out
    assert "| mine (n=2) | test | 20 | 35.0 ± 7.1 | 70.0 ± 14.1 |" in out
    assert "| mine (n=2) | dev | 20 | 20.0 ± 0.0 | 40.0 ± 0.0 |" in out  # of the better round
    assert "| published: FedParsing+EMA, S = 500 | test | - | 70.7 | 88.7 | 95.9 |" in out
    assert out.count("- examples: questions whose values lie within task.max_length = 96 tokens; the others") == 1
    (note,) = [line for line in out.splitlines() if "differs" in line]
    for change in (
        "task.encoder.name random (row: roberta-base)",
        "task.num_clients 200 (row: 1000)",
        "task.data synthetic (row: data/wikisql)",
        "client.lr 0.001 (row: 0.01)",
    ):
        assert change in note
    assert "- mine: 20 test questions (paper: 10107)" in out and "- mine: 20 dev questions (paper: 5340)" in out
    assert (tmp_path / "report" / "1-2" / "measures.md").read_text() == out


def test_the_papers_table_is_whole_and_gains_are_those_it_prints() -> None:
    assert set(TABLE) == {(group, size) for group in NAMES for size in (500, 1000, 10000)}
    gains = [
        tuple(round(ema - plain, 1) for ema, plain in zip(*(next(zip(*TABLE[(g, size)])) for g in pair), strict=True))
        for size in (500, 1000, 10000)
        for pair in [("fedparsing_ema", "hydranet")]
    ]
    assert gains == [(0.9, 0.3), (1.6, 1.9), (0.1, 0.1)]


def test_a_folder_without_a_run_is_error_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measures", str(tmp_path)]) == 2
    assert "name the folder of a run" in capsys.readouterr().err
