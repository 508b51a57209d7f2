"""Checked rounds with privacy: all of them under noise that silos share; a chain of records under the server's own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from parties import (
    PARTIES,
    PINNED,
    SECRET,
    as_party,
    as_party_of_a_lying_server,
    checked,
    digest,
    ends_well,
    run,
    write_config,
)
from ranks import expect_exit
from torch import Tensor

from fedtorch.comm.job.witness import Exchanged
from fedtorch.rounds.aggregation import Decision
from fedtorch.rounds.chained_steps import ChainedSteps
from fedtorch.tracking.trust_statement import checked as checked_by
from fedtorch.trust.receipts import ReceiptsFile, Signed
from launchers import verify

pytest.importorskip("cryptography")

pytestmark = pytest.mark.processes

RECORD: dict[str, Any] = {
    "privacy": {
        "kind": "record",
        "noise_at": "shared",
        "secure_sum": {"threshold": 1.0},
        "colluders": 1,
        "units": dict.fromkeys(PINNED, 12),
        "clip": 0.5,
        "noise_multiplier": 4.0,
        "delta": 1e-3,
        "simulate": True,
        "seed": 5,
    },
    "algorithm": {"name": "fedavg", "weights": "declared"},
    "client": {"batch_size": 4, "steps": 1},
    "server": {"optimizer": "adam", "lr": 0.01},
}
LOCAL: dict[str, Any] = {
    "privacy": {n: v for n, v in RECORD["privacy"].items() if n not in ("noise_at", "secure_sum", "colluders")},
    "algorithm": RECORD["algorithm"],
    "client": RECORD["client"],
}
CLIENT: dict[str, Any] = {
    "privacy": {"kind": "client", "clip": 1.0, "noise_multiplier": 1.0, "delta": 0.01, "simulate": True, "seed": 5},
    "clients": {"sampling": "poisson", "rate": 0.4},
    "rounds": 4,
}
SECURE = {**CLIENT, "privacy": {**CLIENT["privacy"], "secure_sum": {"threshold": 1.0}}}


def write(places: Path, trust: dict[str, Any], changes: dict[str, Any]) -> Path:
    """Write the settings of a run whose parties have one folder, for silos keep states; the folder."""
    write_config(places, **trust, **changes, run={"dir": str(places / "run"), "name": "noised"})
    return places / "run"


def records(folder: Path, party: str) -> list[Signed]:
    return ReceiptsFile(folder / "trust" / party / "receipts.jsonl").records()


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        (RECORD, "all"),
        pytest.param(RECORD, 0.5, marks=pytest.mark.slow),
        pytest.param(LOCAL, "all", marks=pytest.mark.slow),
        pytest.param(CLIENT, "all", marks=pytest.mark.slow),
        (SECURE, 0.5),
    ],
)
def test_checks_of_noised_rounds_change_no_bit(changes: dict[str, Any], share: str | float, places: Path) -> None:
    folder = write(places, {"trust": {}}, changes)
    ends_well(run(places, environ=SECRET))
    common = digest(folder)
    write(places, checked(share), changes)
    ends_well(run(places, "never"))
    assert digest(folder) == common
    assert verify.main([str(folder)]) == 0
    for name in PARTIES.values():
        assert [each.about["round"] for each in records(folder, name)[1:]] == list(range(changes.get("rounds", 2)))


def test_a_sum_with_noise_that_is_not_that_of_the_parts_is_found(places: Path) -> None:
    folder = write(places, checked("all"), RECORD)
    ended = expect_exit(as_party_of_a_lying_server, len(PARTIES), str(places))
    assert [outcome.exit_code or outcome.result[0] for outcome in ended] == [11] * len(PARTIES)
    assert "round 2: the sum is not that of the parts" in (folder / "log.rank1.txt").read_text()


@pytest.mark.parametrize("changes", [CLIENT, pytest.param(SECURE, marks=pytest.mark.slow)])
def test_what_is_behind_the_servers_noise_is_in_no_record_and_said_to_be_unchecked(
    changes: dict[str, Any], places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever was drawn: each silo sends a part and a receipt in every round, and all files look alike."""
    folder = write(places, checked("all"), changes)
    ends_well(run(places))
    for record in records(folder, "south")[1:]:
        assert not record.about.keys() & {"accepted", "scale", "sum", "tags", "weights"}
        assert sorted(record.about["receipts"]) == ["north", "south", "west"]
    for name in PARTIES.values():
        own = folder / "trust" / name
        receipts = [each for each in ReceiptsFile(own / "receipts.jsonl").signed if each.kind == "receipt"]
        assert [each.about["own"] for each in receipts] == [{}] * 12
        assert not list(own.glob("tags.*")) and not list(own.glob("leaves/*"))
    capsys.readouterr()
    assert verify.main([str(folder)]) == 0
    assert "not checked in 4 rounds: the server's own noise is its secret" in capsys.readouterr().out
    said = json.loads((folder / "results.json").read_text())["trust"]
    assert checked_by(said).startswith("not sum and step, which are behind the server's own noise; records of 4 rounds")


def as_party_of_a_server_that_tells(places: str) -> tuple[int, str]:
    """Its record of the second round has something of the sum before the noise."""
    if os.environ["RANK"] == "0":
        of_sum = ChainedSteps._of_sum

        def tell(self: ChainedSteps, exchanged: Exchanged, decision: Decision) -> dict[str, Any]:
            return {"accepted": ["north"]} if self.context.round == 1 else of_sum(self, exchanged, decision)

        ChainedSteps._of_sum = tell  # type: ignore[method-assign]
    return as_party(places)


def as_party_of_a_server_that_forgets_one(places: str) -> tuple[int, str]:
    """It passes on no receipt of north's in the second round, as if that one had not been there."""
    if os.environ["RANK"] == "0":
        take = ChainedSteps.take

        def take_without(self: ChainedSteps, decision: Decision, grad: Tensor | None) -> None:
            if self.context.round == 1 and self.witness.last is not None:
                del self.witness.last.receipts[1]
            take(self, decision, grad)

        ChainedSteps.take = take_without  # type: ignore[method-assign]
    return as_party(places)


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (as_party_of_a_server_that_tells, "tells `accepted` of a sum that must stay the server's secret"),
        pytest.param(
            as_party_of_a_server_that_forgets_one, "the record has no receipt of `north`", marks=pytest.mark.slow
        ),
    ],
)
def test_records_that_would_show_the_cohort_are_refused(lie: Any, said: str, places: Path) -> None:
    folder = write(places, checked("all"), CLIENT)
    ended = expect_exit(lie, len(PARTIES), str(places))
    assert [outcome.exit_code or outcome.result[0] for outcome in ended] == [11] * len(PARTIES)
    assert said in (folder / "log.rank2.txt").read_text()
