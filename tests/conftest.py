"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

# Before torch starts: one thread per rank (two ranks' threads on shared cores are 20 times slower), no network.
os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("busy", deadline=None)  # a slow machine is no failure
hypothesis.settings.load_profile("busy")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real data sets; tests that need it are skipped where it does not exist."""
    folder = Path(os.environ.get("FEDTORCH_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data not found in {folder}; set FEDTORCH_SHARED_DATA")
    return folder.resolve()


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared text-to-SQL folder of three clients with a few rows each; copy it before changing it."""
    from fedtorch.data.folder import write_client, write_manifest
    from fedtorch.data.text2sql import source_text, target_text
    from fedtorch.text.sentencepiece import train_vocabulary

    root = tmp_path_factory.mktemp("tiny") / "data"
    clients = {}
    texts: list[str] = []
    for name, table, size in (("north", "river", 12), ("south", "lake", 6), ("west", "hill", 3)):
        schema = f"| {table} : name , length"
        rows = [
            {
                "question": f"which {table} is longer than {10 * i} ?",
                "sql": f"SELECT name FROM {table} WHERE length > {10 * i} ;",
            }
            for i in range(size + 4)
        ]
        splits = {"train": rows[:size], "dev": rows[size : size + 2], "test": rows[size + 2 :]}
        clients[name] = write_client(root, name, splits, facts={"schema": schema})
        texts += [source_text(row["question"], schema) for row in rows] + [target_text(row["sql"]) for row in rows]
    train_vocabulary(texts, root / "tokenizer", size=120)
    write_manifest(root, "text2sql", clients=clients, record={"made by": "the tests"})
    return root


@pytest.fixture(scope="session")
def tiny_wikisql(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared pool of made-up WikiSQL questions: 240 to train on, 24 and 30 to judge."""
    from fedtorch.data.prepare_wikisql import write_pool
    from fedtorch.data.synthetic_wikisql import generate

    root = tmp_path_factory.mktemp("tiny_wikisql") / "data"
    root.mkdir()
    sizes = {"train": 240, "dev": 24, "test": 30}
    write_pool(root, "tiny", {s: rows[: sizes[s]] for s, rows in generate().items()}, {"vocab_size": 400})
    return root
