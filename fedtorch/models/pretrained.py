"""Loading a pretrained model so that nothing in it is drawn at random without a word, and what all need to save one."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedTokenizerBase
from transformers.utils import logging as hf_logging

from fedtorch.core.errors import ConfigError, FedtorchError
from fedtorch.models import networks
from fedtorch.models.adapters.quantized_reading import forget_wish, reading_quantized
from fedtorch.models.adapters.settings import Adapter, Quantize
from fedtorch.text.model_files import load_from
from fedtorch.text.pretrained import first_line, located

log = logging.getLogger(__name__)


def load_config(kind: str, name: str, *, key: str, instead: str) -> Any:
    """The configuration of the model `name`; arguments and errors as in `load_pretrained`."""
    place = located(name, key=key)
    try:
        return load_from(AutoConfig, place)
    except FedtorchError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise _unusable(kind, name, key, instead, error) from error


def load_pretrained(
    kind: str,
    loader: Any,
    name: str,
    *,
    key: str,
    instead: str,
    may_lack: tuple[str, ...] = (),
    dtype: torch.dtype | Literal["auto"] = torch.float32,
    quantize: Quantize | None = None,
    adapter: Adapter | None = None,
    **options: Any,
) -> tuple[Any, list[str]]:
    """(the model in fp32, names of the tensors that it lacked and that were drawn at random).

    Only safetensors are read: `pytorch_model.bin` is a pickle. A folder that has nothing else can be converted on a
    machine where its source is trusted: `AutoModel.from_pretrained(old).save_pretrained(new)`.

    Args:
        kind: of the model, for messages: `T5`. key: the config key that names it. instead: the name of a random one.
        loader: a class of transformers with `from_pretrained`. options: passed on to it.
        name: a folder, `package:NAME/FOLDER`, a name in the hub cache or `hub:NAME`: see `located`.
        may_lack: beginnings of names of tensors that may be absent. transformers draws absent ones and says so in a
            log only.
        dtype: of the weights; auto: that of the files.
        quantize, adapter: weights that the adapter leaves as they are are quantised as they are read.

    Raises:
        ConfigError: nothing usable under that name, or a tensor is absent.
    """
    place = located(name, key=key)
    hf_logging.disable_progress_bar()  # its bar would run into ours
    try:
        with reading_quantized(quantize, adapter) as quantizing:
            model, info = load_from(loader, place, dtype=dtype, output_loading_info=True, **quantizing, **options)
            forget_wish(model)
    except FedtorchError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise _unusable(kind, name, key, instead, error) from error
    drawn = sorted(info["missing_keys"])
    if absent := [tensor for tensor in drawn if not tensor.startswith(may_lack)]:
        raise ConfigError(
            f"{key} is {name!r}, which lacks {len(absent)} tensors of a {type(model).__name__}, such as "
            f"`{absent[0]}`; give a folder with all weights"
        )
    return model, drawn


def load_with_pooler(kind: str, loader: Any, name: str, *, key: str, instead: str, **options: Any) -> Any:
    """The model of `load_pretrained`, which may lack the layer over the first token; a drawn one is warned of."""
    model, drawn = load_pretrained(kind, loader, name, key=key, instead=instead, may_lack=("pooler.",), **options)
    if drawn:
        log.warning("%s has no pooler: its pooler is drawn from the seed", name)
    return model


def in_own_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU, each in memory of its own; tied tensors stay tied.

    Parameters are views of the engine's one buffer, which safetensors would take for shared tensors.
    """
    copies: dict[tuple[int, torch.Size], Tensor] = {}
    return {
        name: copies.setdefault((tensor.data_ptr(), tensor.shape), tensor.detach().cpu().clone())
        for name, tensor in tensors.items()
    }


def save_model(model: Any, folder: Path) -> None:
    """`save_pretrained` of a model of transformers, on whatever rank this is.

    transformers 5.23 writes, without a word, on the first rank of torch's default group alone
    (`should_save_on_this_rank`). Here that group is a worker, each of whose ranks may have a model of its own. And it
    imports the whole of DeepSpeed, where that and accelerate are installed, to see whether the model is wrapped.
    """
    hf_logging.disable_progress_bar()  # its bar would run into ours
    model.should_save_on_this_rank = lambda is_main_process: is_main_process
    from transformers import modeling_utils  # three seconds, which a run without such a model need not wait

    unwrap = modeling_utils.unwrap_model
    modeling_utils.unwrap_model = lambda bare, **_: bare
    try:
        model.save_pretrained(folder, state_dict=in_own_memory(model.state_dict()))
    finally:
        modeling_utils.unwrap_model = unwrap
        del model.should_save_on_this_rank


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """`save_pretrained`, without the cut and the padding of the last call, which transformers 5.23 would write too."""
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        backend.no_truncation()
        backend.no_padding()
    tokenizer.save_pretrained(folder)


def copy_networks(folder: Path) -> None:
    """Put the source of `networks`, which needs nothing of this package, into `folder` for whoever loads the model."""
    source = Path(networks.__file__).parent
    shutil.copytree(source, folder / "network", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


def fit_vocabulary(model: Any, size: int) -> None:
    """Give the model's embedding at least `size` rows."""
    if size > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(size)


def _unusable(kind: str, name: str, key: str, instead: str, error: Exception) -> ConfigError:
    article = "an" if kind[0] in "aeiou" else "a"
    return ConfigError(
        f"{key} is {name!r}, from which no {kind} could be loaded ({first_line(error)}); give the folder of {article} "
        f"{kind} that save_pretrained wrote (with model.safetensors), the name of one in the local hub cache, "
        f"`hub:NAME`, or {instead}"
    )
