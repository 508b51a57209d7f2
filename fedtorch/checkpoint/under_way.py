"""Files of trainings that are under way, each whole or not there: of a client, a round and a rank of a worker."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import safe_open
from torch import Tensor

from fedtorch.checkpoint.files import load_tensors, parsing, put_whole, save_tensors, to_json
from fedtorch.checkpoint.inside import check_names, checked_numbers
from fedtorch.core.client import file_stem
from fedtorch.core.errors import CheckpointError

FOLDER = "under_way"
_FILE = re.compile(r"[A-Za-z0-9_-]+-r(\d{6,})-\d+-part\d+-[01]\.safetensors(\.\d+\.partial)?")

Key = Mapping[str, "str | int"]
"""All that a file must be of to be used, in words that say why it is not."""


@dataclass(frozen=True)
class UnderWayFile:
    """The two files in turn of one rank of a worker for one training; the newer one is never written over."""

    folder: Path
    """The run's."""
    key: Key
    """`client`, `round`, `training` and `part` name the file; the others are compared."""

    def path(self, slot: int) -> Path:
        """One of the two."""
        stem, key = file_stem(str(self.key["client"])), self.key
        name = f"{stem}-r{int(key['round']):06d}-{key['training']}-part{key['part']}-{slot}.safetensors"
        return self.folder / FOLDER / name

    def write(self, slot: int, tensors: Mapping[str, Tensor], numbers: Mapping[str, int | float]) -> None:
        """Write one of the two, synced and in one piece.

        Raises:
            CheckpointError: the disk refused; nothing of it is left.
        """
        state = to_json({"key": dict(self.key), "numbers": dict(numbers), "names": list(tensors)})
        whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        with put_whole(self.path(slot), sum(tensor.nbytes for tensor in whole.values())) as partial:
            save_tensors(partial, whole, {"state": state, "xxh3": _digest(state, whole.values())})

    def read(self, slot: int) -> tuple[dict[str, Tensor], dict[str, int | float]] | None:
        """Read one of the two, copied; None where nothing was written.

        Raises:
            CheckpointError: it is damaged, or of something else; says what.
        """
        path = self.path(slot)
        if not path.exists():
            return None
        if not path.is_file():
            raise CheckpointError(f"{path} is no regular file")
        with parsing(path):
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
            state: dict[str, Any] = json.loads(about["state"])
            if other := [name for name, value in self.key.items() if state["key"].get(name) != value]:
                raise CheckpointError(f"{path} is of another {' and another '.join(other)}")
            names: Sequence[str] = state["names"]
            check_names(path, names)
            tensors = load_tensors(path, names)
            if _digest(about["state"], tensors.values()) != about["xxh3"]:
                raise CheckpointError(f"{path} has other content than when it was written")
            return tensors, checked_numbers(path, state["numbers"])


def drop_under_way(folder: Path, is_open: Callable[[int], bool] | None = None) -> None:
    """Delete such files of a run; a disk that refuses keeps them. is_open: the rounds of those that stay; None: none.

    Of asynchronous rounds a file has the number of its job's start in place of the round.
    """
    own = folder / FOLDER
    if is_open is None:
        shutil.rmtree(own, ignore_errors=True)
        return
    try:
        for path in own.iterdir() if own.is_dir() else ():
            match = _FILE.fullmatch(path.name)
            if match is not None and not is_open(int(match[1])):
                path.unlink(missing_ok=True)
        own.rmdir()
    except OSError:
        pass  # others are there, or the disk refuses: they are of no round to come


def _digest(state: str, tensors: Any) -> str:
    found = xxhash.xxh3_64(state.encode())
    for tensor in tensors:
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return found.hexdigest()
