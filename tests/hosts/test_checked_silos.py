"""Three silos and a hub on machines of their own: a secure sum, all of it checked, and a hub that lies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import Network
from own_rows import BERT, weather, write_rows

from fedtorch.text.byte_bpe import train_subwords
from fedtorch.trust.keys import new_key

pytest.importorskip("cryptography")

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
NAMES = ("hub", "north", "south", "west")
POLICY = {
    "may_leave": {"parameters": ["*"], "reports": ["status", "steps", "examples", "seconds"], "scores": True},
    "limits": {"rounds": 5},
    "require": {"secure_sum": {"parties": 3}, "clip": 1.0, "verified": 1.0},
}
"""What each silo lets out, and asks for."""
OWN = {
    "north": {"limits": {"rounds": 200, "bytes_per_round": "5MB"}},
    "south": {"require": {"secure_sum": {"parties": 3}, "clip": 1.5}},
    "west": {},
}
"""In the policy of a silo in place of that."""
PLACE = "10.83.0.1:29500"
LIAR = """
import numpy as np, sys, torch
from fedtorch.rounds.checked_steps import CheckedSteps
from fedtorch.trust.merkle import leaves
take = CheckedSteps.take
def take_something_else(self, decision, grad):
    if self.context.round == 3:
        found = self.witness.last
        found.total[3] += 1
        found.hashes[:] = leaves(found.total)
        whole = torch.from_numpy(found.total.astype(np.float64))
        grad = self.context.mechanism.step_of(whole, found.scale, [r.client for r in decision.accepted], grad.dtype)
    take(self, decision, grad)
CheckedSteps.take = take_something_else
from fedtorch.cli.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def prepare(hosts: Network) -> None:
    """Rows, a key and the list of members on each machine's disk, and the same settings."""
    train_subwords([row["text"] for row in weather()], hosts.root / "words", size=270)
    lines = ["federation: stroke-registry", "members:"]
    for name in NAMES:
        key = new_key(hosts.hosts[name].disk / "own.key")
        lines.append(f"  {name}: {{role: {'server' if name == 'hub' else 'silo'}, key: {key.public.hex()}}}")
    disk = hosts.disk
    task = {"name": "text_classification", "model": BERT, "tokenizer": str(hosts.root / "words"), "max_length": 32}
    data = {"source": str(disk / "rows.jsonl"), "clients": {"by": "home"}, "labels": ["good", "bad"]}
    config = {
        "task": {**task, "data": {**data, "splits": {"dev": 0.25, "test": 0.25}}},
        "run": {"dir": str(disk / "run"), "name": "checked"},
        "rounds": 5,
        "algorithm": {"name": "fedavg", "weights": "equal"},
        "client": {"batch_size": 4, "optimizer": "adamw", "lr": 0.01},
        "privacy": {"clip": 1.0, "secure_sum": {"threshold": 1.0}},
        "trust": {"members": str(disk / "members.yaml"), "key": str(disk / "own.key"), "verify": "all"},
        "track": {"progress": "lines", "tensorboard": False},
        "system": {
            "placement": "pinned",
            "pinned": {"north": 1, "south": 2, "west": 3},
            "sum_scale": "public",
            "timeout": 120.0,
            "start_timeout": 120.0,
        },
    }
    (hosts.root / "silos.yaml").write_text(json.dumps(config))
    for name in NAMES:
        own = hosts.hosts[name].disk
        (own / "members.yaml").write_text("\n".join(lines) + "\n")
        (own / "policy.yaml").write_text(json.dumps(POLICY | OWN.get(name, {})))
        write_rows(own / "rows.jsonl", [row for row in weather() if row["home"] == name])


def ran(hosts: Network, hub: tuple[str, ...]) -> dict[str, tuple[int, str]]:
    """Exit code and words of each side. hub: how Python is told to run the hub's command."""
    started: dict[str, subprocess.Popen[str]] = {}
    for name in NAMES:
        place = ["serve", "--listen", PLACE] if name == "hub" else ["join", "--server", PLACE, "--silo", name]
        how = hub if name == "hub" else ("-m", "fedtorch.cli")
        policy = [] if name == "hub" else ["--policy", str(hosts.disk / "policy.yaml")]
        words = [sys.executable, *how, *place, "--config", str(hosts.root / "silos.yaml"), *policy]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": environ}
        started[name] = hosts.popen(name, words, **pipes)
    said = {name: side.communicate(timeout=400)[0] for name, side in started.items()}
    return {name: (side.returncode, said[name]) for name, side in started.items()}


def verified(hosts: Network, name: str) -> tuple[int, str]:
    words = [sys.executable, "-m", "fedtorch.cli", "verify", str(hosts.disk / "run")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    side = hosts.popen(name, words, **pipes)
    return side.wait(60), str(side.stdout.read() if side.stdout else "")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_silos_check_five_rounds_of_a_secure_sum(network: Callable[..., Network]) -> None:
    hosts = network(names=NAMES)
    prepare(hosts)
    ended = ran(hosts, ("-m", "fedtorch.cli"))
    assert {name: code for name, (code, _) in ended.items()} == dict.fromkeys(NAMES, 0), ended
    assert "checked: sum and step of 5 rounds by the silos north, south, west (all leaves)" in ended["hub"][1]
    for name in NAMES:
        code, said = verified(hosts, name)
        assert code == 0 and "records           6, rounds 1 to 5, in one chain" in said, said
        if name != "hub":
            decisions = (hosts.hosts[name].disk / "run" / "policy.jsonl").read_text().splitlines()
            assert len(decisions) > 5 and all("refused" not in line for line in decisions)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hub_that_adds_one_to_one_number_is_found_by_every_silo_in_that_round(
    network: Callable[..., Network],
) -> None:
    hosts = network(names=NAMES)
    prepare(hosts)
    ended = ran(hosts, ("-c", LIAR))
    assert {name: code for name, (code, _) in ended.items()} == dict.fromkeys(NAMES, 11), ended
    for name in NAMES[1:]:
        wrong = "round 4: the sum is not that of the parts: 1 of"
        assert wrong in ended[name][1], ended[name][1]
        code, said = verified(hosts, name)
        assert code == 11 and "rounds 1 to 3, in one chain" in said, said
        assert "this party stopped the run as it found something wrong" in said
