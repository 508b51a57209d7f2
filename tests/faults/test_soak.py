"""Two hundred rounds with a random fault every ten."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import MAX_GROWTH_KB, soak


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0])
def test_a_fault_every_ten_rounds_changes_no_bit_and_nothing_grows(seed: int, tmp_path: Path) -> None:
    found = soak(tmp_path, 200, seed)
    print(found)
    assert found["code"] == 0 and found["same bits"], found
    assert found["attempts"] > 3 and found["longest process, samples"] > 100, found
    assert found["growth kB"] < MAX_GROWTH_KB and found["growth of open files"] <= 0, found
