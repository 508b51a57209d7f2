"""What is recorded, drawn and shown; and that none of it can stop a run."""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedtorch.core.errors import CheckpointError
from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.names import Names
from fedtorch.core.update import Report
from fedtorch.tracking import records
from fedtorch.tracking.console import Console, duration
from fedtorch.tracking.record_log import Log
from fedtorch.tracking.records import totals
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.summary import show_results
from fedtorch.tracking.tracker import Tracker

CLIENTS = ("atis", "yelp")
SECONDS = {"train": 1.5, "aggregate": 0.25}
TRAFFIC = {"bytes_up": 100, "bytes_down": 200, "physical_up": 7, "kv_bytes": 50, "aggregate/bytes_up": 100}


def tracker(run_dir: Path, **settings: Any) -> Tracker:
    """A tracker of two clients; settings: arguments, and fields of `track`."""
    shown = {name: settings.pop(name) for name in set(TrackConfig.__dataclass_fields__) & set(settings)}
    track = TrackConfig(**{"tensorboard": False, "progress": "off", **shown})
    return Tracker(run_dir, **{"clients": CLIENTS, "rounds": 4, "settings": track, **settings})


def report(client: str, round: int, **changes: Any) -> Report:
    loss = 4.0 / (round + 1) + (client == "yelp")
    numbers = {"examples": 30 if client == "atis" else 10, "steps": 2, "loss_mean": loss, "norm": loss / 2}
    return Report(
        client,
        **{
            **numbers,
            "curve": (loss, loss - 0.5),
            "extra": {"loss_reduction": 0.5, "histogram/energy_top/-3": 4.0},
            **changes,
        },
    )


def play(track: Tracker, rounds: range) -> None:
    for round in rounds:
        reports = [report(client, round) for client in CLIENTS]
        track.evaluation(round, "dev", {"atis": {"em": (round, 4)}, "yelp": {"em": (0, 1)}}, label="training")
        track.round(round, RoundFacts(reports, {"atis": 0.75, "yelp": 0.25}, SECONDS, TRAFFIC))
    track.close()


