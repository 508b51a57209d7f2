"""Rules of `privacy.eval`: what is no number from 0 to 1 for each row, and rows that are not one silo's."""

from __future__ import annotations

from fedtorch.core.errors import ConfigError
from fedtorch.privacy.record.held_out import PER_ROW
from fedtorch.rounds.scoring import chooses_by
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject
from fedtorch.tasks.prepared import InFolder

WHY = "privacy.eval is set but "


def what_is_counted_is_a_number_of_each_row(plan: Plan) -> None:
    """Refuse metrics that are no number from 0 to 1 for each row: one unit could change their sum by more than 1."""
    config, task = plan.config, plan.task
    assert config.privacy.eval is not None
    known = [name for name in PER_ROW if name in task.single_metrics()]
    has = f"the task `{config.task_name}` has {', '.join(known) or 'none'}"
    chosen = chooses_by(config.eval, task)
    for name in (*(config.privacy.eval.metrics or (chosen,)), *config.eval.metrics):
        if name not in known:
            raise ConfigError(
                f"{WHY}the score {name} is no number from 0 to 1 for each row, so noise that hides one is not known; "
                f"{has}: name that in privacy.eval.metrics and eval.select_by, and none in eval.metrics"
            )
    if chosen not in (config.privacy.eval.metrics or (chosen,)):
        raise ConfigError(
            f"{WHY}the best model is chosen by {chosen}, which privacy.eval.metrics does not name; set eval.select_by "
            f"to {config.privacy.eval.metrics[0]}"
        )


def held_out_rows_are_one_silos(plan: Plan) -> None:
    """Refuse a split that clients share, whose units would be in several silos' scores, and subsets of its rows."""
    config, task = plan.config.privacy.eval, plan.task
    assert config is not None
    for name, splits in config.units.items():
        for split in splits:
            if name in task.sharing(split):
                raise ConfigError(
                    f"{WHY}the rows of {split} are one file for all clients; deal them, or hold them out as nobody's"
                )
            if isinstance(task, InFolder) and task.max_rows(split) is not None:
                raise ConfigError(
                    f"{WHY}task.max_{split} is {task.max_rows(split)}: one row more would change which others "
                    "are used; remove it"
                )


SUBJECT = Subject(
    "Scores with noise",
    applies=lambda plan: plan.config.privacy.eval is not None,
    of_plan=(what_is_counted_is_a_number_of_each_row, held_out_rows_are_one_silos),
)
