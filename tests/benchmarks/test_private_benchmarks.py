"""The benchmarks of what privacy costs compare like with like, and run. Nothing here is timed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is not part of the package

from benchmarks.busy_ranks import main as busy_ranks_main
from benchmarks.checked_rounds import main as checked_main
from benchmarks.known_scale import main as known_scale_main
from benchmarks.private_rounds import ADAPTER, CASES, KINDS, config_of
from benchmarks.private_rounds import main as rounds_main
from benchmarks.private_utility import MODELS, accuracy, promise_of
from benchmarks.private_utility import main as utility_main
from benchmarks.wires import why_not
from benchmarks.workloads import shrunk


def test_both_kinds_of_rounds_train_all_clients_with_equal_weights(tmp_path: Path) -> None:
    without, private = (config_of(shrunk(CASES["t5"]), tmp_path, 3, kind, "normal") for kind in KINDS)
    assert without.privacy.kind == "none" and private.privacy.kind == "client"
    assert without.algorithm == private.algorithm and without.client == private.client
    assert without.clients.per_round == "all" and private.clients.rate == 1.0
    assert without.system == private.system and without.rounds == private.rounds


def test_the_sizes_are_those_that_the_pages_name() -> None:
    assert 250_000 < sum(p.numel() for p in ADAPTER.task.build_model(0).parameters() if p.requires_grad) < 350_000
    for make in MODELS.values():
        assert 9_000 < sum(p.numel() for p in make(0).parameters() if p.requires_grad) < 11_000
    assert promise_of(None, 1.0) == "{kind: none}" and "epsilon: 3.0" in promise_of(3.0, 1.0)
    assert accuracy({"averages": {"accuracy": {"micro": 0.5}}}) == 0.5


@pytest.mark.processes
@pytest.mark.slow
def test_rounds_with_privacy_are_put_beside_those_without(tmp_path: Path) -> None:
    words = ["--case", "t5", "--ranks", "1", "3", "--rounds", "1", "--repeat", "1", "--tiny"]
    assert rounds_main([*words, "--json", str(tmp_path / "out.json")]) == 0
    records = json.loads((tmp_path / "out.json").read_text())
    assert [record["ranks"] for record in records] == [1, 3] and all(record["cpu_s_ratio"] > 0 for record in records)


@pytest.mark.processes
@pytest.mark.slow
def test_utility_has_a_row_for_each_epsilon(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    words = ["--clients", "20", "--rate", "0.5", "--rounds", "1", "--epsilons", "8", "--jobs", "1"]
    assert utility_main([*words, "--out", str(tmp_path)]) == 0
    rows = (tmp_path / "utility.md").read_text().splitlines()[4:]
    assert [row.split(" | ")[0] for row in rows] == ["| adapter"] * 2 + ["| head"] * 2
    for none, private in (rows[:2], rows[2:]):
        assert none.split(" | ")[1] == "none" and private.split(" | ")[1].startswith(("8.0", "7.9"))


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    "wire", [None, pytest.param(1000.0, marks=pytest.mark.skipif(bool(why_not()), reason=why_not()))]
)
def test_rounds_that_silos_check_are_put_beside_those_with_a_secret(wire: float | None, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    words = ["--tiny", "--rounds", "1", "--repeat", "1", "--json", str(tmp_path / "out.json")]
    assert checked_main([*words, *([] if wire is None else ["--mbit", str(wire)])]) == 0
    records = json.loads((tmp_path / "out.json").read_text())
    assert [record["kind"] for record in records] == ["secret", "keys", "0.05", "all"]
    assert all(record["cpu_s_ratio"] > 0 and record["mbit"] == wire for record in records)
    assert all(record["s"] > record["train_s"] > 0 for record in records)


@pytest.mark.processes
@pytest.mark.parametrize("word", ["0", "-1", "nan"])
def test_a_wire_of_no_speed_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        checked_main(["--tiny", f"--mbit={word}"])
    assert "number of Mbit/s" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.slow
def test_rounds_at_a_known_scale_are_put_beside_those_by_reports(tmp_path: Path) -> None:
    words = ["--tiny", "--ranks", "2", "--rounds", "1", "--repeat", "1", "--json", str(tmp_path / "out.json")]
    assert known_scale_main(words) == 0
    records = json.loads((tmp_path / "out.json").read_text())
    assert [record["kind"] for record in records] == ["reports", "previous", "asynchronous"]
    assert all(record["ratio"] > 0 for record in records) and records[0]["ratio"] == 1.0
    assert all(record["processor"][0] > 0 for record in records) and records[0]["processor"][1] == 1.0


@pytest.mark.processes
@pytest.mark.slow
def test_the_share_of_time_in_which_ranks_train_is_that_of_their_records(tmp_path: Path) -> None:
    words = ["--ranks", "2", "--buffers", "2", "--jobs", "4", "--seconds", "0.2", "--json", str(tmp_path / "out.json")]
    assert busy_ranks_main(words) == 0
    (record,) = json.loads((tmp_path / "out.json").read_text())
    assert record["jobs"] == 4 and 0 < record["busy"] < 1 and record["planned"] == 1.0
