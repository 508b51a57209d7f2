"""Any model of transformers with the head that a task needs: from a folder, or random weights of a configuration."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedTokenizerBase
from transformers.utils import logging as hf_logging

from fedtorch.core.choices import OneOf
from fedtorch.core.errors import ConfigError, FedtorchError
from fedtorch.core.shown import shortened
from fedtorch.models.adapters.lora import add_adapter, kept_path
from fedtorch.models.adapters.mapped import map_base
from fedtorch.models.adapters.quantized import quantize_in_place
from fedtorch.models.adapters.quantized_reading import forget_wish, reading_quantized
from fedtorch.models.adapters.settings import Adapter, Quantize, check_quantize
from fedtorch.models.pretrained import fit_vocabulary
from fedtorch.text.model_files import load_from
from fedtorch.text.pretrained import first_line, located

Head = Literal["SequenceClassification", "TokenClassification", "Seq2SeqLM", "CausalLM"]
PATH, RANDOM, ALLOW_CODE, ADAPTER, QUANTIZE = "path", "random", "allow_code", "adapter", "quantize"
NEW_HEADS: tuple[Head, ...] = ("SequenceClassification", "TokenClassification")
"""Heads that a pretrained model need not have: they are drawn from the run's seed."""

_SIZE = re.compile(r"head|hidden_size|hidden_dim|_size$|embd|^d_|^dim$|positions|width|inner|intermediate|ffn")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AnyModel:
    """The key `task.model`: `{path: FOLDER_OR_NAME}`, or `{random: gpt2, n_layer: 4, ...}`."""

    one_of: ClassVar[OneOf] = OneOf((PATH, RANDOM), kept=(ALLOW_CODE, ADAPTER, QUANTIZE))

    path: str | None = None
    """a folder written by `save_pretrained`, a name of the hub (`org/name`, `hub:NAME`), or `package:…`"""
    random: str | None = None
    """the `model_type` of a configuration of transformers, such as bert, t5, gpt2, llama"""
    allow_code: bool = False
    """run Python files of the folder, where its architecture is not one of transformers'"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """fields of that configuration that are not as by default; of a pretrained model too (dropout rates, say)"""
    adapter: Adapter | None = None
    """what is added to the model and trained in its place"""
    quantize: Quantize | None = None
    """how the weights that an adapter leaves as they are are kept, as `{kind: nf4}`; null: as `adapter.base` says"""

    def __post_init__(self) -> None:
        check_quantize(self.quantize, self.adapter)

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> AnyModel:
        """From the keys below `task.model`.

        Raises:
            ConfigError: neither or both of `path` and `random`, a kind that does not exist, or a field it lacks.
        """
        own = (PATH, RANDOM, ALLOW_CODE, ADAPTER, QUANTIZE)
        options = {key: value for key, value in keys.items() if key not in own}
        given = [key for key in (PATH, RANDOM) if keys.get(key)]
        if len(given) != 1:
            raise ConfigError(
                f"task.model has {' and '.join(given) or 'neither path nor random'}; give {{path: FOLDER}} or "
                "{random: KIND, ...}, where KIND is a model of transformers such as bert, t5, gpt2 or llama"
            )
        value = keys[given[0]]
        if not isinstance(value, str):
            raise ConfigError(f"task.model.{given[0]} is {value!r} but should be a string")
        if not isinstance(keys.get(ALLOW_CODE, False), bool):
            raise ConfigError(f"task.model.allow_code is {keys[ALLOW_CODE]!r} but should be true or false")
        adapter = Adapter.of(keys[ADAPTER]) if keys.get(ADAPTER) is not None else None
        quantize = Quantize.of(keys[QUANTIZE]) if keys.get(QUANTIZE) is not None else None
        model = cls(keys.get(PATH), keys.get(RANDOM), keys.get(ALLOW_CODE, False), options, adapter, quantize)
        model._check_options()
        return model

    @property
    def named(self) -> str:
        """For messages and records."""
        return self.path or f"random {self.random}"

    def build(self, head: Head, seed: int, tokenizer: PreTrainedTokenizerBase, **settings: Any) -> nn.Module:
        """The model in fp32 with this head; whatever is drawn is drawn from `seed`.

        settings: of the configuration, from the task: `num_labels` and so on.

        Raises:
            ConfigError: there is no such model with this head, or weights are missing.
        """
        loader = getattr(transformers, f"AutoModelFor{head}")
        hf_logging.disable_progress_bar()  # its bar would run into ours
        verbosity = hf_logging.get_verbosity()
        hf_logging.set_verbosity_error()  # its table of what is new and what is missing; we say what counts
        torch.default_generator.manual_seed(seed)
        drawn: list[str] = []
        try:
            if self.random:
                model = self._random(loader, tokenizer, settings)
            else:
                model, drawn = self._pretrained(loader, head, tokenizer, settings)
        finally:
            hf_logging.set_verbosity(verbosity)
        if model.config.pad_token_id is None:
            model.config.pad_token_id = tokenizer.pad_token_id
        built: nn.Module = model if self._keeps_dtype else model.float()
        if self.adapter is not None:
            base = kept_path(self.path) if self.path else None
            if self.quantize is not None:
                quantize_in_place(built, self.quantize, self.adapter)
            add_adapter(built, self.adapter, seed, heads=_new_heads(built, head, drawn), base=base)
        return built

    @property
    def _keeps_dtype(self) -> bool:
        return self.adapter is not None and self.adapter.base == "saved"

    def _random(self, loader: Any, tokenizer: PreTrainedTokenizerBase, settings: Mapping[str, Any]) -> Any:
        special = {
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "bos_token_id": tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id,
        }
        sizes = {"vocab_size": len(tokenizer), **special, **self.options, **settings}
        try:
            config = AutoConfig.for_model(self.random, **sizes)
            if config.is_encoder_decoder and "decoder_start_token_id" not in self.options:
                config.decoder_start_token_id = tokenizer.pad_token_id
            return loader.from_config(config)
        except Exception as error:  # a size that fits no other one, an architecture without this head
            raise ConfigError(
                f"task.model is a random {self.random}, of which {loader.__name__} makes nothing ({first_line(error)}"
                "); change its sizes, or choose another kind"
            ) from error

    def _pretrained(
        self, loader: Any, head: Head, tokenizer: PreTrainedTokenizerBase, settings: Mapping[str, Any]
    ) -> tuple[Any, list[str]]:
        """The model, and the names of the tensors that were drawn."""
        assert self.path is not None
        place = located(self.path, key="task.model.path")
        model, info = self._read(loader, head, place, settings)
        drawn = sorted({*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])})
        prefix = f"{model.base_model_prefix}."
        allowed = head in NEW_HEADS  # and the layer below it, which a model trained to fill masks has not either
        if absent := [n for n in drawn if not allowed or (n.startswith(prefix) and f"{prefix}pooler." not in n)]:
            raise ConfigError(
                f"task.model.path is {self.path!r}, which lacks {len(absent)} tensors of a {type(model).__name__}, "
                f"such as `{absent[0]}`; give a folder with all weights, or a model with this head"
            )
        if drawn:
            log.info("%s has no %s; it is drawn from run.seed", self.path, " and ".join(drawn[:4]))
        if self.adapter is not None:
            self._map_base(model, place, len(tokenizer))
        fit_vocabulary(model, len(tokenizer))
        return model, drawn

    def _read(self, loader: Any, head: Head, place: str, settings: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        """The model in `place`, its weights quantised as they are read if they are to be, and what its files lack."""
        try:
            with reading_quantized(self.quantize, self.adapter) as quantizing:
                model, info = load_from(
                    loader,
                    place,
                    allows_code=self.allow_code,
                    advice="read it, and set task.model.allow_code to true if you trust it",
                    dtype="auto" if self._keeps_dtype else torch.float32,
                    output_loading_info=True,
                    ignore_mismatched_sizes=head in NEW_HEADS,
                    **quantizing,
                    **self.options,
                    **settings,
                )
                forget_wish(model)
        except FedtorchError as error:
            raise ConfigError(f"task.model.path is {self.path!r}: {error}") from error
        except Exception as error:
            raise ConfigError(
                f"task.model.path is {self.path!r}, from which {loader.__name__} makes nothing ({first_line(error)}); "
                "give the folder of a model with this head that save_pretrained wrote (with model.safetensors)"
            ) from error
        return model, info

    def _map_base(self, model: Any, place: str, tokens: int) -> None:
        """The base in the memory of its files; it has an embedding for every token."""
        if tokens > model.get_input_embeddings().num_embeddings:
            raise ConfigError(
                f"task.model.adapter is set but the tokenizer has {tokens} tokens, for which {self.path} has "
                "too few embeddings, and new ones would be no part of the adapter; enlarge the base and save it first"
            )
        map_base(model, Path(place))

    def _check_options(self) -> None:
        if self.random is None:
            return
        try:
            default = AutoConfig.for_model(self.random)
        except (ValueError, KeyError):
            near = get_close_matches(self.random, list(transformers.CONFIG_MAPPING), 3)
            raise ConfigError(
                f"task.model.random is {self.random!r}, which transformers {transformers.__version__} does not know; "
                f"{'did you mean ' + ', '.join(near) + '?' if near else 'write the model_type of a configuration'}"
            ) from None
        known = {*default.to_dict(), *getattr(default, "attribute_map", {}), *vars(default)}
        for key, value in self.options.items():
            if key not in known:
                near = get_close_matches(key, known, 1)
                hint = f"; did you mean `{near[0]}`?" if near else ""
                raise ConfigError(f"task.model.{key}: the configuration of {self.random} has no such field{hint}")
            if isinstance(value, int) and abs(value) > 10**7:
                raise ConfigError(f"task.model.{key} is {shortened(value)}, which is beyond any model")
            _check_size(key, value, getattr(default, key, None))


def _check_size(key: str, value: Any, default: Any) -> None:
    """Sizes, counts and rates are no less than 0, and sizes are something; transformers builds what cannot run.

    Raises:
        ConfigError: the number is not what the field of a configuration can be.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or key.endswith(("_id", "_ids")):
        return
    named = f"task.model.{key} is {shortened(value)}"
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{named}; set it to a finite number")
    if value < 0 and not (isinstance(default, int | float) and default < 0):
        raise ConfigError(f"{named}; set it to a number that is not negative")
    if isinstance(default, int) and not isinstance(default, bool) and value != int(value):
        raise ConfigError(f"{named}; set it to a whole number")
    if value == 0 and _SIZE.search(key) and not isinstance(default, float):  # a rate such as embd_pdrop
        raise ConfigError(f"{named}; set it to at least 1")


def _new_heads(model: Any, head: Head, drawn: Sequence[str]) -> list[str]:
    """Modules that an adapter has whole: those beside the base, and a pooler that the base's file lacks."""
    if head not in NEW_HEADS:
        return []
    beside = [(name, child) for name, child in model.named_children() if name != model.base_model_prefix]
    names = [name for name, child in beside if any(True for _ in child.parameters())]
    lacks_pooler = any(name.startswith(f"{model.base_model_prefix}.pooler.") for name in drawn)
    return [*names, "pooler"] if lacks_pooler else names


def longest_input(model: Any) -> int | None:
    """Positions that the model has, None if it has no table of them."""
    config = model.config
    for name in ("max_position_embeddings", "n_positions"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None
