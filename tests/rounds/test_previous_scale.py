"""Which scale a round's sum has by the round before, and what happens where updates do not fit it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from toy import Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.comm.local import LocalUpdates
from fedtorch.comm.sums.reproducible import COARSEST, HEADROOM, SumScale
from fedtorch.config.schema import ClientsConfig, SystemConfig
from fedtorch.core.norms import norm_and_max
from fedtorch.core.places import Places
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report, UpdateBuffer
from fedtorch.rounds.previous_scale import PreviousScale
from fedtorch.rounds.weighing import Weighing

PREVIOUS = SystemConfig(sum_scale="previous")


def updates_of(folder: Path, vectors: dict[str, torch.Tensor], examples: dict[str, int]) -> Any:
    local = UpdateBuffer(len(next(iter(vectors.values()))), torch.float32, folder, 1 << 20)
    reports = []
    for name, vector in vectors.items():
        local.put(name, vector)
        norm, largest = norm_and_max(vector)
        reports.append(Report(name, examples=examples[name], norm=norm, max_abs=largest))
    return LocalUpdates(reports, local)


def sum_of(updates: Any, exponent: int | None) -> torch.Tensor:
    own = [float(report.examples) for report in updates.reports]
    if exponent is not None:
        updates.fix_scale(exponent, own)
    total = sum(own)
    result: torch.Tensor = updates.weighted_sum([number / total for number in own])
    return result


def test_the_scale_leaves_room_for_eight_times_the_largest_elements() -> None:
    scale = SumScale.ahead([3.0, 1.0], [0.5, 2.0])
    assert scale == SumScale.of([3.0, 1.0], [4.0, 16.0]) and HEADROOM == 8
    assert scale is not None and scale.suits([3.0, 1.0], [4.0, 16.0])
    power = 2.0 ** (52 - scale.exponent)  # what a sum must stay below, 32 here: 28 · (1 + 2^-40) is the next below
    assert power == 32 and scale.suits([1.0], [31.0]) and not scale.suits([1.0], [32.0])


def test_one_step_of_the_largest_number_decides() -> None:
    """The bound has a little more than the sum itself, for the rounding of the products."""
    scale = SumScale(52)  # sums below 1
    edge = (1 - 2.0**-53) / (1 + 2**-40)
    while SumScale.of([1.0], [torch.tensor(edge).double().nextafter(torch.tensor(2.0).double()).item()]).exponent == 52:
        edge = torch.tensor(edge).double().nextafter(torch.tensor(2.0).double()).item()
    above = torch.tensor(edge).double().nextafter(torch.tensor(2.0).double()).item()
    assert scale.suits([1.0], [edge]) and not scale.suits([1.0], [above])
    assert scale.suits([1.0], [2.0**-COARSEST]) and not scale.suits([1.0], [2.0 ** (-COARSEST - 2)])


def test_nothing_is_fixed_by_zeros_or_what_overflows_and_zeros_fit_anything() -> None:
    assert SumScale.ahead([], []) is None and SumScale.ahead([2.0, 0.0], [0.0, 1.0]) is None
    assert SumScale.ahead([1.0], [1e299]) is None and not SumScale(0).suits([1.0], [1e300])
    assert SumScale(40).suits([], []) and SumScale(40).suits([1.0], [0.0]) and SumScale(40).suits([0.0], [9e9])


@pytest.mark.parametrize("exponent", [None, 40])
def test_the_sum_is_the_weighted_mean(exponent: int | None, tmp_path: Path) -> None:
    """A client without examples counts nothing, one with zeros takes part in the mean."""
    vectors = {"a": torch.tensor([1.0, -3.0, 0.5]), "b": torch.tensor([0.5, 9.0, 0.0]), "c": torch.zeros(3)}
    updates = updates_of(tmp_path, vectors, {"a": 3, "b": 0, "c": 7})
    assert torch.equal(sum_of(updates, exponent), torch.tensor([0.3, -0.9, 0.15]))


def test_one_client_comes_back_as_it_was(tmp_path: Path) -> None:
    vector = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    updates = updates_of(tmp_path, {"a": vector}, {"a": 7})
    assert torch.equal(sum_of(updates, 44), vector)


@pytest.mark.parametrize(("exponent", "said"), [(44, False), (51, True), (10, True)])
def test_updates_that_do_not_fit_are_summed_by_their_reports(
    exponent: int, said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    vectors = {"a": torch.tensor([1.7, -3.3]), "b": torch.tensor([0.15, 9.1])}
    updates = updates_of(tmp_path, vectors, {"a": 3, "b": 4})
    found = sum_of(updates, exponent)
    assert ("do not fit the scale of the round before" in caplog.text) is said
    plain = sum_of(updates_of(tmp_path, vectors, {"a": 3, "b": 4}), None)
    torch.testing.assert_close(found, plain, rtol=1e-7, atol=0)
    if said:
        assert torch.equal(found, plain)


def test_other_weights_than_the_clients_own_are_summed_as_always(tmp_path: Path) -> None:
    vectors = {"a": torch.tensor([1.7, -3.3]), "b": torch.tensor([0.15, 9.1])}
    updates = updates_of(tmp_path, vectors, {"a": 1, "b": 1})
    updates.fix_scale(20, [1.0, 1.0])
    assert torch.equal(
        updates.weighted_sum([0.3, 0.7]),
        updates_of(tmp_path, vectors, {"a": 1, "b": 1}).weighted_sum([0.3, 0.7]),
    )


def test_parts_of_vectors_come_to_the_bits_of_whole_ones(tmp_path: Path) -> None:
    places = {"a": Places(torch.tensor([0, 2]), 3), "b": Places(torch.tensor([1, 2]), 3)}
    vectors = {"a": torch.tensor([1.7, 0.0, 0.31]), "b": torch.tensor([0.0, 9.1, -3.7])}
    whole = sum_of(updates_of(tmp_path, vectors, {"a": 3, "b": 4}), 40)
    updates = updates_of(tmp_path, vectors, {"a": 3, "b": 4})
    updates._local.clear()
    updates._local.places = places.get
    for name, vector in vectors.items():
        updates._local.put(name, vector)
    parts = LocalUpdates(updates.reports, updates._local)
    assert torch.equal(sum_of(parts, 40), whole)


def test_what_was_learned_stays_until_another_step_is_taken() -> None:
    server = ServerState({"weights": torch.zeros(1)})
    scale = PreviousScale(Weighing(FedAvg()), server)
    assert scale.exponent is None
    scale.learn([Report("a", examples=4, max_abs=0.25)])
    assert scale.exponent == SumScale.of([4.0], [2.0]).exponent == server.numbers["sum/exponent"]
    own = Weighing(FedAvg()).own([Report("a", examples=4), Report("b"), Report("c", "failed:X", 3)])
    assert own == [4.0, 0.0, 0.0]
    scale.learn([Report("a", examples=4)])
    assert scale.exponent is None


def test_a_round_without_updates_leaves_the_scale_as_it_was(tmp_path: Path) -> None:
    task = Quadratic(clients={"a": (1.0, 1.0, 4), "b": (2.0, -1.0, 4)}, start=(1.0, 2.0))
    clients = ClientsConfig(max_update_norm=1e-12, on_failure="skip")
    runner = make_runner(make_config(tmp_path, task, system=PREVIOUS, clients=clients, rounds=2))
    runner.context.server.numbers["sum/exponent"] = 41
    runner.run()
    assert runner.context.server.numbers["sum/exponent"] == 41
