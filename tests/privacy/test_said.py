"""What a run says of its promise: in the card, the table and the page."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedtorch.report.groups import Group
from fedtorch.report.html_page import html_page
from fedtorch.tracking.card import CardFacts, card_text
from fedtorch.tracking.privacy_statement import NOTHING, promise
from fedtorch.tracking.run_folder import read_run
from fedtorch.tracking.summary import show_results

SAID: dict[str, Any] = {
    "kind": "client",
    "simulated": False,
    "epsilon": 2.10929,
    "delta": 0.01,
    "releases": 2,
    "data": {"runs": 3, "releases": 7, "epsilon": 4.5, "delta": 0.001},
    "relation": "zero-out",
    "sampling": "Poisson, rate 0.5",
    "clients": 8,
    "noise_multiplier": 1.0,
    "clip": 0.5,
    "accountant": "privacy loss distribution, dp-accounting 0.6.0",
    "outside": ["vocabularies", "how long rounds took"],
    "rows": None,
}


def test_a_promise_has_its_numbers_its_relation_and_what_is_outside() -> None:
    text = promise(SAID)
    for part in (
        "epsilon 2.1093 at delta 0.01 of this run",
        "zero-out",
        "epsilon 4.5000 at delta 0.001 of its data, on which 3 runs had released 7 sums when it ended",
        "Poisson, rate 0.5",
        "noise multiplier 1, clip 0.5",
        "not against the server",
        "Outside the guarantee: vocabularies; how long rounds took",
    ):
        assert part in text
    assert promise({}) == NOTHING
    assert "of its data not known, as no ledger counts" in promise({**SAID, "data": None})
    earlier = {key: value for key, value in SAID.items() if key != "data"}
    assert "of its data not known" in promise(earlier)


def test_a_simulation_shows_no_epsilon() -> None:
    said = {key: value for key, value in SAID.items() if key not in ("epsilon", "delta", "releases")}
    text = promise({**said, "simulated": True})
    assert text.startswith("simulated: nothing is promised") and "epsilon" not in text


@pytest.mark.parametrize(("rows", "shown"), [(None, "| rows of 8 clients |"), (70, "| 70 rows of 8 clients |")])
def test_a_card_counts_rows_only_where_that_is_revealed(rows: int | None, shown: str) -> None:
    facts = CardFacts("n", "t", "", "", "s", "fedavg", 2, None, 8, rows, "d", privacy=promise(SAID))
    assert shown in card_text(facts) and "epsilon 2.1093" in card_text(facts)
    assert "epsilon 4.5000 at delta 0.001 of its data" in card_text(facts)


def test_tables_and_pages_carry_it(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"kind": "run", "clients": [], "rounds": 1},
        {"kind": "round", "round": 1, "loss": None, "seconds": {}, "total": {}, "traffic": {}, "extra": {}, "time": 0},
        {"kind": "result", "privacy": SAID},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    shown = StringIO()
    show_results(tmp_path, console=Console(file=shown, width=400))
    for words in ("epsilon 2.1093 at delta 0.01", "epsilon 4.5000 at delta 0.001 of its data"):
        assert words in shown.getvalue()
    page = html_page("t", [Group("a", [read_run(tmp_path)])], "nearness")
    assert "epsilon 2.1093 at delta 0.01" in page and "epsilon 4.5000 at delta 0.001 of its data" in page
