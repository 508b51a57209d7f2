"""Updates of which only some numbers travel, other ones of every client: the sum of the whole vectors, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks

from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.local import LocalCommunicator
from fedtorch.comm.sums.accepted import AcceptedUpdates
from fedtorch.comm.sums.sum_ways import Exchange
from fedtorch.core.norms import norm_and_max
from fedtorch.core.places import Places
from fedtorch.core.seeds import generator_for
from fedtorch.core.update import Report, UpdateBuffer
from fedtorch.core.weights import Layout, digest_of
from tests.support.combined import combined

NAMES = tuple(f"client-{k}" for k in range(6))
WEIGHTS = (0.3, -0.1, 0.25, 0.0, 0.2, 1.7)
SIZE = 4000
PLACES = {name: Places(torch.arange(0, SIZE, 1 + k % 3), SIZE) for k, name in enumerate(NAMES)}
PLACES["client-5"] = Places(torch.empty(0, dtype=torch.int64), SIZE)


def update(name: str) -> torch.Tensor:
    """A whole vector, 0 where nothing travels."""
    drawn = torch.randn(SIZE, generator=generator_for(0, "test", name)) * 10.0 ** (NAMES.index(name) - 3)
    return PLACES[name].spread(PLACES[name].take(drawn))


def one_round(comm: Communicator, homes: dict[str, int], folder: str, *, whole: bool = False) -> Any:
    """(digest of the sum and of each update, logical bytes up); whole: everything travels."""
    local = UpdateBuffer(SIZE, torch.float32, Path(folder) / str(comm.rank), memory_bytes=2 * SIZE * 4)
    if not whole:
        local.places = lambda client: PLACES[client]
    reports = []
    for name in (name for name in NAMES if homes[name] == comm.rank):
        local.put(name, update(name))
        norm, max_abs = norm_and_max(update(name))
        reports.append(Report(name, norm=norm, max_abs=max_abs))
    comm.barrier("train", round=3)
    gathered = comm.gather_reports(reports, round=3)

    def combine(updates: AcceptedUpdates) -> torch.Tensor:
        each = [one.clone() for one in updates]
        return torch.cat([updates.weighted_sum(WEIGHTS), *each])

    total = combined(comm, local, gathered, combine, round=3)
    return None if total is None else (digest_of({"": total}), comm.meter.totals()["aggregate/bytes_up"])


def distributed_round(homes: dict[str, int], folder: str, exchange: Exchange) -> Any:
    with DistributedCommunicator.join(NAMES, timeout_s=30, exchange=exchange) as comm:
        comm.preflight({"config": "same"})
        return one_round(comm, homes, folder)


def test_what_travels_is_counted_and_the_rest_changes_nothing(tmp_path: Path) -> None:
    """Most of the updates go through files."""
    homes = dict.fromkeys(NAMES, 0)
    found, count = one_round(LocalCommunicator(NAMES), homes, str(tmp_path))
    assert count == 4 * (4000 + 2000 + 1334 + 4000 + 2000 + 0)
    assert (found, 4 * 6 * 4000) == one_round(LocalCommunicator(NAMES), homes, str(tmp_path / "whole"), whole=True)


@pytest.mark.processes
@pytest.mark.parametrize(("num_ranks", "hosts", "exchange"), [(3, [1, 2], "send"), (4, [1, 2, 3, 0], "reduce")])
def test_any_packing_and_transport_give_the_bits_of_one_process(
    num_ranks: int, hosts: list[int], exchange: Exchange, tmp_path: Path
) -> None:
    homes = {name: hosts[place % len(hosts)] for place, name in enumerate(NAMES)}
    alone = one_round(LocalCommunicator(NAMES), dict.fromkeys(NAMES, 0), str(tmp_path / "alone"))
    together = run_ranks(distributed_round, num_ranks, homes, str(tmp_path), exchange)
    assert together == [alone] + [None] * (num_ranks - 1)


def test_places_are_those_of_names_in_all_vectors() -> None:
    layout = Layout(("a", "b", "c"), ((2,), (1, 2), (1,)))
    places = Places.of_names(layout, ["b"], vectors=2)
    assert places.indices.tolist() == [2, 3, 7, 8] and places.size == 10 and len(places) == 4
    flat = torch.arange(10.0)
    assert places.take(flat).tolist() == [2, 3, 7, 8]
    assert places.spread(torch.ones(4)).tolist() == [0, 0, 1, 1, 0, 0, 0, 1, 1, 0]
    assert not places.holds_all_of(flat) and places.holds_all_of(places.spread(torch.ones(4)))
    assert places.digest == Places.of_names(layout, ["b"], vectors=2).digest != Places.of_names(layout, ["c"]).digest


@pytest.mark.parametrize("indices", [[1, 1], [2, 1], [-1, 0], [0, 3]])
def test_places_that_do_not_ascend_in_the_vector_are_refused(indices: list[int]) -> None:
    with pytest.raises(ValueError, match="should ascend and lie in it"):
        Places(torch.tensor(indices), 3)
