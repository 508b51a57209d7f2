"""A digest of rows tells whatever a task makes of them apart, and whose they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from fedtorch.privacy.record.row_digests import digest_of_rows


@dataclass(frozen=True)
class Row:
    """Ids and a label."""

    ids: tuple[int, ...]
    label: Any


@dataclass(frozen=True)
class Quiet:
    """Numbers that its text does not have."""

    numbers: torch.Tensor

    def __repr__(self) -> str:
        return "numbers"


ONE = [Row((1, 2), "a"), Row((3,), "b")]


@pytest.mark.parametrize(
    "other",
    [
        [Row((1, 2), "a"), Row((3,), "c")],
        [Row((1,), "a"), Row((2, 3), "b")],
        [Row((3,), "b"), Row((1, 2), "a")],
        ONE[:1],
        [{"ids": (1, 2), "label": "a"}, {"ids": (3,), "label": "b"}],
        [Row((1, 2), torch.tensor([1.0])), Row((3,), "b")],
        [Row((1, 2), np.array([1])), Row((3,), "b")],
        [Row((1, 2), [("a", 1.0)]), Row((3,), "b")],
    ],
)
def test_other_rows_have_another_digest(other: list[Any]) -> None:
    assert digest_of_rows(other, [(0,), (1,)]) != digest_of_rows(ONE, [(0,), (1,)])
    assert digest_of_rows(other, [(0,), (1,)]) == digest_of_rows(list(other), [[0], [1]])


def test_a_tensor_counts_by_its_numbers_its_dtype_and_its_shape() -> None:
    tensors = [torch.zeros(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32), torch.ones(4)]
    assert len({digest_of_rows([each], [(0,)]) for each in tensors}) == 4
    assert digest_of_rows([torch.zeros(4)], [(0,)]) == digest_of_rows([np.zeros(4, np.float32)], [(0,)])
    assert digest_of_rows([{"x": 1, "y": 2}], [(0,)]) == digest_of_rows([{"y": 2, "x": 1}], [(0,)])


def test_numbers_among_words_and_rows_within_rows_count_in_full() -> None:
    """The text of a long tensor leaves out its middle, and that of a row what it does not show."""
    ones, others = torch.zeros(2000), torch.zeros(2000)
    others[1000] = 1.0
    found = {digest_of_rows([each], [(0,)]) for each in (["a", ones], ["a", others], [ones, "a"], [others, "a"])}
    assert len(found) == 4
    assert digest_of_rows([Quiet(ones)], [(0,)]) != digest_of_rows([Quiet(others)], [(0,)])
    assert digest_of_rows([Quiet], [(0,)]) == digest_of_rows([Quiet], [(0,)]) != digest_of_rows([Row], [(0,)])


def test_the_same_rows_of_other_persons_have_another_digest() -> None:
    assert digest_of_rows(ONE, [(0, 1)]) != digest_of_rows(ONE, [(0,), (1,)])
