"""`fedtorch.run` in this process: the bits of the command, and a process that is left as it was found."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from supervisor import toy_config

import fedtorch
from fedtorch.api import run as api_run
from fedtorch.config.load import digest as config_digest
from fedtorch.config.load import load
from fedtorch.core.errors import CheckpointError, PreflightError
from fedtorch.main import main

BROKEN = """
from dataclasses import dataclass
from fedtorch.algorithms.fedavg import FedAvg

@dataclass(frozen=True)
class Broken(FedAvg):
    def weigh(self, reports):
        return [1 / 0]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return toy_config(tmp_path)


def test_it_has_the_bits_of_the_command_however_the_config_is_given(config: Path, tmp_path: Path) -> None:
    folders = {name: str(tmp_path / name) for name in ("command", "texts", "dict", "laid")}
    sets = ["rounds=4", "client.lr=5e-2"]
    assert main(["--config", str(config), "--set", *sets, f"run.dir={folders['command']}"]) == 0
    digest = fedtorch.open_run(folders["command"]).digest
    assert fedtorch.run(str(config), [*sets, f"run.dir={folders['texts']}"]).digest == digest
    overrides = {"rounds": 4, "client": {"lr": 0.05}, "run.dir": Path(folders["dict"])}
    assert fedtorch.run({"base": str(config)}, overrides).digest == digest
    assert fedtorch.run([config, {"rounds": 4, "client": {"lr": 0.05}}], {"run.dir": folders["laid"]}).digest == digest
    assert len({config_digest(load(Path(folder) / "config.yaml")) for folder in folders.values()}) == 1


def test_the_command_that_goes_on_is_one_that_a_shell_can_run(config: Path, tmp_path: Path) -> None:
    by_path = fedtorch.run(config, {"rounds": 1})
    status = json.loads(by_path.paths.status.read_text())
    assert status["command"] == f"python -m fedtorch.main --config {config} --set rounds=1" and status["code"] == 0
    by_dict = fedtorch.run({"base": str(config), "run": {"dir": str(tmp_path / "other")}})
    command = json.loads(by_dict.paths.status.read_text())["command"]
    assert command == f"python -m fedtorch.main --config {tmp_path}/other/config.yaml"
    assert main(command.split()[3:]) == 0  # resumed, done already
    assert fedtorch.open_run(tmp_path / "other").digest == by_dict.digest


