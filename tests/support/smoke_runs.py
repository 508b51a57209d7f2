"""Runs of shipped configs, shrunk to seconds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fedtorch.config.find import shipped
from fedtorch.main import main

CONFIGS = shipped()
# every paper's, on data that they make themselves
SMOKE = [*sorted((CONFIGS / "smoke").glob("[!_]*.yaml")), CONFIGS / "fewfedweight" / "small" / "smoke_ffw_full.yaml"]
SHRUNK = ("rounds=1", "track.tensorboard=false", "eval.patience=null")
BRIEF = "task.output_max_length=3"  # what is generated, token by token, would be most of the time
FEW = ("task.max_train=4", "task.max_dev=2", "task.max_test=2")
FEWER_ROWS = {"fedparsing": ("task.server_labelled=4", "task.client_size=[1,2]", "task.max_dev=2", "task.max_test=2")}


def run_config(path: Path, folder: Path, *settings: str) -> dict[str, Any]:
    """Train for a round; what results.json says, and `trained`, each client's status, last loss and update norm.

    folder: where data are made at the first use; runs go to `runs/<run.name>` there.
    """
    before = Path.cwd()
    os.chdir(folder)
    try:
        name = next((s.partition("=")[2] for s in settings if s.startswith("run.name=")), path.stem)
        few = FEWER_ROWS.get(path.stem, FEW)
        code = main(["--config", str(path), "--resume", "never", "--set", *SHRUNK, *few, *settings])
        assert code == 0, f"{path} ended with exit code {code}"
        run = Path("runs") / name
        results = json.loads((run / "results.json").read_text())
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    finally:
        os.chdir(before)
    clients = [record for record in records if record["kind"] == "client"]
    results["trained"] = {r["client"]: (r["status"], r["loss_last"], r["norm"]) for r in clients}
    return results
