"""What a rank makes of accepted updates: when they are asked for one by one, and what goes through windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedtorch.comm.sums.accepted
import fedtorch.comm.transport.windows
from fedtorch.comm.local import LocalUpdates
from fedtorch.core.norms import norm_and_max
from fedtorch.core.places import Places
from fedtorch.core.update import Report, UpdateBuffer

VECTORS = {"a": torch.tensor([1.0, 2.5, 3.0, 4.0, 5.0]), "b": torch.tensor([-1.0, 0.5, 0.0, 7.0, 0.0])}
SUM = [0.0, 3.0, 3.0, 11.0, 5.0]


class Asked(LocalUpdates):
    """Notes how sums are asked for; the first `damaged` of them do not fit."""

    def __init__(self, folder: Path, vectors: dict[str, torch.Tensor] = VECTORS, damaged: int = 0) -> None:
        local = UpdateBuffer(5, torch.float32, folder, 1 << 20)
        for name, vector in vectors.items():
            local.put(name, vector)
        numbers = [(name, *norm_and_max(vector)) for name, vector in vectors.items()]
        super().__init__([Report(name, norm=norm, max_abs=largest) for name, norm, largest in numbers], local)
        self.asked: list[bool] = []
        self.damaged = damaged

    def _sum(self, scale: Any, terms: Any, check: Any, *, singly: bool = False) -> torch.Tensor:
        self.asked.append(singly)
        total = super()._sum(scale, terms, check, singly=singly)
        if len(self.asked) <= self.damaged:
            check.problems.append("damaged")
        return total


@pytest.mark.parametrize(("damaged", "asked"), [(0, [False]), (1, [False, True])])
def test_updates_come_one_by_one_only_after_a_sum_that_does_not_fit(
    damaged: int, asked: list[bool], tmp_path: Path
) -> None:
    updates = Asked(tmp_path / "weighted", damaged=damaged)
    assert updates.weighted_sum([1.0, 1.0]).tolist() == SUM and updates.asked == asked
    updates = Asked(tmp_path / "whole", damaged=damaged)
    assert updates.whole_sum(1, 9.0).tolist() == [2 * value for value in SUM] and updates.asked == asked


def test_a_sum_that_was_checked_is_looked_at_again_only_after_somebody_wrote_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    inner = fedtorch.comm.sums.accepted.is_finite
    monkeypatch.setattr(
        fedtorch.comm.sums.accepted, "is_finite", lambda vector: looked.append(len(vector)) or inner(vector)
    )
    updates = Asked(tmp_path)
    assert updates.is_finite(torch.tensor([1.0, 2.0])) and looked == [2]  # nothing was summed yet
    total = updates.weighted_sum([1.0, 1.0])
    assert updates.is_finite(total) and looked == [2]
    assert updates.is_finite(total[:3]) and updates.is_finite(total.clone()) and looked == [2, 3, 5]
    total[2] = float("nan")
    assert not updates.is_finite(total) and looked == [2, 3, 5, 5]
    with torch.inference_mode():
        assert not updates.is_finite(total * 1) and looked == [2, 3, 5, 5, 5]


def test_a_sum_of_parts_is_rounded_after_it_was_checked_and_so_looked_at(tmp_path: Path) -> None:
    huge = {name: torch.tensor([3e38, 0.0, 0.0, 0.0, 0.0]) for name in "ab"}
    updates = Asked(tmp_path, huge)
    some = Places(torch.arange(0, 5), 5)
    updates.places, updates.lengths = {"a": some, "b": None}, {"a": 5, "b": 5}
    assert not updates.is_finite(updates.weighted_sum([1.0, 1.0]))


def test_windows_are_as_long_as_the_vector_whatever_is_largest_in_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fedtorch.comm.transport.windows, "WINDOW", 2)
    widths: list[int] = []

    def added(rows: torch.Tensor) -> torch.Tensor:
        widths.append(rows.shape[1])
        return rows.sum(0)

    assert Asked(tmp_path).combine_windows(added).tolist() == SUM and widths == [2, 2, 1]
    assert Asked(tmp_path, {}).combine_windows(added).shape == (0,)


def test_windows_of_unlike_numbers_are_refused(tmp_path: Path) -> None:
    updates = Asked(tmp_path)
    some = Places(torch.arange(0, 5, 2), 5)
    updates.places = {"a": some, "b": None}
    with pytest.raises(ValueError, match="only as vectors of which the same numbers travel"):
        updates.combine_windows(lambda rows: rows.sum(0))


def test_each_update_comes_whole_whatever_travels(tmp_path: Path) -> None:
    updates = Asked(tmp_path)
    assert [update.tolist() for update in updates] == [vector.tolist() for vector in VECTORS.values()]
    some = Places(torch.arange(0, 5, 2), 5)
    updates = Asked(tmp_path, {"a": some.spread(torch.tensor([1.0, 2.0, 3.0]))})
    updates._local.places = lambda client: some
    updates._local.clear()
    updates._local.put("a", some.spread(torch.tensor([1.0, 2.0, 3.0])))
    updates.places = {"a": some}
    assert [update.tolist() for update in updates] == [[1.0, 0.0, 2.0, 0.0, 3.0]]
