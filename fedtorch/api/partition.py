"""`fedtorch.partition`: who owns which row, by the rules of `task.data.clients`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

from fedtorch.config.load import load
from fedtorch.config.python_configs import Given, Overrides, plain_data
from fedtorch.config.validate import validate
from fedtorch.core.errors import ConfigError
from fedtorch.core.yaml_tree import Tree
from fedtorch.data.own.client_rule import SECTION, ClientRule
from fedtorch.data.own.keys import OwnData
from fedtorch.data.own.partition import deal
from fedtorch.data.own.row_ids import row_ids

Rows = Iterable[Mapping[str, Any]] | Iterable[int] | Iterable[str]


@overload
def partition(
    rows: Rows, rule: Mapping[str, Any] | ClientRule, *, seed: int = OwnData.seed, id: str | None = None
) -> dict[str, list[int]]: ...


@overload
def partition(rows: Given | Sequence[Given], *, overrides: Overrides = ()) -> dict[str, list[str]]: ...


def partition(
    rows: Any,
    rule: Mapping[str, Any] | ClientRule | None = None,
    *,
    seed: int = OwnData.seed,
    id: str | None = None,
    overrides: Overrides = (),
) -> dict[str, list[int]] | dict[str, list[str]]:
    """Which rows each client has: of rows at hand by a rule, or of a config's own data as a run would deal them.

    Args:
        rows: rows as dicts, or the class of each row (a text or a whole number). Without a rule: a config, as `run`
            takes it, over data of one's own.
        rule: what stands under `task.data.clients`, such as `{"dirichlet": {"alpha": 0.5, "number": 20}}`; see
            docs/partitions.md.
        seed: as `task.data.seed`. id: as `task.data.id`, a column that tells rows apart; None: their content does.
        overrides: of the config.

    Returns:
        With a rule: client -> places of its rows, from 0. Of a config: client -> ids of its rows, as `fedtorch data
        partition` writes them. Rows are in the order in which the client has them.

    Rows as dicts are dealt by their ids, whatever their order. Classes alone have no ids but their places, so there the
    order counts.

    Raises:
        ConfigError: the rule is wrong, cannot be met with these rows, or looks at a column that they lack.
        DataError: there are no rows, or one has no class, owner or id.
    """
    if rule is None:
        return _of_config(rows, overrides)
    dealt = rule if isinstance(rule, ClientRule) else _checked(rule)
    found = list(rows)
    if all(isinstance(row, Mapping) for row in found):
        labels, owners = _column(found, dealt.label_column), _column(found, dealt.by)
        ids = row_ids(found, id) if dealt.by is None else []
        parts = deal(dealt, ids=ids, labels=labels, owners=owners, seed=seed)
    elif dealt.by is not None:
        raise ConfigError(
            f"{SECTION}.by is {dealt.by}, a column, but the rows are no dicts; give them with their columns"
        )
    else:
        places = [str(place) for place in range(len(found))]
        parts = deal(dealt, ids=places, labels=found, owners=None, seed=seed)
    return {client: own.tolist() for client, own in parts.items()}


def _of_config(config: Given | Sequence[Given], overrides: Overrides) -> dict[str, list[str]]:
    from fedtorch.setup.data_check import own_task
    from fedtorch.tasks.own_overview import row_ids_of

    loaded = load(config, overrides)
    return row_ids_of(own_task(loaded.task, loaded.task_name))


def _checked(rule: Mapping[str, Any]) -> ClientRule:
    tree = Tree(plain_data(rule, SECTION))
    made, problems = validate(ClientRule, tree.data, tuple(SECTION.split(".")), tree)
    if problems:
        raise ConfigError("\n".join(problems))
    assert isinstance(made, ClientRule)
    return made


def _column(rows: Sequence[Mapping[str, Any]], name: str | None) -> list[Any] | None:
    """Its values; None where no row has it, or none is asked for."""
    return [row.get(name) for row in rows] if name is not None and any(name in row for row in rows) else None
