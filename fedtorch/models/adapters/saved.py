"""A run's adapter on disk: alone where its base has a place of its own, beside a base that only a seed has made."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from fedtorch.core.errors import ConfigError
from fedtorch.core.files import hash_file, replace_file
from fedtorch.core.model_folder import ADAPTED, config_file
from fedtorch.core.regular_file import check_regular
from fedtorch.models.adapters.lora import CONFIG, NAME, config_text, removed, save_adapter
from fedtorch.models.adapters.quantized import quantization_of
from fedtorch.models.adapters.settings import Quantize
from fedtorch.models.pretrained import save_model
from fedtorch.text.pretrained import HUB, located

BASE = "base"
"""Folder of the base, below that of an adapter, where it came from no folder."""
QUANTIZED = "fedtorch_quantize"
"""In the configuration of a model with its adapter: how the base was kept, as in `task.model.quantize`."""


def save_adapted(model: Any, folder: Path) -> None:
    """Write the adapter into `folder`, and the configuration of the model with it; a base of random weights below it.

    Such a base is named by where it is now: see `tell_place`. A quantised one is written dequantised, in fp32; who
    quantises it again has the same bits.
    """
    is_alone = model.peft_config[NAME].base_model_name_or_path is not None
    save_adapter(model, folder, base=None if is_alone else str((folder / BASE).absolute()))
    model.config.architectures = [type(model).__name__]
    model.config.to_json_file(folder / ADAPTED)
    if (quantize := quantization_of(model)) is not None:
        told = json.loads((folder / ADAPTED).read_bytes())
        replace_file(folder / ADAPTED, config_text({**told, QUANTIZED: asdict(quantize)}))
    if not is_alone:
        with removed(model):
            save_model(model, folder / BASE)


def tell_place(folder: Path, target: Path) -> None:
    """Tell the adapters in `folder`, which will be renamed to `target`, where their bases of random weights will be."""
    for base in folder.rglob(BASE):
        file = base.with_name(CONFIG)
        if base.is_dir() and file.is_file():
            told = json.loads(file.read_bytes())
            place = str(target.absolute() / base.relative_to(folder))
            replace_file(file, config_text({**told, "base_model_name_or_path": place}))


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
    """The folder or name of the base of the adapter in `folder`; one that was `hub:NAME` is NAME: nothing is fetched.

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
    return base.removeprefix(HUB)  # as earlier versions wrote it


def base_folder(folder: Path) -> str:
    """The folder of the base of the adapter in `folder`, on this machine.

    Raises:
        ConfigError: it is not here; it is not fetched from anywhere.
    """
    base = base_of(folder)
    try:
        return located(base, is_of_file=True)
    except ConfigError:
        raise ConfigError(
            f"{folder / CONFIG} names the base {base!r}, which is no folder and not in the local hub cache; bring it "
            "there, or set base_model_name_or_path in that file to the folder where it is"
        ) from None


def saved_keys(folder: Path, source: str | None = None) -> dict[str, Any]:
    """`task.model` of what a run has written into `folder`.

    source: `task.model.path` of the run's config. If that names the base in the hub, the hub may be asked.

    Raises:
        ConfigError: an adapter's base is not here.
    """
    if is_adapter(folder):
        narrow = json.loads(config_file(folder).read_bytes()).get("dtype") in ("bfloat16", "float16")
        base, named = base_of(folder), source or ""
        is_of_hub = named.removeprefix(HUB) == base and not Path(base).is_absolute()
        quantize = quantize_of(folder)
        return {
            "path": named if is_of_hub else base_folder(folder),
            "adapter": {"path": str(folder), "base": "saved" if narrow else "fp32"},
            **({} if quantize is None else {"quantize": asdict(quantize)}),
        }
    return {"path": str(folder)}


def quantize_of(folder: Path) -> Quantize | None:
    """How the base of the adapter in `folder` was kept; None: not quantised."""
    told = json.loads(config_file(folder).read_bytes()).get(QUANTIZED)
    return None if told is None else Quantize.of(told)


def base_digests(path: str) -> dict[str, str]:
    """`base <file>` -> the start of its sha256, of every file with weights of the base: facts of a run."""
    files = sorted(Path(located(path, key="task.model.path")).glob("*.safetensors"))
    for file in files:
        check_regular(file, "task.model.path: the weights")
    return {f"base {file.name}": hash_file(file, hashlib.sha256()).hexdigest()[:16] for file in files}
