"""Rules about `attack`, which makes clients cheat on purpose."""

from __future__ import annotations

import os
from difflib import get_close_matches

from fedtorch.algorithms.message import message_bytes
from fedtorch.core.errors import ConfigError
from fedtorch.rounds.context import keeps_state
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject
from fedtorch.train.attacks.rows import LabelledTask
from fedtorch.train.attacks.settings import COLLUDING, OF_ROWS
from fedtorch.train.engine import Engine

ALLOWED = "FEDTORCH_TESTING"


def it_is_on_purpose(plan: Plan) -> None:
    """Refuse an attack that the environment does not allow: a config alone makes nobody cheat."""
    if os.environ.get(ALLOWED) != "1":
        raise ConfigError(
            f"attack.kind is {plan.config.attack.kind}, which makes clients cheat; set {ALLOWED}=1 in the environment "
            "of a run that is to show what rules do, or remove the section `attack`"
        )


def attackers_are_clients(plan: Plan) -> None:
    """Refuse attackers who do not train, and a run without an honest client."""
    attack = plan.config.attack
    if not attack.clients:
        return
    names = [*plan.clients.names()]
    for name in attack.clients:
        if name not in names:
            near = get_close_matches(name, names, 1)
            raise ConfigError(
                f"attack.clients names {name}, who does not train; "
                + (f"did you mean {near[0]}?" if near else f"choose among {', '.join(names[:10])}")
            )
    if len({*attack.clients}) == len(names):
        raise ConfigError(f"attack.clients names all {len(names)} clients, so that nobody is honest; name fewer")


def a_server_combines_what_clients_send(plan: Plan) -> None:
    """Refuse attacks where nothing is sent, or where clients are hidden from the records."""
    config = plan.config
    if config.paradigm != "federated" or not plan.algorithm.travels.vectors:
        raise ConfigError(
            f"attack.kind is {config.attack.kind} but nothing is sent that could be an attack (paradigm "
            f"{config.paradigm}, algorithm.name {config.algorithm_name}); remove the section `attack`"
        )
    if config.privacy.kind != "none" or config.privacy.secure_sum is not None:
        raise ConfigError(
            f"attack.kind is {config.attack.kind} but `privacy` hides who sends what, and attacks are recorded by "
            "client; remove the section `privacy` or `attack`"
        )


def rows_have_labels(plan: Plan) -> None:
    """Refuse attacks on labels where a row has not one label, or the target is none of them."""
    attack, task = plan.config.attack, plan.training
    if attack.kind not in OF_ROWS:
        return
    if not isinstance(task, LabelledTask) or task.problem != "single_label":
        raise ConfigError(
            f"attack.kind is {attack.kind}, which needs rows with a text and one label, but task.name is "
            f"{plan.config.task_name}; set it to text_classification, with task.problem single_label"
        )
    if attack.kind == "backdoor" and attack.target not in task.labels:
        raise ConfigError(f"attack.target is {attack.target}, which is no label; choose one of {task.labels}")


def those_who_are_known_can_be_trained(plan: Plan) -> None:
    """Refuse colluding attackers under `pinned`: no rank has the rows of others."""
    if plan.config.attack.kind in COLLUDING and plan.config.system.placement == "pinned":
        raise ConfigError(
            f"attack.kind is {plan.config.attack.kind}, whose attackers train others' rows, but system.placement is "
            "pinned, where no rank has these; set it to balanced"
        )


def updates_are_vectors(plan: Plan, engine: Engine) -> None:
    """Refuse attacks on compressed messages, which are no vectors that could be turned round."""
    if message_bytes(plan.algorithm, engine.shared):
        raise ConfigError(
            f"attack.kind is {plan.config.attack.kind} but clients of algorithm.name {plan.config.algorithm_name} send "
            "compressed messages; switch compression off, or remove the section `attack`"
        )


def those_who_are_known_keep_nothing(plan: Plan, engine: Engine) -> None:
    """Refuse colluding attackers where clients keep a state, which is at their home."""
    config = plan.config
    if config.attack.kind in COLLUDING and keeps_state(config, plan.algorithm, engine):
        raise ConfigError(
            f"attack.kind is {config.attack.kind}, whose attackers train others' rows, but clients keep something from "
            "round to round (private parameters, an optimiser, a place in the data, a model of their own); choose "
            "settings with which they keep nothing, such as client.optimizer_state: reset"
        )


SUBJECT = Subject(
    "Attacks",
    applies=lambda plan: plan.config.attack.kind != "none",
    of_plan=(
        it_is_on_purpose,
        attackers_are_clients,
        a_server_combines_what_clients_send,
        rows_have_labels,
        those_who_are_known_can_be_trained,
    ),
    of_engine=(
        updates_are_vectors,
        those_who_are_known_keep_nothing,
    ),
)
