"""A prepared pool of made-up WikiSQL questions."""

from __future__ import annotations

from pathlib import Path

from fedtorch.data.prepare_wikisql import write_pool
from fedtorch.data.synthetic_wikisql import generate

SIZES = {"train": 240, "dev": 24, "test": 30}


def tiny_pool(folder: Path) -> Path:
    """Write so many questions to train on and to evaluate into a new folder."""
    folder.mkdir()
    write_pool(folder, "tiny", {s: rows[: SIZES[s]] for s, rows in generate().items()}, {"vocab_size": 400})
    return folder
