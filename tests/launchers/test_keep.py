"""One side of a federation, kept running: small functions in place of training."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from fedtorch.core.errors import ConfigError, RestartsError
from fedtorch.core.saved_rounds import tell_saved
from launchers import restarts
from launchers.keep import Kept
from launchers.pool import hold

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "PAUSE_S", 0.0)


def kept(folder: Path, ends: Callable[[int], int], *words: str, said: list[str] | None = None) -> Kept:
    """ends: what an attempt does, given its number from 1."""

    def rank(arguments: list[str]) -> int:
        with (folder / "ran").open("a") as file:
            print(os.environ["RANK"], *arguments, file=file)
        return ends(len((folder / "ran").read_text().splitlines()))

    return Kept(words, {"RANK": "2"}, folder, ([] if said is None else said).append, rank)


def kill_first(attempt: int) -> int:
    if attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {2: 7}.get(attempt, 0)


def test_a_rank_that_dies_or_loses_the_others_is_started_again(tmp_path: Path) -> None:
    said: list[str] = []
    assert kept(tmp_path, kill_first, "--resume", "never", said=said).run(5) == 0
    assert (tmp_path / "ran").read_text() == "2 --resume never\n" * 3, "no round was saved, so it has to begin anew"
    assert "SIGKILL" in said[0] and said[1] == "ended with exit code 7; started again, 2 of 5 times"
    assert "RANK" not in os.environ


def save_first(attempt: int) -> int:
    """A round in each of the first three attempts."""
    if attempt <= 3:
        tell_saved(attempt)
    return 7 if attempt <= 4 else 0


def test_a_saved_round_gives_all_restarts_back(tmp_path: Path) -> None:
    """Three losses with a good round before each, and one more: no two in a row were without one."""
    said: list[str] = []
    assert kept(tmp_path, save_first, said=said).run(2) == 0
    assert [line.rpartition(", ")[2] for line in said] == ["1 of 2 times"] * 3 + ["2 of 2 times"]


def test_a_run_that_was_to_begin_anew_goes_on_once_it_has_saved_a_round(tmp_path: Path) -> None:
    assert kept(tmp_path, save_first, "--resume", "never").run(2) == 0
    assert (tmp_path / "ran").read_text().splitlines() == ["2 --resume never", *["2 --resume auto"] * 4]


def test_what_an_earlier_command_saved_gives_no_restart_back(tmp_path: Path) -> None:
    assert kept(tmp_path, save_first).run(2) == 0
    (tmp_path / "ran").unlink()
    with pytest.raises(RestartsError, match="no restart is left of 2"):
        kept(tmp_path, lambda attempt: 7, "--resume", "never").run(2)
    assert (tmp_path / "ran").read_text() == "2 --resume never\n" * 3


def test_a_signal_ends_the_pause_before_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "PAUSE_S", 60.0)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    begun = time.monotonic()
    assert kept(tmp_path, lambda attempt: 7).run(3) == 75
    assert time.monotonic() - begun < 30 and (tmp_path / "ran").read_text() == "2\n"


@pytest.mark.parametrize("code", [2, 3, 4, 6, 8, 75])
def test_what_a_restart_would_only_repeat_is_not_restarted(code: int, tmp_path: Path) -> None:
    assert kept(tmp_path, lambda attempt: code).run(3) == code
    assert (tmp_path / "ran").read_text() == "2\n"


def test_restarts_are_used_up(tmp_path: Path) -> None:
    with pytest.raises(RestartsError, match="no restart is left of 2; the last attempt ended with exit code 7"):
        kept(tmp_path, lambda attempt: 7).run(2)
    assert (tmp_path / "ran").read_text() == "2\n" * 3


def test_an_error_of_a_rank_is_shown_and_restarted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RestartsError, match="exit code 1"):
        kept(tmp_path, lambda attempt: 1 // 0).run(1)
    assert capfd.readouterr().err.count("ZeroDivisionError") == 2


def wait_for_signal(attempt: int) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(75))
    print(os.getpid(), file=Path("ready").open("w"), flush=True)
    while True:
        time.sleep(0.02)


def stays(attempt: int) -> int:
    time.sleep(5)
    return 0


@pytest.fixture(params=[False, True], ids=["alone", "beside-a-thread"])
def _another_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """One that takes the signals which the main thread holds back: its handler then runs at once, held back or not."""
    over = threading.Event()
    if request.param:
        threading.Thread(target=over.wait, daemon=True).start()
    yield
    over.set()


@pytest.mark.usefixtures("_another_thread")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_signal_while_a_rank_is_being_forked_ends_it(
    after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = os.fork

    def signalled() -> int:
        pid = fork() if after else os.getpid()
        if pid:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)  # the handler runs here, where another thread took the signal
        return pid if after else fork()

    monkeypatch.setattr(os, "fork", signalled)
    assert kept(tmp_path, stays).run(3) == 75


def test_a_signal_that_comes_before_there_is_a_rank_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = signal.pthread_sigmask

    def signalled(how: int, signals: Iterable[int]) -> None:
        if how == signal.SIG_BLOCK:
            os.kill(os.getpid(), signal.SIGTERM)
        block(how, signals)

    monkeypatch.setattr(signal, "pthread_sigmask", signalled)
    assert kept(tmp_path, stays).run(3) == 75


def test_a_signal_that_finds_its_rank_ended_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = os.waitpid

    def signalled(pid: int, options: int) -> tuple[int, int]:
        ended = wait(pid, options)
        if ended[0]:
            os.kill(os.getpid(), signal.SIGTERM)
        return ended

    monkeypatch.setattr(os, "waitpid", signalled)
    assert kept(tmp_path, lambda attempt: 7).run(3) == 75
    assert (tmp_path / "ran").read_text() == "2\n"


def pid_of(folder: Path) -> int:
    while not (folder / "ready").exists() or not (folder / "ready").read_text():
        time.sleep(0.01)
    return int((folder / "ready").read_text())


def test_a_signal_is_passed_on_and_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def stop() -> None:
        pid_of(tmp_path)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    assert kept(tmp_path, wait_for_signal).run(3) == 75
    assert (tmp_path / "ran").read_text() == "2\n"


def test_a_signal_that_another_thread_takes_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It interrupts nothing that the main thread waits in, and yet only the main thread runs handlers."""
    monkeypatch.chdir(tmp_path)

    def ready_and_stays(attempt: int) -> int:
        Path("ready").write_text(str(os.getpid()))
        return stays(attempt)

    def stop() -> None:
        pid_of(tmp_path)
        time.sleep(0.2)  # the main thread waits by now
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    assert kept(tmp_path, ready_and_stays).run(3) == 75


def test_a_rank_ends_with_the_process_that_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keeper = os.fork()
    if not keeper:
        os._exit(kept(tmp_path, wait_for_signal).run(0))
    pid = pid_of(tmp_path)
    os.kill(keeper, signal.SIGKILL)
    os.waitpid(keeper, 0)
    give_up_at = time.monotonic() + 5
    while (lock := hold(tmp_path, ".lock.rank2")) is None and time.monotonic() < give_up_at:
        time.sleep(0.02)
    assert lock is not None, f"process {pid} is still there"
    os.close(lock)


def test_a_rank_of_a_run_folder_is_one_process(tmp_path: Path) -> None:
    lock = hold(tmp_path, ".lock.rank2")
    assert lock is not None
    with pytest.raises(ConfigError, match="another process is this rank of .* already"):
        kept(tmp_path, lambda attempt: 0).run(0)
    os.close(lock)
