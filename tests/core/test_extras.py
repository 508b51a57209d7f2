"""What is said where a package that only some runs need is not installed: the extra, and before anything is done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from fedtorch.config.load import load
from fedtorch.core.errors import ConfigError
from fedtorch.core.extras import fetch_nothing, require
from fedtorch.data.bm25 import BM25
from fedtorch.data.check import count_parsed
from fedtorch.data.folder import write_manifest
from fedtorch.data.prepare import main as data
from fedtorch.main import main
from fedtorch.report.__main__ import main as report
from fedtorch.rounds.topology import Topology
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.engine import deepspeed_is_installed
from fedtorch.tasks.fewshot import FewShotTasks
from fedtorch.tasks.qa import QA

Block = Callable[[str], None]
NOWHERE = "/nowhere/raw"


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch) -> Block:
    """Makes a package one that is not installed."""
    return lambda package: monkeypatch.setitem(sys.modules, package, None)


def missing(package: str, extra: str) -> str:
    return f"needs {package}, which is not installed; pip install 'fedtorch-nlp[{extra}]'"


def gym(folder: Path, metric: str) -> FewShotTasks:
    """A task on a folder that promises examples of one few-shot task, scored by `metric`."""
    sizes = {"one": {split: {"made": 2} for split in ("train", "dev", "test")}}
    facts = {"examples": 2, "characters": 9, "sha256": "0" * 64}
    entry = {"folder": "one", "splits": dict.fromkeys(("train", "dev", "test"), facts)}
    folder.mkdir()
    record = {"tasks": {"made": {"metric": metric}}, "sizes": sizes}
    write_manifest(folder, "gym", clients={"one": entry}, record=record)
    return FewShotTasks(data=str(folder))


def test_what_is_installed_is_not_imported() -> None:
    loaded = set(sys.modules)
    require("this", "json", "this", "antigravity", extra="lorar")
    assert not {"this", "antigravity"} & (set(sys.modules) - loaded)


def test_the_first_package_that_is_missing_is_named_and_the_way_round(block: Block) -> None:
    block("scipy")
    block("sklearn")
    with pytest.raises(ConfigError) as refused:
        require("this", "json", "sklearn", "scipy", extra="fedmatch", instead="do without")
    assert str(refused.value) == f"this {missing('sklearn', 'fedmatch')} or do without"


@pytest.mark.parametrize("package", ["bm25s", "sklearn"])
def test_cover_queries_are_refused_when_the_config_is_read(package: str, block: Block) -> None:
    block(package)
    assert QA().cover_queries == 0  # nobody else is asked for it
    with pytest.raises(ConfigError) as refused:
        QA(cover_queries=2)
    assert str(refused.value) == f"task.cover_queries: 2 {missing(package, 'fedmatch')}"


@pytest.mark.parametrize(
    ("metric", "package"),
    [
        ("Classification-F1", "sklearn"),
        ("Matthew-Correlation", "sklearn"),
        ("Pearson-Correlation", "scipy"),
        ("Rouge-L", "rouge_score"),
    ],
)
def test_a_metric_is_refused_when_the_manifest_is_read(metric: str, package: str, block: Block, tmp_path: Path) -> None:
    block(package)
    assert gym(tmp_path / "accuracy", "ACC").manifest()["one"]["train"] == 2
    with pytest.raises(ConfigError) as refused:
        gym(tmp_path / "data", metric).manifest()
    expected = f"the metric {metric}, for {tmp_path / 'data'}, {missing(package, 'fewfedweight')}"
    assert str(refused.value) == expected


def test_a_run_ends_before_its_ranks_meet(
    block: Block, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of two ranks, of which the other never comes."""
    block("rouge_score")
    gym(tmp_path / "data", "Rouge-L")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    config = tmp_path / "config.yaml"
    config.write_text(f"{{task: {{name: fewshot, data: {tmp_path / 'data'}}}, run: {{dir: {tmp_path / 'run'}}}}}")
    assert main(["--config", str(config)]) == 2
    assert missing("rouge_score", "fewfedweight") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [(["text2sql", "--parse-sql"], "sqlglot", "lorar"), (["fedqa"], "bm25s", "fedmatch")],
)
def test_data_are_refused_before_a_file_is_read(
    words: list[str], package: str, extra: str, block: Block, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block(package)
    out = tmp_path / "out"
    assert data(["prepare", *words, "--raw", NOWHERE, "--out", str(out)]) == 2
    assert missing(package, extra) in capsys.readouterr().err and not out.exists()


def test_the_functions_themselves_say_it_too(block: Block) -> None:
    block("bm25s")
    block("sqlglot")
    with pytest.raises(ConfigError, match="BM25 needs bm25s"):
        BM25(["a text"])
    with pytest.raises(ConfigError, match="needs sqlglot"):
        count_parsed(["SELECT 1"])


def test_a_t_test_is_refused_before_a_run_is_read(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    block("scipy")
    assert report(["ttest", "--base", NOWHERE, "--new", NOWHERE]) == 2
    assert f"the paired t-test {missing('scipy', 'fedmatch')}" in capsys.readouterr().err


def test_an_engine_is_refused_before_it_is_made(block: Block) -> None:
    block("deepspeed")
    config = load(None, ["engine.kind=deepspeed"])
    plan = Plan(config, config.task, config.task, config.algorithm, clients=(), topology=Topology(1))
    with pytest.raises(ConfigError) as refused:
        deepspeed_is_installed(plan)
    expected = f"engine.kind: deepspeed {missing('deepspeed', 'deepspeed')} or set engine.kind to torch"
    assert str(refused.value) == expected


def test_bitsandbytes_finds_no_kernels_while_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bitsandbytes.py").write_text("import sys\nKERNELS = sys.modules.get('kernels', 'can be imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # whatever is there comes back afterwards, or nothing does
    del sys.modules["bitsandbytes"]
    monkeypatch.setitem(sys.modules, "kernels", kernels := ModuleType("kernels"))
    fetch_nothing()
    assert import_module("bitsandbytes").KERNELS is None and sys.modules["kernels"] is kernels
