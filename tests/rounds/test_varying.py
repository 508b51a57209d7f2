"""Vectors of the server whose length differs by round: only what is new of them travels."""

from __future__ import annotations

import pytest
import torch

from fedtorch.comm.local import LocalCommunicator
from fedtorch.rounds.varying import VaryingVectors

ONE, TWO = torch.arange(3.0), torch.arange(5.0)


@pytest.mark.parametrize(
    ("steps", "numbers"),
    [
        ([{}], 0),
        ([{"p": ONE}], 3),
        ([{"p": ONE}, {"p": TWO}], 5),  # two new ones behind the three that all have
        ([{"p": ONE}, {"p": TWO}, {"p": ONE}], 5),  # the best model's, a beginning of the present one
        ([{"p": ONE}, {"p": TWO + 1}], 8),
        ([{"p": TWO}, {}, {"p": TWO}], 10),
        ([{"p": ONE, "q": TWO}, {"p": TWO, "q": TWO}], 10),
    ],
)
def test_what_is_new_travels_and_counts_for_every_client(steps: list[dict[str, torch.Tensor]], numbers: int) -> None:
    comm = LocalCommunicator(["a", "b"])
    varying = VaryingVectors(("p", "q"), torch.float32)
    for number, server in enumerate(steps):
        found = varying.send(comm, server, round=number)
        assert all(torch.equal(found[name], server.get(name, torch.zeros(0))) for name in ("p", "q"))
        before = varying.held
        assert varying.adopt(found) == any(len(before[n]) != len(found[n]) for n in found) or numbers == 8
    assert comm.meter.totals().get("broadcast/bytes_down", 0) == 4 * 2 * numbers


def test_without_such_vectors_nothing_is_said() -> None:
    comm = LocalCommunicator(["a"])
    assert VaryingVectors((), torch.float32).send(comm, {}, round=0) == {} and not comm.meter.totals()
