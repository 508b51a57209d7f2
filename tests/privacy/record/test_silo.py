"""A silo's key and ledger: made once, for their owner alone, and what a line in it allows."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fedtorch.core.errors import CheckpointError
from fedtorch.privacy.record.silo import Silo, Training

ONE = Training("run", 0, "train", 0, "s" * 64, "e" * 64, 10, 0.1, 1.0, 1e-4)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_are_made_once_and_for_their_owner_alone(tmp_path: Path) -> None:
    first, again = (Silo.open(tmp_path / "privacy" / "a", "run") for _ in range(2))
    assert first.key == again.key and len(first.key) == 32
    assert first.key != Silo.open(tmp_path / "privacy" / "b", "run").key
    folder = tmp_path / "privacy" / "a"
    assert (mode(folder), mode(folder / "key"), mode(folder / "ledger.jsonl")) == (0o700, 0o600, 0o600)


def test_the_same_steps_count_once_and_others_from_the_same_start_do_not_leave(tmp_path: Path) -> None:
    silo = Silo.open(tmp_path, "run")
    assert silo.attempt(ONE.start) == 0
    assert silo.enter(ONE) and silo.enter(ONE)  # done again after a kill
    assert silo.parts() == [(0.1, 1.0, 10)]
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 2
    assert not silo.enter(replace(ONE, end="f" * 64))
    assert silo.attempt(ONE.start) == 1 and silo.parts() == [(0.1, 1.0, 10)]
    other = replace(ONE, end="f" * 64, attempt=1)
    assert silo.enter(other)
    assert silo.parts() == [(0.1, 1.0, 20)]
    assert Silo.open(tmp_path, "later").trainings() == silo.trainings()


def test_a_score_is_a_line_and_a_step_of_its_own_and_no_training(tmp_path: Path) -> None:
    silo, score = Silo.open(tmp_path, "run"), replace(ONE, start="d" * 64, end="d" * 64, steps=1, rate=1.0, split="dev")
    assert silo.enter(ONE) and silo.enter(score) and silo.enter(score)
    head, training, counted = map(json.loads, (tmp_path / "ledger.jsonl").read_text().splitlines())
    assert head == {"form": 1} and training == {key: value for key, value in asdict(ONE).items() if key != "split"}
    assert counted == asdict(score) and Silo.open(tmp_path, "run").trainings() == [ONE, score]
    assert silo.trained("run") == [ONE] and silo.trained("other") == []
    assert silo.parts() == [(0.1, 1.0, 10), (1.0, 1.0, 1)]


def test_a_copy_of_the_run_that_comes_to_the_same_costs_nothing_and_one_of_its_own_does(tmp_path: Path) -> None:
    one, copy = Silo.open(tmp_path, "run"), Silo.open(tmp_path, "copy")
    assert one.enter(ONE) and copy.enter(replace(ONE, run="copy"))
    assert copy.parts() == [(0.1, 1.0, 10)] == copy.parts("copy") == copy.parts("run")
    assert not copy.enter(replace(ONE, run="copy", end="f" * 64))  # the first is seen though it was written elsewhere
    assert copy.enter(replace(ONE, run="copy", start="t" * 64))
    assert one.parts() == [(0.1, 1.0, 20)] and one.parts("run") == [(0.1, 1.0, 10)]


def test_an_attempt_that_was_begun_goes_on_after_a_kill(tmp_path: Path) -> None:
    silo = Silo.open(tmp_path, "run")
    silo.enter(ONE)
    silo.enter(replace(ONE, end="f" * 64))
    again = Silo.open(tmp_path, "run")
    assert again.attempt(ONE.start) == 1
    assert again.enter(replace(ONE, attempt=1, end="g" * 64))


def test_steps_of_several_kinds_are_kept_apart(tmp_path: Path) -> None:
    silo = Silo.open(tmp_path, "run")
    for number, (rate, z) in enumerate(((0.1, 1.0), (0.2, 1.0), (0.1, 2.0), (0.1, 1.0))):
        silo.enter(replace(ONE, start=f"{number}", rate=rate, noise_multiplier=z))
    assert sorted(silo.parts()) == [(0.1, 1.0, 20), (0.1, 2.0, 10), (0.2, 1.0, 10)]


@pytest.mark.parametrize("missing", ["key", "ledger.jsonl"])
def test_one_file_without_the_other_is_refused(missing: str, tmp_path: Path) -> None:
    Silo.open(tmp_path, "run")
    (tmp_path / missing).unlink()
    with pytest.raises(CheckpointError, match=rf"{missing}.* cannot be read .*bring it back from a backup"):
        Silo.open(tmp_path, "run")


@pytest.mark.parametrize("name", ["key", "ledger.jsonl"])
def test_what_others_may_read_is_refused(name: str, tmp_path: Path) -> None:
    Silo.open(tmp_path, "run")
    (tmp_path / name).chmod(0o640)
    with pytest.raises(CheckpointError, match="has mode 0640"):
        Silo.open(tmp_path, "run")


def test_a_key_of_another_length_is_refused(tmp_path: Path) -> None:
    Silo.open(tmp_path, "run")
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(CheckpointError, match="has 5 bytes instead of 32"):
        Silo.open(tmp_path, "run")


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        "[]",
        json.dumps({**asdict(ONE), "rate": 1.5}),
        json.dumps({**asdict(ONE), "rate": 0}),
        json.dumps({**asdict(ONE), "noise_multiplier": "1"}),
        json.dumps({**asdict(ONE), "steps": -1}),
        json.dumps({**asdict(ONE), "steps": 1.5}),
        json.dumps({**asdict(ONE), "end": None}),
        json.dumps({**asdict(ONE), "delta": 1}),
        json.dumps({**asdict(ONE), "delta": 0.0}),
        json.dumps({**asdict(ONE), "delta": 1.5}),
        json.dumps({**asdict(ONE), "more": 1}),
        json.dumps({"run": "run"}),
        json.dumps({"form": 1}),
    ],
)
def test_a_line_that_is_none_is_refused(line: str, tmp_path: Path) -> None:
    Silo.open(tmp_path, "run")
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(CheckpointError, match="is damaged; bring it back"):
        Silo.open(tmp_path, "run")


@pytest.mark.parametrize("head", ['{"form": 2}', "{}"])
def test_another_form_is_refused(head: str, tmp_path: Path) -> None:
    Silo.open(tmp_path, "run")
    (tmp_path / "ledger.jsonl").write_text(head + "\n")
    with pytest.raises(CheckpointError, match="is damaged"):
        Silo.open(tmp_path, "run")


def test_a_line_in_which_a_process_died_is_no_line(tmp_path: Path) -> None:
    Silo.open(tmp_path, "run").enter(ONE)
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write('{"run": "ru')
    silo = Silo.open(tmp_path, "run")
    assert silo.trainings() == [ONE]
    assert silo.enter(replace(ONE, start="t" * 64))
    assert len(Silo.open(tmp_path, "run").trainings()) == 2


def test_lines_that_go_missing_while_a_run_is_under_way_end_it(tmp_path: Path) -> None:
    silo = Silo.open(tmp_path, "run")
    silo.enter(ONE)
    (tmp_path / "ledger.jsonl").write_text('{"form": 1}\n')
    with pytest.raises(CheckpointError, match="lacks lines that it had"):
        silo.enter(replace(ONE, start="t" * 64))
    (tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        silo.parts()


def test_on_a_full_disk_nothing_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silo = Silo.open(tmp_path, "run")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedtorch.privacy.record.silo.append_own", full)
    with pytest.raises(CheckpointError, match="so the update stays here; free some space"):
        silo.enter(ONE)
    with pytest.raises(CheckpointError, match=r"cannot be written .*set privacy\.ledger"):
        Silo.open(tmp_path / "new", "run")
    monkeypatch.undo()
    assert Silo.open(tmp_path, "run").trainings() == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"file/a cannot be written .*set privacy\.ledger"):
        Silo.open(tmp_path / "file" / "a", "run")


def test_a_simulated_silo_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    silo = Silo(bytes(32), None)
    assert silo.enter(ONE) and silo.parts() == [(0.1, 1.0, 10)]
    assert os.listdir(tmp_path) == []
