"""Means over clients."""

from __future__ import annotations

import math

from fedtorch.core.scores import means


def test_averages_by_hand() -> None:
    assert means([(1, 1), (0, 3)]) == (0.5, 0.25, 4)
    assert means([(3, 4)]) == (0.75, 0.75, 4)


def test_clients_without_examples_do_not_count() -> None:
    assert means([(1.0, 2), (0.0, 0)]) == means([(1.0, 2)]) == (0.5, 0.5, 2)
    for nobody in ([], [(0.0, 0)]):
        macro, micro, count = means(nobody)
        assert math.isnan(macro) and math.isnan(micro) and count == 0
