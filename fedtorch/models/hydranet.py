"""How a HydraNet is written to a folder."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from fedtorch.models.networks.hydranet import HydraNet
from fedtorch.models.pretrained import copy_networks, in_own_memory, save_model, save_tokenizer

DESCRIPTION, HEADS = "hydranet.json", "hydranet.safetensors"


def save_hydranet(model: HydraNet, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write all that the model is made of.

    Encoder and tokenizer are as `save_pretrained` writes them, so `AutoModel` and `AutoTokenizer` load them;
    `hydranet.safetensors` holds the heads by parameter name, `hydranet.json` what they are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model.encoder, folder)
    save_tokenizer(tokenizer, folder)
    heads = {name: parameter for name, parameter in model.named_parameters() if not name.startswith("encoder.")}
    save_file(in_own_memory(heads), folder / HEADS)
    (folder / DESCRIPTION).write_text(json.dumps(model.settings, indent=2) + "\n", encoding="utf-8")
    copy_networks(folder)
