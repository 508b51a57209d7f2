"""A model out of the folder that a run wrote it to, with what turns texts into its input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging as hf_logging

from fedtorch.core.errors import ConfigError, FedtorchError
from fedtorch.core.model_folder import SIDES, config_file, has_sides
from fedtorch.models import networks
from fedtorch.models.adapters.lora import add_adapter
from fedtorch.models.adapters.quantized_reading import forget_wish, reading_quantized
from fedtorch.models.adapters.saved import base_folder, is_adapter, quantize_of
from fedtorch.models.adapters.settings import Adapter
from fedtorch.text.model_files import check_folder, load_from
from fedtorch.text.pretrained import first_line
from fedtorch.text.words import FILE as WORDS
from fedtorch.text.words import read_words

_NETWORKS = ("ranker.json", "hydranet.json", "model.json")


def load_saved(folder: Path) -> tuple[Any, Any]:
    """(the model in fp32 and eval mode on the CPU, its tokenizer), as docs/models.md loads it without this package.

    Of two sides the model is a dict of both; in place of a tokenizer a network over words has its `Words`.

    Raises:
        ConfigError: what is there is no model of a class that transformers or this package has.
    """
    try:
        if has_sides(folder):
            sides = {side: load_model(folder / side) for side in SIDES}
            return sides, load_from(AutoTokenizer, folder / SIDES[0])
        check_folder(folder)
        if any((folder / name).is_file() for name in _NETWORKS):
            model = networks.load(folder)
            has_words = (folder / WORDS).is_file()
            return model, read_words(folder) if has_words else load_from(AutoTokenizer, folder)
        return load_model(folder), load_from(AutoTokenizer, folder)
    except FedtorchError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{folder} holds no model that can be loaded ({first_line(error)}); write it again with `fedtorch export`"
        ) from error


def load_model(folder: Path) -> Any:
    """The model of the class that `save_pretrained` has noted, in fp32 and eval mode; also of an adapter's folder."""
    check_folder(folder)
    names = json.loads(config_file(folder).read_text()).get("architectures") or ["a model without a class"]
    name = str(names[0])[:100] if isinstance(names, list) else "a model without a class"
    kind = getattr(transformers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise ConfigError(f"{folder} holds a {name}, which transformers lacks; load it with the code it came with")
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        if is_adapter(folder):
            options = {"config": load_from(AutoConfig, config_file(folder)), "ignore_mismatched_sizes": True}
            adapter, quantize = Adapter(path=str(folder)), quantize_of(folder)
            with reading_quantized(quantize, adapter) as quantizing:
                model = load_from(kind, base_folder(folder), dtype=torch.float32, **options, **quantizing)
                forget_wish(model)
            add_adapter(model, adapter, seed=0)
            return model.eval()
        return load_from(kind, folder, dtype=torch.float32).eval()
    finally:
        if shown:
            hf_logging.enable_progress_bar()
