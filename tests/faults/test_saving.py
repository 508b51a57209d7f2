"""A kill while the server writes beside the next round (`checkpoint.overlap`): at most one round more is repeated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from supervisor import at, supervise, toy_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedtorch.main import main

OVERLAP = ("checkpoint.overlap=true",)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("faults", "done"),
    [
        (at("train", 0), (1, 0)),
        (at("train", 2), (1, 0)),
        (at("aggregate", 0), (1,)),
        ("kill:phase=checkpoint,round=2,attempt=0,rank=0,step=1", (1,)),
        ("kill:phase=checkpoint,round=2,attempt=0,client=b", (1,)),
    ],
)
def test_a_rank_killed_while_the_server_writes_costs_a_round_more(
    faults: str, done: tuple[int, ...], undisturbed: str, tmp_path: Path
) -> None:
    ended = supervise(toy_config(tmp_path), faults=faults, sets=OVERLAP)
    assert ended.codes[0].count(-9) == 1 and ended.code == 0
    assert ended.digest == undisturbed
    log = ended.log(0)
    assert any(f"resuming after round {round} " in log for round in done) or (0 in done and "resuming" not in log)
    assert not list((tmp_path / "run" / "checkpoints").rglob("*.partial"))


def test_a_launcher_learns_of_every_round_that_is_saved_and_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the file that it names, on any rank."""
    told = tmp_path / "saved"
    monkeypatch.setenv("FEDTORCH_SAVED", str(told))
    words = ["--config", str(toy_config(tmp_path)), "--set", "checkpoint.every=2"]
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    faults = ";".join(f"nan:client={name},round=2" for name in "abcd")
    monkeypatch.setenv("FEDTORCH_FAULTS", faults)
    assert main([*words, "clients.on_failure=stop"]) == 6
    assert told.read_text() == "2\n", "the third is not"
    monkeypatch.delenv("FEDTORCH_FAULTS")
    assert main([*words, "clients.on_failure=stop"]) == 0 and told.read_text() == "3\n"


def recorded(folder: Path) -> list[tuple[str, int, str]]:
    """Kind, round and client of every record but that a run was resumed."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(r["kind"], r.get("round", -1), r.get("client", "")) for r in lines if r["kind"] not in ("resume", "run")]


def drawn(folder: Path) -> dict[str, list[int]]:
    """Curve -> rounds, or steps, of which TensorBoard's files have a value, as often as they have it; of no clock."""
    found = {}
    for part in sorted((folder / "tensorboard").iterdir()):
        events = EventAccumulator(str(part), size_guidance={"scalars": 0})
        events.Reload()
        for name in (name for name in events.Tags()["scalars"] if "seconds" not in name):
            found[f"{part.name}/{name}"] = [event.step for event in events.Scalars(name)]
    return found


@pytest.mark.processes
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("settings", ["{every: auto}", "{every: auto, lose: 0, cost: 1}"], ids=["at the end", "often"])
def test_a_rank_killed_between_checkpoints_by_the_clock_leaves_no_trace(
    settings: str, victim: int, undisturbed: str, tmp_path: Path
) -> None:
    """Whatever was saved: rounds that are repeated are in records and curves once, and the bits are the same."""
    shown = {"checkpoint": settings, "track": '{progress: "off", tensorboard: true}'}
    ended = supervise(toy_config(tmp_path, **shown), faults=at("train", victim))
    assert ended.codes[0].count(-9) == 1 and ended.code == 0
    assert ended.digest == undisturbed
    assert ("resuming" in ended.log(0)) == ("lose" in settings)
    assert main(["--config", str(toy_config(tmp_path / "alone", **shown))]) == 0
    alone = tmp_path / "alone" / "run"
    assert recorded(ended.folder) == recorded(alone)
    assert drawn(ended.folder) == drawn(alone) and drawn(alone)
