"""Where the models that clients were evaluated with lie in a run's folder."""

from __future__ import annotations

import json
from difflib import get_close_matches
from pathlib import Path

from fedtorch.core.client import folder_name
from fedtorch.core.errors import ConfigError

MODEL = "model"
"""The folder with the models that clients were evaluated with, in the run folder."""
CONFIG, ADAPTER, ADAPTED = "config.json", "adapter_config.json", "model_config.json"
"""In a model's folder: its configuration; of an adapter alone, the adapter's and that of the model with it.

Beside an adapter no `config.json` may stand: transformers and peft would take the folder for that of a whole model, and
not look for the adapter's base (*measured*, transformers 5.23).
"""
SIDES = ("user", "assistant")
"""Folders of a dialog task's two models, below that of a client or of all."""


def model_folder(run: Path, client: str | None, *, option: str = "--client") -> Path:
    """The folder of the model that all clients, or this one, were evaluated with.

    option: what names a client, for messages.

    Raises:
        ConfigError: no such client, no model, or one for each client and none is named.
    """
    models = run / MODEL
    if client is None:
        if is_saved(models):
            return models
        raise ConfigError(
            f"{models} has no model for all clients; name a client with {option} if it has folders, or write the "
            f"model with `fedtorch export {run}`"
        )
    own = models / folder_name(client)
    if is_saved(own) and not (has_sides(models) and client in SIDES):
        return own
    known = _clients(run)
    if client in known and is_saved(models):
        return models
    near = get_close_matches(client, known, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known[:10]) or 'none'}"
    raise ConfigError(f"{option} is {client}, of whom {run} has no model; {hint}")


def is_saved(folder: Path) -> bool:
    """Is there a model itself, not folders of clients?"""
    return holds_model(folder) or (folder / "model.json").is_file() or has_sides(folder)


def holds_model(folder: Path) -> bool:
    """Is there a model of transformers, or an adapter of one?"""
    return any((folder / name).is_file() for name in (CONFIG, ADAPTER))


def config_file(folder: Path) -> Path:
    """The configuration of the model in a folder; beside an adapter that earlier versions wrote it is `config.json`."""
    return folder / (ADAPTED if (folder / ADAPTED).is_file() else CONFIG)


def has_sides(folder: Path) -> bool:
    """Are there the two models of a dialog task?"""
    return all(holds_model(folder / side) for side in SIDES)


def _clients(run: Path) -> list[str]:
    """Names in the run's results."""
    try:
        return list(json.loads((run / "results.json").read_text())["clients"])
    except (OSError, ValueError, KeyError):
        return []
