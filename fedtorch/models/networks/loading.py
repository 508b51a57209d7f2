"""A model out of the folder that it was written to."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModel

from .esim import EsimNetwork
from .hydranet import HydraNet
from .patched_bert import Ranker
from .re2 import Re2Network

_SAFE: dict[str, Any] = {
    "dtype": torch.float32,
    "use_safetensors": True,
    "local_files_only": True,
    "trust_remote_code": False,
}


def load(folder: Path | str) -> nn.Module:
    """The model in `folder` on the CPU, in fp32 and eval mode: a `Ranker`, `HydraNet`, `Re2Network` or `EsimNetwork`.

    Raises:
        FileNotFoundError: `folder` has no model of these kinds.
        ValueError: its weights are not those of the model that it describes.
    """
    folder = Path(folder)
    for name, build in (("ranker", _ranker), ("hydranet", _hydranet), ("model", _over_words)):
        if (folder / f"{name}.json").is_file():
            settings = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            weights = load_file(folder / f"{name}.safetensors")
            return _filled(build(folder, settings, weights), weights).eval()
    raise FileNotFoundError(f"{folder} has none of ranker.json, hydranet.json, model.json; it may need no `load`")


def _ranker(folder: Path, settings: dict[str, Any], weights: dict[str, Tensor]) -> nn.Module:
    # sdpa hands a patch the whole mask, as in training
    bert = AutoModel.from_pretrained(folder, attn_implementation="sdpa", **_SAFE)
    patch = settings.pop("patch")
    return Ranker(bert, patch=patch and SimpleNamespace(**patch), **settings)


def _hydranet(folder: Path, settings: dict[str, Any], weights: dict[str, Tensor]) -> nn.Module:
    encoder = AutoModel.from_pretrained(folder, **_SAFE)
    return HydraNet(encoder, **settings)


def _over_words(folder: Path, settings: dict[str, Any], weights: dict[str, Tensor]) -> nn.Module:
    network = {"re2": Re2Network, "esim": EsimNetwork}[settings["name"]]
    words, width = weights["embedding.weight"].shape
    return network(SimpleNamespace(**settings), nn.Embedding(words, width, padding_idx=0))


@torch.no_grad()
def _filled(model: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
    """The model with these weights; what transformers has loaded of it stays as it is."""
    own = {name: tensor for name, tensor in model.named_parameters() if not name.startswith(("bert.", "encoder."))}
    if own.keys() != weights.keys():
        raise ValueError(f"weights lack, or have beside those of the model, {sorted(own.keys() ^ weights.keys())[:5]}")
    for name, parameter in own.items():
        parameter.copy_(weights[name])
    return model
