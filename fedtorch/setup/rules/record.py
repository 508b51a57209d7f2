"""Rules of `privacy.kind: record`: what would let more of a row leave its silo than one bounded, noised gradient."""

from __future__ import annotations

from torch import nn

from fedtorch.algorithms.fedavg import FedAvg, FedOpt
from fedtorch.algorithms.sums import why_not_record
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError
from fedtorch.core.overrides import overrides
from fedtorch.setup.plan import Plan
from fedtorch.setup.record import threshold
from fedtorch.setup.rules.subject import Subject
from fedtorch.tasks.base import Task
from fedtorch.tasks.own import OwnTask
from fedtorch.tasks.prepared import InFolder

WHY = "privacy.kind is record but "


def declared_weights_are_declared(plan: Plan) -> None:
    """Refuse weights by declared numbers where none are declared."""
    if plan.algorithm.limits.weighting == "declared" and plan.config.privacy.kind != "record":
        raise ConfigError(
            "algorithm.weights is declared but privacy.kind is not record, where privacy.units declares numbers; set "
            "algorithm.weights to size"
        )


def every_silo_trains_by_itself(plan: Plan) -> None:
    """Refuse one client with the rows of all: nobody would add noise before they are together."""
    if plan.config.paradigm == "centralized":
        raise ConfigError(f"{WHY}paradigm is centralized, where rows leave their silos; set paradigm to federated")


def all_that_leaves_is_noised(plan: Plan) -> None:
    """Refuse algorithms of which something leaves a silo that is no function of noised steps."""
    if reason := why_not_record(plan.algorithm):
        name = plan.config.algorithm_name or type(plan.algorithm).__name__
        raise ConfigError(f"{WHY}algorithm.name is {name}, which {reason}")


def batches_are_drawn_from_units(plan: Plan) -> None:
    """Refuse settings of batches that look at rows, or that a Poisson batch has no use for."""
    refused = {
        "accumulation": (1, "a step has one batch, of which privacy.physical units are in memory at once"),
        "group_by_length": (False, "who shares a batch would depend on other rows"),
        "max_tokens_per_batch": (None, "how large a batch is would depend on rows"),
    }
    for hp in plan.settings:
        for key, (plain, reason) in refused.items():
            if getattr(hp, key) != plain:
                raise ConfigError(f"{WHY}client.{key} is {getattr(hp, key)}: {reason}; remove client.{key}")


def a_silo_trains_in_one_process(plan: Plan) -> None:
    """Refuse engines that split a model or skip steps by data, and a server that trains silos itself."""
    config = plan.config
    server_works = config.system.server_works is True and plan.topology.num_ranks > 1
    for key, value, plain, reason in (
        ("engine.kind", config.engine.kind, "torch", "an engine that splits a model has no gradients of single units"),
        ("system.ranks_per_worker", config.system.ranks_per_worker, 1, "a silo's units are summed on one rank"),
        ("system.server_works", server_works, False, "the server would hold rows of a silo"),
    ):
        if value != plain:
            raise ConfigError(f"{WHY}{key} is {str(value).lower()}: {reason}; set it to {str(plain).lower()}")
    if config.engine.precision == "fp16":
        raise ConfigError(f"{WHY}engine.precision is fp16, which leaves out steps by what is in them; set it to bf16")


def vmap_keeps_activations(plan: Plan) -> None:
    """Refuse vmap over units where activations are computed again: torch cannot do both."""
    if plan.config.engine.activation_checkpointing and plan.config.privacy.per_unit == "vmap":
        raise ConfigError(
            f"{WHY}privacy.per_unit is vmap and engine.activation_checkpointing is true, which torch cannot do "
            "together; set privacy.per_unit to loop (auto takes it), or engine.activation_checkpointing to false"
        )


def rows_are_used_as_they_are(plan: Plan) -> None:
    """Refuse tasks whose use of one row depends on others: subsets of rows, packed rows, weights of classes."""
    task = plan.task
    if isinstance(task, InFolder) and task.max_train is not None:
        raise ConfigError(
            f"{WHY}task.max_train is {task.max_train}: one row more would change which others are used; remove it, and "
            "train for fewer client.steps"
        )
    for key, plain, reason in (
        ("pack", False, "rows would share a batch's row"),
        ("class_weights", None, "a row would weigh by how many others have its label"),
        ("long", "truncate", "a row would be as many rows as it has windows"),
    ):
        value = getattr(task, key, plain)
        if value != plain and not (key == "class_weights" and not isinstance(value, str)):
            raise ConfigError(f"{WHY}task.{key} is {str(value).lower()}: {reason}; set it to {str(plain).lower()}")


def nothing_passes_between_two_sides(plan: Plan) -> None:
    """Refuse models whose two sides exchange keys and values of each row: these have no noise."""
    if overrides(type(plan.task), "passes_together", Task):
        raise ConfigError(
            f"{WHY}the model of the task {plan.config.task_name} has two sides, between which keys and values of each "
            "row pass without noise; choose another task"
        )


