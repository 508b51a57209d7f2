"""What a run keeps of its own data in its folder, and whose data it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from harness import make_config
from own_rows import classifier, weather, write_rows

from fedtorch.config.schema import Config, RunConfig, SystemConfig
from fedtorch.setup.run_config import TASK, keep_task


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(tmp_path)
    task = classifier(write_rows(Path("rows.jsonl"), weather()))
    task.prepared  # noqa: B018  # is written by then
    run = RunConfig(name="mine", dir=str(tmp_path / "new" / "folder"))
    return replace(make_config(tmp_path, task), run=run)


def test_the_vocabulary_and_the_manifest_are_kept_in_a_folder_that_may_be_new(config: Config) -> None:
    keep_task(config, config.task)
    kept = config.folder / TASK
    assert {path.name for path in kept.iterdir()} == {"manifest.json", "tokenizer"}
    assert (kept / "manifest.json").read_bytes() == (config.task.folder / "manifest.json").read_bytes()
    keep_task(config, config.task)  # once more, as a resume does
    assert {path.name for path in config.folder.iterdir()} == {TASK}


def test_of_pinned_clients_nothing_is_kept(config: Config) -> None:
    keep_task(config, config.task)
    keep_task(replace(config, system=SystemConfig(placement="pinned", pinned={"north": 0})), config.task)
    assert not (config.folder / TASK).exists()
