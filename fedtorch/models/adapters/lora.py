"""LoRA through peft: put into a model in place, written and read in peft's own format, added to the base.

Layers keep their names: beside `q.base_layer.weight`, which is frozen, stand `q.lora_A.default.weight` and
`q.lora_B.default.weight`; a module that is trained whole is `head.modules_to_save.default`. So the model stays of its
own class, and whoever runs it need not know.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.models.auto import modeling_auto

from fedtorch.core.errors import ConfigError
from fedtorch.core.extras import require
from fedtorch.core.model_folder import ADAPTER
from fedtorch.core.seeds import seed_for
from fedtorch.core.weights import unshared
from fedtorch.models.adapters.added import NAME, delta_of, put_together, scale_of, set_added
from fedtorch.models.adapters.mapped import map_base
from fedtorch.models.adapters.precision import pass_gradients_quickly, score_in_fp32, train_in_fp32
from fedtorch.models.adapters.quantized import QuantizedLinear, plain_layer, quantize_in_place
from fedtorch.models.adapters.settings import KEY, Adapter, Quantize
from fedtorch.models.adapters.square import made_plain, make_square
from fedtorch.text.model_files import check_folder, load_from
from fedtorch.text.pretrained import HUB, PACKAGE, located

CONFIG, WEIGHTS = ADAPTER, "adapter_model.safetensors"
_PREFIX = "base_model.model."  # of every name in an adapter's file

_TASKS: dict[str, Mapping[str, Any]] = {
    "SEQ_CLS": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "TOKEN_CLS": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "QUESTION_ANS": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    "SEQ_2_SEQ_LM": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "CAUSAL_LM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
}
"""Task type of peft -> kind of model -> its class with the head for that."""

log = logging.getLogger(__name__)


def add_adapter(model: Any, adapter: Adapter, seed: int, *, heads: Sequence[str] = (), base: str | None = None) -> None:
    """Put `adapter` into `model` in place and freeze the rest.

    A is drawn from `seed` and from nothing else, B is 0 (of Fed-SB, R): the model computes what it did before. With
    `adapter.path` both are those of the file.

    heads: modules that are new, so trained whole. base: where the model came from, for the adapter's own config.

    Raises:
        ConfigError: peft is not installed, nothing matches, a target's weight is another layer's too, the model is
            quantised, or `adapter.path` holds no adapter that fits.
    """
    require(KEY, "peft", extra="adapters")
    from peft import inject_adapter_in_model

    if getattr(model.config, "quantization_config", None) is not None:
        raise ConfigError(f"{KEY} is set but the model's weights are quantised by another library; give a model in "
                          "fp32, fp16 or bf16, and task.model.quantize if it is to be kept in few bits")  # fmt: skip
    config = _read(adapter) if adapter.path else _config(model, adapter, heads)
    config.base_model_name_or_path = base
    torch.default_generator.manual_seed(seed_for(seed, "adapter"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tied weights and Conv1D, which are looked at here
            inject_adapter_in_model(config, model)
    except ValueError as error:
        what = f"targets is {adapter.targets!r}"
        what = f"path is {adapter.path!r}, which does not fit the model" if adapter.path else what
        raise ConfigError(f"{KEY}.{what}: {error}") from error
    _refuse_tied(model, adapter)
    train_in_fp32(model)
    pass_gradients_quickly(model)
    if adapter.kind == "sb":
        make_square(lora_layers(model), seed)
    if adapter.path:
        _load(model, Path(adapter.path))


def with_adapter(
    model: Any, adapter: Adapter | None, seed: int, source: str | None, quantize: Quantize | None = None
) -> Any:
    """The model with an adapter, if there is to be one. source: the folder or name of the base; None: random weights.

    quantize: how the base's weights are kept; those that were read so stay.

    Raises:
        ConfigError: as `add_adapter`; or the model has more embeddings than its source, which are in no adapter.
    """
    if adapter is not None:
        if adapter.public_rows is not None:
            raise ConfigError(f"{KEY}.public_rows is set, which only tasks over data of your own take; remove it")
        base = None if source is None else kept_path(source)
        if source is not None and model.config.vocab_size != load_from(AutoConfig, located(source)).vocab_size:
            raise ConfigError(f"{KEY} is set but {source} has fewer embeddings than the tokenizer has tokens, and new "
                              "ones would be no part of the adapter; enlarge the base and save it first")  # fmt: skip
        if source is not None:
            map_base(model, Path(located(source)))
        if quantize is not None:
            quantize_in_place(model, quantize, adapter)
        add_adapter(model, adapter, seed, base=base)
        score_in_fp32(model)
    return model


def kept_path(path: str) -> str:
    """A base as peft and transformers find it from anywhere: a folder by its whole path, a name in the hub as it is."""
    if path.startswith(HUB):
        return path.removeprefix(HUB)
    if path.startswith(PACKAGE) or Path(path).expanduser().is_dir():
        return str(Path(located(path)).resolve())
    return path


def has_adapter(model: nn.Module) -> bool:
    """Was an adapter put into the model?"""
    return any(hasattr(module, "lora_A") for module in model.modules())


def scale_factors(model: nn.Module, rank: int | None) -> float:
    """Set s of every layer to that of factors of `rank`; None: of those that are there. Returns the last layer's."""
    scale = 1.0
    for layer in lora_layers(model).values():
        layer.scaling[NAME] = scale = scale_of(layer, rank)
    return scale


