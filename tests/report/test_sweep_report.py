"""A report of a sweep's folder: what is no run is left out, seeds are one row, one curve with its band, one page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
import yaml

from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.update import Report
from fedtorch.report.command_line import main
from fedtorch.report.find_runs import find_runs
from fedtorch.report.groups import differences, group_name, make_groups
from fedtorch.report.html_page import html_page
from fedtorch.report.svg import bar_chart, line_chart, ticks
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.tracker import Tracker

EVIL = "<script>alert('&\"</script>"


def make_run(folder: Path, name: str, seed: int, lr: float, *, rounds: int = 3, **result: Any) -> Path:
    """Its loss in round r is lr + seed + r, its accuracy (seed + r) of 10 at two clients, one with an evil name."""
    config = {"run": {"name": name, "seed": seed}, "client": {"lr": lr}, "eval": {"select_by": "acc"}, "rounds": rounds}
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    clients = ("big", EVIL)
    track = Tracker(folder, clients=clients, rounds=3, settings=TrackConfig(tensorboard=False, progress="off"))
    for round in range(rounds):
        reports = [Report(client, examples=10, loss_mean=lr + seed + round + 1) for client in clients]
        scores = {"big": {"acc": (seed + round + 1, 10)}, EVIL: {"acc": (1, 2)}}
        track.evaluation(round, "dev", scores, "training")
        track.round(round, RoundFacts(reports, dict.fromkeys(clients, 0.5), {"train": 1.0}, {"bytes_up": 1_000_000}))
    if result:
        track.evaluation(rounds - 1, "test", scores, "final")
        track.result(result)
    track.close()
    return folder


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two settings with two seeds each, a run that has not begun, and folders that are no runs."""
    labels = {"big": {"good": 6, "bad": 2}, EVIL: {"bad": 2}}
    folder = tmp_path / "sweep"
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            name = f"x,client.lr={lr},seed={seed}"
            make_run(folder / name, name, seed, lr, task={"labels": labels})
    (folder / "notes").mkdir()
    (folder / "begun").mkdir()
    (folder / "begun" / "status.json").write_text("{}")
    (folder / "broken").mkdir()
    (folder / "broken" / "config.yaml").write_text("a: [")
    (folder / "broken" / "metrics.jsonl").touch()
    (folder / "sweep.json").write_text(json.dumps({"runs": ["begun", "later"]}))
    return folder


def test_what_is_no_run_is_left_out_and_named(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(sweep), "--no-plots"]) == 0
    said, broken = capsys.readouterr(), sweep / "broken" / "config.yaml"
    assert [line.partition(": ")[2] for line in said.err.splitlines() if line.startswith("left out")] == [
        f"{sweep / 'begun'}: a run without a record yet",
        f"{sweep / 'notes'}: no run",
        f"{sweep / 'broken'}: {broken}:2 is not valid YAML: did not find expected node content",
        f"{sweep / 'later'}: planned, has not begun",
    ]
    assert [line.split(" | ")[0] for line in said.out.splitlines() if line.startswith("| x")] == [
        "| x,client.lr=0.1 (n=2)",
        "| x,client.lr=0.2 (n=2)",
    ]
    assert main([str(sweep), "--no-plots"]) == 0  # its own folder `report` is no run either
    assert "report: no run" not in capsys.readouterr().err


def test_runs_are_found_at_any_depth_with_those_inside_them(tmp_path: Path) -> None:
    make_run(tmp_path / "all" / "deep" / "a", "a", 0, 0.1)
    make_run(tmp_path / "all" / "deep" / "a" / "compare", "a-local", 0, 0.1)
    found = find_runs([tmp_path])
    assert [name for name, _ in found.runs] == ["a", "a-local"] and not found.left_out


def test_a_folder_without_runs_is_error_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path)]) == 2
    assert (
        f"{tmp_path} is no run ({tmp_path / 'metrics.jsonl'} does not exist) and has none in it"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("names", "group"),
    [
        (["fedavg,seed=0", "fedavg,seed=1"], "fedavg"),
        (["seed3-fedavg", "seed14-fedavg"], "fedavg"),
        (["a,run.seed=1,client.lr=0.1", "a,run.seed=2,client.lr=0.1"], "a,client.lr=0.1"),
        (["a_seed0", "a_seed1"], "a"),
        (["reseed=1", "reseed=2"], "reseed=1"),
        (["seed=0", "seed=1"], "seed=0"),
        (["one", "other"], "one"),
        (["fedavg,seed=0"], "fedavg,seed=0"),
    ],
)
def test_a_group_is_named_without_the_seed(names: list[str], group: str) -> None:
    assert group_name(names) == group


