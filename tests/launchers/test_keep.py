"""One side of a federation, kept running: small programs in place of training."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from fedtorch.core.errors import ConfigError, RestartsError
from launchers import keep
from launchers.keep import Kept
from launchers.pool import hold


@pytest.fixture(autouse=True)
def _bash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "PROGRAM", ("bash", "-c"))
    monkeypatch.setattr(keep, "PAUSE_S", 0.0)


def kept(folder: Path, script: str, *words: str, said: list[str] | None = None) -> Kept:
    said = [] if said is None else said
    return Kept([f"cd {folder}; echo $RANK $* >> ran; {script}", "rank", *words], {"RANK": "2"}, folder, said.append)


def test_a_rank_that_dies_or_loses_the_others_is_started_again(tmp_path: Path) -> None:
    said: list[str] = []
    script = "case $(wc -l < ran) in 1) kill -9 $$;; 2) exit 7;; esac"
    assert kept(tmp_path, script, "--resume", "never", said=said).run(5) == 0
    assert (tmp_path / "ran").read_text().splitlines() == ["2 --resume never", *["2 --resume auto"] * 2]
    assert "SIGKILL" in said[0] and said[1] == "ended with exit code 7; started again, 2 of 5 times"


@pytest.mark.parametrize("code", [2, 3, 4, 6, 8, 75])
def test_what_a_restart_would_only_repeat_is_not_restarted(code: int, tmp_path: Path) -> None:
    assert kept(tmp_path, f"exit {code}").run(3) == code
    assert (tmp_path / "ran").read_text() == "2\n"


def test_restarts_are_used_up(tmp_path: Path) -> None:
    with pytest.raises(RestartsError, match="no restart is left of 2; the last attempt ended with exit code 7"):
        kept(tmp_path, "exit 7").run(2)
    assert (tmp_path / "ran").read_text() == "2\n" * 3


def test_a_signal_is_passed_on_once_and_ends_it(tmp_path: Path) -> None:
    def stop() -> None:
        while not (tmp_path / "ready").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    assert kept(tmp_path, "trap 'exit 75' TERM; touch ready; while :; do sleep 0.02; done").run(3) == 75
    assert (tmp_path / "ran").read_text() == "2\n"


def test_a_rank_of_a_run_folder_is_one_process(tmp_path: Path) -> None:
    lock = hold(tmp_path, ".lock.rank2")
    assert lock is not None
    with pytest.raises(ConfigError, match="another process is this rank of .* already"):
        kept(tmp_path, "exit 0").run(0)
    os.close(lock)
