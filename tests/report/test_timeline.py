"""Pictures of who trained when, and when runs reached a score, from records written by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fedtorch.core.errors import ConfigError
from fedtorch.report.command_line import main
from fedtorch.report.timeline import over_clock, time_to, time_to_markdown, timeline, write_timeline
from fedtorch.tracking.run_folder import Run


def arrival(client: str, start: float, end: float, version: int, age: int, round: int, **more: Any) -> dict[str, Any]:
    found = {"kind": "arrival", "client": client, "started_s": start, "arrived_s": end, "version": version}
    return {**found, "staleness": age, "round": round, "number": round, "status": "ok", **more}


def version(round: int, second: float, loss: float, score: float | None) -> list[dict[str, Any]]:
    metrics = {"loss": {"micro": loss}, "accuracy": {"micro": score}}
    total = {"bytes_up": 100 * round, "bytes_down": 1000 * round}
    return [
        {"kind": "eval_total", "label": "training", "round": round, "metrics": metrics},
        {"kind": "round", "round": round, "extra": {"async/clock_s": second}, "total": total},
    ]


RECORDS = [
    arrival("a", 0, 2, 0, 0, 1),
    *version(1, 2.0, 3.0, 0.1),
    arrival("b & co", 0, 4, 0, 1, 2),
    arrival("a", 2, 4, 1, 0, 2, number=None, status="dropped"),
    *version(2, 4.0, 2.0, None),
    arrival("a", 4, 9, 0, 3, 3, status="failed:Oh"),
    arrival("b & co", 4, 10, 0, 7, 3),
    *version(3, 10.0, 1.0, 0.5),
]


def run_of(records: list[dict[str, Any]], clients: tuple[str, ...] = ("a", "b & co", "idle")) -> Run:
    return Run(Path("here"), {}, records, clients)


def test_each_training_is_a_bar_from_its_start_to_its_arrival() -> None:
    picture = timeline(run_of(RECORDS))
    bars = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="12" fill="(#\w+)"', picture)
    scale = (900 - 128 - 14) / 10
    expected = [("a", 0, 2), ("a", 2, 4), ("a", 4, 9), ("b", 0, 4), ("b", 4, 10)]
    assert [(float(x), float(width)) for x, _, width, _ in bars] == [
        (pytest.approx(128 + start * scale, abs=0.06), pytest.approx((end - start) * scale - 1, abs=0.06))
        for _, start, end in expected
    ]
    assert [float(y) for _, y, _, _ in bars] == [6, 6, 6, 24, 24]
    assert [color for *_, color in bars] == ["#1f77b4", "#bbbbbb", "#bbbbbb", "#d95f02", "#d62728"]
    assert "b &amp; co: 4 to 10 s, from version 0, age 7<" in picture and "age 3, failed:Oh" in picture
    lines = [float(x) for x in re.findall(r'class="version" d="M([\d.]+) ', picture)]
    assert lines == [pytest.approx(128 + second * scale, abs=0.06) for second in (2, 4, 10)]
    assert 'viewBox="0 0 900 84"' in picture and '<rect x="128" y="64" width="10"' in picture  # two rows, a legend
    legend = re.findall(r'<text x="(\d+)" y="73">([^<]+)<', picture)
    assert legend == [
        ("142", "age 0"), ("207", "1"), ("244", "2 or 3"), ("316", "4 or more"), ("409", "dropped or failed"),
        ("554", "dashed: a new version"),
    ]  # fmt: skip
    assert 'y="57" text-anchor="end">seconds of the clock' in picture
    assert "idle" not in picture and picture.startswith("<svg xmlns") and picture.endswith("</svg>\n")


def test_ages_have_four_colours() -> None:
    ages = [0, 1, 2, 3, 4, 50]
    picture = timeline(run_of([arrival("a", n, n + 1, 0, age, 1) for n, age in enumerate(ages)]))
    colors = re.findall(r'height="12" fill="(#\w+)"', picture)
    assert colors == ["#1f77b4", "#d95f02", "#2ca02c", "#2ca02c", "#d62728", "#d62728"]


def test_a_run_whose_rounds_wait_has_no_picture(tmp_path: Path) -> None:
    assert timeline(run_of([{"kind": "round", "round": 1, "extra": {}}])) == ""
    assert write_timeline(run_of([]), tmp_path) == [] and not list(tmp_path.iterdir())
    assert write_timeline(run_of(RECORDS), tmp_path / "a" / "b") == [tmp_path / "a" / "b" / "timeline.svg"]


def test_only_so_many_are_drawn() -> None:
    many = [arrival(f"c{n}", 0, 1, 0, 0, 1) for n in range(60)]
    assert timeline(run_of(many, tuple(f"c{n}" for n in range(60)))).count('height="12"') == 40
    assert timeline(run_of([arrival("a", n, n + 1, 0, 0, 1) for n in range(1200)])).count('height="12"') == 1000


def test_when_a_run_reached_a_score() -> None:
    run = run_of(RECORDS)
    assert time_to(run, "loss", 2.0) == {"version": 2, "seconds": 4.0, "updates": 2, "bytes": 2200}
    assert time_to(run, "loss", 2.5) == time_to(run, "loss", 2.0)
    assert time_to(run, "accuracy", 0.1) == {"version": 1, "seconds": 2.0, "updates": 1, "bytes": 1100}
    assert time_to(run, "accuracy", 0.2) == {"version": 3, "seconds": 10.0, "updates": 4, "bytes": 3300}
    assert time_to(run, "accuracy", 0.6) is None and time_to(run, "loss", 0.5) is None
    table = time_to_markdown([("x", run)], "loss", 2.0)
    assert table.startswith("loss at most 2\n") and "| x | 2 | 4.00 | 2 | 2,200 |" in table
    table = time_to_markdown([("x", run)], "accuracy", 0.6)
    assert table.startswith("accuracy at least 0.6\n") and "| x | - | - | - | - |" in table


def test_scores_over_the_clock_are_one_picture() -> None:
    """Axes from 0 to 10 s and from loss 1 to 3; the chart's rectangle is 334 wide from 52, 190 high from 24."""
    picture = over_clock([("x", run_of(RECORDS)), ("y & z", run_of(RECORDS[1:3])), ("x", run_of(RECORDS))], "loss")
    lines = re.findall(r'<polyline points="([^"]+)" fill="none" stroke="(#\w+)"', picture)
    assert lines == [
        ("118.8,24.0 185.6,119.0 386.0,214.0", "#1f77b4"), ("118.8,24.0", "#d95f02"),
        ("118.8,24.0 185.6,119.0 386.0,214.0", "#1f77b4"),
    ]  # fmt: skip
    assert re.findall(r'<text x="(\d+)" y="260">', picture) == ["70", "180"]
    assert picture.count(">x<") == 1 and "y &amp; z" in picture and "seconds of the clock" in picture
    flat = over_clock([("x", run_of(RECORDS[1:3]))], "loss")
    assert 'points="386.0,214.0"' in flat


def test_a_run_without_a_clock_or_a_score_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="no virtual clock; name runs with the section async"):
        time_to(run_of([{"kind": "round", "round": 1}]), "loss", 1.0)
    with pytest.raises(ConfigError, match="has no speed of a version"):
        time_to(run_of(RECORDS), "speed", 1.0)
    assert main(["time_to", str(tmp_path), "--metric", "loss", "--value", "1"]) == 2
    assert "is no run" in capsys.readouterr().err
