"""What stands in the pictures of reports, read from the figures themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from fedtorch.metrics.apir import compare
from fedtorch.report.apir_plots import plot_tasks
from fedtorch.report.groups import make_groups
from fedtorch.report.overlay import plot_comparison
from fedtorch.report.plots import MAX_NAMED, plot_lines
from fedtorch.tracking.run_folder import read_run


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures in the order in which they would be written; nothing is."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    return figures


def run_of(folder: Path, seed: int, losses: Sequence[float]) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(json.dumps({"run": {"name": "mine", "seed": seed}}))
    records = [
        {"kind": "run", "clients": ["a"], "rounds": len(losses)},
        *({"kind": "round", "round": number, "loss": loss} for number, loss in enumerate(losses, 1)),
        *(
            {"kind": "client", "round": number, "client": "a", "status": "ok", "loss_mean": loss}
            for number, loss in enumerate(losses, 1)
        ),
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def test_tasks_stand_by_improvement_and_those_of_a_base_of_zero_last(tmp_path: Path, drawn: list[Figure]) -> None:
    """Over two seeds: up by 20 %, up and down by as much, down by half, and nothing to compare with."""
    base = {"c": {"up/acc": 0.5, "both/acc": 0.5, "down/acc": 0.4, "zero/acc": 0.0, "tie/acc": 0.3}}
    seeds = [
        compare(base, {"c": {"up/acc": 0.6, "both/acc": both, "down/acc": 0.2, "zero/acc": 0.1, "tie/acc": 0.3}})
        for both in (0.6, 0.4)
    ]
    plot_tasks("mine", seeds, tmp_path / "new" / "folder" / "tasks.png")
    (axes,) = drawn[0].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["up", "both", "down", "zero"]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([20, 0, -50, 0])
    assert axes.get_title() == "mine: c (1 ties left out)" and list(axes.lines[0].get_xdata()) == [3]
    assert (tmp_path / "new" / "folder").is_dir()


def test_a_band_is_drawn_also_where_seeds_begin_alike(tmp_path: Path, drawn: list[Figure]) -> None:
    folders = [run_of(tmp_path / f"s{seed}", seed, [2.0, last]) for seed, last in ((1, 1.0), (2, 3.0))]
    groups = make_groups([(run.name, run) for run in map(read_run, folders)])
    plot_comparison(groups, tmp_path)
    for figure in drawn:
        (band,) = figure.axes[0].collections
        low, high = (f(band.get_paths()[0].vertices[:, 1]) for f in (min, max))
        assert (low, high) == pytest.approx((2 - 2**0.5, 2 + 2**0.5))  # of 1 and 3
    assert len(drawn) == 2


def test_many_lines_are_grey_and_their_median_has_the_name(tmp_path: Path, drawn: list[Figure]) -> None:
    lines = {f"c{n}": ([1.0, 2.0], [float(n), 2.0 * n]) for n in range(MAX_NAMED + 1)}
    plot_lines(tmp_path / "many.png", "all", ("round", "loss"), lines)
    plot_lines(tmp_path / "few.png", "few", ("round", "loss"), {"c1": lines["c1"]})
    many, few = (figure.axes[0] for figure in drawn)
    assert many.get_legend_handles_labels()[1] == [f"median of {MAX_NAMED + 1} clients"]
    assert list(many.lines[-1].get_ydata()) == [MAX_NAMED / 2, MAX_NAMED]
    assert few.get_legend_handles_labels()[1] == ["c1"] and len(few.lines) == 1