def test_groups_of_one_name_are_told_apart_by_their_configs(tmp_path: Path) -> None:
    for lr in (0.1, 0.2):
        make_run(tmp_path / str(lr), "same", 0, lr)
    groups = make_groups(find_runs([tmp_path]).runs)
    assert [group.name for group in groups] == ["same [client.lr=0.1]", "same [client.lr=0.2]"]
    assert differences(groups) == {"client.lr": [0.1, 0.2]}


def test_a_curve_is_the_mean_over_seeds_with_their_spread(sweep: Path) -> None:
    make_run(sweep / "short", "x,client.lr=0.1,seed=5", 5, 0.1, rounds=2)
    (sweep / "short" / "config.yaml").write_text((sweep / "x,client.lr=0.1,seed=0" / "config.yaml").read_text())
    first, _ = make_groups(find_runs([sweep]).runs)
    losses = first.losses()
    assert losses.xs == [1, 2, 3]
    assert losses.mean == pytest.approx([1.1 + 2.0, 2.1 + 2.0, 3.1 + 0.5])  # in round 3 only seeds 0 and 1
    assert losses.spread == pytest.approx([stdev([0, 1, 5])] * 2 + [stdev([0, 1])])
    assert losses.high[0] - losses.low[0] == pytest.approx(2 * losses.spread[0])
    assert first.scores("dev", "acc").mean[0] == pytest.approx(sum((s + 1 + 1) / 12 for s in (0, 1, 5)) / 3)


def test_there_is_one_picture_for_each_comparison(sweep: Path, tmp_path: Path) -> None:
    assert main([str(sweep), "--out", str(tmp_path / "out")]) == 0
    names = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
    assert names == ["compare_client_losses.png", "compare_dev_acc.png", "compare_loss.png"]


def test_a_clients_losses_are_its_own(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "a", 0, 0.1)
    (group,) = make_groups(find_runs([tmp_path]).runs)
    group.runs[0].of_kind("client")[1]["loss_mean"] = 9.0  # of the other client in round 1
    assert group.client_losses("big").mean == pytest.approx([1.1, 2.1, 3.1])
    assert group.client_losses(EVIL).mean == pytest.approx([9.0, 2.1, 3.1])


def test_a_run_with_the_one_beside_it_has_both_kinds_of_pictures(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "a", 0, 0.1)
    make_run(run / "compare", "a-local", 0, 0.2)
    assert main([str(run)]) == 0
    names = {path.name for path in (run / "report").glob("*.png")}
    assert names == {
        "dev_acc.png",
        "loss_rounds.png",
        "weights.png",
        "compare_dev_acc.png",
        "compare_loss.png",
        "compare_client_losses.png",
    }


@pytest.mark.parametrize(
    ("low", "high", "found"), [(1, 3, [1, 2, 3]), (1, 2, [1, 2]), (0, 60, [0, 10, 20, 30, 40, 50, 60])]
)
def test_rounds_on_axes_are_whole_numbers(low: int, high: int, found: list[int]) -> None:
    assert ticks(low, high, whole=True) == found


def test_ticks_are_round_numbers_within_the_range() -> None:
    assert ticks(0.52, 0.98) == pytest.approx([0.6, 0.7, 0.8, 0.9])
    assert all(0.999e-9 <= tick <= 3.001e-9 for tick in ticks(1e-9, 3e-9)) and len(ticks(-7, 7)) > 2


