"""The benchmark compares like with like, and runs. Nothing here is timed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from numpy.linalg import norm

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is not part of the package

from benchmarks import saves
from benchmarks.adapter_rounds import main as adapter_rounds_main
from benchmarks.adapter_rules import RULES
from benchmarks.adapter_rules import main as adapter_rules_main
from benchmarks.clients import main as clients_main
from benchmarks.exchanges import main as exchanges_main
from benchmarks.large_adapter import main as large_adapter_main
from benchmarks.latency import main as latency_main
from benchmarks.lengths import main as lengths_main
from benchmarks.machines import main as machines_main
from benchmarks.many_rows import main as many_rows_main
from benchmarks.measured import time_plain, time_runner
from benchmarks.plain import best_half
from benchmarks.precision import main as precision_main
from benchmarks.robust import NAMES as COMBINATIONS
from benchmarks.robust import main as robust_main
from benchmarks.rounds import cases, main
from benchmarks.scale import built_of, federation, on_paper
from benchmarks.scale import main as scale_main
from benchmarks.sparse import main as sparse_main
from benchmarks.states import main as states_main
from benchmarks.wires import limited, why_not
from benchmarks.workloads import WORKLOADS, shrunk
from fedtorch.planning.bench import Measured, step_key, write
from fedtorch.planning.cost_model import Constants
from fedtorch.planning.step_time import Training


@pytest.mark.long
@pytest.mark.parametrize("letter", list(WORKLOADS))
def test_the_plain_loop_and_the_runner_train_the_same_federation(letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "0")):
        monkeypatch.setenv(name, value)
    workload = shrunk(WORKLOADS[letter])
    plain = time_plain(workload, keep=True).weights
    runner = time_runner(workload, keep=True).weights
    start = torch.cat([p.detach().view(-1) for p in workload.task.build_model(0).parameters()]).numpy()
    assert plain is not None and runner is not None
    # Not equal bits: the plain loop averages weights in fp32, the runner differences of weights almost exactly.
    # One round of fp32 rounding is 1e-7 of a weight and later steps feel it; another batch, seed, rate or share of
    # a client in the average moves the weights by a few per cent of the way they went, or more.
    assert norm(plain - runner) < 1e-3 * norm(plain - start)
    other = replace(workload, client=replace(workload.client, lr=1.05 * workload.client.lr))
    changed = time_plain(other, keep=True).weights
    assert changed is not None
    assert norm(changed - runner) > 1e-2 * norm(plain - start)


def test_the_best_half_is_as_even_as_possible() -> None:
    assert sorted(best_half([4, 5, 6, 7, 8])) in ([0, 1, 2], [3, 4])
    assert best_half([9, 1, 1]) == [0]
    assert best_half([3]) == [0]


@pytest.mark.processes
def test_every_case_is_measured_against_another_of_its_workload() -> None:
    for letter in WORKLOADS:
        names = [case.name for case in cases(letter)]
        assert all(case.against in (None, *names) for case in cases(letter))


@pytest.mark.processes
@pytest.mark.slow
def test_the_command_line_prints_and_writes_every_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "figures.json"
    assert main(["--workload", "c", "--tiny", "--rounds", "1", "--repeat", "1", "--json", str(target)]) == 0
    written = json.loads(target.read_text())["c"]
    assert [record["case"] for record in written] == [case.name for case in cases("c")]
    assert "runner, working server + 1" in capsys.readouterr().out
    sent = {record["case"]: record["moved_bytes"] for record in written}
    assert sent["runner, 1 process"][0]["physical_up"] == 0
    assert sent["runner, server + 2 workers"][0]["physical_down"] > 0


@pytest.mark.processes
def test_the_sparse_benchmark_measures_what_the_formula_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "figures.json"
    assert sparse_main(["--tiny", "--json", str(target)]) == 0
    written = json.loads(target.read_text())
    cases = [(one_in, values) for one_in in (12, 50) for values in ("fp32", "int8")]
    assert [(r["numbers"], r["one_in"], r["values"], r["ranks"]) for r in written] == [
        (10_000, *case, 2) for case in cases
    ]
    bitmaps, indices = [64 + 834 * 4 + 1250, 64 + 834 + 1250 + 3], [64 + 200 * 8, 64 + 200 * 5 + 3]
    assert [r["message_bytes"] for r in written] == bitmaps + indices
    for record in written:
        assert record["message_bytes"] == record["formula_bytes"]
        assert record["bound_bytes"] <= record["moved_bytes"] < record["dense_moved_bytes"]
        assert all(seconds > 0 for seconds in record["seconds"].values())
    assert "DIFFERS" not in capsys.readouterr().out


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.processes
def test_a_wire_of_known_bandwidth_is_all_that_processes_have() -> None:
    """A tenth of a Gbit/s needs 0.16 s for two megabytes; loopback itself takes a hundredth of that."""
    code = (
        "import socket, threading, time; s = socket.create_server(('127.0.0.1', 0)); size = 2_000_000\n"
        "c = socket.create_connection(s.getsockname()); a, _ = s.accept(); start = time.monotonic()\n"
        "threading.Thread(target=c.sendall, args=(b'x' * size,)).start()\n"
        "while size: size -= len(a.recv(1 << 20))\n"
        "print(time.monotonic() - start)"
    )
    taken = subprocess.run(limited(0.1, [sys.executable, "-c", code]), capture_output=True, text=True, check=True)
    assert float(taken.stdout) > 0.1


@pytest.mark.slow  # programs of its own, each of which imports torch
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.processes
def test_the_sparse_benchmark_compares_wires(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "figures.json"
    assert sparse_main(["--tiny", "--gbit", "1", "--json", str(target)]) == 0
    written = json.loads(target.read_text())
    assert [(r["gbit"], r["one_in"]) for r in written] == [("1", one_in) for one_in in (12, 12, 50, 50)]
    assert "1 Gbit/s" in capsys.readouterr().out


@pytest.mark.processes
@pytest.mark.parametrize("word", ["fast", "0", "-1", "nan", "1e9"])
def test_a_wire_that_cannot_be_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sparse_main(["--tiny", f"--gbit={word}"])
    assert "number of Gbit/s" in capsys.readouterr().err


@pytest.mark.slow  # programs of its own, each of which imports torch
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.processes
@pytest.mark.slow
def test_the_benchmark_of_long_wires_has_rounds_over_one_of_known_length(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    assert latency_main(["--tiny", "--trips", "200", "--json", str(target)]) == 0
    plain, full = json.loads(target.read_text())
    assert (plain["kind"], full["kind"]) == ("plain", "full")
    assert min(*plain["seconds"], *full["seconds"]) > 2 * 0.2, "the wire has a length"


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.processes
def test_the_benchmark_of_machines_has_fewer_bytes_with_one_rank_of_each_talking(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    assert machines_main(["--tiny", "--json", str(target)]) == 0
    one, every = json.loads(target.read_text())
    assert (one["way"], every["way"]) == ("auto", "never") and len(one["seconds"]) == 2
    assert 12 * 20_000 < one["bytes"] < 0.7 * every["bytes"]


@pytest.mark.long
def test_the_benchmark_of_states_writes_one_checkpoint_after_the_other(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    assert states_main(["--tiny", "--rounds", "2", "--changed", "3", "--json", str(target)]) == 0
    few, many = json.loads(target.read_text())
    assert (few["clients"], many["clients"], few["ratio"]) == (20, 1500, 1.0)
    assert len(few["checkpoint_s"]) == len(many["checkpoint_s"]) == 2 and many["ratio"] > 0


@pytest.mark.processes
def test_the_benchmark_of_exchanges_stays_between_bound_and_formula(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    assert exchanges_main(["--tiny", "--json", str(target)]) == 0
    (record,) = json.loads(target.read_text())
    busiest = record["busiest"]
    assert record["formula"] == 3 * record["bound"] == 6 * 400 * 4 // 2  # 400 numbers of 20,000, two ranks
    assert busiest["star"]["received"] == busiest["replicated"]["received"] == 64 + 400 * 8
    assert record["bound"] < busiest["allreduce"]["received"] <= record["formula"]


@pytest.mark.processes
def test_rounds_that_send_early_take_turns_with_others(tmp_path: Path) -> None:
    target = tmp_path / "early.json"
    words = ["--tiny", "--early", "0", "0.01", "--clients", "3", "--repeat", "2", "--json", str(target)]
    assert exchanges_main(words) == 0
    first, second = json.loads(target.read_text())
    assert (first["client_s"], second["client_s"]) == (0, 0.01)
    assert all(len(record[kind]) == 2 for record in (first, second) for kind in ("reports", "previous"))


@pytest.mark.processes
def test_rounds_move_the_bytes_that_were_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    constants, target = tmp_path / "constants.json", tmp_path / "figures.json"
    torch.set_num_threads(1)
    built = built_of(federation(0.0, 2), 2)
    write(
        constants,
        Measured(
            Constants(2, *[1e-9] * 9, 1e-4, 1e-3, 1e-4, 1e-3, 1e-4, *[1e-4] * 4, 1),
            {step_key(built): Training(1.0, 0.5)},
        ),
    )
    assert scale_main(["--tiny", "--constants", str(constants), "--json", str(target)]) == 0
    written = json.loads(target.read_text())
    (record,) = written["rounds"]
    assert record["bytes_equal"] and record["way"] == "sums" and record["measured_s"] > 0
    assert record["parts_s"]["train"] == pytest.approx(2 * 1.5, rel=1e-3)  # two clients of a step
    assert [light["ranks"] for light in written["light"]] == [2, 3]
    assert "equal" in capsys.readouterr().out


@pytest.mark.processes
def test_on_paper_one_sum_per_node_is_an_eighth_on_the_wire() -> None:
    constants = Constants(2, *[1e-9] * 9, 1e-4, 1e-3, 1e-4, 1e-3, 1e-4, *[1e-4] * 4, 1)
    one, many = (on_paper(ranks, constants) for ranks in (8, 512))
    assert one["down_mb"] == one["up_mb"] == 0
    assert many["down_mb"] == pytest.approx(8 * many["per_node_down_mb"]) and many["per_node_s"] < many["exchange_s"]


@pytest.mark.processes
@pytest.mark.slow
def test_the_benchmark_of_clients_compares_numbers_of_them(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    assert clients_main(["--clients", "20", "2000", "--rounds", "1", "--repeat", "1", "--json", str(target)]) == 0
    few, many = (json.loads(target.read_text())[count] for count in ("20", "2000"))
    assert few["start_ratio"] == few["round_ratio"] == 1 and few["memory_ratio"] == [1, 1]
    assert many["start_ratio"] == pytest.approx(many["start_s"] / few["start_s"])
    assert all(figures["round_s"] > 0 and min(figures["peak_mb"]) > 0 for figures in (few, many))


@pytest.mark.slow
def test_the_benchmark_of_precisions_compares_them_with_fp32() -> None:
    sizes = {"width": 64, "layers": 1, "tokens": 8, "steps": 1, "repeat": 1}
    rows = precision_main([f"--{name}={value}" for name, value in sizes.items()])
    assert [row["precision"] for row in rows][:2] == ["fp32", "bf16"]
    assert rows[0]["time"] == rows[0]["cpu_time"] == 1 and all(row["steps_per_s"] > 0 for row in rows)


@pytest.mark.slow
def test_the_benchmark_of_lengths_computes_fewer_tokens_the_more_is_done() -> None:
    sizes = {"rows": 96, "batch": 2, "width": 16, "layers": 1, "repeat": 1}
    rows = lengths_main([f"--{name}={value}" for name, value in sizes.items()])
    tokens = {(row["set"], row["way"]): row["tokens"] for row in rows}
    assert {name for name, _ in tokens} == {"dialogs", "texts"} and all(row["padding"] >= 0 for row in rows)
    for name in ("dialogs", "texts"):
        assert tokens[name, "both"] < tokens[name, "as shuffled"] > tokens[name, "group_by_length"]
    assert tokens["dialogs", "pack"] < tokens["dialogs", "as shuffled"]


@pytest.mark.slow
@pytest.mark.processes
def test_a_large_base_is_measured_on_three_ranks(tmp_path: Path) -> None:
    found = large_adapter_main(["--small", "--rounds", "1", "--json", str(tmp_path / "large.json")])
    factors = 4 * 2 * 2 * 2 * 8 * (64 + 64)  # of two clients, two layers, queries and values
    assert factors < found["up"][0] < factors + 4000 and found["peak_bytes"] > sum(found["private_bytes"]) > 0
    assert json.loads((tmp_path / "large.json").read_text()) == found


@pytest.mark.slow
@pytest.mark.processes
def test_the_benchmark_of_many_rows_checks_them_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "rows.json"
    assert many_rows_main(["--rows", "300", "--clients", "3", "--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert found["rows"] == 300 and found["first"]["peak_mb"] > 50
    assert capsys.readouterr().out.count("of processor time") == 2


@pytest.mark.processes
def test_the_bare_loop_over_peft_ends_as_the_runner_does(tmp_path: Path) -> None:
    target = tmp_path / "rounds.json"
    found = adapter_rounds_main(["--tiny", "--rounds", "1", "--repeat", "1", "--json", str(target)])
    assert json.loads(target.read_text()) == found and len(found["cases"]) == 6
    assert found["weights"]["apart"] < 1e-3  # see the first test
    numbers, clients = 1 * 8 * (16 + 48), 4  # of one layer's queries, keys and values, which GPT-2 has in one matrix
    assert found["weights"]["numbers"] == numbers
    sent = {case["case"]: case["moved_bytes"][0].get("bytes_up", 0) for case in found["cases"]}
    ours, whole = (sent[f"fedtorch, {what}, server + 2"] for what in ("adapter", "all weights"))
    assert 4 * numbers * clients < ours < 4 * numbers * clients + 4000 < whole


@pytest.mark.slow
def test_the_rules_for_adapters_are_put_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert adapter_rules_main(["--rounds", "1", "--out", str(tmp_path)]) == 0
    table = [line.split(" | ") for line in (tmp_path / "adapters.md").read_text().splitlines()[2:]]
    rows = {row[0].removeprefix("| "): row for row in table}
    assert list(rows) == list(RULES) and rows["fed-sb"][1] == "fedavg; kind sb"
    sent = {name: float(row[5]) for name, row in rows.items()}
    assert sent["fed-sb"] < sent["ffa"] < sent["flora"] < sent["fedex"] == sent["fedit"]
    assert float(rows["fedit"][7]) > 0.01 and {rows[name][7] for name in ("ffa", "flora", "fedex")} == {"0.0000"}
    assert capsys.readouterr().out


def test_every_rule_and_both_sides_of_the_secure_sum_are_measured_beside_the_plain_sum(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    assert robust_main(["--numbers", "1000", "--clients", "5", "--repeat", "1", "--json", str(target)]) == 0
    written = json.loads(target.read_text())
    assert [row["case"] for row in written] == [*COMBINATIONS] and written[0]["ratio"] == 1.0


@pytest.mark.processes
def test_the_parts_of_a_checkpoint_are_measured_and_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    assert saves.main(["--mb", "0.1", "--repeat", "1", "--dir", str(tmp_path), "--json", str(tmp_path / "x.json")]) == 0
    found = json.loads((tmp_path / "x.json").read_text())
    assert set(found) == set(saves.Parts(tmp_path, 0.1).all()) and all(each["s"] > 0 for each in found.values())
