"""A run's adapter on disk: alone where its base has a place of its own, beside a base that only a seed has made."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import nn

from fedtorch.core.errors import ConfigError
from fedtorch.core.files import hash_file
from fedtorch.core.regular_file import check_regular
from fedtorch.models.adapters.lora import CONFIG, NAME, removed, save_adapter
from fedtorch.models.pretrained import save_model
from fedtorch.text.pretrained import located

BASE = "base"
"""Folder of the base, below that of an adapter, where it came from no folder."""


def save_adapted(model: Any, folder: Path) -> None:
    """Write the adapter and the model's config into `folder`; a base of random weights below it."""
    save_adapter(model, folder)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    if model.peft_config[NAME].base_model_name_or_path is None:
        with removed(model):
            save_model(model, folder / BASE)


def bases_elsewhere(model: nn.Module) -> list[str]:
    """The parameters of bases that have a place of their own: `save_adapted` writes none of them."""
    found = []
    for prefix, part in model.named_modules():
        config = getattr(part, "peft_config", {}).get(NAME)
        if config is not None and config.base_model_name_or_path is not None:
            start = f"{prefix}." if prefix else ""
            found += [start + name for name, parameter in part.named_parameters()
                      if not parameter.requires_grad and ".lora_" not in name]  # fmt: skip
    return found


def is_adapter(folder: Path) -> bool:
    """Does the folder hold an adapter?"""
    return (folder / CONFIG).is_file()


def base_of(folder: Path) -> str:
    """Where the base of the adapter in `folder` is.

    Raises:
        ConfigError: nobody knows.
    """
    if (folder / BASE).is_dir():
        return str(folder / BASE)
    try:
        base = json.loads((folder / CONFIG).read_bytes())["base_model_name_or_path"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{folder} holds no adapter that can be read ({type(error).__name__})") from error
    if not isinstance(base, str):
        raise ConfigError(f"{folder / CONFIG} does not say of which base it is; set base_model_name_or_path there")
    return base


def saved_keys(folder: Path) -> dict[str, Any]:
    """`task.model` of what a run has written into `folder`."""
    if is_adapter(folder):
        narrow = json.loads((folder / "config.json").read_bytes()).get("dtype") in ("bfloat16", "float16")
        return {"path": base_of(folder), "adapter": {"path": str(folder), "base": "saved" if narrow else "fp32"}}
    return {"path": str(folder)}


def base_digests(path: str) -> dict[str, str]:
    """`base <file>` -> the start of its sha256, of every file with weights of the base: facts of a run."""
    files = sorted(Path(located(path, key="task.model.path")).glob("*.safetensors"))
    for file in files:
        check_regular(file, "task.model.path: the weights")
    return {f"base {file.name}": hash_file(file, hashlib.sha256()).hexdigest()[:16] for file in files}
