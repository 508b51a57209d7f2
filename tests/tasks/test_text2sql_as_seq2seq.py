"""The default job's text-to-SQL as `seq2seq` over rows of one's own: the same strings give the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from own_rows import write_rows

from fedtorch.config.load import DEFAULT, load, to_dict
from fedtorch.data.text2sql import source_text, target_text
from fedtorch.main import main

CUT = {
    "rounds": 2,
    "task": {
        "name": "text2sql",
        "model": {
            "d_model": 32,
            "d_ff": 64,
            "d_kv": 8,
            "num_heads": 4,
            "num_layers": 1,
            "dropout": 0.0,
            "init": "copying",
        },
        "input_max_length": 20,
        "output_max_length": 20,
        "max_train": 16,
        "max_dev": 1,
        "max_test": 2,
        "em_normalise": False,
    },
    "client": {"batch_size": 8, "epochs": 1},
    "per_client": {name: {"epochs": 2} for name in ("clinic", "school")},
    "eval": {"every": 0, "split": "dev", "final_split": "test"},
    "compare": None,
    "track": {"tensorboard": False, "progress": "off"},
}
"""Of `fedtorch/config/default.yaml`: its algorithm, server and optimiser, fewer and smaller."""


def ran(config: dict[str, Any], name: str) -> dict[str, Any]:
    Path(f"{name}.yaml").write_text(yaml.safe_dump({**config, "run": {"name": name, "export": "none"}}))
    assert main(["--config", f"{name}.yaml"]) == 0
    found: dict[str, Any] = json.loads(Path("runs", name, "results.json").read_text())
    return found


@pytest.mark.long
def test_the_default_job_as_seq2seq_has_its_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    default = to_dict(load(DEFAULT))
    cut = {**default, **CUT, "client": {**default["client"], **CUT["client"]}}
    found = ran(cut, "sql")
    task = load("sql.yaml").task
    task.save_model(task.build_model(0), Path("start"))  # its own way of drawing weights
    rows = [
        {"source": source_text(row["question"], task._schema(client)), "target": target_text(row["sql"]),
         "client": client, "split": split}
        for client in task.manifest() for split in ("train", "dev", "test") for row in task._rows(client, split)
    ]  # fmt: skip
    write_rows(Path("rows.jsonl"), rows)
    own = {
        "name": "seq2seq",
        "model": {"path": "start"},
        "data": {"source": "rows.jsonl", "clients": {"by": "client"}, "splits": {"column": "split"}},
        "max_length": 20,
        "max_target_length": 20,
        "generate": {"max_new_tokens": 20},
    }
    again = ran({**cut, "task": own}, "own")
    assert again["digest"] == found["digest"]
    model = task.build_model(0).eval()  # knows no SQL yet: long answers, so an end or a cut elsewhere would show
    ours = load("own.yaml").task
    for client in ("library", "school"):
        asked = task.load(client, "test"), ours.load(client, "test")
        assert task.predict(model, asked[0], 2) == ours.predict(model, asked[1], 2)
