"""metrics.jsonl under a disk that refuses and hands that take it away: what was written stays, a gap is known."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from fedtorch.tracking import record_log
from fedtorch.tracking.record_log import Log
from fedtorch.tracking.run_folder import is_run, read_run


def round_record(number: int) -> dict[str, Any]:
    return {"kind": "round", "round": number, "text": "x" * 50}


def rounds_of(path: Path) -> list[int]:
    return [json.loads(line)["round"] for line in path.read_text().splitlines()]


def write(path: Path, *lines: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


class Refusing(FileIO):
    """Takes so many bytes in all; then it refuses as the system does."""

    room = 1 << 40
    error = errno.EDQUOT

    def write(self, data: Any) -> int:
        """What fits, as write(2) does."""
        part = bytes(data)[: max(0, Refusing.room)]
        if not part:
            raise OSError(Refusing.error, os.strerror(Refusing.error))
        Refusing.room -= len(part)
        return super().write(part)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what is left, and the error."""
    monkeypatch.setattr(record_log, "FileIO", Refusing)
    monkeypatch.setattr(Refusing, "room", 1 << 40)

    def leave(room: int, error: int = errno.EDQUOT) -> None:
        Refusing.room, Refusing.error = room, error

    return leave


@pytest.mark.parametrize("error", [errno.EDQUOT, errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("room", [0, 1, 40, 85])
def test_records_wait_for_room_in_their_order(room: int, error: int, disk: Any, tmp_path: Path) -> None:
    log = Log(tmp_path / "metrics.jsonl")
    log.append(round_record(1))
    disk(room, error)
    for number in (2, 3, 4):
        log.append(round_record(number))
    assert rounds_of(log.path) == [1]  # nothing torn is left either
    assert log.gap(4) == {"missing_rounds": [[2, 4]], "reason": os.strerror(error)}
    disk(1 << 40)
    log.append(round_record(5))
    assert rounds_of(log.path) == [1, 2, 3, 4, 5]
    assert log.gap(5) == {}
    log.close()


def test_what_waits_is_written_at_the_latest_when_the_log_is_closed(disk: Any, tmp_path: Path) -> None:
    log = Log(tmp_path / "metrics.jsonl")
    log.append(round_record(1))
    disk(0)
    log.append(round_record(2))
    disk(1 << 40)
    log.close()
    assert rounds_of(log.path) == [1, 2]


def test_what_waits_takes_bounded_memory_and_what_is_lost_is_named(
    disk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_log, "MOST_WAITING", 4 * len(json.dumps(round_record(10))))
    log = Log(tmp_path / "metrics.jsonl")
    log.append(round_record(1))
    disk(0)
    for number in range(2, 12):
        log.append(round_record(number))
    disk(1 << 40)
    log.sync()
    assert rounds_of(log.path) == [1, 8, 9, 10, 11]
    assert log.gap(11)["missing_rounds"] == [[2, 7]]


def remove(path: Path) -> None:
    path.unlink()


def put_another(path: Path) -> None:
    path.unlink()
    path.write_text("something else\n")


def remove_the_folder(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.parent.rmdir()


@pytest.mark.parametrize("take", [remove, put_another, remove_the_folder])
def test_a_file_that_was_taken_away_is_written_anew(
    take: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log(tmp_path / "run" / "metrics.jsonl")
    log.append(round_record(1))
    take(log.path)
    log.append(round_record(2))
    log.sync()
    log.append(round_record(3))
    assert rounds_of(log.path) == [1, 2, 3]
    assert "was taken away while the run went on; it is written anew" in caplog.text
    assert log.gap(3) == {}


def test_a_folder_in_its_place_loses_the_file_and_says_so(tmp_path: Path) -> None:
    log = Log(tmp_path / "metrics.jsonl")
    log.append(round_record(1))
    log.path.unlink()
    log.path.mkdir()
    log.append(round_record(2))
    log.sync()
    assert log.gap(2) == {"missing_rounds": [[1, 2]], "reason": "Is a directory"}
    assert list(tmp_path.iterdir()) == [log.path]


def test_a_file_that_was_cut_has_a_gap(tmp_path: Path) -> None:
    log = Log(tmp_path / "metrics.jsonl")
    for number in (1, 2, 3):
        log.append(round_record(number))
    os.truncate(log.path, len(log.path.read_text().splitlines(keepends=True)[0]))
    log.append(round_record(4))
    assert log.gap(4) == {"missing_rounds": [[2, 3]], "reason": "they are not in the file"}


RESULTS = {
    "rounds": 9,
    "split": "test",
    "clients": {"a": {"examples": 5, "status": "ok", "loss": 0.5, "weight": 1.0, "scores": {"f1": [3.0, 4]}}},
    "averages": {"f1": {"macro": 0.75, "micro": 0.75, "count": 4}},
    "records": {"missing_rounds": [[3, 9]], "reason": "No space left on device"},
}


@pytest.mark.parametrize("has_file", [True, False])
def test_the_end_of_a_run_without_records_is_read_from_its_results(has_file: bool, tmp_path: Path) -> None:
    assert not is_run(tmp_path)
    if has_file:
        begun = {"kind": "run", "clients": ["a", "b"], "rounds": 9}
        write(tmp_path / "metrics.jsonl", begun, round_record(1), round_record(2))
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    run = read_run(tmp_path)
    assert is_run(tmp_path) and run.is_finished
    assert (run.rounds, run.last_round) == (9, 9)
    assert run.last["a"]["loss_mean"] == 0.5
    (evaluation,) = run.last_evaluations()
    assert (evaluation.label, evaluation.round, evaluation.of("f1")) == ("final", 9, {"a": (3.0, 4)})
    assert run.gap == "records of rounds 3 to 9 are missing (No space left on device)"


def test_results_of_an_earlier_end_are_not_read(tmp_path: Path) -> None:
    begun = {"kind": "run", "clients": ["a"], "rounds": 12}
    write(tmp_path / "metrics.jsonl", begun, *map(round_record, range(1, 11)))
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    run = read_run(tmp_path)
    assert (run.last_round, run.is_finished, run.gap) == (10, False, "")


def test_a_gap_that_nobody_noted_is_seen_by_who_reads(tmp_path: Path) -> None:
    begun = {"kind": "run", "clients": ["a"], "rounds": 4}
    write(tmp_path / "metrics.jsonl", begun, *map(round_record, (1, 3, 4)))
    assert read_run(tmp_path).gap == "records of round 2 are missing (they are not in the file)"
