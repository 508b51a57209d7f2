"""`fedtorch COMMAND`: what it starts, what it says, and what it does not import."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedtorch
import fedtorch.audit.__main__
import fedtorch.chat.__main__
import fedtorch.data.__main__
import fedtorch.lifecycle.export
import fedtorch.lifecycle.gate
import fedtorch.lifecycle.rebuild
import fedtorch.main
import fedtorch.planning.bench
import fedtorch.report.__main__
import fedtorch.setup.data_check
import fedtorch.setup.data_partition
import fedtorch.setup.data_prepare
import fedtorch.setup.digest
import fedtorch.setup.init
import fedtorch.setup.predict
import fedtorch.trust.new_key
import launchers.join
import launchers.local
import launchers.serve
import launchers.slurm
import launchers.stats
import launchers.sweep
import launchers.verify
from fedtorch.cli import __main__ as cli
from fedtorch.cli.__main__ import COMMANDS, main, module_of

ROOT = Path(__file__).parents[2]
FUNCTIONS = {
    "run": fedtorch.main.main,
    "local": launchers.local.main,
    "sweep": launchers.sweep.main,
    "slurm": launchers.slurm.main,
    "serve": launchers.serve.main,
    "join": launchers.join.main,
    "stats": launchers.stats.main,
    "init": fedtorch.setup.init.main,
    "data prepare": fedtorch.data.__main__.main,
    "data prepare own": fedtorch.setup.data_prepare.main,
    "data check": fedtorch.setup.data_check.main,
    "data partition": fedtorch.setup.data_partition.main,
    "report": fedtorch.report.__main__.main,
    "export": fedtorch.lifecycle.export.main,
    "rebuild": fedtorch.lifecycle.rebuild.main,
    "predict": fedtorch.setup.predict.main,
    "bench": fedtorch.planning.bench.main,
    "keys new": fedtorch.trust.new_key.main,
    "gate": fedtorch.lifecycle.gate.main,
    "digest": fedtorch.setup.digest.main,
    "verify": launchers.verify.main,
    "audit": fedtorch.audit.__main__.main,
    "chat": fedtorch.chat.__main__.main,
}
"""command -> what `python -m` of the module calls"""


def in_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `launchers` is found beside the package, also if another clone is installed."""
    monkeypatch.setattr(cli, "find_spec", lambda name: None)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_is_the_function_that_its_module_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_clone(monkeypatch)
    assert import_module(module_of(COMMANDS[name])).main is FUNCTIONS[name]


