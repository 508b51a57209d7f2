"""The comparison of speeds: all systems get the same rounds, and times are read off what they print."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.linalg import norm

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is not part of the package

from benchmarks import speed
from benchmarks.measured import time_plain
from benchmarks.processes import run_ranks
from benchmarks.speed_ours import WAYS, plan_of, workload_of
from benchmarks.speed_plan import ROUND_ENDED, Plan, write_final
from benchmarks.workloads import WORKLOADS, shrunk

ENDS = f"""
import sys, time
import numpy as np
for _ in range(4):
    end = time.process_time() + 0.05  # some ticks of the clock that the system counts by
    while time.process_time() < end:
        pass
    print("{ROUND_ENDED}", flush=True)
np.save(sys.argv[1], np.full(3, float(sys.argv[2])))
"""


def averaged(plan: Plan) -> np.ndarray:
    """What a peer does with the plan: train by turns from the same weights, then the mean by rows."""
    model = plan.model()
    weights = [value.detach().clone() for value in model.parameters()]
    for turns in plan.rounds:
        total = sum(len(plan.rows[turn.client]) for turn in turns)
        mean = [torch.zeros_like(value) for value in weights]
        for turn in turns:
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), weights, strict=True):
                    parameter.copy_(value)
            plan.train(model, turn)
            for summed, parameter in zip(mean, model.parameters(), strict=True):
                summed += parameter.detach() * (len(plan.rows[turn.client]) / total)
        weights = mean
    return torch.cat([value.view(-1) for value in weights]).numpy()


@pytest.mark.parametrize("letter", list(WORKLOADS))
def test_the_written_plan_trains_what_the_plain_loop_does(
    letter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "0")):
        monkeypatch.setenv(name, value)
    workload = workload_of(letter, 2, tiny=True)
    plan_of(workload).write(tmp_path / "plan.npz")
    plan = Plan.read(tmp_path / "plan.npz")
    plain = time_plain(workload, keep=True).weights
    assert plain is not None
    start = np.concatenate([value.numpy().ravel() for value in plan.start.values()])
    found = averaged(plan)
    # the rate falls by one formula here and by transformers' there, dropout is the same: fp32 roundings are left
    assert norm(found - plain) < 1e-3 * norm(found - start)
    write_final(tmp_path / "final.npy", list(plan.start.values()))
    assert np.array_equal(np.load(tmp_path / "final.npy"), start)


@pytest.mark.processes
def test_two_plain_processes_that_share_memory_train_what_one_does() -> None:
    workload = shrunk(WORKLOADS["b"])
    (one,) = run_ranks(partial(time_plain, workload, keep=True), 1)
    both = run_ranks(partial(time_plain, workload, keep=True), 2)
    assert np.array_equal(both[0].result.weights, both[1].result.weights)
    assert np.allclose(one.result.weights, both[0].result.weights, rtol=0, atol=1e-5)


def test_every_system_has_a_title_ranks_and_a_program() -> None:
    assert set(speed.TITLES) == set(speed.RANKS) == {*WAYS, *speed.PEERS}
    for peer in speed.PEERS:
        assert (speed.HERE / f"speed_{peer}.py").is_file()


@pytest.mark.processes
def test_times_are_read_off_what_a_system_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command_of(way: str, folder: Path, letter: str, *_: object) -> list[str]:
        return [sys.executable, "-c", ENDS, str(folder / f"{way}-{letter}.npy"), "1.5" if way == "pfl" else "1"]

    monkeypatch.setattr(speed, "command_of", command_of)
    words = ["--dir", str(tmp_path), "--workload", "c", "--only", "pfl", "--tiny", "--repeat", "2"]
    assert speed.main([*words, "--json", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())["c"]
    assert list(figures) == ["plain", "pfl"]
    assert figures["plain"]["ratio"] == 1 and figures["plain"]["difference"] == 0
    assert figures["pfl"]["difference"] == 0.5 and figures["pfl"]["round_s"] > 0
    assert "pfl-research" in capsys.readouterr().out


@pytest.mark.processes
def test_a_system_that_fails_is_an_error_that_says_where_its_words_are(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(RuntimeError, match=f"ended with 3 after 1 rounds; see {log}"):
        speed.measure([sys.executable, "-c", f"print('{ROUND_ENDED}'); raise SystemExit(3)"], log, with_memory=False)


def test_the_tree_of_a_process_is_measured_whole() -> None:
    assert os.getpid() in speed.descendants(os.getppid())
    assert speed.processor_s([os.getpid()]) > 0 and speed.shared_mb([os.getpid()]) > 1
