"""How often is started again, and after how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtorch.core.saved_rounds import VARIABLE, tell_saved
from launchers.restarts import Restarts, pause_words


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "saved"))
    return tmp_path / "saved"


def test_pauses_double_up_to_a_minute(saved: Path) -> None:
    restarts = Restarts(10, saved)
    assert [restarts.spend() for _ in range(11)] == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, None]
    assert restarts.spend() is None


def test_any_number_of_restarts_has_a_pause(saved: Path) -> None:
    restarts = Restarts(2000, saved)
    assert [restarts.spend() for _ in range(2000)][-1] == 60


def test_a_saved_round_brings_back_all_restarts_and_the_short_pause(saved: Path) -> None:
    restarts = Restarts(2, saved)
    for round in (1, 2, 3):
        assert [restarts.spend(), restarts.spend(), restarts.spend()] == [1, 2, None]
        tell_saved(round)
    assert restarts.spend() == 1 and restarts.used == 1


def test_none_is_left_of_none(saved: Path) -> None:
    assert Restarts(0, saved).spend() is None


def test_only_rounds_saved_meanwhile_count(saved: Path) -> None:
    tell_saved(1)
    restarts = Restarts(1, saved)
    assert not restarts.has_saved and [restarts.spend(), restarts.spend()] == [1, None]
    tell_saved(2)
    assert restarts.has_saved


def test_a_disk_that_refuses_ends_nothing(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved.mkdir()
    tell_saved(1)
    assert "the launcher does not learn that a round is saved" in caplog.text


def test_short_pauses_are_not_worth_a_word() -> None:
    assert (pause_words(1.0), pause_words(32.0)) == ("", " after 32 s")
