"""Is what a checkpoint's files hold of the client and round that the manifest says? With the numbers in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open

from fedtorch.checkpoint.files import Manifest, checked, parsing
from fedtorch.checkpoint.manifest_form import CLIENT_PATH
from fedtorch.core.errors import CheckpointError
from fedtorch.core.shown import shortened

_EXACT = 1 << 53
_EMPTY = 64  # bytes of a file without tensors and metadata, which save_file writes and safe_open refuses


def read_server(found: Manifest) -> tuple[Path, dict[str, Any]]:
    """Where a checkpoint's server.json lies and what it holds, compared with the manifest and the tensors beside it.

    Files of earlier versions do not say which round they are of.

    Raises:
        CheckpointError: a file is damaged, of another form or of another checkpoint.
    """
    path, beside = checked(found, "server.json"), checked(found, "server.safetensors")
    with parsing(path):
        state: dict[str, Any] = json.loads(path.read_bytes())
        if state.get("round", found.round) != found.round:
            raise CheckpointError(f"{path} is of another round than its manifest, which is of round {found.round}")
        checked_numbers(path, state["numbers"])
        if type(state["num_clients"]) is not int or state["num_clients"] < 0:
            raise CheckpointError(f"{path} has no number of clients")
    with parsing(beside):
        check_names(beside, state["names"])
    return path, state


def read_client(path: Path, client: str) -> dict[str, Any]:
    """Numbers and names of the state in a client's file, whose name says which client and round it should be of.

    Raises:
        CheckpointError: it is another client's or round's, which files of earlier versions do not say, or does not
            hold what it says.
    """
    with safe_open(path, "pt") as file:
        state: dict[str, Any] = json.loads(file.metadata()["state"])
    match = CLIENT_PATH.fullmatch(f"clients/{path.name}")
    assert match is not None, "a manifest that was read names such files only"
    own = {"client": client, "round": int(match[2]), "part": int(match[3] or 0)}
    if wrong := [key for key, value in own.items() if state.get(key, value) != value]:
        raise CheckpointError(
            f"{path} should hold the state of client {shortened(client)} after {own['round']} rounds, but it was "
            f"written with another {wrong[0]}"
        )
    check_names(path, state["names"])
    checked_numbers(path, state["numbers"])
    return state


def check_names(path: Path, names: Sequence[str]) -> None:
    """Does the safetensors file hold these tensors, each once, and no others?

    Raises:
        CheckpointError: it does not.
    """
    if not names and path.stat().st_size <= _EMPTY:
        return
    with safe_open(path, "pt") as file:
        if sorted(names) != sorted(file.keys()):
            raise CheckpointError(f"{path} has other tensors than its list of names says")


def checked_numbers(path: Path, numbers: Any) -> dict[str, int | float]:
    """The numbers of a state as they were read from `path`.

    Raises:
        CheckpointError: one of them is no number, or a whole one that fp64 does not hold exactly.
    """
    if not isinstance(numbers, dict):
        raise CheckpointError(f"{path} has no numbers by name")
    for name, value in numbers.items():
        if type(value) not in (int, float) or (type(value) is int and abs(value) > _EXACT):
            raise CheckpointError(f"{path} has no number that a state can have as {shortened(name)}")
    return numbers
