"""`fedtorch.run` on several ranks: the same bits, and failures that say what the ranks said."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ranks import start_ranks
from supervisor import toy_config

import fedtorch
from fedtorch.cli.__main__ import COMMANDS, module_of
from fedtorch.core.errors import CheckpointError, RestartsError

# the module that the command takes: in a clone without an installed package another one
LOCAL = module_of(COMMANDS["local"])
local: Any = importlib.import_module(LOCAL)
job: Any = importlib.import_module(f"{LOCAL.rpartition('.')[0]}.job")


class ForkedRank:
    """What the launcher takes for a rank that it has started: one of the fork server, in a session of its own."""

    def __init__(self, words: Sequence[str], *, env: Mapping[str, str], **_: Any) -> None:
        self._process = start_ranks(as_rank, 1, list(words[3:]), environ=dict(env)).processes[0]
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> None:
        self._process.join()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid or 0, number)


def as_rank(words: list[str]) -> None:
    from fedtorch.main import main

    os.setsid()
    os._exit(main(words))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return toy_config(tmp_path)


def with_ranks_that(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Small programs in place of training."""
    monkeypatch.setattr(local, "PROGRAM", ("bash", "-c", script))
    monkeypatch.setattr(job, "GRACE_S", 0.3)


@pytest.mark.processes
def test_three_ranks_have_the_bits_of_one(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = fedtorch.run(config, {"run.dir": str(config.parent / "alone")})
    monkeypatch.setattr(job.subprocess, "Popen", ForkedRank)
    by_path = fedtorch.run(config, ranks=3)
    assert by_path.digest == alone.digest and json.loads((config.parent / "run" / "env.json").read_text())["ranks"] == 3
    by_dict = fedtorch.run({"base": str(config)}, {"run.dir": str(config.parent / "dict")}, 2, resume="never")
    assert by_dict.digest == alone.digest
    assert [path.name for path in config.parent.glob("*/output*")].count("output.rank1.txt") == 2
    command = json.loads(by_dict.paths.status.read_text())["command"]
    launcher = "fedtorch local" if LOCAL.startswith("fedtorch.") else f"python -m {LOCAL}"
    assert command == f"{launcher} --config {config.parent}/dict/config.yaml --ranks 2"


@pytest.mark.slow
@pytest.mark.processes
def test_so_they_have_in_new_interpreters(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), str(root / "tests" / "support")]))
    monkeypatch.chdir(config.parent)
    alone = fedtorch.run(config, {"run.dir": "alone"})
    assert fedtorch.run({"base": str(config)}, {"run.dir": "three"}, 3).digest == alone.digest


@pytest.mark.processes
def test_a_failure_has_the_class_the_code_and_what_the_ranks_said(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = config.parent / "run"
    folder.mkdir()
    (folder / "log.rank0.txt").write_text("2026-01-01 00:00:00 ERROR fedtorch: of an earlier run\n")
    status = json.dumps({"state": "failed", "code": 8, "reason": "the disk refuses (full); free some space"})
    lines = "date DEBUG fedtorch: a text\\n", "2026-01-01 00:00:01,5 WARNING fedtorch.comm: the disk is nearly full\\n"
    said = f"printf '{lines[0]}{lines[1]}' >> {folder}/log.rank$RANK.txt; echo 'fedtorch: no room'"
    with_ranks_that(monkeypatch, f"{said}; [ $RANK = 0 ] && echo '{status}' > {folder}/status.json; exit 8")
    with pytest.raises(CheckpointError) as failed:
        fedtorch.run(config, ranks=2)
    assert failed.value.exit_code == 8
    assert str(failed.value).splitlines() == [
        f"the run {folder} on 2 ranks ended with exit code 8: the disk refuses (full); free some space",
        "  log.rank0.txt: 2026-01-01 00:00:01,5 WARNING fedtorch.comm: the disk is nearly full",
        "  log.rank1.txt: 2026-01-01 00:00:01,5 WARNING fedtorch.comm: the disk is nearly full",
        "  output.rank1.txt: fedtorch: no room",
        f"all of it: {folder}/log.rank*.txt and output.rank*.txt",
    ]


@pytest.mark.processes
@pytest.mark.parametrize(("code", "kind"), [(1, "FedtorchError"), (3, "DataError"), (75, "Interrupted")])
def test_ranks_that_could_not_say_why_are_an_error_too(
    code: int, kind: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_ranks_that(monkeypatch, f"exit {code}")
    monkeypatch.setattr(local, "MAX_RESTARTS", 0)
    expected = RestartsError if code == 1 else fedtorch.FedtorchError  # a restart might have mended it
    with pytest.raises(expected, match=f"exit code {code}") as failed:
        fedtorch.run(config, ranks=2, resume="never")
    assert type(failed.value).__name__ == ("RestartsError" if code == 1 else kind)
    assert failed.value.exit_code == (9 if code == 1 else code)


@pytest.mark.processes
def test_a_run_that_begins_anew_is_not_started_again(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would begin there once more."""
    with_ranks_that(monkeypatch, f"echo $RANK >> {config.parent}/ran; exit 1")
    with pytest.raises(RestartsError, match="no restart is left of 0"):
        fedtorch.run(config, ranks=2, resume="never")
    assert sorted((config.parent / "ran").read_text().split()) == ["0", "1"]


SAVES = "trap 'echo $RANK >> FOLDER/saved; exit 75' TERM INT; touch FOLDER/ready$RANK; while :; do sleep 0.05; done"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, fedtorch.Interrupted)]
)
def test_a_signal_reaches_all_ranks_and_the_process_lives(
    number: int, kind: type[BaseException], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        while len(list(config.parent.glob("ready*"))) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with_ranks_that(monkeypatch, SAVES.replace("FOLDER", str(config.parent)))
    threading.Thread(target=stop).start()
    with pytest.raises(kind):
        fedtorch.run(config, ranks=2)
    assert sorted((config.parent / "saved").read_text().split()) == ["0", "1"]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.processes
def test_a_thread_can_start_ranks(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    before = fedtorch.run(config)
    with_ranks_that(monkeypatch, "exit 0")
    thread = threading.Thread(target=lambda: found.append(fedtorch.run(config, ranks=2)))
    thread.start()
    thread.join()
    assert found == [before]


def test_a_config_is_refused_before_a_rank_is_started(config: Path) -> None:
    """No test without the mark may start a process, and this one has none."""
    with pytest.raises(fedtorch.ConfigError, match="did you mean `rounds`"):
        fedtorch.run(config, {"rouds": 2}, 3)
    assert LOCAL in sys.modules
