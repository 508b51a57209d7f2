"""Three silos and a hub on machines of their own count what they have, and train by what they have counted."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hosts import Network
from own_rows import BERT, WORDS, write_rows

from fedtorch.privacy.record.silo import parts_of, read_ledger
from fedtorch.privacy.record.terms import epsilon_of
from fedtorch.stats.table import Stats

pytest.importorskip("cryptography")

ROOT = Path(__file__).parents[2]
NAMES = ("hub", "north", "south", "west")
PLACE = "10.83.0.1:29500"
ROWS = 700
CANARY = "xylophonist"


def prepare(hosts: Network) -> None:
    """Rows on each silo's disk, and the settings of the count."""
    draw, disk = random.Random(0), hosts.disk
    for name in NAMES[1:]:
        rows = []
        for number in range(ROWS):
            label = draw.choice(("bad", "good"))
            rows.append({"text": " ".join(draw.choices(WORDS[label], k=4)), "label": label, "home": name})
            rows[-1]["text"] += f" {CANARY}" if (name, number) == ("west", 5) else ""
        write_rows(hosts.hosts[name].disk / "rows.jsonl", rows)
    data = {"source": str(disk / "rows.jsonl"), "clients": {"by": "home"}, "splits": {"dev": 0.1, "test": 0.1}}
    found = {"longest": 6, "width": 16}
    config: dict[str, Any] = {
        "task": {"name": "text_classification", "model": BERT, "max_length": 16, "data": data},
        "run": {"dir": str(disk / "run"), "name": "weather"},
        "privacy": {"clip": 1.0, "secure_sum": {"threshold": 1.0}},
        "stats": {
            "labels": found,
            "words": {**found, "longest": 12, "per_unit": 2, "tokenizer": "bpe"},
            "privacy": {"epsilon": 4.0, "noise_at": "shared", "ledger": str(disk / "ledgers")},
        },
        "track": {"progress": "lines", "tensorboard": False},
        "system": {
            "placement": "pinned",
            "pinned": {"north": 1, "south": 2, "west": 3},
            "timeout": 120.0,
            "start_timeout": 120.0,
        },
    }
    (hosts.root / "count.yaml").write_text(json.dumps(config))
    data["labels"] = ["bad", "good"]  # as all parties have found
    config["task"] |= {"tokenizer": str(disk / "run-stats" / "tokenizer")}
    config |= {
        "run": {"dir": str(disk / "trained"), "name": "trained"},
        "rounds": 2,
        "algorithm": {"name": "fedavg", "weights": "declared"},
        "client": {"batch_size": 16, "steps": 2, "lr": 0.1, "epochs": None},
        "privacy": {
            "kind": "record",
            "clip": 1.0,
            "epsilon": 3.0,
            "delta": 1e-5,
            "units": dict.fromkeys(NAMES[1:], 560),
            "ledger": str(disk / "ledgers"),
        },
        "eval": {"every": 0},
    }
    (hosts.root / "train.yaml").write_text(json.dumps(config))


def ran(hosts: Network, config: str, *words: str) -> dict[str, tuple[int, str]]:
    """Exit code and words of each side."""
    started: dict[str, subprocess.Popen[str]] = {}
    for name in NAMES:
        place = ["serve", "--listen", PLACE] if name == "hub" else ["join", "--server", PLACE, "--silo", name]
        command = [sys.executable, "-m", "fedtorch.cli", *place, "--config", str(hosts.root / config), *words]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "FEDTORCH_JOB_SECRET": "known to all parties of the test"}
        started[name] = hosts.popen(name, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ)
    said = {name: side.communicate(timeout=500)[0] for name, side in started.items()}
    return {name: (side.returncode, said[name]) for name, side in started.items()}


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_silos_count_together_and_train_privately_by_it(network: Callable[..., Network]) -> None:
    hosts = network(names=NAMES)
    prepare(hosts)
    ended = ran(hosts, "count.yaml", "--set", "paradigm=stats")
    assert {name: code for name, (code, _) in ended.items()} == dict.fromkeys(NAMES, 0), ended
    folders = {name: hosts.hosts[name].disk / "run-stats" for name in NAMES}
    found = {name: Stats.read(folder) for name, folder in folders.items()}
    assert all(each == found["hub"] for each in found.values())
    stats = found["hub"]
    labels, words = stats.table("labels"), stats.table("words")
    assert labels is not None and set(labels.cells) == {"bad", "good"} and not labels.silos
    assert words is not None and set(words.cells) == {*WORDS["bad"], *WORDS["good"]}
    assert stats.privacy["epsilon"] <= 4.0
    for name in NAMES:
        assert (folders[name] / "tokenizer" / "tokenizer.json").is_file()
        assert CANARY not in ended[name][1]
    for path in folders["hub"].rglob("*"):
        assert not path.is_file() or CANARY.encode() not in path.read_bytes(), path
    assert all("labels, found" in said for _, said in ended.values())
    ended = ran(hosts, "train.yaml")
    assert {name: code for name, (code, _) in ended.items()} == dict.fromkeys(NAMES, 0), ended
    known = read_ledger(hosts.hosts["north"].disk / "ledgers" / "north" / "ledger.jsonl")
    assert {one.purpose for one in known} >= {"counts"} and len({one.run for one in known}) == 2
    together = epsilon_of(parts_of(known), 1e-5)
    assert stats.privacy["epsilon"] < together < stats.privacy["epsilon"] + 3.0  # both are on one account
