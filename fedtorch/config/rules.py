"""From the value of `algorithm.robust` to the rule it stands for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedtorch.config.registry import class_of
from fedtorch.config.schema import ClientsConfig
from fedtorch.config.validate import at, field_names, validate, wrong
from fedtorch.core.errors import ConfigError
from fedtorch.core.yaml_tree import Tree

KEY = ("algorithm", "robust")
PACKAGE = "fedtorch.algorithms.robust"


def with_rule(algorithm: Any, name: str, clients: ClientsConfig, tree: Tree) -> tuple[Any, list[str]]:
    """The algorithm with every field of its rule, if it has one, and what is wrong with it, a line each.

    name: of the algorithm. clients: the section. tree: what was read, for messages.

    Raises:
        ConfigError: there is no such rule, or it is none.
    """
    value = getattr(algorithm, "robust", None)
    if value is None:
        return algorithm, []
    if why := algorithm.limits.why_not_robust:
        return algorithm, [
            f"algorithm.robust is set{at(tree, KEY)} but `{name}` {why}, so no rule can take the place of a weighted "
            "sum; remove it, or choose another algorithm.name"
        ]
    fields = {"name": value} if isinstance(value, str) else dict(value)
    chosen, where = fields.pop("name", None), (*KEY, "name") if isinstance(value, dict) else KEY
    if not isinstance(chosen, str):
        return algorithm, [wrong(where, chosen, "the name of a rule", tree)]
    cls = class_of(
        ".".join(where), chosen, at(tree, where), what="rule", table=f"{PACKAGE}:RULES", base=f"{PACKAGE}.base:Rule"
    )
    rule, problems = validate(cls, fields, KEY, tree)
    if rule is None:
        return algorithm, problems
    per_round = clients.per_round
    if per_round == 1:
        raise ConfigError(
            "clients.per_round is 1 but algorithm.robust is set, and of one update every rule makes that update; raise "
            "clients.per_round, or set algorithm.robust to null"
        )
    if isinstance(per_round, int) and -(-per_round // rule.bucket) < rule.least:
        raise ConfigError(
            f"clients.per_round is {per_round} but algorithm.robust needs {rule.least} updates in a round"
            f"{f', each of {rule.bucket} clients' if rule.bucket > 1 else ''}; raise it, or let the rule stand fewer "
            "attackers"
        )
    return replace(algorithm, robust={"name": chosen, **{f: getattr(rule, f) for f in field_names(cls)}}), []