def test_the_process_is_left_as_it_was(config: Path) -> None:
    seen: list[Any] = []

    def state() -> tuple[Any, ...]:
        log = logging.getLogger("fedtorch")
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
        about_log = (log.level, log.propagate, log.handlers[:])
        return torch.get_num_threads(), torch.get_rng_state().tolist(), about_log, handlers, dict(os.environ)

    class Looker(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    torch.set_num_threads(2)
    log, looker = logging.getLogger("fedtorch"), Looker()
    log.addHandler(looker)
    threads, files, before = threading.active_count(), len(os.listdir("/proc/self/fd")), state()
    try:
        assert fedtorch.run(config).digest == fedtorch.run(config, resume="never").digest
        assert state() == before
        assert threading.active_count() <= threads  # one of an earlier test may have ended meanwhile
        assert len(os.listdir("/proc/self/fd")) <= files
        with pytest.raises(fedtorch.ConfigError):
            fedtorch.run(config, {"task.start": []})
        assert state() == before
    finally:
        log.removeHandler(looker)
        torch.set_num_threads(1)
    assert not seen  # what a run logs goes to its own files and the terminal


def test_a_second_call_resumes_and_a_changed_config_is_refused(config: Path) -> None:
    first = fedtorch.run(config, {"rounds": 2})
    assert len(first.records.query("kind == 'round'")) == 2
    with pytest.raises(CheckpointError, match="rounds was 2 and is now 1"):
        fedtorch.run(config, {"rounds": 1})
    assert fedtorch.run(config, {"rounds": 2}).digest == first.digest
    longer = fedtorch.run(config, {"rounds": 3})  # goes on
    assert len(longer.records.query("kind == 'round'")) == 3
    assert fedtorch.run(config, {"rounds": 3}, resume="never").digest == longer.digest != first.digest


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"overrides": {"rouds": 2}}, fedtorch.ConfigError, "unknown key `rouds` in --set rouds=2; did you mean"),
        ({"overrides": "rounds"}, fedtorch.ConfigError, "`--set rounds` should have the form"),
        ({"overrides": {"rounds": object()}}, fedtorch.ConfigError, "rounds is a object; a config holds texts"),
        ({"overrides": {"rounds": float("nan")}}, fedtorch.ConfigError, "rounds is nan"),
        ({"config": {"rouds": 2}}, fedtorch.ConfigError, "unknown key `rouds`; did you mean `rounds`?"),
        ({"config": {"base": 3}}, fedtorch.ConfigError, "base is 3 but should be a list of file names"),
        ({"config": 3}, fedtorch.ConfigError, "config is a int; give a path, a name"),
        ({"config": "smoke/fedavgg"}, fedtorch.ConfigError, "did you mean `smoke/fedavg`"),
        ({"ranks": 0}, fedtorch.ConfigError, "ranks is 0; give the number of processes, at least 1"),
        ({"overrides": {"task": {"name": "text2sql", "data": "/nowhere"}}}, fedtorch.DataError, "/nowhere"),
    ],
)
def test_bad_input_raises_what_the_command_prints(
    arguments: dict[str, Any], error: type[Exception], said: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(error, match=said):
        fedtorch.run(**{"config": config, **arguments})
    assert "fedtorch:" not in capsys.readouterr().err


def test_a_defect_of_the_users_own_class_comes_as_it_is(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (config.parent / "broken_rule.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(config.parent))
    with pytest.raises(ZeroDivisionError):
        fedtorch.run(config, {"algorithm": {"name": "broken_rule:Broken"}})
    status = json.loads((config.parent / "run" / "status.json").read_text())
    assert (status["code"], status["reason"]) == (1, "ZeroDivisionError; see log.rank0.txt")


def test_a_rank_of_a_job_starts_no_run(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(PreflightError, match="in rank 0 of a job of 3 .* without torchrun, and give ranks=3"):
        fedtorch.run(config)


def interrupting(monkeypatch: pytest.MonkeyPatch, times: int, number: int = signal.SIGINT) -> None:
    """Send the signal as soon as a run is under way."""

    def train(*args: Any, stop: Callable[[], bool], **options: Any) -> None:
        for _ in range(times):
            signal.raise_signal(number)
        original(*args, stop=stop, **options)

    original: Any = api_run.train
    monkeypatch.setattr(api_run, "train", train)


def test_ctrl_c_saves_and_the_same_call_goes_on(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = signal.getsignal(signal.SIGINT)
    whole = fedtorch.run(config, {"run.dir": str(config.parent / "whole")})
    with monkeypatch.context() as patch:
        interrupting(patch, 1)
        with pytest.raises(KeyboardInterrupt, match="0 rounds are saved, .*; call it again to go on"):
            fedtorch.run(config)
    assert signal.getsignal(signal.SIGINT) is handler
    stopped = fedtorch.open_run(config.parent / "run")
    assert "interrupted" in repr(stopped)
    with pytest.raises(
        fedtorch.ConfigError, match=r"has no scores: the run was interrupted \(stopped by a signal; 0 rounds"
    ):
        print(stopped.scores)
    assert fedtorch.run(config).digest == whole.digest


def test_scores_of_an_earlier_run_are_not_those_of_one_that_was_stopped(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """results.json lies there still when a run begins anew in an old folder."""
    first = fedtorch.run(config)
    interrupting(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        fedtorch.run(config, resume="never")
    assert first.digest and fedtorch.open_run(config.parent / "run").results is None


def test_a_second_ctrl_c_ends_at_once_and_the_process_lives(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        interrupting(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            fedtorch.run(config)
    assert signal.getsignal(signal.SIGINT) is handler
    assert fedtorch.run(config).scores.overall  # nothing is held any more


def test_another_signal_is_an_error_of_ours(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupting(monkeypatch, 1, signal.SIGTERM)
    with pytest.raises(fedtorch.Interrupted) as ended:
        fedtorch.run(config)
    assert ended.value.exit_code == 75


def test_a_thread_can_run_and_a_second_one_is_refused_meanwhile(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, found = threading.Event(), threading.Event(), list[str]()
    original: Any = api_run.train

    def train(*args: Any, **options: Any) -> None:
        begun.set()
        assert go_on.wait(30)
        original(*args, **options)

    monkeypatch.setattr(api_run, "train", train)
    thread = threading.Thread(target=lambda: found.append(fedtorch.run(config).digest))
    thread.start()
    assert begun.wait(30)
    with pytest.raises(PreflightError, match="another fedtorch.run is under way in this process"):
        fedtorch.run(config, {"run.dir": str(config.parent / "other")})
    go_on.set()
    thread.join()
    monkeypatch.undo()
    assert found == [fedtorch.run(config, resume="never").digest]
