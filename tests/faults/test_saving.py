"""A kill while the server writes beside the next round (`checkpoint.overlap`): at most one round more is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervisor import at, supervise, toy_config

OVERLAP = ("checkpoint.overlap=true",)


@pytest.mark.parametrize(
    ("faults", "done"),
    [
        (at("train", 0), (1, 0)),
        (at("train", 2), (1, 0)),
        (at("aggregate", 0), (1,)),
        ("kill:phase=checkpoint,round=2,attempt=0,rank=0,step=1", (1,)),
        ("kill:phase=checkpoint,round=2,attempt=0,client=b", (1,)),
    ],
)
def test_a_rank_killed_while_the_server_writes_costs_a_round_more(
    faults: str, done: tuple[int, ...], undisturbed: str, tmp_path: Path
) -> None:
    ended = supervise(toy_config(tmp_path), faults=faults, sets=OVERLAP)
    assert ended.codes[0].count(-9) == 1 and ended.code == 0
    assert ended.digest == undisturbed
    log = ended.log(0)
    assert any(f"resuming after round {round} " in log for round in done) or (0 in done and "resuming" not in log)
    assert not list((tmp_path / "run" / "checkpoints").rglob("*.partial"))
