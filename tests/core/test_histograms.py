"""Histograms as numbers of a report."""

from __future__ import annotations

import math

from fedtorch.comm.wire import report_problem
from fedtorch.core.histograms import counts, read
from fedtorch.core.update import Report


def test_values_are_counted_in_bins_of_one_and_forced_tokens_in_none() -> None:
    values = [-2.0, -1.5, -1.0, -0.01, 0.0, 0.99, math.nan, -1e9, math.inf, 100.0]
    found = counts("energy_top", values)
    assert found == {
        "histogram/energy_top/-100": 1, "histogram/energy_top/-2": 2, "histogram/energy_top/-1": 2,
        "histogram/energy_top/0": 2, "histogram/energy_top/99": 2,
    }  # fmt: skip
    assert not report_problem(Report("a", extra=found))
    others = {"loss": 1.0, "client": "x", "histogram/energy_all/3": 4}
    assert read(found | others) == {"energy_top": {-100: 1, -2: 2, -1: 2, 0: 2, 99: 2}, "energy_all": {3: 4}}
    assert counts("energy_all", []) == {} == read({})
