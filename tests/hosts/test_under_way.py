"""A silo that is switched off late in a long round: the same command goes on, and at most n steps are repeated."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import Network
from safetensors import safe_open
from silos import digest
from supervisor import toy_config

from fedtorch.checkpoint.under_way import FOLDER
from fedtorch.main import main

WHERE = ["hub", "north", "south", "west"]
STEPS, EVERY, OFF = 2000, 100, 1940


def config_of(folder: Path, run: Path, checkpoint: str) -> Path:
    client = f"{{optimizer: adamw, lr: 0.01, batch_size: 4, optimizer_state: keep, steps: {STEPS}, schedule: cosine}}"
    changes = {"system": "{timeout: 20}", "client": client, "checkpoint": checkpoint}
    path = toy_config(folder, rounds="1", clients="{per_round: all}", **changes)
    path.write_text(path.read_text().replace(str(folder / "run"), str(run)))
    return path


def saved(hosts: Network) -> dict[str, tuple[str, int]]:
    """Client -> the silo that trains it and the last step that it has saved."""
    found = {}
    for name, host in hosts.hosts.items():
        for path in (host.disk / "run" / FOLDER).glob("*.safetensors"):
            with safe_open(path, "pt") as file:
                state = json.loads(file.metadata()["state"])
            found[state["key"]["client"]] = name, int(state["numbers"]["step"])
    return found


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_a_silo_switched_off_at_97_per_cent_of_a_round(network: Callable[..., Network], tmp_path: Path) -> None:
    plain = config_of(tmp_path / "plain", tmp_path / "plain" / "run", "{}")
    assert main(["--config", str(plain)]) == 0
    hosts = network(names=WHERE)
    words = ["--config", str(config_of(hosts.root, hosts.disk / "run", f"{{every_steps: {EVERY}}}"))]
    faults = f"wait:phase=train,client=b,step={OFF},file={hosts.root / 'never'}"
    ranks, until = hosts.start(WHERE, words, {"FEDTORCH_FAULTS": faults}), time.monotonic() + 100
    while (found := saved(hosts)).get("b", ("", 0))[1] < OFF // EVERY * EVERY or len(found) < 4:
        assert time.monotonic() < until
        time.sleep(0.1)
    hosts.kill(silo := found["b"][0])
    assert all(outcome.exit_code for outcome in ranks.join(100))
    hosts.boot(silo)
    assert [outcome.exit_code for outcome in hosts.start(WHERE, words).join(100)] == [0, 0, 0, 0]
    assert digest(hosts.hosts["hub"].disk / "run") == digest(tmp_path / "plain" / "run")
    logs = {name: hosts.log(name, rank) for rank, name in enumerate(WHERE)}
    after = dict(re.findall(r"client (\w) goes on after step (\d+) of round 1", "".join(logs.values())))
    assert after == {"a": "2000", "b": "1900", "c": "2000", "d": "2000"}  # 40 steps are repeated, the silo's own
    assert not saved(hosts)
