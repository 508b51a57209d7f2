"""What a researcher looks for on the page of one run: the chosen round, every client, the worst, how sure it all is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from scipy import stats

from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.scores import number_behind, told
from fedtorch.core.update import Report
from fedtorch.report.apir_plots import plot_weights
from fedtorch.report.command_line import main
from fedtorch.report.figure import RunFigure
from fedtorch.report.groups import Band, make_groups
from fedtorch.report.html_scores import quantile
from fedtorch.report.overlay import _ring
from fedtorch.report.plots import chart_figure, run_charts
from fedtorch.report.svg import COLORS, NAMES, RIGHT, WIDTH, bar_chart, line_chart
from fedtorch.tracking.run_folder import read_run
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.tracker import Tracker

SCORES = {"big": (30, 40), "small": (2, 4), "idle": (3, 3)}


def make_run(
    folder: Path, *, metric: str = "accuracy", scores: dict[str, tuple[float, int]] = SCORES, seed: int = 0
) -> Path:
    """Three rounds, the second of which was chosen; `idle` has no weight, and `never` was not drawn."""
    config = {"run": {"name": folder.name, "seed": seed}, "eval": {"select_by": metric}}
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    track = Tracker(
        folder, clients=[*scores, "never"], rounds=3, settings=TrackConfig(tensorboard=False, progress="off")
    )
    for round in range(3):
        reports = [Report(client, examples=10, loss_mean=3.0 - round) for client in scores]
        dev = {client: {metric: (round, 4), "loss": (4.0 - round, 4)} for client in scores}
        track.evaluation(round, "dev", dev, "training")
        weights = dict.fromkeys(scores, 0.0) | {"big": 0.75, "small": 0.25}
        traffic = {"bytes_up": 1_000_000 * (round + 1), "bytes_down": 2_000_000}
        track.round(round, RoundFacts(reports, weights, {"train": 1.0}, traffic))
    final = {client: {metric: pair, "loss": (0.5 * pair[1], pair[1])} for client, pair in scores.items()}
    track.evaluation(2, "test", final, "final", weights_of=2)
    track.result({"clients": {c: {"examples": 10} for c in scores} | {"never": {"examples": 7}}})
    track.close()
    return folder


def page_of(*folders: Path) -> str:
    out = folders[0].parent / "out"
    assert main([*map(str, folders), "--html", "--out", str(out)]) == 0
    return (out / "report.html").read_text()


def tables(page: str) -> dict[str, list[list[str]]]:
    """Heading of a section -> the rows of its first table, the heads first."""
    found = {}
    for part in page.split("<section>")[1:]:
        heading = re.search("<h2>(.*?)</h2>", part)
        assert heading is not None
        rows = re.findall("<tr>(.*?)</tr>", part)
        cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row.replace("<wbr>", "")) for row in rows]
        found[heading.group(1)] = cells
    return found


def column(rows: list[list[str]], name: str) -> list[str]:
    place = rows[0].index(name)
    return [row[place] for row in rows[1:]]


def test_a_loss_says_whose_it_is(tmp_path: Path) -> None:
    rows = tables(page_of(make_run(tmp_path / "a")))["Runs"]
    assert column(rows, "test loss") == ["0.5000"] and column(rows, "train loss, last round") == ["1.0000"]
    assert column(rows, "chosen round") == ["2"] and column(rows, "test rows") == ["47"]
    assert "loss" not in rows[0] and "rows" not in rows[0]


def test_few_rows_have_wilsons_interval(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "a"))
    expected = stats.binomtest(35, 47).proportion_ci(0.95, method="wilson")
    told = [f"{expected.low:.3f} to {expected.high:.3f}"]
    assert column(tables(page)["Runs"], "95 % interval of micro") == told
    small = stats.binomtest(2, 4).proportion_ci(0.95, method="wilson")
    clients = tables(page)["accuracy of each client on test"]
    assert column(clients, "95 % interval")[1] == f"{small.low:.3f} to {small.high:.3f}"
    assert "Wilson" in page and "Student" not in page


def test_seeds_have_students_interval(tmp_path: Path) -> None:
    folders = [
        make_run(tmp_path / str(seed), seed=seed, scores={**SCORES, "big": (20 + seed, 40)}) for seed in (1, 2, 4)
    ]
    page = page_of(*folders)
    micros = [(20 + seed + 5) / 47 for seed in (1, 2, 4)]
    low, high = stats.t.interval(0.95, 2, loc=sum(micros) / 3, scale=stats.sem(micros))
    assert column(tables(page)["Runs"], "95 % interval of micro") == [f"{low:.3f} to {high:.3f}"]
    assert "Student" in page and "3 runs in 1 row" in page


def test_seeds_that_are_all_alike_have_the_interval_of_their_rows(tmp_path: Path) -> None:
    """A mean without spread is no certainty: it is 35 of 47 rows each time."""
    page = page_of(*(make_run(tmp_path / str(seed), seed=seed) for seed in (1, 2)))
    ends = stats.binomtest(35, 47).proportion_ci(0.95, method="wilson")
    assert column(tables(page)["Runs"], "95 % interval of micro") == [f"{ends.low:.3f} to {ends.high:.3f}"]
    assert "of seeds that are all alike: Wilson" in page


def test_rows_that_clients_share_count_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same four rows at each of three clients are four rows, not twelve."""
    run = make_run(tmp_path / "a", scores=dict.fromkeys(("one", "two", "three"), (3, 4)))
    lines = []
    for record in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        if record.get("label") == "final":
            record["shared"] = True
            if record["kind"] == "eval_total":
                record["metrics"]["accuracy"]["count"] = 4
        lines.append(json.dumps(record) + "\n")
    (run / "metrics.jsonl").write_text("".join(lines))
    page = page_of(run)
    ends = stats.binomtest(3, 4).proportion_ci(0.95, method="wilson")
    assert column(tables(page)["Runs"], "95 % interval of micro") == [f"{ends.low:.3f} to {ends.high:.3f}"]
    assert column(tables(page)["Runs"], "test rows") == ["4"]
    assert "test rows: the same ones for 3 clients; they count once in micro." in page
    assert "| 3 of 4 |" in capsys.readouterr().out and number_behind("f1", BEHIND, 9, ("a", "b")) == 5