def nothing_public_is_made_of_rows(plan: Plan) -> None:
    """Refuse vocabularies and label sets that are found in silos' rows: they are public in every model."""
    task = plan.task
    if not isinstance(task, OwnTask):
        return
    if task.source_model.random is not None and task.tokenizer is None:
        raise ConfigError(
            f"{WHY}task.tokenizer is not set, so a vocabulary would be made of silos' rows; name one with "
            "task.tokenizer"
        )
    if task.has_labels and not task.data.labels:
        raise ConfigError(
            f"{WHY}task.data.labels is not set, so the labels would be those found in silos' rows; declare them there"
        )


def delta_is_less_than_one_unit(plan: Plan) -> None:
    """Refuse δ above 1/units: to publish one unit would keep the promise."""
    for name, units in plan.config.privacy.units.items():
        delta = plan.config.privacy.of_silo(name).delta
        if delta is not None and delta > 1 / units:
            raise ConfigError(
                f"privacy.delta is {delta:g} for the silo {name!r}, which declares {units} units; above 1/{units} a "
                "mechanism that publishes one of them would keep the promise; set it well below that"
            )


def a_shared_round_is_one_gradient(plan: Plan) -> None:
    """Refuse more than one step of a round, and rules beside a sum, where silos share the noise on it."""
    config = plan.config
    if config.privacy.noise_at != "shared":
        return
    why = "privacy.noise_at is shared but "
    if any(hp.steps != 1 for hp in plan.settings):
        raise ConfigError(
            f"{why}client.steps is not 1: after a step of its own a unit would be in several gradients of a round; set "
            "client.steps to 1, and more rounds"
        )
    algorithm = plan.algorithm
    if not isinstance(algorithm, FedAvg) or type(algorithm) not in (FedAvg, FedOpt) or algorithm.robust is not None:
        raise ConfigError(
            f"{why}algorithm.name is {config.algorithm_name}, with which a round is more than one sum of gradients; "
            "set it to fedavg or fedopt, without algorithm.robust"
        )
    if algorithm.weights != "declared":
        raise ConfigError(
            f"{why}algorithm.weights is {algorithm.weights}: a unit counts the same in whatever silo it is; set "
            "algorithm.weights to declared"
        )
    if config.server.optimizer == "none":
        raise ConfigError(f"{why}server.optimizer is none: the server steps along the gradient; set it to sgd or adam")
    if config.clients.drawn != "all":
        raise ConfigError(
            f"{why}clients.per_round is {config.clients.drawn}: all silos have to share the noise; set all"
        )
    if config.partition.private:
        raise ConfigError(f"{why}partition.private is set: nothing would train it; set partition.private to []")


def enough_of_those_who_answer_are_honest(plan: Plan) -> None:
    """Refuse as many colluders as a sum may have parts, and workers without a silo: their noise would be missing."""
    config, workers = plan.config.privacy, len(plan.topology.workers)
    if config.noise_at == "shared" and workers > len(plan.clients):
        raise ConfigError(
            f"privacy.noise_at is shared but there are {workers} workers for {len(plan.clients)} silos, and one "
            f"without a silo has no part in a sum; start {len(plan.clients) + 1} ranks"
        )
    if config.noise_at == "shared" and config.colluders >= (needed := threshold(plan)):
        raise ConfigError(
            f"privacy.colluders is {config.colluders} but a sum is opened with {needed} parts (privacy.secure_sum."
            f"threshold of {workers} workers); set privacy.colluders to {needed - 1} or less"
        )


def units_do_not_mix(config: Config, module: nn.Module) -> None:
    """Refuse batch norm, and experts whose load is part of the loss: a row's gradient would depend on other rows."""
    if config.privacy.kind != "record":
        return
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"{WHY}the model has batch norm ({name}), in which rows of a batch mix; choose a model with layer norm"
            )
    if getattr(getattr(module, "config", None), "output_router_logits", False):
        raise ConfigError(
            f"{WHY}the model's loss has a part over its experts' load, in which rows of a batch mix; set "
            "task.model.output_router_logits to false"
        )


ALWAYS = Subject("Declared numbers", of_plan=(declared_weights_are_declared,))
SUBJECT = Subject(
    "Privacy of rows and persons",
    applies=lambda plan: plan.config.privacy.kind == "record",
    of_plan=(
        every_silo_trains_by_itself,
        all_that_leaves_is_noised,
        batches_are_drawn_from_units,
        a_silo_trains_in_one_process,
        vmap_keeps_activations,
        rows_are_used_as_they_are,
        nothing_passes_between_two_sides,
        nothing_public_is_made_of_rows,
        delta_is_less_than_one_unit,
        a_shared_round_is_one_gradient,
        enough_of_those_who_answer_are_honest,
    ),
    of_module=(units_do_not_mix,),
)
