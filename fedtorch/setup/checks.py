"""Refuses what cannot work before the ranks meet: one function per rule, called in the order of `RULES`.

A rule raises ConfigError with the keys, their values and what to set. Rules about single keys are ranges in the
config's classes, those about two keys of the config in `__post_init__` there; here is what needs the task, the
algorithm or the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from fedtorch.comm.wire import KEY
from fedtorch.config.schema import Config
from fedtorch.core import devices
from fedtorch.core.errors import ConfigError
from fedtorch.core.extras import require
from fedtorch.core.overrides import overrides
from fedtorch.core.scores import LOSS, RECEIVED
from fedtorch.setup.lateness import clients_may_be_late
from fedtorch.setup.plan import Plan
from fedtorch.tasks.base import SERVER, Task
from fedtorch.train.engine import Engine
from fedtorch.train.precision import has_fp16
from fedtorch.train.zero import checkpointable


def check(plan: Plan) -> None:
    """Apply every rule about a run of which nothing is built yet.

    Raises:
        ConfigError: of the first rule that is broken.
    """
    for rule in RULES:
        rule(plan)


def check_module(config: Config, module: nn.Module) -> None:
    """Apply every rule about the model before an engine takes it.

    Raises:
        ConfigError: of the first rule that is broken.
    """
    for rule in MODULE_RULES:
        rule(config, module)


# Clients


def clients_are_the_tasks(plan: Plan) -> None:
    """`per_client` names clients of the task, or the server where it trains; a round finds as many as it wants."""
    if plan.config.per_client:
        names = [*plan.clients.names()]
        plan.config.check_client_names([*names, SERVER] if plan.training.server_examples() else names)
    plan.config.check_client_numbers(len(plan.clients))


def every_draw_counts(plan: Plan) -> None:
    """Where clients, large ones above all, are drawn more than once, each draw counts and nothing but the draws."""
    weighting = plan.algorithm.limits.weighting
    if plan.sampler.with_replacement and weighting != "equal":
        raise ConfigError(
            f"clients.sampling is {type(plan.sampler).__name__}, which draws with replacement, and algorithm.weights "
            f"is {weighting}, which does not count draws; set algorithm.weights to equal (1/K per draw, as in FedProx)"
        )


def the_sampler_draws_clients(plan: Plan) -> None:
    """The first round's cohort can be drawn."""
    assert plan.first_cohort or plan.sampler.may_be_empty


# The algorithm


def the_one_client_sends_its_model(plan: Plan) -> None:
    """With one client that has all data, the clients' evaluation needs its model."""
    if plan.config.paradigm == "centralized" and not plan.algorithm.exchanged_vectors:
        raise ConfigError(
            f"paradigm is centralized but algorithm.name is {plan.config.algorithm_name}, which sends nothing, so the "
            "one client's model would never be evaluated; set algorithm.name to fedavg"
        )


def someone_has_labels(plan: Plan) -> None:
    """Without a server that trains, and with an algorithm that trains on the task's loss, clients have labels."""
    config = plan.config
    if plan.task.has_labelled_clients:
        return
    if config.paradigm != "federated":
        raise ConfigError(
            f"paradigm is {config.paradigm} but the clients of the task `{config.task_name}` hold no labels, so "
            "there is nothing to train on without a server; set paradigm to federated"
        )
    if plan.algorithm.limits.needs_labels:
        raise ConfigError(
            f"algorithm.name is {config.algorithm_name} but the clients of the task `{config.task_name}` hold no "
            "labels; set algorithm.name to one that needs none, such as fedparsing"
        )


def the_algorithm_takes_the_settings(plan: Plan) -> None:
    """The algorithm's own rules about local training and about the task."""
    for settings in plan.settings:
        plan.algorithm.check(settings)
    plan.algorithm.check_task(plan.training)


