"""How a BERT that scores pairs begins, and how it is written to a folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from fedtorch.core.seeds import generator_for
from fedtorch.models.networks.patched_bert import Ranker
from fedtorch.models.patch import Patch
from fedtorch.models.pretrained import copy_networks, in_own_memory, save_model, save_tokenizer

DESCRIPTION, REST = "ranker.json", "ranker.safetensors"


@torch.no_grad()
def initialise(model: Ranker, seed: int) -> None:
    """Draw head and patch from `seed`: weights N(0, 0.02), biases 0. The backbone is left as it is."""
    model.head.weight.normal_(0.0, 0.02, generator=generator_for(seed, "head"))
    model.head.bias.zero_()
    for name, tensor in model.draw_private(seed).items():
        model.get_parameter(name).copy_(tensor)


def save_ranker(model: Ranker, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write all that the model is made of.

    Backbone and tokenizer are as `save_pretrained` writes them, so `AutoModel` and `AutoTokenizer` load them (without
    the patch); `ranker.safetensors` holds patch and head by parameter name, `ranker.json` what they are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model.bert, folder)
    save_tokenizer(tokenizer, folder)
    rest = {name: parameter for name, parameter in model.named_parameters() if not name.startswith("bert.")}
    save_file(in_own_memory(rest), folder / REST)
    patch = model.settings["patch"]
    settings = model.settings | {"patch": asdict(patch) if isinstance(patch, Patch) else None}
    (folder / DESCRIPTION).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    copy_networks(folder)
