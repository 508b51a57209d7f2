"""Every key of a section stands in a shipped config, and those of `features/` can be laid over another one."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from fedtorch.config import schema
from fedtorch.config.find import shipped
from fedtorch.config.load import DEFAULT, load
from fedtorch.main import main
from fedtorch.train.attacks.settings import AttackConfig

ROOT = shipped()
FEATURES = sorted((ROOT / "features").glob("*.yaml"))
SECTIONS = {
    "run": schema.RunConfig,
    "clients": schema.ClientsConfig,
    "client": schema.ClientConfig,
    "server": schema.ServerConfig,
    "partition": schema.PartitionConfig,
    "engine": schema.EngineConfig,
    "eval": schema.EvalConfig,
    "checkpoint": schema.CheckpointConfig,
    "track": schema.TrackConfig,
    "system": schema.SystemConfig,
    "privacy": schema.PrivacyConfig,
    "attack": AttackConfig,
    "async": schema.AsyncConfig,
    "exchange": schema.ExchangeConfig,
    "trust": schema.TrustConfig,
}
ON_COMMAND_LINES = {"run": {"dir"}}  # of a machine, so in no shipped config
OF_RANKS = {"secure_sum", "privacy_shared"}  # several
NOT_OF_SMOKE = {"backdoor", "silos", "trust"}  # for a task with labels; for `fedtorch serve` and `join`


def test_every_key_of_a_section_stands_in_a_shipped_config() -> None:
    shown: dict[str, set[str]] = {name: set() for name in SECTIONS}
    for path in (DEFAULT, *ROOT.rglob("*.yaml")):
        for name, keys in (yaml.safe_load(path.read_text()) or {}).items():
            if name in shown and isinstance(keys, dict):
                shown[name] |= set(keys)
    missing = {
        name: sorted({field.name for field in fields(section)} - shown[name] - ON_COMMAND_LINES.get(name, set()))
        for name, section in SECTIONS.items()
    }
    assert {name: keys for name, keys in missing.items() if keys} == {}


def test_each_is_laid_over_another_config_and_names_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    for path in FEATURES:
        changed = load([Path("smoke/fedavg"), Path("features", path.stem)])
        assert changed != load(Path("smoke/fedavg")), path
        text = path.read_text()
        assert f"features/{path.stem}" in text, path
        assert text.startswith("# "), path


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in FEATURES if path.stem not in NOT_OF_SMOKE | OF_RANKS])
def test_each_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    monkeypatch.chdir(tmp_path)
    shrunk = ["rounds=1", "track.tensorboard=false"]
    shrunk += [] if name == "privacy_rows" else ["task.max_train=4", "task.max_dev=2", "task.max_test=2"]
    assert main(["smoke/fedavg", f"features/{name}", "--set", "run.dir=run", *shrunk]) == 0