BEHIND = {"a": {"f1": 3}, "b": {"f1": 3}, "c": {"f1": 2}}


def test_examples_behind_a_score_are_told_also_of_received_models() -> None:
    assert number_behind("f1", BEHIND, 9) == number_behind("received/f1", BEHIND, 9) == 8
    assert number_behind("accuracy", BEHIND, 9) == 9
    assert told({"f1": (2.0, 6), "received/f1": (1.0, 4), "accuracy": (1.0, 2)}, {"f1": 3}) == {
        "f1": (1.0, 3),
        "received/f1": (0.75, 3),
        "accuracy": (1.0, 2),
    }


def test_a_metric_that_is_no_share_of_rows_has_no_interval_of_them(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "a", metric="map", scores={"one": (1.5, 2), "two": (0.25, 1)}))
    assert "95 % interval of micro" not in tables(page)["Runs"][0] and "Wilson" not in page


def test_the_worst_client_and_quantiles_are_shown(tmp_path: Path) -> None:
    rows = tables(page_of(make_run(tmp_path / "a")))["accuracy on test: how clients spread"]
    assert rows[1] == ["a", "0.5000 of 4: small", "0.5500", "0.6250", "0.7500", "0.8750", "0.9500", "1.0000 of 3: idle"]


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 2.5), (0.25, 1.75), (1.0, 9.0)])
def test_a_quantile_is_numpys(share: float, expected: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 9.0], share) == expected and quantile([5.0], share) == 5.0


def test_of_a_loss_the_client_with_the_most_is_the_worst(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", metric="rmse", scores={"one": (6.0, 2), "two": (1.0, 1)})
    rows = tables(page_of(run))["rmse on test: how clients spread"]
    assert (rows[1][1], rows[1][-1]) == ("3.0000 of 2: one", "1.0000 of 1: two")


def test_every_client_has_rows_weight_and_loss_also_one_that_was_never_drawn(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "a"))
    rows = tables(page)["accuracy of each client on test"]
    assert column(rows, "client") == ["big", "small", "idle", "never"]
    assert column(rows, "train rows") == ["10", "10", "10", "7"] and column(rows, "test rows")[-1] == "-"
    assert column(rows, "mean weight") == ["0.7500", "0.2500", "0.0000", "0.0000"]
    assert column(rows, "rounds drawn") == ["3", "3", "3", "0"]
    assert column(rows, "train loss, last drawn") == ["1.0000", "1.0000", "1.0000", "-"]
    assert "Weight 0 in every round: idle, never." in page


def test_a_client_that_chose_its_own_round_shows_it(tmp_path: Path) -> None:
    run, lines = make_run(tmp_path / "a"), []
    for record in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        if record.get("label") == "final":
            own = {"weights_of": {"big": 2, "small": 3, "idle": 2}[record["client"]]} if "client" in record else {}
            record = {key: value for key, value in record.items() if key != "weights_of"} | own
        lines.append(json.dumps(record) + "\n")
    (run / "metrics.jsonl").write_text("".join(lines))
    (final,) = [e for e in read_run(run).all_evaluations() if e.label == "final"]
    assert final.weights_of is None and final.own_rounds == {"big": 2, "small": 3, "idle": 2}
    page = tables(page_of(run))
    assert column(page["accuracy of each client on test"], "own best round") == ["2", "3", "2", "-"]
    assert "chosen round" not in page["Runs"][0]


