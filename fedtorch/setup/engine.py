"""The engine that a config asks for; what it cannot do is refused here, before the ranks meet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

import torch
from torch import nn

from fedtorch.algorithms.base import Algorithm
from fedtorch.config.schema import ClientConfig, Config
from fedtorch.core.errors import ConfigError
from fedtorch.core.weights import Partition
from fedtorch.tasks.base import Task
from fedtorch.train.deepspeed import DeepSpeedEngine
from fedtorch.train.engine import Engine
from fedtorch.train.model_parallel import ParameterOwners
from fedtorch.train.precision import has_fp16
from fedtorch.train.zero import checkpointable, is_installed

log = logging.getLogger(__name__)


def check_engine(
    config: Config, algorithm: Algorithm, task: Task, settings: Collection[ClientConfig], *, sizes: Collection[int]
) -> None:
    """Refuse what an engine cannot do. settings: every distinct one that a client trains with. sizes: of workers.

    Raises:
        ConfigError: names the keys.
    """
    engine = config.engine
    if engine.precision not in algorithm.precisions:
        raise ConfigError(
            f"engine.precision is {engine.precision} but algorithm.name is {config.algorithm_name}, which with these "
            "settings takes gradients that no loss scale follows; set engine.precision to bf16 or fp32"
        )
    on_cpu = config.system.device == "cpu" or not torch.cuda.is_available()
    if engine.precision == "fp16" and not has_fp16(torch.device("cpu" if on_cpu else "cuda")):
        raise ConfigError("engine.precision is fp16, which this CPU does not have; set it to bf16 or fp32")
    if engine.kind == "torch":
        return
    if not is_installed():
        raise ConfigError(
            "engine.kind is deepspeed, which is not installed; `pip install 'fedtorch-nlp[deepspeed]'` or set "
            "engine.kind to torch"
        )
    if engine.kind not in algorithm.engines:
        raise ConfigError(
            f"engine.kind is deepspeed but algorithm.name is {config.algorithm_name}, which works on the model's own "
            "parameters and gradients; set engine.kind to torch"
        )
    kinds = {(hp.optimizer, hp.no_decay) for hp in settings}
    if len(kinds) > 1:
        shown = " and ".join(sorted({name for name, _ in kinds})) if len({n for n, _ in kinds}) > 1 else "no_decay"
        raise ConfigError(
            f"engine.kind is deepspeed, whose one optimiser serves all clients of a worker, but per_client has several "
            f"({shown}); give all clients the same client.optimizer and client.no_decay"
        )
    if engine.stage and any(hp.optimizer == "adafactor" for hp in settings):
        raise ConfigError(
            f"client.optimizer is adafactor, which needs whole matrices, but engine.stage is {engine.stage}, which "
            "lays them end to end; set engine.stage to 0 or client.optimizer to adamw"
        )
    for size, odd in ((size, hp.accumulation) for size in sizes for hp in settings if hp.accumulation % size):
        raise ConfigError(
            f"client.accumulation is {odd} but the {size} ranks of a worker share a step's micro-batches; "
            f"set client.accumulation to a multiple of {size} (and client.batch_size lower) or "
            "system.ranks_per_worker to 1"
        )
    if engine.stage == 3 and config.partition.private and type(task).draw_private is not Task.draw_private:
        raise ConfigError(
            f"partition.private is set and the task `{config.task_name}` draws each client's private start from the "
            "whole model, but engine.stage is 3; set engine.stage to at most 2"
        )


def make_engine(
    config: Config, make_module: Callable[[], nn.Module], device: torch.device, *, hp: ClientConfig, trains: bool
) -> Engine:
    """The engine of one rank. trains: does it belong to a worker? A server that only serves needs no DeepSpeed.

    Raises:
        ConfigError: a pattern that matches nothing, or a model that the engine cannot take.
    """
    module, partition = make_module(), Partition(config.partition.private, config.partition.frozen)
    engine = config.engine
    if engine.kind == "deepspeed":
        if odd := next((n for n, p in module.named_parameters() if p.dtype != torch.float32), None):
            raise ConfigError(f"engine.kind is deepspeed but parameter `{odd}` is not fp32; set engine.kind to torch")
        if engine.activation_checkpointing and not checkpointable(module):
            raise ConfigError(
                f"engine.activation_checkpointing is true but the model of task `{config.task_name}` does not offer "
                "it; set it to false"
            )
    try:
        if engine.kind == "torch" or not trains:
            # beside DeepSpeed's workers, a server that only serves computes nothing
            precision = engine.precision if engine.kind == "torch" else "fp32"
            return Engine(module, partition, device, precision=precision, scale_power=engine.initial_scale_power)
        return DeepSpeedEngine(
            module,
            partition,
            device,
            settings=engine,
            hp=hp,
            make_module=make_module,
        )
    except ValueError as error:  # a pattern that matches nothing
        raise ConfigError(str(error)) from error


def divide(engine: Engine, config: Config, task: Task, sizes: Collection[int], own: int) -> None:
    """Note which rank of a worker computes which part of the model; DeepSpeed divides the work in its own way.

    sizes: of all workers, so that every rank refuses what one of them cannot do; own: of this rank's worker.

    Raises:
        ConfigError: the task's model, or what is private of it, cannot be divided among so many ranks.
    """
    if config.engine.kind != "torch":
        return
    for size in sorted(set(sizes) - {1}):
        owners = task.parameter_owners(engine.module, size)
        try:
            divided = ParameterOwners.of(owners, engine.private.names)
        except ValueError as error:
            raise ConfigError(f"system.ranks_per_worker is {size} but {error}") from error
        if size == own:
            engine.owners = divided
        if divided is None:
            log.warning(
                "system.ranks_per_worker is %d, but nothing divides a client's work: all ranks of a worker do the "
                "same; set it to 1",
                size,
            )


def share_engine(one: Config, other: Config) -> bool:
    """May two runs train in the same engine, one after the other?"""
    same = (one.task, one.partition, one.run.seed, one.engine) == (
        other.task,
        other.partition,
        other.run.seed,
        other.engine,
    )
    is_same_optimizer = (one.client.optimizer, one.client.no_decay) == (other.client.optimizer, other.client.no_decay)
    return same and (one.engine.kind == "torch" or is_same_optimizer)
