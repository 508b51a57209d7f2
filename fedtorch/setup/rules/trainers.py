"""Rules of `client.trainer`: what a trainer from outside the package's own loop cannot be combined with."""

from __future__ import annotations

from torch import nn

from fedtorch.algorithms.sums import why_not_trainer
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject
from fedtorch.train.attacks.settings import OF_ROWS
from fedtorch.train.settings import TrainerConfig
from fedtorch.trainers.named import trainer_of

WHY = "client.trainer is {} but "


def the_trainer_is_known(plan: Plan) -> None:
    """Refuse trainers that are not there, and arguments that are not theirs, or not the user's to set."""
    for hp in plan.settings:
        if hp.trainer is not None:
            trainer_of(hp.trainer).check(hp, plan.training)


def a_script_trains_itself(plan: Plan) -> None:
    """Refuse to train the model of a script by anything that asks the task for batches."""
    for hp in plan.settings:
        if hp.trainer is None or not (hp.trainer.name == "script" or hp.trainer.is_function):
            raise ConfigError(
                f"client.trainer is {'null' if hp.trainer is None else hp.trainer.name} but task.name is script, whose "
                "batches only the script itself makes; set client.trainer to script"
            )


def the_algorithm_leaves_steps_alone(plan: Plan) -> None:
    """Refuse algorithms that change single steps, or train in a way of their own: a trainer's steps are its own."""
    if reason := why_not_trainer(plan.algorithm):
        name = plan.config.algorithm_name or type(plan.algorithm).__name__
        raise ConfigError(
            f"{WHY.format(_trainers(plan)[0].name)}algorithm.name is {name}, which {reason}; set algorithm.name to "
            "fedavg, or remove client.trainer"
        )


def losses_are_told(plan: Plan) -> None:
    """Refuse weights by losses where the trainer does not tell the loss of every step."""
    weighting = plan.algorithm.limits.weighting
    if weighting not in ("loss_reduction", "lorar"):
        return
    for trainer in _trainers(plan):
        if not trainer_of(trainer).tells_losses:
            raise ConfigError(
                f"{WHY.format(trainer.name)}algorithm.weights is {weighting}, and it does not tell the loss of every "
                "step; set algorithm.weights to size, or client.trainer.args.logging_steps to 1"
            )


def a_trainer_has_one_process(plan: Plan) -> None:
    """Refuse DeepSpeed and workers of several ranks: a trainer would begin a group of its own, or wait for one."""
    config, name = plan.config, _trainers(plan)[0].name
    for key, value, plain in (
        ("engine.kind", config.engine.kind, "torch"),
        ("system.ranks_per_worker", max(plan.topology.sizes), 1),
    ):
        if value != plain:
            raise ConfigError(f"{WHY.format(name)}{key} is {value}; set it to {plain}")


def noise_is_added_in_steps(plan: Plan) -> None:
    """Refuse the privacy of rows: its noise is part of every step."""
    if plan.config.privacy.kind == "record":
        raise ConfigError(
            f"{WHY.format(_trainers(plan)[0].name)}privacy.kind is record, whose noise is part of every step of the "
            "package's own loop; remove client.trainer, or set privacy.kind to client"
        )


def the_task_has_raw_rows(plan: Plan) -> None:
    """Refuse raw rows where the task has none, or where an attack changes what it has tokenised."""
    for trainer in _trainers(plan):
        if not trainer_of(trainer).wants_raw:
            continue
        if not plan.training.raw_columns:
            raise ConfigError(
                f"{WHY.format(trainer.name)}it reads raw rows, which the task {plan.config.task_name} does not have; "
                "use data of your own (causal_lm, preference)"
            )
        if plan.config.attack.kind in OF_ROWS:
            raise ConfigError(
                f"{WHY.format(trainer.name)}attack.kind is {plan.config.attack.kind}, which changes tokenised examples "
                "that a trainer of raw rows does not read; set attack.kind to one that changes updates (signflip), or "
                "client.trainer to one that reads examples (transformers)"
            )


def the_model_is_the_trainers(config: Config, module: nn.Module) -> None:
    """Refuse a model that the trainer cannot train, such as a reward trainer's without a head of one number."""
    for hp in (config.client, *map(config.client_for, config.per_client)):
        if hp.trainer is not None:
            trainer_of(hp.trainer).check_module(module)


def _trainers(plan: Plan) -> list[TrainerConfig]:
    """The trainers that clients have, each once."""
    found = {hp.trainer for hp in plan.settings if hp.trainer is not None}
    return sorted(found, key=lambda trainer: trainer.name)


SUBJECT = Subject(
    "Trainers from outside",
    applies=lambda plan: any(hp.trainer is not None for hp in plan.settings),
    of_plan=(
        the_trainer_is_known,
        the_algorithm_leaves_steps_alone,
        losses_are_told,
        a_trainer_has_one_process,
        noise_is_added_in_steps,
        the_task_has_raw_rows,
    ),
    of_module=(the_model_is_the_trainers,),
)
SCRIPTS = Subject(
    "Scripts of the user's",
    applies=lambda plan: plan.config.task_name == "script",
    of_plan=(a_script_trains_itself,),
)
