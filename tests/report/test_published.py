"""`run.published`, which names a row of a paper's table, or nothing at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtorch.report.published import unknown_row
from fedtorch.tracking.run_folder import Run


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (None, ""),
        ("lorar/fedopt_lorar", ""),
        ("fedopt_lorar", ""),
        (
            "lorar/fedopt_loar",
            "run.published is lorar/fedopt_loar, which is no row of a paper's table; there are",
        ),
    ],
)
def test_a_row_that_no_table_has_is_said(wanted: str | None, said: str) -> None:
    found = unknown_row(Run(Path("runs/a"), {"run": {"published": wanted}}, []))
    assert said in found and bool(said) == bool(found)