def add_to_base(model: nn.Module, factors: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Beside the layers that are named stands what was added to the base, see `added.set_added`."""
    set_added(lora_layers(model), factors)


def lora_layers(model: nn.Module) -> dict[str, Any]:
    """Name -> layer with factors beside its weight."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


def save_adapter(model: Any, folder: Path, *, base: str | None = None) -> None:
    """Write the adapter alone: `adapter_config.json` and safetensors, by which peft and transformers find the rest.

    Only the factors, behind them what was added to the base, and the modules that are trained whole; peft would add
    the embeddings of a model whose vocabulary differs from its folder's. The task's type and the model's class are
    written for those that choose a class by them.

    base: where the adapter's base is, if the model's own adapter does not say it.
    """
    from peft import get_peft_model_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    config = model.peft_config[NAME]
    tensors = dict(get_peft_model_state_dict(model, save_embedding_layers=False))
    written = {**config.to_dict(), "inference_mode": True, **_kind(model)}
    written["base_model_name_or_path"] = config.base_model_name_or_path or base
    made_plain(lora_layers(model), tensors)
    put_together(lora_layers(model), tensors, written)
    save_file(unshared({_PREFIX + name: tensor for name, tensor in tensors.items()}), folder / WEIGHTS)
    (folder / CONFIG).write_text(config_text(written))


def config_text(config: Mapping[str, Any]) -> str:
    """Text of `adapter_config.json`; alpha as a whole number where it is one, as libraries have it."""
    plain = {name: sorted(value) if isinstance(value, set) else value for name, value in config.items()}
    alpha: Any = plain.get("lora_alpha", 0.5)
    if float(alpha).is_integer():
        plain["lora_alpha"] = int(alpha)
    return json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n"


def _kind(model: Any) -> dict[str, Any]:
    """`task_type` and `auto_mapping` of an adapter's configuration."""
    kind, name = type(model), type(model).__name__
    types = [task for task, classes in _TASKS.items() if name == classes.get(model.config.model_type)]
    mapping = {"base_model_class": name, "parent_library": kind.__module__}
    return {"task_type": types[0] if types else None, "auto_mapping": mapping}


@contextmanager
def merged(model: Any) -> Iterator[None]:
    """Inside the block the model is a plain one: W + s·B·A in place of every layer, saved modules in place of old ones.

    New matrices are made in fp32 and rounded once to the base's dtype; the base is not changed. One that is quantised
    is dequantised, all of it, in fp32.
    """
    with _replaced(model, _summed):
        yield


@contextmanager
def removed(model: Any) -> Iterator[None]:
    """Inside the block the model is its base, dequantised if it is quantised."""
    with _replaced(model, _base_of):
        yield


@contextmanager
def _replaced(model: nn.Module, plain: Callable[[Any], nn.Module | None]) -> Iterator[None]:
    held: list[tuple[nn.Module, str, nn.Module]] = []
    gone = "."  # the beginning of what is within the module that was replaced last
    try:
        for name, module in list(model.named_modules()):
            if not name.startswith(gone) and (other := plain(module)) is not None:
                parent, _, child = name.rpartition(".")
                held.append((model.get_submodule(parent), child, module))
                setattr(*held[-1][:2], other)
                gone = f"{name}."
        yield
    finally:
        for place, child, module in held:
            setattr(place, child, module)


def _base_of(module: Any) -> nn.Module | None:
    """Module that was there before the adapter; None: this module itself."""
    if hasattr(module, "modules_to_save"):
        original: nn.Module = module.original_module
        return original
    base: nn.Module | None = module.base_layer if hasattr(module, "lora_A") else None
    if isinstance(few := module if base is None else base, QuantizedLinear):
        return plain_layer(few)
    return base


@torch.no_grad()
def _summed(module: Any) -> nn.Module | None:
    """Module that computes the same without an adapter; None: this module itself."""
    if hasattr(module, "modules_to_save"):
        saved: nn.Module = module.modules_to_save[NAME]
        return saved
    if isinstance(module, QuantizedLinear):
        return plain_layer(module)
    if not hasattr(module, "lora_A"):
        return None
    base = module.base_layer
    if isinstance(base, QuantizedLinear):
        return plain_layer(base, delta_of(module))
    copied = base.__class__.__new__(base.__class__)
    copied.__dict__ = {**base.__dict__, "_parameters": dict(base._parameters)}
    weight = base.weight.float() + delta_of(module)
    copied._parameters["weight"] = nn.Parameter(weight.to(base.weight.dtype), requires_grad=False)
    return copied


def _config(model: Any, adapter: Adapter, heads: Sequence[str]) -> Any:
    from peft import LoraConfig
    from transformers.pytorch_utils import Conv1D

    targets = _targets(model, adapter)
    names = [name for name, _ in model.named_modules()]
    if missing := [end for end in adapter.save if not any(_ends(name, end) for name in names)]:
        raise ConfigError(f"{KEY}.save has {missing[0]!r}, which is the end of no module's name; remove it")
    found = [] if isinstance(targets, str) else [
        module for name, module in model.named_modules() if any(_ends(name, end) for end in targets)
    ]  # fmt: skip
    return LoraConfig(
        r=adapter.r,
        lora_alpha=adapter.alpha,  # type: ignore[arg-type]  # peft divides it, whatever it is
        lora_dropout=adapter.dropout,
        use_rslora=adapter.rslora,
        target_modules=targets,
        modules_to_save=sorted({*heads, *adapter.save}) or None,
        # GPT-2's layers hold their matrices transposed
        fan_in_fan_out=bool(found) and all(isinstance(module, Conv1D) for module in found),
    )


def _targets(model: Any, adapter: Adapter) -> str | list[str]:
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    if adapter.targets == "auto":
        known = KNOWN.get(model.config.model_type, "all-linear")
        return known if isinstance(known, str) else list(known)
    if isinstance(adapter.targets, str):
        return adapter.targets
    names = [name for name, _ in model.named_modules()]
    if missing := [end for end in adapter.targets if not any(_ends(name, end) for name in names)]:
        some = sorted({name.rpartition(".")[2] for name, module in model.named_modules() if hasattr(module, "weight")})
        raise ConfigError(
            f"{KEY}.targets has {missing[0]!r}, which is the end of no module's name; there are {', '.join(some[:20])}"
        )
    return list(adapter.targets)


def _ends(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")


def _refuse_tied(model: nn.Module, adapter: Adapter) -> None:
    """A product beside one of two layers that have the same weight could not be added to it."""
    places: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append(name)
    for name, layer in lora_layers(model).items():
        if len(shared := places[id(layer.base_layer.weight)]) > 1:
            raise ConfigError(
                f"{KEY}.targets is {adapter.targets!r}, of which `{name}` has the weight of another layer too "
                f"({' and '.join(shared)}); leave it out, or give a model whose weights are not tied"
            )


def _read(adapter: Adapter) -> Any:
    """The configuration in `adapter.path`."""
    from peft import LoraConfig

    path = Path(adapter.path or "")
    check_folder(path)
    try:
        keys = json.loads((path / CONFIG).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{KEY}.path is {adapter.path!r}, which has no {CONFIG} that can be read") from error
    if keys.get("peft_type") != "LORA" or keys.get("use_dora"):
        raise ConfigError(f"{KEY}.path is {adapter.path!r}, which holds no plain LoRA adapter")
    if not isinstance(keys.get("target_modules"), list | str):
        raise ConfigError(f"{KEY}.path is {adapter.path!r}, whose {CONFIG} names no target_modules")
    names = ("r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules", "modules_to_save", "fan_in_fan_out",
             "rank_pattern", "alpha_pattern")  # fmt: skip
    config = LoraConfig(**{name: keys[name] for name in names if name in keys})
    config.lora_dropout = adapter.dropout or config.lora_dropout
    return config


def _load(model: Any, folder: Path) -> None:
    """Put the tensors of an adapter's file into the model, all of them and no others."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    try:
        tensors = {name.removeprefix(_PREFIX): tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{KEY}.path is {str(folder)!r}, which has no {WEIGHTS} that can be read") from error
    shapes: Mapping[str, Tensor] = get_peft_model_state_dict(model, save_embedding_layers=False)
    wrong = [n for n in {**shapes, **tensors} if n not in tensors or n not in shapes or
             shapes[n].shape != tensors[n].shape]  # fmt: skip
    if wrong:
        found = tuple(tensors[wrong[0]].shape) if wrong[0] in tensors else "nothing"
        wanted = tuple(shapes[wrong[0]].shape) if wrong[0] in shapes else "nothing"
        raise ConfigError(
            f"{KEY}.path is {str(folder)!r}, which does not fit the model: {wrong[0]} has {found}, expected {wanted}"
        )
    set_peft_model_state_dict(model, tensors)
