"""Memory that is used again, and never while somebody has it."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch

from fedtorch.comm.local import LocalUpdates
from fedtorch.core import kept_vectors
from fedtorch.core.kept_vectors import KeptVectors
from fedtorch.core.update import Report, UpdateBuffer


def test_a_vector_comes_back_when_nobody_has_a_part_of_it() -> None:
    kept = KeptVectors()
    first = kept.lend(10, torch.float32)
    place = first.data_ptr()
    part = first.chunk(2)[1]
    del first
    assert kept.lend(10, torch.float32).data_ptr() != place
    array = part.numpy()
    del part
    assert kept.lend(10, torch.float32).data_ptr() != place
    del array
    gc.collect()
    assert place in {vector.data_ptr() for vector in [kept.lend(10, torch.float32) for _ in range(2)]}


def test_what_no_round_asks_for_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    empty = torch.empty

    def noted(*args: int, **named: torch.dtype) -> torch.Tensor:
        made.append(weakref.ref(memory := empty(*args, **named)))
        return memory

    monkeypatch.setattr(kept_vectors.torch, "empty", noted)
    kept = KeptVectors()
    for asked, alive in ((10, [True]), (10, [True]), (11, [False, True])):
        kept.lend(asked, torch.float32)
        kept.end_round()
        gc.collect()
        assert [memory() is not None for memory in made] == alive


def test_sums_of_all_rounds_are_in_the_same_memory_unless_one_is_kept(tmp_path: Path) -> None:
    buffer, places = UpdateBuffer(1000, torch.float32, tmp_path, 1 << 20), []
    held = None
    for round in range(4):
        buffer.put("a", torch.full((1000,), float(round)))
        total = LocalUpdates([Report("a", norm=1000.0**0.5 * round, max_abs=round)], buffer).weighted_sum([1.0])
        assert total.tolist() == [float(round)] * 1000
        places.append(total.data_ptr())
        held = total if round == 2 else held
        del total
        buffer.clear()
    assert places[0] == places[1] == places[2] != places[3]
    assert held is not None and held.tolist() == [2.0] * 1000