def read(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    return [record for record in records.read(run_dir / "metrics.jsonl") if record["kind"] == kind]


def curves(run_dir: Path, name: str) -> EventAccumulator:
    found = EventAccumulator(str(run_dir / "tensorboard" / name), size_guidance={"scalars": 0})
    found.Reload()
    return found


def points(run_dir: Path, name: str) -> dict[str, list[tuple[int, float]]]:
    found = curves(run_dir, name)
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_a_round_is_recorded_with_its_clients(tmp_path: Path) -> None:
    track = tracker(tmp_path)
    failed = Report("imdb", status="failed:OutOfMemoryError", seconds=2.0)
    sick = report("yelp", 0, loss_mean=float("nan"))
    track.round(
        0, RoundFacts([report("atis", 0), sick, report("geo", 1), failed], {"atis": 0.6, "geo": 0.4}, SECONDS, TRAFFIC)
    )
    atis, yelp, geo, imdb = read(tmp_path, "client")
    assert (atis["round"], atis["status"], atis["weight"], atis["loss_reduction"]) == (1, "ok", 0.6, 0.5)
    assert yelp["loss_mean"] is None and yelp["weight"] is None
    assert (imdb["status"], imdb["seconds"]) == ("failed:OutOfMemoryError", 2.0)
    (round,) = read(tmp_path, "round")
    assert round["loss"] == (30 * 4.0 + 10 * 2.0) / 40  # of atis and geo
    assert (round["clients_ok"], round["clients_failed"], round["examples"]) == (2, 2, 40)
    assert (round["update_norm_median"], round["update_norm_max"]) == (1.5, 2.0)
    assert (round["seconds"], round["bytes_up"], round["traffic"]) == (SECONDS, 100, {"aggregate/bytes_up": 100})
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_round_without_a_usable_update_has_no_loss(tmp_path: Path) -> None:
    track = tracker(tmp_path, tensorboard=True)
    track.round(0, RoundFacts([Report("atis", status="failed:ValueError")], {}, {}, {}))
    track.round(1, RoundFacts([], {}, {}, {}))
    track.close()
    assert [round["loss"] for round in read(tmp_path, "round")] == [None, None]
    assert points(tmp_path, "server")["round/clients_failed"] == [(1, 1.0), (2, 0.0)]


def test_macro_is_over_clients_and_micro_over_examples() -> None:
    scores = {"a": {"em": (1, 2), "f1": (0.5, 1)}, "b": {"em": (8, 8)}, "none": {"em": (0, 0)}}
    assert totals(scores) == {
        "em": {"macro": 0.75, "micro": 0.9, "count": 10},
        "f1": {"macro": 0.5, "micro": 0.5, "count": 1},
    }
    assert totals({"none": {"em": (0, 0)}}) == {"em": {"macro": None, "micro": None, "count": 0}}
    assert totals({}) == {}


def test_an_evaluation_keeps_sums_and_counts(tmp_path: Path) -> None:
    track = tracker(tmp_path)
    result = track.evaluation(-1, "dev", {"atis": {"em": (1, 4)}, "yelp": {"em": (1, 1)}})
    assert result["em"] == {"macro": 0.625, "micro": 0.4, "count": 5}
    atis, _ = read(tmp_path, "eval")
    assert (atis["round"], atis["split"], atis["label"], atis["metrics"]) == (0, "dev", "global", {"em": [1, 4]})
    assert read(tmp_path, "eval_total")[0]["metrics"] == result


def test_every_client_has_the_same_tags_in_a_folder_of_its_own(tmp_path: Path) -> None:
    play(tracker(tmp_path, tensorboard=True), range(2))
    atis, yelp = points(tmp_path, "client-atis"), points(tmp_path, "client-yelp")
    assert set(atis) == set(yelp)
    assert atis["train/loss"] == [(1, 4.0), (2, 2.0)] and yelp["train/loss"] == [(1, 5.0), (2, 3.0)]
    assert atis["train_steps/loss"] == [(0, 4.0), (1, 3.5), (2, 2.0), (3, 1.5)]
    assert atis["train/weight"] == [(1, 0.75), (2, 0.75)]
    assert atis["train/loss_reduction"] == [(1, 0.5), (2, 0.5)]
    assert not [tag for tag in atis if "histogram" in tag]  # dozens of counts are no curves
    assert atis["eval/dev/em"] == [(1, 0.0), (2, 0.25)]
    server = points(tmp_path, "server")
    assert server["round/loss"] == [(1, 4.25), (2, 2.25)]
    assert server["round/seconds/train"] == [(1, 1.5), (2, 1.5)]
    assert server["round/bytes_down"] == [(1, 200.0), (2, 200.0)]
    for name in ("bytes_up", "bytes_down", "physical_up", "kv_bytes"):
        assert server[f"round/{name}"] == [(1, TRAFFIC[name]), (2, TRAFFIC[name])]
        assert server[f"total/{name}"] == [(1, TRAFFIC[name]), (2, 2 * TRAFFIC[name])]
    assert server["update/norm_max"] == [(1, 2.5), (2, 1.5)]
    assert server["global/eval/dev/em/macro"] == [(1, 0.0), (2, 0.125)]
    assert "custom_scalars__config__" in curves(tmp_path, "server").Tags()["tensors"]


def test_many_clients_share_one_folder_with_quantiles_and_the_worst(tmp_path: Path) -> None:
    names = [f"c{i:04}" for i in range(51)]
    track = tracker(tmp_path, clients=names, tensorboard=True)
    track.round(
        0, RoundFacts([report(name, 0, loss_mean=float(i)) for i, name in enumerate(names)], {}, SECONDS, TRAFFIC)
    )
    track.evaluation(0, "dev", {name: {"em": (i, 50)} for i, name in enumerate(names)})
    track.close()
    assert sorted(path.name for path in (tmp_path / "tensorboard").iterdir()) == ["scores", "server"]
    server, found = points(tmp_path, "server"), curves(tmp_path, "server")
    assert [server[f"train/loss/quantile_{q}"][0][1] for q in (0, 25, 50, 75, 100)] == [0, 12, 25, 38, 50]
    assert server["global/eval/dev/em/quantile_50"] == [(1, 0.5)]
    assert "train/loss/histogram" in found.Tags()["histograms"]
    text = found.Tensors("train/worst/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "c0050 | 50.0000" in text and "c0041" in text and "c0040" not in text
    assert len(read(tmp_path, "client")) == 51


def test_names_are_no_markup_among_the_worst_clients(tmp_path: Path) -> None:
    names = ["<img src=x>", "a|b", "[y](z)", "plain"]
    track = tracker(tmp_path, clients=names, tensorboard=True, client_limit=2)
    track.round(0, RoundFacts([report(name, 0) for name in names], {}, SECONDS, TRAFFIC))
    track.close()
    text = curves(tmp_path, "server").Tensors("train/worst/text_summary")[0].tensor_proto.string_val[0].decode()
    assert all(cell in text for cell in ("| &lt;img src=x> |", r"| a\|b |", r"| \[y](z) |", "| plain |"))


def test_odd_names_of_clients_stay_inside_the_folder(tmp_path: Path) -> None:
    names = ("../../x", "ü b", "n" * 300)
    track = tracker(tmp_path / "run", clients=names, tensorboard=True)
    track.round(0, RoundFacts([report(name, 0) for name in names], {}, SECONDS, TRAFFIC))
    track.close()
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def timeless(run_dir: Path) -> list[dict[str, Any]]:
    found = [record for record in records.read(run_dir / "metrics.jsonl") if record["kind"] != "resume"]
    return [{key: value for key, value in record.items() if key != "time"} for record in found]


@pytest.mark.parametrize("tail", ["", '{"kind":"client","round":2,"cli', "\udcff\n"])
def test_a_resumed_run_leaves_what_an_uninterrupted_one_leaves(tmp_path: Path, tail: str) -> None:
    play(tracker(tmp_path / "whole", tensorboard=True), range(4))
    play(tracker(tmp_path / "torn", tensorboard=True), range(3))
    with (tmp_path / "torn" / "metrics.jsonl").open("a", errors="surrogateescape") as file:
        file.write(tail)
    play(tracker(tmp_path / "torn", tensorboard=True, resume_round=2), range(2, 4))
    assert timeless(tmp_path / "torn") == timeless(tmp_path / "whole")
    assert [record["round"] for record in read(tmp_path / "torn", "resume")] == [2]
    for name in ("server", "client-atis"):
        assert points(tmp_path / "torn", name) == points(tmp_path / "whole", name)


def test_a_new_run_in_an_old_folder_begins_with_nothing(tmp_path: Path) -> None:
    play(tracker(tmp_path, tensorboard=True), range(3))
    play(tracker(tmp_path, tensorboard=True), range(1))
    assert len(read(tmp_path, "round")) == 1
    assert points(tmp_path, "client-atis")["train/loss"] == [(1, 4.0)]


@contextmanager
def small_disk(num_bytes: int) -> Iterator[None]:
    """Files cannot grow beyond `num_bytes`: the system's own error, in the middle of a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_a_full_disk_refuses_is_written_once_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log(tmp_path / "metrics.jsonl")
    log.append({"kind": "a"})
    with small_disk(20):
        log.append({"kind": "late", "text": "x" * 100})
        log.append({"kind": "late too"})
    log.append({"kind": "b"})
    log.close()
    lines = [json.loads(line)["kind"] for line in log.path.read_text().splitlines()]
    assert lines == ["a", "late", "late too", "b"]
    assert len(caplog.records) == 1 and "records wait in memory" in caplog.text


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 25])
def test_names_are_written_as_a_list_in_parts(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_AT_ONCE", 10)
    names = Names(["the last", 'a "quoted" \u00e9'], head="client", numbered=count) if count else Names()
    log = Log(tmp_path / "metrics.jsonl")
    log.append({"kind": "run", "clients": names, "rounds": 3})
    log.append({"kind": "run", "clients": list(names), "rounds": 3})
    log.close()
    first, second = log.path.read_bytes().splitlines()
    assert first == second and json.loads(first)["clients"] == list(names)


def test_many_names_are_never_in_memory_at_once(tmp_path: Path) -> None:
    log = Log(tmp_path / "metrics.jsonl")
    names = Names(head="client", numbered=200_000)
    log.append({"kind": "warm"})
    tracemalloc.start()
    log.append({"kind": "run", "clients": names})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    log.close()
    assert log.path.stat().st_size > 3_000_000 > 1.5 * peak


def test_neither_a_full_disk_nor_tensorboard_stops_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    track = tracker(tmp_path, tensorboard=True)
    with small_disk(2000):
        for round in range(20):
            track.round(round, RoundFacts([report(client, round) for client in CLIENTS], {}, SECONDS, TRAFFIC))
        with pytest.raises(CheckpointError, match=r"results\.json \(.*File too large"):
            track.result({"digest": "x" * 4000})
        track.close()
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert 2 <= len(warnings) <= 5  # each output complains once
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tensorboard").write_text("a file where a folder should be")
    play(tracker(tmp_path / "other", tensorboard=True), range(1))
    assert len(read(tmp_path / "other", "round")) == 1


def test_a_closed_terminal_does_not_stop_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    track = tracker(tmp_path, progress="lines")
    with (tmp_path / "out").open("w", encoding="ascii") as out:
        monkeypatch.setattr(sys, "stdout", out)
        track.say("ünicode")
    monkeypatch.setattr(sys, "stdout", out)  # closed now
    play(track, range(2))
    track.show()
    assert len(read(tmp_path, "round")) == 2


def test_a_reader_that_has_gone_does_not_stop_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    track = tracker(tmp_path, progress="lines")
    reader, writer = os.pipe()
    os.close(reader)
    out = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stdout", out)
    try:
        play(track, range(2))
        track.show()  # rich would leave the program with 1
    finally:
        with suppress(OSError):
            out.close()
    assert len(read(tmp_path, "round")) == 2


def test_the_result_is_a_record_and_a_file(tmp_path: Path) -> None:
    track = tracker(tmp_path)
    track.close()
    track.result({"digest": "abc", "best": float("nan")})  # also after closing
    assert json.loads((tmp_path / "results.json").read_text()) == {"digest": "abc", "best": None}
    assert read(tmp_path, "result")[0]["digest"] == "abc"
    assert not list(tmp_path.glob("*.partial"))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_per_round_says_how_long_it_took_and_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    console = Console("lines", 60, 20, clock=clock)
    for seconds, done in ((12.3, 21), (7.7, 22)):
        clock.now += seconds
        console.round(done, [("clients", "8/8"), ("loss", "1.2340")])
    first, second = capsys.readouterr().out.splitlines()
    assert first == "round 21/60  clients 8/8  loss 1.2340   12.3s  left 8m"  # 39 rounds at 12.3 s
    assert second == "round 22/60  clients 8/8  loss 1.2340    7.7s  left 6m"  # 38 rounds at 10 s


def test_on_a_terminal_the_lines_stay_and_a_bar_stands_below_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    console = Console("bar", 3, 0, clock=clock)
    clock.now += 5
    console.working("atis step 3")
    clock.now += 5
    console.round(1, [("clients", "8/8"), ("loss", "1.2340")])
    drawn = capsys.readouterr()
    assert drawn.out == "round 1/3  clients 8/8  loss 1.2340   10.0s  left 20s\n"
    assert "atis step 3" in drawn.err and drawn.err.rstrip().endswith("left 20s")
    console.close()
    assert capsys.readouterr().out == ""  # the last line stands there already


def test_between_rounds_a_log_gets_a_line_every_thirty_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    console = Console("lines", 60, 2, clock=clock)
    for step in range(70):
        clock.now += 1
        console.working(f"atis step {step}")
    assert capsys.readouterr().out.splitlines() == [
        "round  3/60  30s  atis step 29",
        "round  3/60  60s  atis step 59",
    ]


def test_a_score_is_shown_with_its_examples_and_its_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    track = tracker(tmp_path, progress="lines", metric="em")
    scores = {"atis": {"other": (1.0, 1), "em": (1, 4)}, "yelp": {"em": (1, 1)}}
    track.evaluation(0, "dev", scores)
    track.round(
        0, RoundFacts([report("atis", 0), Report("yelp", "failed:ValueError")], {"atis": 1.0}, SECONDS, TRAFFIC)
    )
    track.round(1, RoundFacts([report("atis", 1)], {"atis": 1.0}, SECONDS, TRAFFIC))
    track.evaluation(1, "test", scores, label="final")
    first, second, final = capsys.readouterr().out.splitlines()
    assert first.startswith("round 1/4  clients 1/2  loss 4.0000  dev em 0.4000 of 5 ")
    assert second.startswith("round 2/4  clients 1/1  loss 2.0000  dev em 0.4000 of 5 (round 1) ")
    assert final == "round 2  final test em micro 0.4000 macro 0.6250 of 5"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (89, "89s"), (91, "2m"), (89 * 60, "89m"), (7260, "2h01m"), (90000, "25h00m")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_final_table_shows_clients_averages_and_the_run_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, correct in ((tmp_path, 3), (tmp_path / "local", 1)):
        track = tracker(folder)
        track.round(
            0, RoundFacts([report(client, 0) for client in CLIENTS], {"atis": 0.75, "yelp": 0.25}, SECONDS, TRAFFIC)
        )
        track.evaluation(0, "test", {"atis": {"em": (correct, 4)}, "yelp": {"em": (1, 1)}}, label="final")
        track.close()
    show_results(tmp_path)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    rows = {line[0]: line for line in lines}
    assert rows["atis"] == "atis 30 4.0000 0.7500 0.7500 of 4 0.2500 of 4".split()
    assert rows["yelp"] == "yelp 10 5.0000 0.2500 1.0000 of 1 1.0000 of 1".split()
    assert rows["macro"] == "macro 0.8750 of 5 0.6250 of 5".split()
    assert rows["micro"] == "micro 40 0.8000 of 5 0.4000 of 5".split()
    steps = str(sum(report(client, 0).steps for client in CLIENTS))
    assert rows["steps"] == ["steps", steps, steps] and ["local:"] in lines
    assert rows["curves:"][1:] == ["tensorboard", "--logdir", str(tmp_path)]


def test_names_are_no_markup_in_the_final_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["[red]a[/red]", ":heart:"]
    track = tracker(tmp_path, clients=names)
    track.round(0, RoundFacts([report(name, 0) for name in names], {}, SECONDS, TRAFFIC))
    track.evaluation(0, "test", {name: {"em": (1, 1)} for name in names}, label="final")
    track.close()
    show_results(tmp_path)
    shown = capsys.readouterr().out
    assert all(f" {name} " in shown for name in names)


def test_round_lines_are_in_the_log_file_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "fedtorch.tracking.tracker"):
        play(tracker(tmp_path), range(1))
    assert [r for r in caplog.records if r.levelno == logging.DEBUG and r.getMessage().startswith("round 1/4")]


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    show_results(folder)
    return capsys.readouterr().out


def test_the_table_has_the_mean_weight_of_all_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """atis: 1, 0.5 and not drawn, so 0.5; yelp: not drawn, 0.5 and 1."""
    track = tracker(tmp_path)
    for round, weights in enumerate(({"atis": 1.0}, {"atis": 0.5, "yelp": 0.5}, {"yelp": 1.0})):
        track.round(round, RoundFacts([report(client, round) for client in weights], weights, SECONDS, TRAFFIC))
    track.close()
    out = shown(tmp_path, capsys)
    rows = {words[0]: words for line in out.splitlines() if (words := line.split())}
    assert "mean weight" in out and rows["atis"][3] == rows["yelp"][3] == "0.5000"
    assert "weight 0" not in out and "never drawn" not in out


def test_a_client_without_weight_and_one_that_was_never_drawn_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    track = Tracker(
        tmp_path, clients=["atis", "yelp", "imdb"], rounds=2, settings=TrackConfig(tensorboard=False, progress="off")
    )
    for round in range(2):
        reports = [report(client, round) for client in ("atis", "yelp")]
        track.round(round, RoundFacts(reports, {"atis": 1.0, "yelp": 0.0}, SECONDS, TRAFFIC))
    scores = {client: {"em": (1, 4)} for client in ("atis", "yelp", "imdb")}
    track.evaluation(1, "test", scores, label="final")
    track.result({"clients": {c: {"examples": n} for c, n in (("atis", 30), ("yelp", 10), ("imdb", 7))}})
    track.close()
    lines = [" ".join(line.split()) for line in shown(tmp_path, capsys).splitlines()]
    assert "weight 0 in every round: yelp" in lines and "never drawn in 2 rounds: imdb" in lines
    assert "imdb 7 - 0.0000 0.2500 of 4" in lines  # its rows are known, though it never trained
    assert "micro 47 0.2500 of 12" in lines


def test_where_nothing_is_combined_nobody_is_without_weight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    track = tracker(tmp_path)
    track.round(0, RoundFacts([report("atis", 0)], {}, SECONDS, TRAFFIC))
    track.close()
    out = shown(tmp_path, capsys)
    assert "weight 0" not in out and "never drawn" not in out
    assert ["atis", "30", "4.0000", "-"] in [line.split() for line in out.splitlines()]
