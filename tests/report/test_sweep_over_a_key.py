"""`fedtorch report sweep`: the key that is swept, lines that differ in other keys, seeds, tables and pictures."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
import yaml

from fedtorch.core.errors import ConfigError
from fedtorch.core.yaml_tree import write
from fedtorch.report.command_line import main
from fedtorch.report.find_runs import find_runs
from fedtorch.report.groups import make_groups
from fedtorch.report.sweep import plot_sweep
from fedtorch.report.sweep_scores import Sweep, sweep_of
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.tracker import Tracker

CLIENTS = {"big": 10, "small": 2}


def make_run(folder: Path, big: int, **config: Any) -> None:
    """`big` of 10 are right at one client, 1 of 2 at the other."""
    folder.mkdir(parents=True)
    config = {"run": {"name": folder.name, "seed": config.pop("seed", 0)}, "eval": {"select_by": "acc"}, **config}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    track = Tracker(folder, clients=tuple(CLIENTS), rounds=1, settings=TrackConfig(tensorboard=False, progress="off"))
    track.evaluation(1, "test", {"big": {"acc": (big, 10)}, "small": {"acc": (1, 2)}}, "final")
    track.close()


def swept(folder: Path, key: str | None = None) -> Sweep:
    return sweep_of(make_groups(find_runs([folder]).runs), "acc", key)


def values(sweep: Sweep, name: str = "big") -> dict[str, list[tuple[Any, list[float]]]]:
    return {line.name: [(point.value, list(point.figures[name])) for point in line.points] for line in sweep.lines}


def test_the_one_key_that_differs_is_found_and_its_values_are_in_order(tmp_path: Path) -> None:
    for rate, right in ((0.1, 7), (0.01, 3), (1.0, 9)):
        make_run(tmp_path / f"lr={rate}", right, client={"lr": rate})
    sweep = swept(tmp_path)
    assert (sweep.key, sweep.is_numeric) == ("client.lr", True)
    assert values(sweep) == {"": [(0.01, [0.3]), (0.1, [0.7]), (1.0, [0.9])]}
    # overall by hand: (3 + 1) of 12, and the mean of 0.3 and 0.5
    assert sweep.lines[0].points[0].figures["micro"] == [pytest.approx(4 / 12)]
    assert sweep.lines[0].points[0].figures["macro"] == [pytest.approx(0.4)]


def test_values_are_read_as_the_run_has_read_them(tmp_path: Path) -> None:
    """Otherwise than by YAML 1.1, in which `off` is false and 1:30 the number 90."""
    for value, right in (("off", 7), ("1:30", 3), ("cosine", 9)):
        make_run(tmp_path / str(right), right)
        with (tmp_path / str(right) / "config.yaml").open("a") as file:
            file.write(write({"schedule": value}))
    assert [point.value for point in swept(tmp_path).lines[0].points] == ["1:30", "cosine", "off"]


def test_seeds_are_one_point_with_their_spread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rate in (1, 2):
        for seed in (0, 1):
            make_run(tmp_path / f"k={rate},seed={seed}", rate + seed, clients={"per_round": rate}, seed=seed)
    assert main(["sweep", str(tmp_path), "--no-plots"]) == 0
    spread = 100 * stdev([0.1, 0.2])
    assert f"| 1 | 15.00 ± {spread:.2f} | 50.00 ± 0.00 |" in capsys.readouterr().out
    (file,) = (tmp_path / "report").glob("*.csv")
    rows = list(csv.DictReader(file.open()))
    assert [(row["clients.per_round"], row["seeds"], row["big"]) for row in rows] == [
        ("1", "2", str(0.15000000000000002)),
        ("2", "2", "0.25"),
    ]


def test_a_second_key_makes_lines_and_a_key_that_follows_does_not(tmp_path: Path) -> None:
    for rounds, epochs in ((10, 1), (5, 2), (2, 5)):
        for model in ("a", "b"):
            make_run(tmp_path / f"{rounds}{model}", rounds // 2, rounds=rounds, client={"epochs": epochs}, model=model)
    with pytest.raises(ConfigError, match="several keys: choose one with --over: client.epochs, model, rounds"):
        swept(tmp_path)
    assert values(swept(tmp_path, "client.epochs")) == {
        f"model={model}": [(1, [0.5]), (2, [0.2]), (5, [0.1])] for model in ("a", "b")
    }
    assert set(values(swept(tmp_path, "model"))) == {"client.epochs=1", "client.epochs=2", "client.epochs=5"}


def test_what_goes_along_with_the_key_in_some_runs_is_one_line(tmp_path: Path) -> None:
    for share, right in ((0.2, 3), (0.6, 5), (1.0, 7)):
        make_run(tmp_path / f"one={share}", right, share={"big": share})
        make_run(tmp_path / f"all={share}", right - 1, share={"big": share, "small": share})
    sweep = swept(tmp_path, "share.big")
    assert values(sweep) == {
        "share.small=None": [(0.2, [0.3]), (0.6, [0.5]), (1.0, [0.7])],
        "share.small=as swept": [(0.2, [0.2]), (0.6, [0.4]), (1.0, [0.6])],
    }


def test_a_grid_whose_keys_have_values_in_common_keeps_its_lines(tmp_path: Path) -> None:
    for lr in (1, 2):
        for rounds in (1, 2):
            make_run(tmp_path / f"{lr}{rounds}", lr + rounds, lr=lr, rounds=rounds)
    assert values(swept(tmp_path, "lr")) == {
        "rounds=1": [(1, [0.2]), (2, [0.3])],
        "rounds=2": [(1, [0.3]), (2, [0.4])],
    }


def test_lists_go_by_the_names_of_their_runs_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for n in (10, 9, 0):
        make_run(tmp_path / f"layers_{n}", n, partition={"private": [f"layer.{i}" for i in range(n)]})
    make_run(tmp_path / "layers_all", 5, partition={"private": ["layer.*"]})
    sweep = swept(tmp_path)
    assert not sweep.is_numeric
    expected = [("layers_0", [0.0]), ("layers_9", [0.9]), ("layers_10", [1.0]), ("layers_all", [0.5])]
    assert values(sweep) == {"": expected}  # numbers before words


def test_numbers_come_before_words_also_where_a_key_has_both(tmp_path: Path) -> None:
    for value, right in (("none", 1), (10, 2), (9, 3), ("top10", 4), ("top9", 5), ("4k", 6)):
        make_run(tmp_path / f"k={value}", right, keep=value)
    assert values(swept(tmp_path)) == {
        "": [(9, [0.3]), (10, [0.2]), ("4k", [0.6]), ("none", [0.1]), ("top9", [0.5]), ("top10", [0.4])]
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--over", "client.rate"], "--over is client.rate, in which the runs do not differ; nearest: client.lr"),
        (["--metric", "f1"], "no run has scores of f1"),
    ],
)
def test_a_wrong_key_or_metric_is_error_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    for rate in (0.1, 0.2):
        make_run(tmp_path / str(rate), 1, client={"lr": rate})
    assert main(["sweep", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


def test_runs_that_are_equal_are_no_sweep(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 1, seed=0)
    make_run(tmp_path / "b", 1, seed=1)
    with pytest.raises(ConfigError, match="do not differ in any key but the seed"):
        swept(tmp_path)


def test_pictures_have_a_line_for_each_client_and_over_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib = pytest.importorskip("matplotlib.axes")
    drawn: list[tuple[str, list[float], list[float]]] = []
    plot, errorbar = matplotlib.Axes.plot, matplotlib.Axes.errorbar

    def note(real: Any) -> Any:
        def call(self: Any, xs: Any, ys: Any, *args: Any, **options: Any) -> Any:
            if options.get("label"):
                drawn.append((options["label"], list(xs), [round(y, 3) for y in ys]))
            return real(self, xs, ys, *args, **options)

        return call

    monkeypatch.setattr(matplotlib.Axes, "plot", note(plot))
    monkeypatch.setattr(matplotlib.Axes, "errorbar", note(errorbar))
    for rate, right in ((0.001, 3), (0.1, 7)):
        make_run(tmp_path / f"lr={rate}", right, client={"lr": rate})
    assert main(["sweep", str(tmp_path)]) == 0
    assert {name: (xs, ys) for name, xs, ys in drawn if name[0] != "_"} == {
        "big": ([0.001, 0.1], [0.3, 0.7]),
        "small": ([0.001, 0.1], [0.5, 0.5]),
        "macro": ([0.001, 0.1], [0.4, 0.6]),
        "micro": ([0.001, 0.1], [round(4 / 12, 3), round(8 / 12, 3)]),
    }
    assert (tmp_path / "report" / "sweep_client_lr_acc.png").stat().st_size > 10_000


def test_more_than_thirty_clients_are_drawn_in_a_new_folder(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = {f"c{number}": (number, 40) for number in range(31)}
    for rate in (1, 2):
        (tmp_path / str(rate)).mkdir()
        config = {"run": {"name": str(rate)}, "eval": {"select_by": "acc"}, "client": {"lr": rate}}
        (tmp_path / str(rate) / "config.yaml").write_text(yaml.safe_dump(config))
        track = Tracker(
            tmp_path / str(rate),
            clients=tuple(names),
            rounds=1,
            settings=TrackConfig(tensorboard=False, progress="off"),
        )
        track.evaluation(1, "test", {name: {"acc": pair} for name, pair in names.items()}, "final")
        track.close()
    (path,) = plot_sweep(swept(tmp_path), tmp_path / "new" / "folder", "all")
    assert path == tmp_path / "new" / "folder" / "all.png" and path.stat().st_size > 10_000