def batches_by_length_have_lengths(plan: Plan) -> None:
    """Who puts examples into batches by length knows lengths."""
    if overrides(type(plan.task), "example_lengths", Task):
        return
    for name in ("group_by_length", "max_tokens_per_batch"):
        if any(getattr(hp, name) for hp in plan.settings):
            raise ConfigError(
                f"client.{name} is set but the task `{plan.config.task_name}` does not say how long its examples are; "
                f"remove client.{name}, or define the task's `example_lengths`"
            )


# The engine


def the_algorithm_takes_the_precision(plan: Plan) -> None:
    """Gradients that an algorithm takes by itself have no loss scale."""
    precision = plan.config.engine.precision
    if precision not in plan.algorithm.limits.precisions:
        raise ConfigError(
            f"engine.precision is {precision} but algorithm.name is {plan.config.algorithm_name}, which with these "
            "settings takes gradients that no loss scale follows; set engine.precision to bf16 or fp32"
        )


def the_device_has_the_precision(plan: Plan) -> None:
    """Not every CPU computes in fp16."""
    on_cpu = plan.config.system.device == "cpu" or not devices.count()
    if plan.config.engine.precision == "fp16" and on_cpu and not has_fp16(devices.CPU):
        raise ConfigError("engine.precision is fp16, which this CPU does not have; set it to bf16 or fp32")


def deepspeed_is_installed(plan: Plan) -> None:
    """DeepSpeed is an extra of the package."""
    if plan.config.engine.kind == "deepspeed":
        require("engine.kind: deepspeed", "deepspeed", extra="deepspeed", instead="set engine.kind to torch")


def the_algorithm_takes_deepspeed(plan: Plan) -> None:
    """Refuse an algorithm whose own changes of parameters or gradients DeepSpeed would lose."""
    engine, algorithm = plan.config.engine, plan.algorithm
    if engine.kind == "deepspeed" and not {"deepspeed", f"deepspeed/{engine.stage}"} & {*algorithm.limits.engines}:
        raise ConfigError(
            f"engine.kind is deepspeed and engine.stage {engine.stage} but algorithm.name is "
            f"{plan.config.algorithm_name}, which {algorithm.limits.why_not_deepspeed}; set engine.kind to torch"
        )


def deepspeed_has_one_optimizer(plan: Plan) -> None:
    """DeepSpeed builds one optimiser, so that clients may differ in its numbers but not in its kind."""
    kinds = {(hp.optimizer, hp.no_decay) for hp in plan.settings}
    if plan.config.engine.kind == "deepspeed" and len(kinds) > 1:
        shown = " and ".join(sorted({name for name, _ in kinds})) if len({n for n, _ in kinds}) > 1 else "no_decay"
        raise ConfigError(
            f"engine.kind is deepspeed, whose one optimiser serves all clients of a worker, but per_client has several "
            f"({shown}); give all clients the same client.optimizer and client.no_decay"
        )


def micro_batches_can_be_dealt(plan: Plan) -> None:
    """DeepSpeed's ranks share out the micro-batches of a step evenly."""
    is_deepspeed = plan.config.engine.kind == "deepspeed"
    sizes = [size for size in plan.topology.sizes if is_deepspeed and not plan.task.passes_together(size)]
    for size, odd in ((size, hp.accumulation) for size in sizes for hp in plan.settings if hp.accumulation % size):
        raise ConfigError(
            f"client.accumulation is {odd} but the {size} ranks of a worker share a step's micro-batches; "
            f"set client.accumulation to a multiple of {size} (and client.batch_size lower) or "
            "system.ranks_per_worker to 1"
        )


def private_weights_are_drawn_from_a_whole_model(plan: Plan) -> None:
    """In stage 3 no rank has a whole model to draw from."""
    config = plan.config
    draws = overrides(type(plan.task), "draw_private", Task)
    if config.engine.stage == 3 and config.partition.private and draws:
        raise ConfigError(
            f"partition.private is set and the task `{config.task_name}` draws each client's private start from the "
            "whole model, but engine.stage is 3; set engine.stage to at most 2"
        )


