"""Rules about the engine: precision, DeepSpeed, ranks that train together, and the model."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import nn

from fedtorch.config.schema import Config
from fedtorch.core import devices
from fedtorch.core.errors import ConfigError
from fedtorch.core.extras import require
from fedtorch.core.overrides import overrides
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject
from fedtorch.tasks.base import Task
from fedtorch.train.activations import checkpointable
from fedtorch.train.attention import FLASH
from fedtorch.train.engine import Engine
from fedtorch.train.optim import steps_by_muon
from fedtorch.train.precision import DTYPES, has_fp16


def the_algorithm_takes_the_precision(plan: Plan) -> None:
    """Refuse fp16 for algorithms that take gradients by themselves: no loss scale follows these."""
    precision = plan.config.engine.precision
    if precision not in (*plan.algorithm.limits.precisions, "tf32"):
        raise ConfigError(
            f"engine.precision is {precision} but algorithm.name is {plan.config.algorithm_name}, which with these "
            "settings takes gradients that no loss scale follows; set engine.precision to bf16 or fp32"
        )


def the_device_has_the_precision(plan: Plan) -> None:
    """Refuse fp16 on a CPU that does not compute in it."""
    on_cpu = plan.config.system.device == "cpu" or not devices.count()
    if plan.config.engine.precision == "fp16" and on_cpu and not has_fp16(devices.CPU):
        raise ConfigError("engine.precision is fp16, which this CPU does not have; set it to bf16 or fp32")


def flash_attention_has_what_it_needs(plan: Plan) -> None:
    """Refuse flash attention without a GPU, in fp32, where bits are to be the same, or without its package."""
    config = plan.config
    if config.engine.attention != FLASH:
        return
    reasons = {
        "no GPU is used, and it has no other kernels": config.system.device == "cpu" or not devices.count(),
        f"engine.precision is {config.engine.precision}, and it computes in 16 bits alone": (
            config.engine.precision not in DTYPES
        ),
        "system.deterministic is true, and it adds up gradients in any order": config.system.deterministic,
        "the package flash-attn, which is built for each torch and CUDA, is not installed": (
            find_spec("flash_attn") is None
        ),
    }
    if why := next((reason for reason, holds in reasons.items() if holds), None):
        raise ConfigError(f"engine.attention is {FLASH} but {why}; set engine.attention to sdpa")


def split_engines_have_the_kind_of_gpu(plan: Plan) -> None:
    """Refuse DeepSpeed and FSDP on GPUs of a kind over which they do not exchange here: Intel's and Apple's."""
    engine, device = plan.config.engine.kind, plan.config.system.device
    kind = devices.kind().type if device == "auto" else device
    if engine != "torch" and kind not in ("cpu", devices.WITH_NCCL):
        raise ConfigError(
            f"engine.kind is {engine}, whose ranks exchange over NCCL, but the GPUs here are of kind {kind}; set "
            "engine.kind to torch, or system.device to cpu"
        )


def deepspeed_is_installed(plan: Plan) -> None:
    """Refuse DeepSpeed where it is not installed: it is an extra of the package."""
    if plan.config.engine.kind == "deepspeed":
        require("engine.kind: deepspeed", "deepspeed", extra="deepspeed", instead="set engine.kind to torch")


def the_algorithm_takes_a_split_model(plan: Plan) -> None:
    """Refuse an algorithm whose own changes of parameters or gradients DeepSpeed or FSDP would lose."""
    engine, algorithm = plan.config.engine, plan.algorithm
    stage = 3 if engine.kind == "fsdp" else engine.stage  # which asks the same of an algorithm
    if engine.kind != "torch" and not {"deepspeed", f"deepspeed/{stage}"} & {*algorithm.limits.engines}:
        staged = "" if engine.kind == "fsdp" else f" and engine.stage {stage}"
        raise ConfigError(
            f"engine.kind is {engine.kind}{staged} but algorithm.name is "
            f"{plan.config.algorithm_name}, which {algorithm.limits.why_not_deepspeed}; set engine.kind to torch"
        )


def deepspeed_has_one_optimizer(plan: Plan) -> None:
    """Refuse clients with optimisers of several kinds under DeepSpeed, which builds one optimiser."""
    kinds = {(hp.optimizer, hp.no_decay) for hp in plan.settings}
    if plan.config.engine.kind == "deepspeed" and len(kinds) > 1:
        shown = " and ".join(sorted({name for name, _ in kinds})) if len({n for n, _ in kinds}) > 1 else "no_decay"
        raise ConfigError(
            f"engine.kind is deepspeed, whose one optimiser serves all clients of a worker, but per_client has several "
            f"({shown}); give all clients the same client.optimizer and client.no_decay"
        )


def micro_batches_can_be_dealt(plan: Plan) -> None:
    """Refuse an accumulation that the ranks of a worker with a split model cannot share out evenly."""
    is_split = plan.config.engine.kind != "torch"
    sizes = [size for size in plan.topology.sizes if is_split and not plan.task.passes_together(size)]
    for size, odd in ((size, hp.accumulation) for size in sizes for hp in plan.settings if hp.accumulation % size):
        raise ConfigError(
            f"client.accumulation is {odd} but the {size} ranks of a worker share a step's micro-batches; "
            f"set client.accumulation to a multiple of {size} (and client.batch_size lower) or "
            "system.ranks_per_worker to 1"
        )


def private_weights_are_drawn_from_a_whole_model(plan: Plan) -> None:
    """Refuse split parameters where a private start is drawn from the whole model: no rank has one."""
    config = plan.config
    draws = overrides(type(plan.task), "draw_private", Task)
    engine = config.engine
    splits = engine.splits_parameters and (engine.kind == "deepspeed" or max(plan.topology.sizes) > 1)
    if splits and config.partition.private and draws:
        said, instead = ("stage is 3", "stage to at most 2") if engine.stage else ("kind is fsdp", "kind to torch")
        raise ConfigError(
            f"partition.private is set and the task `{config.task_name}` draws each client's private start from the "
            f"whole model, but engine.{said}; set engine.{instead}"
        )


def a_server_with_data_trains_alone(plan: Plan) -> None:
    """Refuse a server that trains on data of its own and belongs to a worker of several ranks."""
    system = plan.config.system
    if max(plan.topology.sizes) > 1 and system.server_works is True and plan.training.server_examples():
        raise ConfigError(
            f"system.ranks_per_worker is {system.ranks_per_worker} and system.server_works is true, but the "
            "server trains on data of its own, alone; set system.server_works to false"
        )


def muon_has_whole_matrices(plan: Plan) -> None:
    """Refuse Muon under DeepSpeed and FSDP, whose optimisers see flat parts of parameters."""
    kind = plan.config.engine.kind
    if kind != "torch" and any(hp.optimizer == "muon" for hp in plan.settings):
        raise ConfigError(
            f"client.optimizer is muon, which needs whole matrices, but engine.kind is {kind}; set engine.kind to "
            "torch, or client.optimizer to adamw"
        )


def a_quantized_base_has_the_plain_engine(config: Config, module: nn.Module) -> None:
    """Refuse a base of few bits under DeepSpeed and FSDP, which split parameters of floating kinds."""
    kind = config.engine.kind
    if kind != "torch" and not all(parameter.is_floating_point() for parameter in module.parameters()):
        raise ConfigError(
            f"engine.kind is {kind} but task.model.quantize is set, whose packed weights are no numbers that could be "
            "split; set engine.kind to torch, or remove task.model.quantize"
        )


def masters_are_fp32(config: Config, module: nn.Module) -> None:
    """Refuse parameters that are not fp32 under DeepSpeed, which would round them, and trained ones under FSDP."""
    kind = config.engine.kind
    seen = [(n, p) for n, p in module.named_parameters() if kind == "deepspeed" or p.requires_grad]
    if kind != "torch" and (odd := next((n for n, p in seen if p.dtype != torch.float32), None)):
        raise ConfigError(f"engine.kind is {kind} but parameter `{odd}` is not fp32; set engine.kind to torch")


def what_is_trained_has_rows(config: Config, module: nn.Module) -> None:
    """Refuse trained parameters of one number without a dimension under FSDP, which shares out rows."""
    odd = next((n for n, p in module.named_parameters() if p.requires_grad and not p.ndim), None)
    if config.engine.kind == "fsdp" and odd is not None:
        raise ConfigError(
            f"engine.kind is fsdp, which shares out the rows of parameters, but `{odd}` is a single number that is "
            "trained; set engine.kind to torch or deepspeed"
        )


def activations_can_be_computed_again(config: Config, module: nn.Module) -> None:
    """Refuse activation checkpointing for a model that does not offer it."""
    if config.engine.activation_checkpointing and not checkpointable(module):
        raise ConfigError(
            f"engine.activation_checkpointing is true but the model of task `{config.task_name}` does not offer "
            "it; set it to false"
        )


def muon_has_matrices(plan: Plan, engine: Engine) -> None:
    """Refuse Muon where its patterns name no matrix that is trained."""
    shapes = [*zip(engine.shared.names, engine.shared.shapes, strict=True)]
    shapes += zip(engine.private.names, engine.private.shapes, strict=True)
    for hp in plan.settings:
        if hp.optimizer == "muon" and not any(steps_by_muon(name, shape, hp) for name, shape in shapes):
            raise ConfigError(
                f"client.muon_for is {list(hp.muon_for)}, which fits no matrix among the trained parameters, such as "
                f"`{shapes[0][0]}` of {shapes[0][1]}; name the matrices of the hidden layers, or set client.optimizer "
                "to adamw"
            )


def something_is_trained(plan: Plan, engine: Engine) -> None:
    """Refuse rounds in which no parameter can change."""
    if not engine.trained_names and plan.config.rounds:
        raise ConfigError(
            "nothing would be trained: of the model's parameters "
            f"{len(engine.frozen.names)} are frozen by the partition, {len(engine.fixed)} have requires_grad False; "
            "take patterns out of partition.frozen, or give the model something to train (task.model.adapter)"
        )


SUBJECT = Subject(
    "Engine and model",
    of_plan=(
        the_algorithm_takes_the_precision,
        the_device_has_the_precision,
        flash_attention_has_what_it_needs,
        deepspeed_is_installed,
        split_engines_have_the_kind_of_gpu,
        the_algorithm_takes_a_split_model,
        deepspeed_has_one_optimizer,
        micro_batches_can_be_dealt,
        private_weights_are_drawn_from_a_whole_model,
        a_server_with_data_trains_alone,
        muon_has_whole_matrices,
    ),
    of_module=(
        a_quantized_base_has_the_plain_engine,
        masters_are_fp32,
        what_is_trained_has_rows,
        activations_can_be_computed_again,
    ),
    of_engine=(something_is_trained, muon_has_matrices),
)
