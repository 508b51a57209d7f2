"""Parties with keys of their own count together: everything is checked, and every party has the same tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_rows import weather
from parties import PARTIES, ends_well, make_places, run, write_config

from fedtorch.stats.table import Stats
from launchers.verify import main as verify

pytest.importorskip("cryptography")
COUNTED = {"labels": {"longest": 5, "width": 4}, "words": {"longest": 5, "width": 16}, "min_count": 2}


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"privacy": {"clip": 1.0, "secure_sum": {"threshold": 1.0}}},
        {"stats": {**COUNTED, "privacy": {"epsilon": 8.0}}},
    ],
    ids=["plain", "masked", "noised"],
)
def test_each_silo_checks_all_sums_and_has_the_same_tables(tmp_path: Path, changes: dict[str, object]) -> None:
    places = make_places(tmp_path)
    trust = {"members": "members.yaml", "key": "own.key", "verify": "all"}
    write_config(places, **{"paradigm": "stats", "stats": COUNTED, "trust": trust, **changes})
    ends_well(run(places))
    found = [Stats.read(places / name / "run-stats") for name in PARTIES.values()]
    assert found[0] == found[1] == found[2] == found[3]
    if not found[0].privacy:
        labels = found[0].table("labels")
        assert labels is not None and sum(labels.pooled) == len(weather())  # type: ignore[arg-type]
    for name in PARTIES.values():
        assert verify([str(places / name / "run-stats")]) == 0
