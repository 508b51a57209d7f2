"""Rules about losses that compare the model with another one, or rows with each other."""

from __future__ import annotations

from fedtorch.core.errors import ConfigError
from fedtorch.core.state_keys import WEIGHTS
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject


def the_reference_stays(plan: Plan) -> None:
    """Refuse algorithms that change what stands beside trained weights: the start's model could not be loaded again."""
    if plan.task.refers_to and plan.algorithm.travels.varying:
        raise ConfigError(
            f"algorithm.name is {plan.config.algorithm_name}, which changes the base of an adapter, but the task "
            f"`{plan.config.task_name}` compares with the model that the run starts from, whose base is then gone; set "
            "algorithm.name to another rule, such as fedavg"
        )


def a_round_has_weights_to_refer_to(plan: Plan) -> None:
    """Refuse a reference of the round where clients receive no weights."""
    if plan.task.refers_to == "round" and WEIGHTS not in plan.algorithm.travels.vectors:
        raise ConfigError(
            f"task.reference is round but with paradigm {plan.config.paradigm} and algorithm.name "
            f"{plan.config.algorithm_name} clients receive no weights; set task.reference to start"
        )


def rows_that_mix_come_in_whole_batches(plan: Plan) -> None:
    """Refuse batches of one row, by tokens or cut in halves, where a row's loss depends on others in its batch."""
    own_loop = [hp for hp in plan.settings if hp.trainer is None]
    if not plan.task.mixes_rows or not own_loop:
        return
    why = f"the task `{plan.config.task_name}` compares each row with others of its batch"
    if any(hp.batch_size < 2 for hp in own_loop):
        raise ConfigError(f"client.batch_size is 1 but {why}; set it to 2 or more")
    if any(hp.max_tokens_per_batch is not None for hp in own_loop):
        raise ConfigError(
            f"client.max_tokens_per_batch is set but {why}, and how many these are would depend on lengths; remove it"
        )
    if plan.config.system.oom_retry:
        raise ConfigError(f"system.oom_retry is true but {why}, which a batch in halves would change; set it to false")


def rows_that_mix_have_no_privacy_of_their_own(plan: Plan) -> None:
    """Refuse privacy of rows where a row's loss depends on other rows."""
    if plan.task.mixes_rows and plan.config.privacy.kind == "record":
        raise ConfigError(
            f"privacy.kind is record but the task `{plan.config.task_name}` compares each row with others, so that its "
            "gradient depends on them; choose another task or task.kind (dpo, ipo)"
        )


SUBJECT = Subject(
    "What a loss compares with",
    of_plan=(
        the_reference_stays,
        a_round_has_weights_to_refer_to,
        rows_that_mix_come_in_whole_batches,
        rows_that_mix_have_no_privacy_of_their_own,
    ),
)