def test_the_chosen_round_is_marked_in_the_curves(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "a"))
    charts = dict(re.findall("<figcaption>(.*?)</figcaption>(.*?)</figure>", page))
    for name in ("accuracy on dev", "loss on dev", "train loss, mean of each round&#x27;s clients"):
        assert "<title>chosen round 2</title>" in charts[name] and "chosen round</span>" in charts[name]
    assert 'class="chosen"' in charts["train loss of each client"]
    assert "chosen" not in charts["bytes of each round, all clients together"]


def test_every_client_and_the_bytes_of_each_round_have_curves(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "a"))
    charts = dict(re.findall("<figcaption>(.*?)</figcaption>(.*?)</figure>", page))
    assert set(charts) == {
        "train loss, mean of each round&#x27;s clients",
        "accuracy on dev",
        "loss on dev",
        "train loss of each client",
        "accuracy on dev of each client",
        "loss on dev of each client",
        "weight of each client in the combined update",
        "bytes of each round, all clients together",
    }
    titles = re.findall("<title>(.*?)</title>", charts["bytes of each round, all clients together"])
    assert {"MB up, round 3: 3", "MB down, round 1: 2"} <= set(titles)
    assert "idle, round 3: 1" in charts["train loss of each client"]


def test_of_many_clients_the_middle_and_the_ends_are_drawn(tmp_path: Path) -> None:
    scores = {f"client{number:02}": (float(number), 12) for number in range(12)}
    page = page_of(make_run(tmp_path / "a", scores=scores))
    (chart,) = re.findall("<figcaption>train loss of each client: 12 clients</figcaption>(.*?)</figure>", page)
    assert re.findall("</i>(.*?)</span>", chart) == ["median", "highest client", "lowest client", "chosen round"]


def test_bars_of_shares_end_at_one_whatever_the_largest_is() -> None:
    def width(text: str) -> float:
        (found,) = re.findall(rf'width="([\d.]+)" height="9" fill="{COLORS[0]}"', text)
        return float(found)

    whole = WIDTH - NAMES - RIGHT
    assert width(bar_chart({"a": [(0.25, 0.25, 0.25)]}, ["x"], is_share=True)) == whole / 4
    assert width(bar_chart({"a": [(0.25, 0.25, 0.25)]}, ["x"])) == whole  # of other figures nobody knows the end
    text = bar_chart({"a": [(0.5, 0.2, 0.9)]}, ["x"], "test accuracy", is_share=True)
    assert re.findall(r'text-anchor="middle">([\d.]+)<', text) == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert "a, x: 0.5 (0.2 to 0.9)" in text and "test accuracy" in text


def test_a_band_of_shares_ends_where_shares_do() -> None:
    chart = line_chart({"a": Band([1, 2], [0.9, 1.0], [0.3, 0.0])}, "accuracy", bounds=(0.0, 1.0))
    assert [float(tick) for tick in re.findall(r'text-anchor="end">([\d.]+)<', chart)][-1] == 1.0


def test_groups_know_their_runs_rounds(tmp_path: Path) -> None:
    (group,) = make_groups([("a", read_run(make_run(tmp_path / "a")))])
    assert group.chosen_rounds == [2] and group.own_rounds() == {}
    assert group.of_round("bytes_up", 1e6).mean == [1.0, 2.0, 3.0]
    assert group.of_clients("weight")["small"].mean == [0.25] * 3
    assert group.scores_of_clients("dev", "accuracy")["big"].mean == [0.0, 0.25, 0.5]


def test_the_chosen_round_is_marked_in_pictures_too(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "a"))
    charts = run_charts(run)
    figure = chart_figure(run, charts["dev_accuracy"])
    assert "chosen round 2" in figure.axes[0].get_legend_handles_labels()[1]
    assert charts["loss_rounds"].chosen == charts["weights"].chosen == 2
    figure = RunFigure()
    axes, band = figure.subplots(), Band([1, 2], [0.5, 0.7], [0.0, 0.0])
    _ring(axes, {"a": band}, {"a": [2, 2, 9]})
    assert [list(line.get_xdata()) for line in axes.lines] == [[2], []]


def test_a_weight_of_zero_is_a_point_of_its_curve(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert plot_weights(read_run(make_run(tmp_path / "runs" / "a")), tmp_path / "w.png")
    lines = run_charts(read_run(tmp_path / "runs" / "a"))["weights"].lines
    assert lines["idle"] == ([1, 2, 3], [0.0, 0.0, 0.0])
