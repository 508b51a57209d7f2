"""Homes of numbered clients are those that the rule for a dictionary of costs gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.clients import _config
from fedtorch.rounds.placement import Homes, costs, place
from fedtorch.rounds.topology import Topology
from fedtorch.setup.plan import Plan


@pytest.mark.parametrize(("clients", "workers"), [(9, 2), (60, 1), (200, 3)])
def test_numbered_clients_live_where_a_dictionary_of_costs_puts_them(
    tiny_wikisql: Path, tmp_path: Path, clients: int, workers: int
) -> None:
    config = _config(str(tmp_path), str(tiny_wikisql), clients, 1)
    task = replace(config.task, client_size=(2, 9), server_labelled=2)
    config = replace(config, task=task, per_client={"client" + "3".zfill(len(str(clients - 1))): {"epochs": 3}})
    plan = Plan.of(config, 1)
    topology = Topology(workers + 1 if workers > 1 else 1, workers == 1, 1)
    found = place(config, plan.task, plan.training, plan.clients, topology)
    assert isinstance(found.homes, Homes)
    expected = topology.homes(costs(config, plan.training, plan.clients))
    assert dict(found.homes) == expected
    sizes = {name: float(sum(each.values())) for name, each in task.manifest().items() if name not in expected}
    assert dict(found.evaluators) == {**expected, **topology.homes(sizes)}
    with pytest.raises(KeyError):
        found.homes["part0"]