class Page(HTMLParser):
    """Tags with their attributes, and texts that are shown."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open = tag

    def handle_data(self, data: str) -> None:
        if self.open not in ("script", "style"):
            self.text.append(data)


def page_of(sweep: Path) -> str:
    assert main([str(sweep), "--html"]) == 0
    return (sweep / "report" / "report.html").read_text()


def test_the_page_asks_nobody_for_anything_and_quotes_names_as_text(sweep: Path) -> None:
    text = page_of(sweep)
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert EVIL in page.text and "<script>alert" not in text
    assert not [
        a for _, attrs in page.tags for a in attrs if a in ("src", "href", "srcset", "action") or a.startswith("on")
    ]
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttp", text)
    (policy,) = [a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a]
    assert policy is not None and policy.startswith("default-src 'none'")
    assert "later: planned, has not begun" in text and not (sweep / "report" / "compare_loss.png").exists()


def test_the_page_has_every_part(sweep: Path) -> None:
    page = Page(page_of(sweep))
    kinds = [tag for tag, _ in page.tags]
    # losses and scores of both rows with a band each, losses of both clients, bytes, and bars; no bytes come down
    assert kinds.count("svg") == 6 and kinds.count("table") == 5 and kinds.count("polygon") == 8
    text = "|".join(page.text)
    parts = ("Runs", "What sets them apart", "client.lr", "Curves", "acc on test: how clients spread")
    for part in (*parts, "acc of each client on test", "clients by labels"):
        assert part in text
    heat = [attrs for tag, attrs in page.tags if tag == "td" and "style" in attrs]
    assert [(a["data-v"], a["style"]) for a in heat[:2]] == [
        ("6", "background:rgba(31,119,180,0.75)"),
        ("2", "background:rgba(31,119,180,0.25)"),
    ]
    assert "3.00 ± 0.00" in text  # MB of three rounds


def test_a_run_that_has_nothing_yet_is_a_page(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "a", 0, 0.1, rounds=0)
    groups = make_groups(find_runs([tmp_path]).runs)
    assert "0 of 3, not finished" in html_page("a", groups, "acc")
    assert line_chart({}, "y") == bar_chart({}, []) == bar_chart({"a": [None]}, ["x"]) == ""
    assert "<p>1 run. A click" in html_page("a", groups, "acc")  # and not `1 runs`


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LOOK = """<script>
const sections = [...document.querySelectorAll("section")];
const section = sections.find(e => e.firstChild.textContent.includes("of each client"));
const heads = [...section.querySelectorAll("thead th")];
const first = () => section.querySelector("tbody").rows[0].cells[0].textContent;
const seen = [first()];
heads[1].click(); seen.push(first());
heads[1].click(); seen.push(first());
const boxes = [...document.querySelectorAll("svg, table")].map(e => e.getBoundingClientRect());
const texts = [...document.querySelectorAll("svg text")];
const inside = texts.every(e => {
  const box = e.getBoundingClientRect(), around = e.ownerSVGElement.getBoundingClientRect();
  return box.left >= around.left - 1 && box.right <= around.right + 1 && box.bottom <= around.bottom + 1;
});
document.title = JSON.stringify({
  seen, drawn: boxes.every(b => b.width > 50 && b.height > 30), asked: performance.getEntriesByType("resource").length,
  wide: document.documentElement.scrollWidth <= innerWidth, width: innerWidth, inside,
  readable: texts.every(e => e.getBoundingClientRect().height >= 9),
});
</script>"""


@pytest.mark.processes
@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page_and_sorts_its_tables(sweep: Path, tmp_path: Path, width: int) -> None:
    """With a script of the test's own at its end, which clicks and measures, in a frame as wide as a telephone too.

    Nothing is wider than the page, no text leaves its chart, and none is so small that nobody reads it.
    """
    page = tmp_path / "page.html"
    tell = LOOK.replace("document.title =", "parent.document.title =")
    page.write_text(page_of(sweep).replace("</body>", f"{tell}</body>"))
    frame = tmp_path / "frame.html"
    frame.write_text(f'<iframe src="page.html" style="width:{width}px;height:900px;border:0"></iframe>')
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--allow-file-access-from-files",
        f"--user-data-dir={tmp_path / 'b'}",
    ]
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking", "--no-first-run"]
    command = [str(BROWSER), *flags, *offline, "--window-size=1400,1000", "--dump-dom", frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    shown = Page(done.stdout)
    found = json.loads("".join(shown.text).partition("}")[0] + "}")
    assert found == {
        "seen": ["big", EVIL, "big"],
        "drawn": True,
        "asked": 0,
        "wide": True,
        "width": width,
        "inside": True,
        "readable": True,
    }
