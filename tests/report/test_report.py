"""The report reads what runs recorded, and puts the published figures beside it."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml
from matplotlib import font_manager

from fedtorch.config import load as yaml_config
from fedtorch.config.find import find
from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.update import Report
from fedtorch.metrics.intervals import wilson
from fedtorch.report.command_line import COMMANDS, main
from fedtorch.report.plots import plot_run
from fedtorch.report.published import FEDMATCH, LORAR, fedassistant, fedparsing, fewfedweight, find_row
from fedtorch.report.score_table import Table, TableRow, _interval, as_csv, markdown
from fedtorch.tracking.run_folder import read_run
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.tracker import Tracker

CORRECT = {"advising": 300, "atis": 200, "yelp": 6}
SIZES = dict(zip(LORAR.clients, LORAR.sizes, strict=True))


def make_run(
    folder: Path,
    *,
    name: str = "fedopt_lorar",
    seed: int = 1,
    rounds: int = 2,
    correct: dict[str, int] | None = CORRECT,
    split: str = "test",
    failing: str = "",
    settings: Sequence[str] = (),
) -> Path:
    """A run folder as a run of `lorar/fedopt_lorar` leaves it, with `settings` as after `--set`.

    Without `correct` it was never evaluated, with `split: dev` it has not finished.
    """
    folder.mkdir(parents=True)
    given = [f"run.name={name}", f"run.seed={seed}", f"run.dir={folder}", *settings]
    (folder / "config.yaml").write_text(yaml_config.to_yaml(yaml_config.load("lorar/fedopt_lorar", given)))
    track = Tracker(folder, clients=list(CORRECT), rounds=2, settings=TrackConfig(tensorboard=False, progress="off"))
    for round in range(rounds):
        reports = [
            Report(client, status="failed:ValueError" if client == failing else "ok", loss_mean=1.0, curve=(1.0, 0.5))
            for client in CORRECT
        ]
        for i in range(2 if correct else 0):
            track.evaluation(round - 1 + i, "dev", {client: {"exact_match": (0, 1)} for client in CORRECT}, "training")
        track.round(round, RoundFacts(reports, dict.fromkeys(CORRECT, 0.5), {}, {}))
    if correct:
        scores = {client: {"exact_match": (n, SIZES[client]), "f1": (0.5, 1)} for client, n in correct.items()}
        track.evaluation(rounds - 1, split, scores, "final" if split == "test" else "training")
    track.close()
    return folder


def rows(text: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in cells}


# means that the FedMatch paper itself misprints: the mean of its own figures
MISPRINTS = {("map", "fedavg"): 79.94, ("mrr", "bert"): 82.80}


@pytest.mark.parametrize("paper", FEDMATCH, ids=lambda paper: paper.metric)
def test_published_means_are_the_means_of_the_clients(paper: Any) -> None:
    assert len(paper.rows) == 17
    for name, row in paper.rows.items():
        assert fmean(row.percent) == pytest.approx(MISPRINTS.get((paper.metric, name), row.macro), abs=0.0101), name


@pytest.mark.parametrize("paper", [LORAR], ids=lambda paper: paper.name)
def test_published_figures_are_consistent(paper: Any) -> None:
    assert len(paper.sizes) == len(paper.clients)
    for name, row in paper.rows.items():
        counts = [round(percent * size / 100) for percent, size in zip(row.percent, paper.sizes, strict=True)]
        for count, percent, size in zip(counts, row.percent, paper.sizes, strict=True):
            assert abs(100 * count / size - percent) <= 0.00501, (name, percent)
        assert sum(counts) == row.correct, name
        assert abs(fmean(row.percent) - row.macro) <= 0.01001, name  # a mean of rounded figures, rounded
        # 0.01 and not half of it: FedOPT_equal's 1144 of 1679 is 68.136, printed as 68.13
        assert abs(100 * row.correct / sum(paper.sizes) - row.micro) < 0.01, name


def test_lorars_table_is_whole() -> None:
    assert len(LORAR.rows) == 10 and sum(LORAR.sizes) == 1679
    assert LORAR.rows["fedopt_lorar"].percent[list(LORAR.clients).index("atis")] == 52.35


def test_a_run_becomes_a_row_with_the_published_one_below(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "a")
    assert main([str(run)]) == 0
    out = capsys.readouterr().out
    table = rows(out)
    assert table["run"][:3] == ["split", "Advising (573)", "ATIS (447)"] and table["run"][-3] == "Macro"
    ours = table["fedopt_lorar"]
    assert ours[:3] == ["test", "52.36", "44.74"]
    assert ours[3:8] == ["-"] * 5
    assert ours[8:] == ["25.00", "40.70", "48.47", "506 of 1044"]  # 506 / 1044
    assert table["published: FedOPT_lorar"][-3:] == ["62.55", "69.39", "1165 of 1679"]
    assert "differs" not in out and "tables 2 and 3" in out
    assert (run / "report" / "table.md").read_text() == out
    (line, published) = csv.DictReader((run / "report" / "table.csv").open())
    assert (line["run"], line["atis"], line["atis_examples"]) == ("fedopt_lorar", "44.7427", "447")
    assert published["micro"] == "69.3900"
    names = ["dev_exact_match.png", "loss_rounds.png", "loss_steps.png", "weights.png"]
    assert sorted(path.name for path in (run / "report").glob("*.png")) == names
    assert all((run / "report" / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_the_table_for_programs_has_means_sample_deviations_and_sizes(tmp_path: Path) -> None:
    """Three seeds; of 573 questions 300, 303 and 312 are right, so 5 ± 6.245 above 300, as 39 / 2 is 19.5."""
    runs = [
        make_run(tmp_path / str(seed), seed=seed, correct={**CORRECT, "advising": right}, failing=failing)
        for seed, right, failing in ((1, 300, ""), (2, 303, "atis"), (3, 312, ""))
    ]
    assert main(["table", "--no-plots", "--format", "csv", *map(str, runs), "--out", str(tmp_path / "out")]) == 0
    (line, published) = csv.DictReader((tmp_path / "out" / "table.csv").open())
    assert (line["run"], line["split"], line["metric"], line["runs"]) == (
        "fedopt_lorar (n=3)", "test", "exact_match", "3",
    )  # fmt: skip
    assert line["advising"] == f"{100 * 305 / 573:.4f}" and line["advising_std"] == f"{100 * 39**0.5 / 573:.4f}"
    assert (line["advising_examples"], line["atis_std"], line["atis_examples"]) == ("573", "0.0000", "447")
    macros = [100 * (right / 573 + 200 / 447 + 6 / 24) / 3 for right in (300, 303, 312)]
    assert (line["macro"], line["macro_std"]) == (f"{fmean(macros):.4f}", f"{stdev(macros):.4f}")
    assert line["micro"] == f"{100 * 511 / 1044:.4f}" and line["micro_std"] == f"{100 * 39**0.5 / 1044:.4f}"
    assert (line["correct"], line["examples"]) == ("511", "1044")
    assert line["notes"].split("; ")[0] == "seed 2: failed rounds: atis 2"
    assert (published["runs"], published["advising_std"], published["examples"]) == ("1", "", "1679")


def test_other_models_of_the_same_split_have_rows_of_their_own_and_those_of_training_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "a", name="mine")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    final = [line for line in lines if line["kind"] == "eval" and line["label"] == "final"]
    with (run / "metrics.jsonl").open("a") as file:
        for split, label, right in (("test", "personal", 3), ("test", "training", 5), ("dev", "global", 7)):
            for line in final:
                told = {"split": split, "label": label, "metrics": {"exact_match": [right, 10]}}
                file.write(json.dumps(line | told) + "\n")
    assert len(final) == 3 and main(["table", "--no-plots", str(run)]) == 0
    table = rows(capsys.readouterr().out)
    assert [label for label in table if label.startswith("mine")] == ["mine [final]", "mine [personal]"]
    assert table["mine [personal]"][-1] == "9 of 30"


def test_the_published_row_of_two_runs_is_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(tmp_path / name, settings=[f"client.epochs={n}"]) for n, name in ((1, "a"), (2, "b"))]
    assert main(["table", "--no-plots", *map(str, runs)]) == 0
    shown = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert shown.count("published: FedOPT_lorar") == 1 and shown.count("fedopt_lorar") == 2


def test_a_run_of_any_name_is_put_beside_the_row_that_its_config_names(tmp_path: Path) -> None:
    plain = make_run(tmp_path / "a", name="mine")
    named = make_run(tmp_path / "b", name="mine", settings=["run.published=lorar/fedopt_lorar"])
    assert find_row(read_run(plain)) is None
    found = find_row(read_run(named))
    assert found is not None and (found[0].name, found[1].title) == ("lorar", "FedOPT_lorar")
    assert yaml_config.load(None, ["run.published=lorar/fedopt_lorar"]).run.published == "lorar/fedopt_lorar"


def test_two_files_are_all_a_report_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "a")
    main(["--no-plots", str(run), "--out", str(tmp_path / "out")])
    first = capsys.readouterr().out
    (tmp_path / "copy").mkdir()
    for name in ("metrics.jsonl", "config.yaml"):
        shutil.copy(run / name, tmp_path / "copy")
    main(["--no-plots", str(tmp_path / "copy"), "--out", str(tmp_path / "out2")])
    assert capsys.readouterr().out == first


def test_what_differs_from_the_paper_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["task.data=synthetic", "task.max_train=100", "task.model.name=t5-small", "rounds=5"]
    changes += [
        "per_client.yelp.lr=2e-3",
        "per_client.imdb=null",
        "algorithm.loss_reduction.window=8",
        "task.em_normalise=false",
    ]
    run = make_run(tmp_path / "a", settings=changes)
    main(["--no-plots", str(run)])
    (note,) = [line for line in capsys.readouterr().out.splitlines() if "differs" in line]
    start, _, listed = note.partition(": differs from lorar/fedopt_lorar: ")
    assert start == "- fedopt_lorar"
    assert sorted(listed.split(", ")) == [
        "algorithm.loss_reduction.window 8 (row: 4)",
        "per_client.imdb.batch_size not set (row: 4)",
        "per_client.imdb.epochs not set (row: 12)",
        "per_client.imdb.lr not set (row: 0.001)",
        "per_client.yelp.lr 0.002 (row: 0.0001)",
        "rounds 5 (row: 60)",
        "task.data synthetic (row: data/text2sql)",
        "task.em_normalise false (row: true)",
        "task.max_train 100 (row: null)",
        "task.model.name t5-small (row: t5-base)",
    ]


def test_places_and_ranks_are_no_difference_and_an_older_run_has_the_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "a", settings=["task.data=/scratch/text2sql", "task.model.name=models/t5-base"])
    settings = yaml.safe_load((run / "config.yaml").read_text())
    del settings["task"]["em_strings"], settings["client"]["shuffle"]
    settings["system"]["timeout"] = 77
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    main(["--no-plots", str(run)])
    assert "differs" not in capsys.readouterr().out


def test_a_config_that_cannot_be_read_any_more_is_compared_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "a")
    (run / "config.yaml").write_text("run: {name: fedopt_lorar}\nrounds: 7\nbygone: 1\n")
    main(["--no-plots", str(run)])
    out = capsys.readouterr().out
    assert "differs from lorar/fedopt_lorar: rounds 7 (row: 60), bygone 1 (row: not set); keys that its" in out
    assert "unknown key `bygone`" in out
    (run / "config.yaml").unlink()
    main(["--no-plots", str(run)])
    assert "published" not in capsys.readouterr().out  # nothing says which row it is


def test_a_config_that_is_no_text_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "a")
    (run / "config.yaml").write_bytes(b"rounds: 7\nrun: {name: caf\xe9}\n")
    assert main(["--no-plots", str(run)]) == 2
    assert f"config is {run / 'config.yaml'}, which is no text in UTF-8" in capsys.readouterr().err


def test_every_published_row_has_a_config_to_compare_with() -> None:
    names = {f"{paper.name}/{config}" for paper in (LORAR, *FEDMATCH) for config in paper.rows}
    names |= {f"fedparsing/{group}_{size}" for group, size in fedparsing.TABLE}
    names |= {f"fewfedweight/{config}" for config in (*fewfedweight.ROWS, fewfedweight.BASE)}
    names |= {f"fewfedweight/silo_{number}" for number in (2, 4, 8, 12)}
    names |= {f"fedassistant/{config}" for config in fedassistant.TABLE}
    for name in sorted(names):
        assert find(Path(name))


def test_runs_that_differ_only_in_the_seed_share_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, correct in ((1, 6), (2, 12), (3, 12)):
        make_run(tmp_path / str(seed), seed=seed, correct={"yelp": correct})
    make_run(tmp_path / "other", rounds=1, settings=["client.accumulation=4"])
    main(["--no-plots", *(str(tmp_path / name) for name in ("1", "2", "3", "other"))])
    table = rows(capsys.readouterr().out)
    spread = f"{fmean((25, 50, 50)):.2f} ± {stdev((25, 50, 50)):.2f}"
    assert table["fedopt_lorar (n=3)"][8:] == [spread, spread, spread, "10 of 24"]
    assert table["fedopt_lorar"][8] == "25.00"
    assert list(table).count("published: FedOPT_lorar") == 1


def test_of_one_run_its_clients_are_drawn_and_of_several_their_comparison(tmp_path: Path) -> None:
    for seed, name in enumerate(("a", "b")):
        make_run(tmp_path / name, seed=seed)
    assert main([str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "out")]) == 0
    names = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
    assert names == ["compare_client_losses.png", "compare_dev_exact_match.png"]  # no examples, so rounds have no loss


def test_only_so_many_charts_are_drawn_those_of_single_tasks_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtorch.report.plots.MAX_CHARTS", 5)
    track = Tracker(tmp_path / "run", clients=["a"], rounds=2, settings=TrackConfig(tensorboard=False, progress="off"))
    for number in range(2):
        scores = {f"task{i}/acc": (1.0, 2) for i in range(9)} | {"tasks_mean": (4.0, 9)}
        track.round(number, RoundFacts([Report("a", loss_mean=1.0, curve=(1.0, 0.5))], {"a": 1.0}, {}, {}))
        track.evaluation(number, "dev", {"a": scores}, "training")
    track.close()
    paths = plot_run(read_run(tmp_path / "run"), tmp_path / "out")
    assert [path.stem for path in paths] == ["loss_steps", "loss_rounds", "weights", "dev_tasks_mean", "dev_task0_acc"]
    assert "5 of 13 charts are drawn" in caplog.text


def test_the_run_beside_a_run_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "a")
    make_run(run / "compare", name="fedopt_lorar-local", settings=["paradigm=local"])
    main(["--no-plots", str(run)])
    table = rows(capsys.readouterr().out)
    assert list(table)[2:] == [
        "fedopt_lorar",
        "published: FedOPT_lorar",
        "fedopt_lorar-local",
        "published: Finetuning",
    ]


def test_a_run_that_is_still_going_shows_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "a", rounds=1, split="dev", failing="atis")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind":"client","rou')
    assert main(["--no-plots", str(run)]) == 0
    out = capsys.readouterr().out
    assert rows(out)["fedopt_lorar"][:3] == ["dev", "52.36", "44.74"]
    assert "not finished: 1 of 2 rounds" in out and "failed rounds: atis 1" in out
    assert "evaluated on dev, the published row on test" in out


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_run_without_evaluation_is_a_row_of_dashes(
    tmp_path: Path, rounds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--no-plots", str(make_run(tmp_path / "a", correct=None, rounds=rounds))]) == 0
    out = capsys.readouterr().out
    assert set(rows(out)["fedopt_lorar"]) == {"-"} and "not evaluated yet" in out


def test_other_test_sets_than_the_papers_show_in_the_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "a", correct=None)
    track = Tracker(
        run, clients=["atis"], rounds=2, settings=TrackConfig(tensorboard=False, progress="off"), resume_round=2
    )
    track.evaluation(1, "test", {"atis": {"exact_match": (10, 40)}}, "final")
    track.close()
    main(["--no-plots", str(run)])
    out = capsys.readouterr().out
    assert rows(out)["fedopt_lorar"][2] == "25.00 of 40" and "atis 40 (447)" in out


def test_another_metric_and_csv_can_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "a")
    assert main(["table", "--no-plots", str(run), "--metric", "f1", "--format", "csv"]) == 0
    (line,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert (line["metric"], line["macro"], line["correct"], line["examples"]) == ("f1", "50.0000", "", "3")
    assert main(["--no-plots", str(run), "--metric", "bleu"]) == 2
    assert "--metric is bleu but the runs have exact_match, f1" in capsys.readouterr().err


def test_a_missing_run_is_error_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing")]) == 2
    assert "metrics.jsonl does not exist" in capsys.readouterr().err
    (tmp_path / "metrics.jsonl").touch()  # a run that died at once
    (tmp_path / "config.yaml").write_text("a: [")
    assert main([str(tmp_path)]) == 2
    (tmp_path / "config.yaml").unlink()
    assert main([str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("config", "title"),
    [
        ({"run": {"name": "fedopt"}}, "FedOPT"),
        ({"run": {"name": "mine", "published": "lorar/fedprox_lorar"}}, "FedProx_lorar"),
        ({"run": {"name": "seed3-fedavg"}}, "FedAvg"),
        ({"run": {"name": "mine"}}, None),
        ({"run": {"name": "mine", "published": "other/fedopt"}}, None),
    ],
)
def test_a_published_row_is_found_by_key_or_name(tmp_path: Path, config: dict[str, Any], title: str | None) -> None:
    run = make_run(tmp_path / "a")
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    found = find_row(read_run(run))
    assert (None if found is None else found[1].title) == title


def test_every_report_explains_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        with pytest.raises(SystemExit) as end:
            main([name, "--help"])
        assert end.value.code == 0 and f"usage: fedtorch.report {name} " in capsys.readouterr().out


def make_evaluated_run(folder: Path, name: str, values: dict[str, list[float]], metric: str = "mrr") -> Path:
    track = Tracker(folder, clients=list(values), rounds=1, settings=TrackConfig(tensorboard=False, progress="off"))
    (folder / "config.yaml").write_text(f"run: {{name: {name}}}\neval: {{select_by: {metric}}}\n")
    scores = {client: {metric: (sum(v), len(v))} for client, v in values.items()}
    track.evaluation(0, "test", scores, "final")
    track.examples(0, "test", {client: {metric: v} for client, v in values.items()})
    track.close()
    return folder


def test_ttest_compares_two_runs_example_by_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from scipy import stats

    nan = float("nan")
    base = make_evaluated_run(tmp_path / "a", "bert", {"fiqa": [0.5, 0.2, 1.0, 0.1, nan], "medquad": [0.5, 0.5]})
    new = make_evaluated_run(
        tmp_path / "b", "fm_h_lr+small", {"fiqa": [0.6, 0.9, 1.0, 0.7, 1.0], "medquad": [0.5, 0.5]}
    )
    assert main(["ttest", "--base", str(base), "--new", str(new)]) == 0
    out = capsys.readouterr().out
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line[:1] == "|"]
    expected = stats.ttest_rel([0.6, 0.9, 1.0, 0.7], [0.5, 0.2, 1.0, 0.1])
    assert lines[2] == ["fm_h_lr+small", "fiqa", "4", "+0.3500", f"{expected.statistic:.2f}", f"{expected.pvalue:.4f}"]
    assert lines[3] == ["fm_h_lr+small", "medquad", "2", "+0.0000", "0.00", "1.0000"]
    assert lines[4][1:4] == ["all", "6", "+0.2333"]


def test_ttest_over_a_task_that_one_client_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = []
    for name, values in (("a", [0.0, 1.0, 0.0, 0.0]), ("b", [1.0, 1.0, 1.0, 0.0])):
        folders.append(str(tmp_path / name))
        track = Tracker(
            tmp_path / name, clients=["one", "two"], rounds=1, settings=TrackConfig(tensorboard=False, progress="off")
        )
        (tmp_path / name / "config.yaml").write_text(f"run: {{name: {name}}}\n")
        track.examples(0, "test", {"one": {"piqa/acc": values}, "two": {"boolq/acc": [1.0, 0.0]}})
        track.close()
    assert main(["ttest", "--base", folders[0], "--new", folders[1], "--metric", "piqa/acc"]) == 0
    assert "| b | one | 4 | +0.5000 |" in capsys.readouterr().out


def test_ttest_needs_the_same_examples_and_their_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = make_evaluated_run(tmp_path / "a", "bert", {"fiqa": [0.5, 0.2]})
    other = make_evaluated_run(tmp_path / "b", "fedavg", {"fiqa": [0.5, 0.2, 0.3]})
    assert main(["ttest", "--base", str(base), "--new", str(other)]) == 2
    assert "were not evaluated on the same examples: {'fiqa': 3} and {'fiqa': 2}" in capsys.readouterr().err
    assert main(["ttest", "--base", str(base), "--new", str(base), "--metric", "map"]) == 2
    assert "no scores of single examples for the metric 'map'; it has mrr" in capsys.readouterr().err
    plain = make_run(tmp_path / "c")
    assert main(["ttest", "--base", str(plain), "--new", str(base)]) == 2
    assert "eval.per_example: true" in capsys.readouterr().err


def test_fedmatch_rows_have_no_micro_average(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_evaluated_run(tmp_path / "a", "fm_h_lr+small", {"fiqa": [0.5, 1.0], "medquad": [0.5, 0.5]})
    assert main([str(run), "--no-plots"]) == 0
    table = rows(capsys.readouterr().out)
    assert table["run"][1:6] == ["PrivacyQA", "BioASQ (ours: PubMedQA)", "FiQA (2)", "InsuranceQA", "MedQuAD (2)"]
    assert table["published: H+LR"][1:] == ["72.51", "87.34", "85.03", "90.15", "92.14", "85.43", "-", "-"]


def test_the_search_for_fonts_counts_as_no_process() -> None:
    # matplotlib starts fc-list, where there is one, when it draws for the first time in a home folder
    font_manager._get_fontconfig_fonts.cache_clear()
    assert isinstance(font_manager._get_fontconfig_fonts(), list)


def test_a_client_that_is_named_like_a_formula_is_a_text_in_the_table_and_markup_is_none() -> None:
    row = TableRow("=run|<b>", "test", {"@SUM(A1)": [-0.5], "macro": [0.5], "micro": [0.5]}, {"@SUM(A1)": 2}, [1.0])
    table = Table("exact_match", {"@SUM(A1)": "@SUM(A1)"}, {"@SUM(A1)": 2}, [row])
    head, line = list(csv.reader(as_csv(table).splitlines()))
    assert "'@SUM(A1)" in head and line[0] == "'=run|<b>"
    assert line[head.index("'@SUM(A1)")] == "-0.5000"
    assert not [cell for cell in head + line if cell.startswith(("=", "@", "+"))]
    assert r"=run\|&lt;b>" in markdown(table)


def test_only_a_metric_that_counts_right_rows_has_a_number_of_right_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_evaluated_run(tmp_path / "a", "mine", {"fiqa": [0.5, 1 / 3], "medquad": [0.5]}, metric="map")
    assert main([str(run), "--no-plots"]) == 0
    table = rows(capsys.readouterr().out)
    assert (table["run"][-1], table["mine"][-1]) == ("examples", "3")  # and not `1.33333 of 3`
    (line,) = csv.DictReader((run / "report" / "table.csv").open())
    assert (line["correct"], line["examples"]) == ("", "3")


@pytest.mark.parametrize(
    ("values", "note"),
    [
        ({"a": [1.0] * 24}, "95 % interval of Micro: 86.2 to 100.0 (24 examples of test, by Wilson)"),
        ({"a": [1.0] * 600, "b": [0.0] * 400}, ""),  # many
    ],
)
def test_few_rows_have_an_interval_beside_their_share(
    values: dict[str, list[float]], note: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_evaluated_run(tmp_path / "a", "mine", values, metric="accuracy")
    assert main([str(run), "--no-plots"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "interval" in line] == (
        [f"- mine: {note}"] if note else []
    )


def test_a_mean_over_seeds_has_students_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 573 questions 300, 303 and 312 are right, and 206 of 471: micro 48.47, 48.75 and 49.62."""
    from scipy import stats

    runs = [
        make_run(tmp_path / str(seed), seed=seed, correct={**CORRECT, "advising": right})
        for seed, right in ((1, 300), (2, 303), (3, 312))
    ]
    assert main(["table", "--no-plots", *map(str, runs)]) == 0
    micros = [100 * (right + 206) / 1044 for right in (300, 303, 312)]
    low, high = stats.t.interval(0.95, 2, loc=fmean(micros), scale=stats.sem(micros))
    told = f"95 % interval of Micro: {low:.1f} to {high:.1f} (mean over 3 seeds, by Student's t)"
    assert told in capsys.readouterr().out


def test_a_row_without_examples_has_no_interval() -> None:
    row = TableRow("a", values={"micro": [0.0]}, correct=[0.0])
    assert _interval(row) is None
    row.examples = 4
    assert _interval(row) == (*wilson(0.0, 4), "4 examples of , by Wilson")
