"""Arguments of transformers' and TRL's trainers: which are the user's, which are set here, and what they are worth."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import torch
from transformers import Trainer

from fedtorch.config.validate import nearest
from fedtorch.core import devices
from fedtorch.core.errors import ConfigError
from fedtorch.train.settings import ClientConfig

KEY = "client.trainer.args"
REFUSED = {
    "output_dir": "a client leaves no files",
    "overwrite_output_dir": "a client leaves no files",
    "logging_dir": "a client leaves no files",
    "save_*": "a client leaves no files; checkpoint.every saves the run",
    "load_best_model_at_end": "the best round is chosen by eval.select_by",
    "push_to_hub": "a client sends its update, and nothing else leaves it",
    "hub_*": "a client sends its update, and nothing else leaves it",
    "report_to": "records are written by run.trackers",
    "run_name": "records are written by run.trackers",
    "project": "records are written by run.trackers",
    "trackio_*": "records are written by run.trackers",
    "disable_tqdm": "a run has one line per round",
    "eval_*": "models are evaluated as the section eval says",
    "do_eval": "models are evaluated as the section eval says",
    "per_device_eval_batch_size": "models are evaluated as the section eval says",
    "deepspeed": "a client is trained by one process",
    "fsdp*": "a client is trained by one process",
    "ddp_*": "a client is trained by one process",
    "parallelism_config": "a client is trained by one process",
    "local_rank": "a client is trained by one process",
    "seed": "every client and round has a seed of its own, from run.seed",
    "data_seed": "every client and round has a seed of its own, from run.seed",
    "resume_from_checkpoint": "what outlives a round is in the client's state; see client.optimizer_state",
    "max_steps": "set client.steps",
    "num_train_epochs": "set client.epochs",
    "use_cpu": "set system.device",
    "no_cuda": "set system.device",
    "use_mps_device": "set system.device",
    "use_liger_kernel": "it changes the model's classes for the whole process",
    "model_init_kwargs": "the model is task.model",
    "trust_remote_code": "no code of a model folder is ever run",
    "precompute_ref_log_probs": "it would take the round's weights as the reference; the start model is passed",
    "sync_ref_model": "the reference is the start model",
    "peft_config": "an adapter is task.model.adapter",
    "auto_find_batch_size": "it begins again from half-trained weights, with what memory is free; set "
    "per_device_train_batch_size",
}
"""Argument, or a pattern -> why it cannot be given, or what is set in its place."""
_PLAIN = {bool, int, float, str, NoneType}
_COUNTS = ("per_device_train_batch_size", "gradient_accumulation_steps")
_SEED = 0xFFFFFFFF  # numpy takes no more


def check_names(name: str, given: Mapping[str, Any], kind: type) -> None:
    """Refuse arguments that are set here, and names that the trainer does not have.

    Raises:
        ConfigError: it names the argument, and what is set in its place.
    """
    known, hints = [field.name for field in dataclasses.fields(kind) if field.init], get_type_hints(kind)
    for key, value in given.items():
        if reason := next((why for pattern, why in REFUSED.items() if fnmatchcase(key, pattern)), None):
            raise ConfigError(f"{KEY}.{key} is {value} but it is not the user's to set: {reason}; remove it")
        if key not in known:
            raise ConfigError(f"{KEY}.{key} is set but {name} has no argument `{key}`; {nearest(key, known)}")
        _check_type(name, key, value, hints[key])
    for key in _COUNTS:
        if given.get(key, 1) < 1:
            raise ConfigError(f"{KEY}.{key} is {given[key]} but {name} needs at least 1")


def _check_type(name: str, key: str, value: Any, hint: Any) -> None:
    """Refuse a value of another type where the field is a plain one: the library itself would find it in training."""
    kinds = get_args(hint) or (hint,)
    fits = type(value) in kinds or (float in kinds and type(value) is int)
    if set(kinds) <= _PLAIN and not fits:
        wanted = " or ".join("null" if one is NoneType else one.__name__ for one in kinds)
        raise ConfigError(f"{KEY}.{key} is {value!r} but {name} takes {wanted}; write it so")


def made(
    kind: type,
    given: Mapping[str, Any],
    *,
    hp: ClientConfig,
    device: torch.device,
    folder: Path,
    seed: int,
    steps: int | None = None,
    defaults: Mapping[str, Any],
    precision: str = "fp32",
) -> Any:
    """Arguments for one training: the user's over our defaults, and what only we know over both.

    steps: of the schedule, in place of the round's. defaults: further ones, of the kind.
    """
    length = {"num_train_epochs": float(hp.epochs)} if hp.epochs is not None else {"max_steps": steps or hp.steps}
    own = {
        "output_dir": str(folder), "save_strategy": "no", "eval_strategy": "no", "report_to": "none",
        "disable_tqdm": True, "seed": seed & _SEED, "data_seed": seed & _SEED, "use_cpu": not devices.is_gpu(device),
    }  # fmt: skip
    usual = {
        **defaults, "bf16": precision == "bf16", "fp16": precision == "fp16",
        "logging_strategy": "steps", "logging_steps": 1, "logging_nan_inf_filter": False,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of fields that TRL 1.16 has by an older name
        arguments = kind(**{**usual, **given, **own, **length})
    if devices.is_gpu(device):
        arguments._n_gpu = 1  # it counts all that the process sees, and would copy the model to each (DataParallel)
    return arguments


def check_values(
    name: str, kind: type, given: Mapping[str, Any], *, hp: ClientConfig, defaults: Mapping[str, Any], folder: Path
) -> None:
    """Make arguments, optimiser and schedule once, so that what the library refuses is said before a run begins.

    Raises:
        ConfigError: with the library's own words.
    """
    try:
        arguments = made(kind, given, hp=hp, device=devices.CPU, folder=folder, seed=0, defaults=defaults)
        if arguments.optim_target_modules is None and "lomo" not in arguments.optim:  # these look at the model
            Trainer(model=torch.nn.Linear(1, 1), args=arguments).create_optimizer_and_scheduler(1)
    except (TypeError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"{KEY} is refused by {name}: {error}") from error