def test_no_command_is_without_a_function() -> None:
    assert set(COMMANDS) == set(FUNCTIONS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_a_command_shows_how_it_was_called(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_a_clone(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--help"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith(f"usage: fedtorch {name} ")


def test_words_and_exit_code_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(arguments: Sequence[str], *, prog: str) -> int:
        assert (list(arguments), prog) == (["--config", "a b", "--set", "rounds=2"], "fedtorch run")
        return 75

    monkeypatch.setattr(cli, "import_module", lambda name: SimpleNamespace(main=stand_in))
    assert main(["run", "--config", "a b", "--set", "rounds=2"]) == 75


def test_a_run_that_cannot_be_ends_with_the_code_of_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--dry-run", "--set", "rouds=2"]) == 2
    assert "unknown key `rouds`" in capsys.readouterr().err


@pytest.mark.long
def test_ranks_of_a_run_are_the_launchers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a dry run are described; `python -m fedtorch.main` is one process."""
    asked = []

    def run(request: Any, config: Any, ranks: int, **how: Any) -> tuple[int, None]:
        asked.append(ranks)
        return 0, None

    local = import_module(module_of(COMMANDS["local"]))  # an installed package has its own
    monkeypatch.setattr(local, "run_request", run)
    monkeypatch.setattr(local, "ForkServer", SimpleNamespace(begin=lambda arguments: None))
    assert main(["run", "--config", "smoke/fedavg", "--ranks", "3"]) == 0
    assert main(["run", "--ranks=2", "--set", "rounds=1"]) == 0
    assert asked == [3, 2]
    assert main(["run", "--config", "smoke/fedavg", "--ranks", "3", "--dry-run"]) == 0
    assert main(["run", "--config", "smoke/fedavg", "--ranks", "3", "--dry-run=config"]) == 0
    assert capsys.readouterr().out.count("8 clients on 2 workers") == 2 and asked == [3, 2]
    with pytest.raises(SystemExit) as ended:
        fedtorch.main.main(["--ranks", "5"])
    assert ended.value.code == 2 and "--ranks goes with --dry-run; to train" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("reprot", "did you mean `report`?"),
        ("slrum", "did you mean `slurm`?"),
        ("data chekc", "did you mean `data check`?"),
        (
            "train",
            "choose one of run, local, sweep, slurm, serve, join, stats, init, data prepare, data prepare own, "
            "data check, data partition, keys new, digest, gate, verify, report, export, rebuild, predict, bench, "
            "audit, chat",
        ),
        ("--config", "choose one of run,"),
        ("", "choose one of run,"),
    ],
)
def test_an_unknown_command_names_the_nearest(name: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(name.split(" ")) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"fedtorch: unknown command `{name}`; {advice}")


@pytest.mark.parametrize("words", [["data"], ["data", "--help"], ["data", "-h"]])
def test_the_help_of_data_lists_what_stands_below_it(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    listed = [line[2:20].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert listed == ["data prepare", "data prepare own", "data check", "data partition"]


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_the_help_has_a_line_for_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: fedtorch ")
    for name, command in COMMANDS.items():
        assert f"\n  {name:18}{command.about}\n" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fedtorch {fedtorch.__version__}\n"
    assert version("fedtorch-nlp") == fedtorch.__version__


@pytest.mark.processes
@pytest.mark.parametrize("word", ["--version", "--help", "reprot"])
def test_torch_is_not_imported_before_a_command_is_known(word: str, tmp_path: Path) -> None:
    """In a fresh interpreter; nothing but the standard library and six small modules of ours."""
    script = (
        "import sys; from fedtorch.cli.__main__ import main; code = main(sys.argv[1:]);"
        "print(code, *sorted(name for name in sys.modules if name.split('.')[0] in ('fedtorch', 'launchers')));"
        "print(sorted(name for name in ('torch', 'transformers', 'numpy', 'pydantic', 'yaml') if name in sys.modules))"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script, word], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    *_, modules, heavy = done.stdout.splitlines()
    code = "2" if word == "reprot" else "0"
    inside = (f".core.{name}" for name in ("errors", "imports", "shown", "streams", "version"))
    ours = " ".join(f"fedtorch{name}" for name in ("", ".cli", ".cli.__main__", ".core", *inside))
    assert (modules, heavy) == (f"{code} {ours}", "[]")


@pytest.mark.parametrize(
    "words",
    [
        ["smoke/fedavg", "--set", "rounds=1", "--ranks", "3"],
        ["--ranks", "3", "smoke/fedavg", "--set", "rounds=1"],
        ["--ranks=3", "--set", "rounds=1", "--config", "smoke/fedavg"],
    ],
)
def test_a_config_needs_no_option_and_may_stand_anywhere_but_behind_set(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run(request: Any, config: Any, ranks: int, **how: Any) -> tuple[int, None]:
        asked.append((request.configs, config.rounds, ranks))
        return 0, None

    local = import_module(module_of(COMMANDS["local"]))
    monkeypatch.setattr(local, "run_request", run)
    monkeypatch.setattr(local, "ForkServer", SimpleNamespace(begin=lambda arguments: None))
    assert main(["run", *words]) == main(["local", *words]) == 0
    assert asked == [((Path("smoke/fedavg"),), 1, 3)] * 2


@pytest.mark.long
def test_configs_with_and_without_the_option_are_laid_over_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "smoke/fedavg", "--dry-run=config", "--config", "overlays/zero0", "--set", "rounds=7"]) == 0
    said = capsys.readouterr().out
    assert "kind: deepspeed" in said and "rounds: 7" in said


def test_a_config_behind_set_is_told_where_to_stand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--set", "rounds=1", "smoke/fedavg"]) == 2
    assert "the name of a config stands before --set" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["slurm", "serve --listen 127.0.0.1:1", "sweep run --dir d"])
def test_a_command_that_needs_a_config_says_so(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(name.split())
    assert ended.value.code == 2 and "name a config: a YAML file" in capsys.readouterr().err


@pytest.mark.processes
def test_the_package_itself_is_the_command(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fedtorch", "--version"]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert (done.returncode, done.stdout) == (0, f"fedtorch {fedtorch.__version__}\n")


@pytest.mark.processes
@pytest.mark.parametrize("words", [["--help"], ["data", "--help"], ["--version"]])
def test_output_that_nobody_reads_any_more_is_no_traceback(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-u", "-m", "fedtorch", *words]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=60)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_a_broken_pipe_that_is_not_stdout_is_an_error_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object, **__: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(fedtorch.report.__main__, "main", breaks)
    with pytest.raises(BrokenPipeError):
        main(["report"])
