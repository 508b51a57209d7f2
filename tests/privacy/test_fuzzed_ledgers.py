"""Ledgers made at random, of a run and of its data: read as counts and finite numbers, or refused with 8."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from fuzzing import cases, only_named_errors, spoilt, text_of, torn
from hypothesis import given
from hypothesis import strategies as st

from fedtorch.core.errors import CheckpointError, FedtorchError
from fedtorch.privacy.data_ledger import DataLedger
from fedtorch.privacy.ledger import LEDGER, read_releases

RUN = {"run": "ab", "folder": "runs/a", "rate": 0.1, "clients": 10, "noise_multiplier": 1.0, "delta": 1e-5}
OF_DATA: list[Any] = [RUN, {"run": "ab", "round": 0, "attempt": 0}, {"run": "ab", "round": 1, "attempt": 0}]
OF_RUN: list[Any] = [{"form": 1, "rate": 0.1}, *({"round": r, "attempt": 0, "digest": "0f" * 32} for r in range(3))]


def read(path: Path, content: bytes) -> str:
    """Read the file as the ledger of a run, or else of data; with what message it was refused, or nothing."""
    path.write_bytes(content)
    path.chmod(0o600)
    refused = ""
    with only_named_errors():
        try:
            if path.name == LEDGER:
                for release in read_releases(path.parent)[1]:
                    assert release.round >= 0 and release.attempt >= 0
                return ""
            for run in DataLedger(path).runs().values():
                assert 0 < run.rate <= 1 and 0 < run.delta < 1 and 0 < run.noise_multiplier < math.inf
                assert all(round >= 0 and attempt >= 0 for round, attempt in run.releases)
        except FedtorchError as error:
            assert error.exit_code == 8 and path.name in str(error)
            refused = str(error)
            raise
    return refused


def try_ledger(draw: st.DrawFn, folder: Path) -> None:
    name, lines = draw(st.sampled_from([("d.privacy.jsonl", OF_DATA), (LEDGER, OF_RUN)]))
    changed = [*lines]
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.integers(0, len(changed) - 1))
        changed[place] = spoilt(draw, changed[place])
    data = b"".join(text_of(line) + b"\n" for line in changed)
    read(folder / name, torn(draw, data) if draw(st.integers(0, 3)) == 0 else data)


CORPUS: dict[str, tuple[str, Any]] = {
    "brackets thousands deep were a traceback": (LEDGER, "[" * 100_000),
    "the same in the ledger of data": ("d.privacy.jsonl", "[" * 100_000),
    "an infinite round was a traceback": ("d.privacy.jsonl", [RUN, {"run": "ab", "round": math.inf, "attempt": 0}]),
    "a negative round was counted": ("d.privacy.jsonl", [RUN, {"run": "ab", "round": -1, "attempt": 0}]),
    "true was attempt 1": (LEDGER, [{"form": 1}, {"round": 0, "attempt": True, "digest": ""}]),
    "a rate of text ended the account": ("d.privacy.jsonl", [{**RUN, "rate": "0.1"}]),
    "a noise of 0 divided the account": ("d.privacy.jsonl", [{**RUN, "noise_multiplier": 0}]),
    "a run of 100 kB was quoted whole": ("d.privacy.jsonl", [{"run": "x" * 100_000, "round": 0, "attempt": 0}]),
}
"""What it once broke -> a ledger."""


@pytest.mark.parametrize("what", CORPUS)
def test_what_was_found_in_ledgers_stays_refused(what: str, tmp_path: Path) -> None:
    name, content = CORPUS[what]
    text = content if isinstance(content, str) else "\n".join(map(json.dumps, content))
    assert "damaged" in read(tmp_path / name, text.encode() + b"\n")


@pytest.mark.parametrize("name", ["d.privacy.jsonl", LEDGER])
def test_a_ledger_that_is_a_fifo_is_refused(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name, 0o600)
    with pytest.raises(CheckpointError, match="no regular file"):
        read_releases(tmp_path) if name == LEDGER else DataLedger(tmp_path / name).runs()


@cases(50)
@given(data=st.data())
def test_a_random_ledger_is_read_or_refused(data: Any, tmp_path: Path) -> None:
    try_ledger(data.draw, tmp_path)


@cases(10_000)
@given(data=st.data())
def test_ten_thousand_ledgers_are_read_or_refused(data: Any, tmp_path: Path) -> None:
    try_ledger(data.draw, tmp_path)
