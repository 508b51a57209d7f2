"""Many runs for a page, some at once; what is done is not done again."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from fedtorch.main import main as run


def train_all(wanted: Mapping[Path, Sequence[str]], jobs: int) -> int:
    """Every run, `jobs` at once; those with results are left out. The first exit code that is not 0.

    Each process makes many runs, for to start one takes as long as a run does.

    wanted: a run's folder -> the words for `fedtorch run` that train it there.
    """
    waiting = {folder: words for folder, words in wanted.items() if not (folder / "results.json").is_file()}
    os.environ["OMP_NUM_THREADS"], codes = "1", list[int]()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for folder, code in zip(waiting, pool.map(run, waiting.values()), strict=True):
            print(f"{folder.name}: {'done' if code == 0 else f'exit code {code}'}", flush=True)
            codes.append(code)
    return next((code for code in codes if code), 0)