def a_server_with_data_trains_alone(plan: Plan) -> None:
    """A server that trains clients too would belong to a worker of several ranks, which train together."""
    system = plan.config.system
    if max(plan.topology.sizes) > 1 and system.server_works is True and plan.training.server_examples():
        raise ConfigError(
            f"system.ranks_per_worker is {system.ranks_per_worker} and system.server_works is true, but the "
            "server trains on data of its own, alone; set system.server_works to false"
        )


# Evaluation


def metrics_can_travel(plan: Plan) -> None:
    """A metric's name fits into a message, and is not the loss's."""
    name = plan.config.task_name
    for metric in plan.task.metrics():
        if not KEY.fullmatch(f"{RECEIVED}{metric}"):
            raise ConfigError(
                f"the task `{name}` measures {metric!r}; rename it so that {RECEIVED}{metric} matches {KEY.pattern}"
            )
        if metric == LOSS:
            raise ConfigError(f"the task `{name}` measures `{LOSS}`, which every evaluation adds itself; rename it")


def single_examples_have_scores(plan: Plan) -> None:
    """Scores of single examples exist for means over examples only."""
    if plan.config.eval.per_example and not plan.task.single_metrics():
        raise ConfigError(
            f"eval.per_example is true but no metric of the task `{plan.config.task_name}` is a mean over examples; "
            "set it to false"
        )


def the_choosing_metric_is_measured(plan: Plan) -> None:
    """The best model is chosen by a metric of the task."""
    chosen, known = plan.config.eval.select_by, (*plan.task.metrics(), LOSS)
    if chosen is not None and chosen not in known:
        raise ConfigError(
            f"eval.select_by is {chosen} but the task `{plan.config.task_name}` measures {', '.join(known)}"
        )


RULES: tuple[Callable[[Plan], None], ...] = (
    clients_are_the_tasks,
    every_draw_counts,
    the_sampler_draws_clients,
    clients_may_be_late,
    the_one_client_sends_its_model,
    someone_has_labels,
    the_algorithm_takes_the_settings,
    batches_by_length_have_lengths,
    the_algorithm_takes_the_precision,
    the_device_has_the_precision,
    deepspeed_is_installed,
    the_algorithm_takes_deepspeed,
    deepspeed_has_one_optimizer,
    micro_batches_can_be_dealt,
    private_weights_are_drawn_from_a_whole_model,
    a_server_with_data_trains_alone,
    metrics_can_travel,
    single_examples_have_scores,
    the_choosing_metric_is_measured,
)


# The model


def masters_are_fp32(config: Config, module: nn.Module) -> None:
    """DeepSpeed would round parameters of another kind."""
    if config.engine.kind == "deepspeed":
        if odd := next((n for n, p in module.named_parameters() if p.dtype != torch.float32), None):
            raise ConfigError(f"engine.kind is deepspeed but parameter `{odd}` is not fp32; set engine.kind to torch")


def activations_can_be_computed_again(config: Config, module: nn.Module) -> None:
    """Not every model offers to forget activations."""
    if config.engine.activation_checkpointing and not checkpointable(module):
        raise ConfigError(
            f"engine.activation_checkpointing is true but the model of task `{config.task_name}` does not offer "
            "it; set it to false"
        )


MODULE_RULES: tuple[Callable[[Config, nn.Module], None], ...] = (masters_are_fp32, activations_can_be_computed_again)


def something_is_trained(plan: Plan, engine: Engine) -> None:
    """Rounds in which no parameter can change are none."""
    if not engine.trained_names and plan.config.rounds:
        raise ConfigError(
            "nothing would be trained: of the model's parameters "
            f"{len(engine.frozen.names)} are frozen by the partition, {len(engine.fixed)} have requires_grad False; "
            "take patterns out of partition.frozen, or give the model something to train (task.model.adapter)"
        )
