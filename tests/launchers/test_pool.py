"""Several runs at once on this machine, with small programs in place of training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launchers import pool
from launchers.pool import Command, Pool, is_locked

pytestmark = pytest.mark.processes

SAVES = "trap 'echo saved; exit 75' TERM; touch ready; while :; do sleep 0.05; done"
DEAF = "trap '' TERM; touch ready; while :; do sleep 0.05; done"


def command(folder: Path, name: str, script: str) -> Command:
    return Command(name, ["bash", "-c", f"cd {folder / name}; {script}"], folder / name)


def make_pool(at_once: int, events: list[tuple[str, str, int]] | None = None) -> Pool:
    kept = [] if events is None else events
    return Pool(at_once, lambda slot: {"SLOT": str(slot)}, lambda name, event, code: kept.append((name, event, code)))


def when(condition: Callable[[], bool], *actions: Callable[[], None]) -> threading.Thread:
    """Do `actions`, 0.3 s apart, once `condition` holds."""

    def wait() -> None:
        while not condition():
            time.sleep(0.01)
        for action in actions:
            action()
            time.sleep(0.3)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_a_run_that_fails_stops_no_other(tmp_path: Path) -> None:
    events: list[tuple[str, str, int]] = []
    commands = [command(tmp_path, name, script) for name, script in (("a", "exit 3"), ("b", "echo $SLOT"), ("c", ":"))]
    codes, is_interrupted = make_pool(1, events).run(commands)
    assert codes == {"a": 3, "b": 0, "c": 0} and not is_interrupted
    assert [event[:2] for event in events] == [(n, e) for n in "abc" for e in ("started", "ended")]
    assert ("a", "ended", 3) in events
    assert (tmp_path / "b" / "output.txt").read_text() == "0\n"


def test_no_more_than_asked_run_at_once_and_each_in_a_slot_of_its_own(tmp_path: Path) -> None:
    slots = tmp_path / "slots"
    slots.mkdir()
    # mkdir takes a slot or fails if somebody holds it; the first two wait for one another
    hold = f"mkdir {slots}/$SLOT || exit 9; ls {slots}; {{}}; rmdir {slots}/$SLOT"
    meet = f"touch {tmp_path}/{{0}}.met; until test -e {tmp_path}/{{1}}.met; do sleep 0.02; done"
    waits = [meet.format(0, 1), meet.format(1, 0), "sleep 0.1", "sleep 0.1", "sleep 0.1"]
    codes, _ = make_pool(2).run([command(tmp_path, str(i), hold.format(wait)) for i, wait in enumerate(waits)])
    assert set(codes.values()) == {0}
    seen = [(tmp_path / str(i) / "output.txt").read_text().split() for i in range(5)]
    assert {slot for slots_seen in seen for slot in slots_seen} == {"0", "1"} and max(map(len, seen)) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_all_save_and_starts_nothing_more(number: signal.Signals, tmp_path: Path) -> None:
    commands = [command(tmp_path, name, SAVES) for name in "abc"]
    ready = [tmp_path / name / "ready" for name in "ab"]
    when(lambda: all(path.exists() for path in ready), lambda: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    codes, is_interrupted = make_pool(2).run(commands)
    assert codes == {"a": 75, "b": 75} and is_interrupted
    assert (tmp_path / "a" / "output.txt").read_text() == "saved\n" and not (tmp_path / "c").exists()
    assert signal.getsignal(number) is before


def test_a_second_signal_ends_at_once_what_does_not_listen(tmp_path: Path) -> None:
    interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    when((tmp_path / "a" / "ready").exists, interrupt, interrupt)
    started = time.monotonic()
    codes, is_interrupted = make_pool(1).run([command(tmp_path, "a", DEAF)])
    assert codes == {"a": -signal.SIGKILL} and is_interrupted and time.monotonic() - started < 30


def test_who_does_not_save_in_time_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "SAVE_S", 0.2)
    when((tmp_path / "a" / "ready").exists, lambda: os.kill(os.getpid(), signal.SIGINT))
    codes, _ = make_pool(1).run([command(tmp_path, "a", DEAF)])
    assert codes == {"a": -signal.SIGKILL}


def test_a_run_is_not_started_twice_even_when_its_pool_was_killed(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]); import test_pool as t; "
        "t.make_pool(1).run([t.command(Path(sys.argv[1]), 'a', 'touch ready; echo $$ > pid; exec sleep 60')])"
    )
    first = subprocess.Popen([sys.executable, "-c", script, tmp_path, Path(__file__).parent])
    run, events = tmp_path / "a", list[tuple[str, str, int]]()
    while not (run / "pid").exists() or not (run / "pid").read_text():
        time.sleep(0.02)
    first.kill()
    first.wait()
    try:
        assert is_locked(run)
        codes, _ = make_pool(1, events).run([command(tmp_path, "a", "exit 0")])
        assert codes == {} and events == [("a", "locked", 0)]
    finally:
        os.kill(int((run / "pid").read_text()), signal.SIGKILL)
    codes, _ = make_pool(1).run([command(tmp_path, "a", "exit 0")])
    assert codes == {"a": 0} and is_locked(run) is False and is_locked(tmp_path) is None
