"""One side's trained model of a client, out of a run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import GPT2LMHeadModel
from transformers.utils import logging

from fedtorch.checkpoint.store import Checkpoints
from fedtorch.core import devices
from fedtorch.core.client import folder_name
from fedtorch.core.errors import CheckpointError, ConfigError, FedtorchError
from fedtorch.core.model_folder import holds_model
from fedtorch.core.state_keys import BEST_IS_RECEIVED, BEST_PRIVATE, BEST_WEIGHTS, PRIVATE
from fedtorch.core.weights import Layout, Partition
from fedtorch.models.adapters.saved import is_adapter
from fedtorch.models.saved import load_model
from fedtorch.models.side import Passing
from fedtorch.text.model_files import load_from
from fedtorch.tracking.run_folder import Run, read_run
from fedtorch.train.precision import asking

SideName = Literal["user", "assistant"]
SIDES: tuple[SideName, SideName] = ("user", "assistant")


def open_run(folder: Path, client: str | None) -> Run:
    """Read a run, and check by `check_run` that its `client` can be talked to."""
    return check_run(read_run(folder), client)


def check_run(run: Run, client: str | None) -> Run:
    """Check that `client` of a run can be talked to; returns the run.

    Raises:
        ConfigError: it is no run of two-side dialogs, has no model yet, or no such client.
    """
    folder = run.folder
    if run.setting("task.name") != "dialog":
        raise ConfigError(
            f"{folder} is a run of task.name {run.setting('task.name')}, whose model does not talk; name a run of "
            "causal_lm or dialog (for answers to rows of a file there is `fedtorch predict`)"
        )
    if client is None:
        raise ConfigError(f"--client is missing; name one of {', '.join(run.clients)}")
    if client not in run.clients:
        raise ConfigError(f"--client is {client} but the run's clients are {', '.join(run.clients)}")
    models = model_folder(folder, client)
    for side in SIDES:
        if not holds_model(models / side):
            raise ConfigError(
                f"{folder} has no trained model: {(models / side).relative_to(folder)} is missing; let the run end "
                f"(the same command resumes it), or write one: fedtorch export {folder} --client {client}"
            )
    return run


def model_folder(folder: Path, client: str) -> Path:
    """Where the models of `client` are in a run's folder: a folder of its own, or the one for all clients."""
    own = folder / "model" / folder_name(client)
    return own if any(holds_model(own / side) for side in SIDES) else folder / "model"


def load_side(run: Run, client: str, side: SideName) -> GPT2LMHeadModel:
    """The model that `client` was evaluated with at the end, on the CPU, ready to be asked.

    In runs of version 0.1 `model/` has what is shared or frozen only; there the client's own part is taken from the
    last checkpoint.

    Raises:
        ConfigError: the model cannot be loaded. CheckpointError: the client's own part is missing or damaged.
    """
    models = model_folder(run.folder, client)
    folder = models / side
    logging.disable_progress_bar()  # of loading weights
    try:
        if is_adapter(folder):
            adapted: GPT2LMHeadModel = load_model(folder)
            return adapted
        model: GPT2LMHeadModel = load_from(GPT2LMHeadModel, folder, dtype=torch.float32)
    except FedtorchError:
        raise
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise ConfigError(f"{folder} holds no GPT-2 ({type(error).__name__}); run the training again") from error
    if models != run.folder / "model":
        return model.eval()
    parameters = dict(model.named_parameters())
    both = {f"{name}.{key}": tensor for name in SIDES for key, tensor in parameters.items()}
    partition = Partition(*(tuple(run.setting(f"partition.{kind}") or ()) for kind in ("private", "frozen")))
    shared, private, _ = partition.split(both)
    state = _state(run, client)
    own = {BEST_WEIGHTS: shared} if BEST_WEIGHTS in state and not state[BEST_IS_RECEIVED] else {}
    if private:
        own[BEST_PRIVATE if BEST_PRIVATE in state else PRIVATE] = private
    with torch.no_grad():
        for key, names in own.items():
            layout = Layout.of({name: both[name] for name in names})
            if key not in state or state[key].numel() != layout.size:
                raise CheckpointError(f"{run.folder / 'checkpoints'} has no model of {client} that fits; train again")
            for name, view in layout.view(state[key]).items():
                if name.startswith(f"{side}."):
                    parameters[name.removeprefix(f"{side}.")].copy_(view)
    return model.eval()


def passing_of(run: Run) -> Passing:
    """How keys and values passed in training."""
    names = ("kv_grad", "kv_transfer", "kv_dtype")
    return Passing(**{name: value for name in names if (value := run.setting(f"task.{name}")) is not None})


def chosen_device(choice: str) -> torch.device:
    """The device of a chat: as a run's, by the option `--device`.

    Raises:
        ConfigError: it is to be a GPU, and torch finds none.
    """
    return devices.own(choice, key="--device")


def computing(run: Run, device: torch.device) -> AbstractContextManager[Any]:
    """The models of the run are asked inside it: the run's precision, or fp32 where the device does not have it."""
    return asking(str(run.setting("engine.precision") or "fp32"), device)


def _state(run: Run, client: str) -> Mapping[str, Tensor | Any]:
    """The client's tensors in the last checkpoint, and `best/is_received`."""
    checkpoints = Checkpoints(run.folder / "checkpoints", keep=1)
    found = checkpoints.latest()
    if found is None:
        return {}
    state = checkpoints.load_client(found, client)
    return {**state.tensors, BEST_IS_RECEIVED: state.numbers.get(BEST_IS_RECEIVED, 0)}
