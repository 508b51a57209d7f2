"""Parties with keys of their own, each with a folder, as processes of one machine."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from own_rows import BERT, weather, write_rows
from ranks import run_ranks
from torch import Tensor

from fedtorch.main import main
from fedtorch.rounds.aggregation import Decision
from fedtorch.rounds.checked_steps import CheckedSteps
from fedtorch.text.byte_bpe import train_subwords
from fedtorch.trust.keys import new_key
from fedtorch.trust.merkle import leaves

PARTIES = {0: "hub", 1: "north", 2: "south", 3: "west"}
PINNED = {"north": 1, "south": 2, "west": 3}
SYSTEM = {"placement": "pinned", "pinned": PINNED, "timeout": 20.0, "start_timeout": 60.0}
SECRET = {"FEDTORCH_JOB_SECRET": "known to all ranks of the test"}


def make_places(tmp_path: Path) -> Path:
    """Make a folder for each party, with its rows, its key and the list of members."""
    train_subwords([row["text"] for row in weather()], tmp_path / "words", size=270)
    lines = ["federation: test", "members:"]
    for rank, name in PARTIES.items():
        (tmp_path / name).mkdir()
        shutil.copytree(tmp_path / "words", tmp_path / name / "words")
        write_rows(tmp_path / name / "rows.jsonl", [row for row in weather() if PINNED[row["home"]] == rank])
        key = new_key(tmp_path / name / "own.key")
        lines.append(f"  {name}: {{role: {'silo' if rank else 'server'}, key: {key.public.hex()}}}")
    for name in PARTIES.values():
        (tmp_path / name / "members.yaml").write_text("\n".join(lines) + "\n")
    return tmp_path


def config_of(**changes: Any) -> dict[str, Any]:
    """The settings of a run of all parties."""
    data: dict[str, Any] = {"source": "rows.jsonl", "clients": {"by": "home"}, "labels": ["good", "bad"]}
    data["splits"] = {"dev": 0.25, "test": 0.25}
    config = {
        "task": {"name": "text_classification", "model": BERT, "tokenizer": "words", "max_length": 32, "data": data},
        "run": {"dir": "run", "name": "parties"},
        "rounds": 2,
        "algorithm": {"name": "fedavg", "weights": "equal"},
        "client": {"batch_size": 4, "optimizer": "adamw", "lr": 0.01},
        "track": {"progress": "lines", "tensorboard": False},
        "trust": {"members": "members.yaml", "key": "own.key"},
        "system": SYSTEM,
    }
    return {**config, **changes}


def write_config(places: Path, **changes: Any) -> None:
    for name in PARTIES.values():
        (places / name / "config.yaml").write_text(json.dumps(config_of(**changes)))


def as_party(places: str, resume: str = "auto") -> tuple[int, str]:
    """The exit code, and what the party was told on its terminal."""
    os.chdir(Path(places) / PARTIES[int(os.environ["RANK"])])
    with redirect_stderr(StringIO()) as said:
        code = main(["--config", "config.yaml", "--resume", resume])
    return code, said.getvalue()


def run(places: Path, resume: str = "auto", environ: dict[str, str] | None = None) -> list[tuple[int, str]]:
    return run_ranks(as_party, len(PARTIES), str(places), resume, environ=environ)


def codes(told: list[tuple[int, str]]) -> list[int]:
    return [code for code, _ in told]


def ends_well(told: list[tuple[int, str]]) -> None:
    assert codes(told) == [0] * len(PARTIES), told


def digest(places: Path) -> str:
    found: str = json.loads((places / "results.json").read_text())["digest"]
    return found


def checked(verify: str | float) -> dict[str, Any]:
    return {"trust": {"members": "members.yaml", "key": "own.key", "verify": verify}}


def as_party_of_a_lying_server(places: str) -> tuple[int, str]:
    """In the second round one number of the sum is one more, and the server steps along that."""
    if os.environ["RANK"] == "0":
        take = CheckedSteps.take

        def take_something_else(self: CheckedSteps, decision: Decision, grad: Tensor) -> None:
            if self.context.round == 1:
                found = self.witness.last
                assert found is not None and found.total is not None
                found.total[3] += 1
                found.hashes[:] = leaves(found.total)
                whole = torch.from_numpy(found.total.astype(np.float64))
                mechanism, names = self.context.mechanism, [report.client for report in decision.accepted]
                grad = mechanism.step_of(whole, found.scale, names, grad.dtype)
            take(self, decision, grad)

        CheckedSteps.take = take_something_else  # type: ignore[assignment,method-assign]
    return as_party(places)
