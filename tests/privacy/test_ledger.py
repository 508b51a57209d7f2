"""The key and the ledger: who may read them, what a torn, missing or strange file means, and which attempt is next."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fedtorch.core.errors import CheckpointError
from fedtorch.privacy.data_ledger import DataLedger
from fedtorch.privacy.ledger import Ledger
from fedtorch.privacy.release import Release

TERMS = {"rate": 0.1, "clients": 10}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.begin(tmp_path / "privacy", TERMS)


def reopened(ledger: Ledger) -> Ledger:
    assert ledger.folder is not None
    return Ledger.open(ledger.folder)


def test_only_the_owner_may_read_key_and_ledger(ledger: Ledger) -> None:
    assert ledger.folder is not None
    modes = {path.name: path.stat().st_mode & 0o777 for path in ledger.folder.iterdir()}
    assert modes == {"key": 0o600, "ledger.jsonl": 0o600} and ledger.folder.stat().st_mode & 0o777 == 0o700
    assert len((ledger.folder / "key").read_bytes()) == 32


def test_what_a_key_gives_is_what_it_gave_before() -> None:
    """Checkpoints and ledgers of earlier versions have it."""
    known = Ledger(bytes(range(32)), {}, None, [])
    assert (known.run, known.check) == ("1433dfeb83c09979", 625426708485)
    assert known.digest_of(b"sum", b"x") == "d748d12fd9ec6a235f8308ae2497ad218d6ce21cd7e574f639ff4c29d01b19ad"


def test_folders_above_are_made_for_the_owner_too(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one" / "privacy"
    Ledger.begin(folder, TERMS)
    assert folder.parent.stat().st_mode & 0o777 == 0o700 and len(Ledger.open(folder).key) == 32


def test_a_ledger_has_the_form_1_and_one_without_damage_is_left_as_it_is(ledger: Ledger) -> None:
    assert ledger.folder is not None
    path = ledger.folder / "ledger.jsonl"
    assert json.loads(path.read_text()) == {"form": 1, **TERMS}
    before = path.stat().st_ino
    reopened(ledger)
    assert path.stat().st_ino == before


def test_of_a_branch_the_ledger_of_the_data_has_the_releases_of_its_own(tmp_path: Path) -> None:
    terms = {**TERMS, "noise_multiplier": 1.0, "delta": 0.1}
    branch = Ledger.begin(
        tmp_path / "run" / "privacy", {**terms, "since": 2}, [Release(round, 0, "a") for round in (0, 1)]
    )
    branch.enter(2, 0, "a")
    branch.enter(3, 0, "a")
    data = DataLedger(tmp_path / "d.privacy.jsonl")
    branch.attach(data, tmp_path / "run")
    whole = Ledger.begin(tmp_path / "whole" / "privacy", terms, [Release(0, 0, "a")])
    whole.attach(data, tmp_path / "whole")
    known = data.runs()
    assert set(known[branch.run].releases) == {(2, 0), (3, 0)} and set(known[whole.run].releases) == {(0, 0)}


def test_the_same_sum_is_the_same_release_and_another_one_needs_the_next_attempt(ledger: Ledger) -> None:
    assert ledger.last(0) is None
    assert [ledger.enter(0, 0, "a"), ledger.enter(0, 0, "a"), ledger.enter(0, 0, "b"), ledger.enter(1, 0, "a")] == [
        True, True, False, True
    ]  # fmt: skip
    assert ledger.releases == [Release(0, 0, "a"), Release(1, 0, "a")] == reopened(ledger).releases
    ledger.renew(0)
    assert ledger.last(0) == Release(0, 1, "", 1) == reopened(ledger).last(0)  # a process that dies goes on with it
    assert not ledger.enter(0, 0, "b") and ledger.enter(0, 1, "b") and ledger.enter(0, 1, "b")
    again = reopened(ledger)
    assert again.releases == ledger.releases and again.key == ledger.key and again.terms == TERMS
    assert again.spent == {1: 3} and again.last(0) == Release(0, 1, "b", 1) and again.check == ledger.check


def test_attempts_of_earlier_versions_share_the_rounds_cohort(ledger: Ledger) -> None:
    assert ledger.folder is not None
    with (ledger.folder / "ledger.jsonl").open("a") as file:
        for attempt in range(3):
            file.write(json.dumps({"round": 0, "attempt": attempt, "digest": f"{attempt}"}) + "\n")
    again = reopened(ledger)
    assert again.spent == {3: 1}
    again.renew(0)
    assert again.enter(0, 3, "x") and reopened(ledger).spent == {3: 1, 1: 1}


def test_two_sums_under_one_attempt_are_no_ledger(ledger: Ledger) -> None:
    assert ledger.folder is not None
    with (ledger.folder / "ledger.jsonl").open("a") as file:
        file.writelines(json.dumps({"round": 4, "attempt": 0, "digest": each}) + "\n" for each in "ab")
    with pytest.raises(CheckpointError, match=r"is damaged \(two sums of round 5 under attempt 0\)"):
        reopened(ledger)


@pytest.mark.parametrize("change", ["deleted", "cut", "edited", "longer"])
def test_a_ledger_that_is_changed_while_the_run_goes_on_ends_it_before_anything_leaves(
    ledger: Ledger, change: str
) -> None:
    assert ledger.folder is not None
    ledger.enter(0, 0, "a")
    path, releases = ledger.folder / "ledger.jsonl", ledger.releases
    text = path.read_text()
    if change == "deleted":
        path.unlink()
    else:
        cut, edited, longer = (
            text.splitlines(True)[0],
            text.replace("0.1", "0.2"),
            text + '{"round": 7, "attempt": 0}\n',
        )
        path.write_text({"cut": cut, "edited": edited, "longer": longer}[change])
    for leave in (lambda: ledger.enter(1, 0, "a"), lambda: ledger.renew(0)):
        with pytest.raises(CheckpointError, match=r"ledger.jsonl was changed or taken away .* stays here; bring it"):
            leave()
    assert ledger.releases == releases and path.exists() == (change != "deleted")


def test_a_disk_with_a_clock_of_its_own_is_no_change(ledger: Ledger) -> None:
    assert ledger.folder is not None
    ledger.enter(0, 0, "a")
    os.utime(ledger.folder / "ledger.jsonl", (1, 1))
    assert ledger.enter(1, 0, "a")


def test_a_digest_needs_the_key(ledger: Ledger, tmp_path: Path) -> None:
    other = Ledger.begin(tmp_path / "other", TERMS)
    assert ledger.digest_of(b"sum", b"x") == reopened(ledger).digest_of(b"sum", b"x")
    digests = {ledger.digest_of(b"sum", b"x"), other.digest_of(b"sum", b"x"), ledger.digest_of(b"sumx", b"")}
    assert len(digests) == 3


def test_a_line_that_was_not_finished_is_no_release(ledger: Ledger) -> None:
    assert ledger.folder is not None
    ledger.enter(0, 0, "a")
    with (ledger.folder / "ledger.jsonl").open("ab") as file:
        file.write(b'{"round": 1, "att')
    again = reopened(ledger)
    assert len(again.releases) == 1 and again.enter(1, 0, "b")
    assert [release.round for release in reopened(ledger).releases] == [0, 1]


@pytest.mark.parametrize("name", ["key", "ledger.jsonl"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_what_others_may_read_is_refused(ledger: Ledger, name: str, mode: int) -> None:
    assert ledger.folder is not None
    os.chmod(ledger.folder / name, mode)
    with pytest.raises(CheckpointError, match=rf"{name}, .* has mode {mode:04o}, .*chmod 600"):
        reopened(ledger)


@pytest.mark.parametrize("name", ["key", "ledger.jsonl"])
def test_what_is_missing_is_named(ledger: Ledger, name: str) -> None:
    assert ledger.folder is not None
    (ledger.folder / name).unlink()
    with pytest.raises(CheckpointError, match=rf"{name}, .* cannot be read .*--resume never"):
        reopened(ledger)


@pytest.mark.parametrize(("name", "content"), [("key", b"short"), ("ledger.jsonl", b"[]\n"), ("ledger.jsonl", b"")])
def test_what_is_damaged_is_named(ledger: Ledger, name: str, content: bytes) -> None:
    assert ledger.folder is not None
    (ledger.folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        reopened(ledger)


def test_a_disk_that_refuses_keeps_the_sum_here(ledger: Ledger) -> None:
    assert ledger.folder is not None
    (ledger.folder / "ledger.jsonl").unlink()
    (ledger.folder / "ledger.jsonl").mkdir()
    with pytest.raises(CheckpointError, match="stays here"):
        ledger.enter(0, 0, "a")
    assert ledger.releases == []
