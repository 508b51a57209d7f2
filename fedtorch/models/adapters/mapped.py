"""A base in the memory of its files, which all ranks of a machine that read the same files have in common."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

log = logging.getLogger(__name__)


@torch.no_grad()
def map_base(model: nn.Module, folder: Path) -> int:
    """Give the model's parameters the memory of `folder`'s safetensors where bits, shape and dtype are the same.

    The files are mapped, not read: pages that nobody writes to are in memory once, however many processes map them, and
    whoever does write gets a page of its own (safetensors 0.8 maps them privately). Returns the bytes that are mapped;
    what a file lacks, or has under another name or dtype, stays as it is. The files must stay as they are meanwhile.
    """
    parameters, mapped = dict(model.named_parameters()), 0
    prefix = getattr(model, "base_model_prefix", "")
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                for key in file.keys():  # noqa: SIM118  # no dict
                    name = key if key in parameters else f"{prefix}.{key}"
                    if name in parameters and _same(parameters[name], tensor := file.get_tensor(key)):
                        parameters[name].data = tensor
                        mapped += tensor.nbytes
        except (OSError, SafetensorError) as error:
            log.warning("%s could not be mapped (%s); this rank holds a copy", path, type(error).__name__)
    return mapped


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and not one.is_meta and torch.equal(one, other)
