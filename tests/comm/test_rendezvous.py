"""Meeting through the store, and naming the rank that does not come."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, expect_exit, run_ranks, start_ranks

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.job.links import Links
from fedtorch.comm.options import Network
from fedtorch.comm.wire import NO_CLIENT, Packet
from fedtorch.core.errors import DeadlineError, PreflightError

TIMEOUT_S, GRACE_S = 4.0, 0.5


def meet_often() -> Any:
    with DistributedCommunicator.join(["a"], timeout_s=20) as comm:
        answers = [comm.barrier("train", round=k, stop=(k == 3 and comm.rank == 1)) for k in range(5)]
        comm.barrier("end", round=9)
        kept = [k for k in range(5) for r in (*range(comm.size), "verdict") if comm._store.has([f"meeting{k}/{r}"])]
        comm.barrier("end", round=10)
        return answers, kept


@pytest.mark.processes
def test_all_ranks_get_the_same_stop_answer_and_old_keys_are_deleted() -> None:
    assert run_ranks(meet_often, 3) == [([False, False, False, True, False], [])] * 3


def train_long() -> None:
    with DistributedCommunicator.join(["a"], timeout_s=TIMEOUT_S, grace_s=GRACE_S) as comm:
        if comm.rank == 1:
            for step in range(60):  # longer than the timeout, with signs of life
                comm.heartbeat(phase="train", round=1, client="a", step=step)
                time.sleep(0.1)
        comm.barrier("reports", round=1)


@pytest.mark.processes
def test_a_slow_rank_that_gives_signs_of_life_is_waited_for() -> None:
    run_ranks(train_long, 3)


def get_stuck(culprit: int) -> None:
    with DistributedCommunicator.join(["a", "b"], timeout_s=TIMEOUT_S, grace_s=GRACE_S) as comm:
        comm.preflight({})
        comm.barrier("train", round=7)
        comm.heartbeat(phase="train", round=7, client="a", step=12)
        if comm.rank == culprit:
            time.sleep(60)  # is killed when the others have ended
        comm.barrier("reports", round=7)


@pytest.mark.processes
@pytest.mark.parametrize("culprit", [0, 2])
def test_a_silent_rank_is_named_on_all_others(culprit: int) -> None:
    outcomes = start_ranks(get_stuck, 3, culprit).join(stopped=[culprit])
    name = "rank 0 (the server)" if culprit == 0 else "rank 2"
    for rank, outcome in enumerate(outcomes):
        if rank != culprit:
            told = rf"{re.escape(name)} gave no sign of life for \d+ s: client `a`, round 7, phase train, step 12"
            assert re.search(told, outcome.error), outcome.error
            assert outcome.exit_code == DeadlineError.exit_code


@pytest.mark.processes
@pytest.mark.parametrize("culprit", [0, 1])
def test_a_stopped_process_is_named_on_all_others(culprit: int, tmp_path: Path) -> None:
    ranks = start_ranks(meet_for_ever, 3, str(tmp_path))
    wait_until_busy(ranks, tmp_path)
    os.kill(ranks.pids[culprit], signal.SIGSTOP)
    outcomes = ranks.join(stopped=[culprit])
    # Rank 0 hosts the store here, so the others cannot ask for its last words.
    blame = r"gave no answer for 4 s; its host \(rank 0" if culprit == 0 else r"rank 1 gave no sign of life for \d+ s"
    for rank, outcome in enumerate(outcomes):
        if rank != culprit:
            assert re.search(blame, outcome.error), outcome.error
            assert outcome.exit_code == DeadlineError.exit_code


@pytest.mark.processes
def test_a_stopped_server_is_named_when_the_launcher_hosts_the_store(tmp_path: Path) -> None:
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environ = {"MASTER_PORT": str(agent.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    ranks = start_ranks(meet_for_ever, 3, str(tmp_path), environ=environ)
    wait_until_busy(ranks, tmp_path)
    os.kill(ranks.pids[0], signal.SIGSTOP)
    for outcome in ranks.join(stopped=[0])[1:]:
        assert re.search(r"rank 0 \(the server\) gave no sign of life for \d+ s", outcome.error), outcome.error
        assert outcome.exit_code == DeadlineError.exit_code


def meet_and_exchange() -> Any:
    with DistributedCommunicator.join(["a"], timeout_s=20) as comm:
        comm.preflight({"job": "the same"})
        flat = torch.full((3,), float(comm.rank))
        comm.broadcast(flat)
        return flat.tolist(), comm.barrier("train", round=1)


@pytest.mark.processes
def test_a_second_attempt_on_the_launchers_store_does_not_see_the_first() -> None:
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for attempt in ("0", "1"):
        environ = {"MASTER_PORT": str(agent.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        environ["TORCHELASTIC_RESTART_COUNT"] = attempt
        assert run_ranks(meet_and_exchange, 2, environ=environ) == [([0.0] * 3, False)] * 2


def meet_with_own_count() -> Any:
    """Rank 1 is on a machine that was replaced: its launcher has counted no restart."""
    if os.environ["RANK"] == "1":
        os.environ["TORCHELASTIC_RESTART_COUNT"] = "0"
    return meet_and_exchange()


@pytest.mark.processes
def test_launchers_that_count_restarts_differently_agree_on_the_attempt() -> None:
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for count in ("0", "1", "1"):
        environ = {"MASTER_PORT": str(agent.port), "TORCHELASTIC_USE_AGENT_STORE": "True", "GROUP_WORLD_SIZE": "2"}
        environ["TORCHELASTIC_RESTART_COUNT"] = count
        results = run_ranks(meet_with_own_count, 3, environ=environ)
        assert results == [([0.0] * 3, False)] * 3


def wait_until_busy(ranks: Ranks, folder: Path) -> None:
    while len(list(folder.glob("busy*"))) < 3:
        if any(process.exitcode is not None for process in ranks.processes):
            pytest.fail("\n".join(outcome.error for outcome in ranks.join(timeout=5)))
        time.sleep(0.05)


def meet_for_ever(folder: str) -> None:
    with DistributedCommunicator.join(["a", "b"], timeout_s=TIMEOUT_S, grace_s=GRACE_S) as comm:
        for k in range(1_000_000):
            comm.barrier("train", round=k)
            (Path(folder) / f"busy{comm.rank}").touch()
            time.sleep(0.01)


def broadcast_for_ever(folder: str, timeout_s: float, grace_s: float) -> None:
    with DistributedCommunicator.join(["a", "b"], timeout_s=timeout_s, grace_s=grace_s) as comm:
        flat = torch.zeros(100_000)
        while True:
            comm.broadcast(flat)
            (Path(folder) / f"busy{comm.rank}").touch()


@pytest.mark.processes
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_lost_in_a_collective_is_named_on_all_others(sent: signal.Signals, tmp_path: Path) -> None:
    # who has the store waits for the others' last look, which takes its time on a busy machine, and for no dead rank
    # a wait of gloo's ends after the timeout, whoever is late, and only a rank that is stopped has to be waited for
    limits = (300.0, 300.0) if sent == signal.SIGKILL else (TIMEOUT_S, 5.0)
    ranks = start_ranks(broadcast_for_ever, 3, str(tmp_path), *limits)
    wait_until_busy(ranks, tmp_path)
    os.kill(ranks.pids[2], sent)
    outcomes = ranks.join(timeout=60, stopped=[2])
    fate = "the process of rank 2 is gone" if sent == signal.SIGKILL else "rank 2 gave no sign of life"
    for outcome in outcomes[:2]:
        assert fate in outcome.error
        assert "phase broadcast" in outcome.error
        assert outcome.exit_code == DeadlineError.exit_code


def meet_until_told(folder: str) -> int:
    with DistributedCommunicator.join(["a", "b"], timeout_s=TIMEOUT_S, grace_s=GRACE_S) as comm:
        for k in itertools.count():
            if comm.barrier("train", round=k, stop=(Path(folder) / "enough").exists()):
                return k
            (Path(folder) / f"busy{comm.rank}").touch()


@pytest.mark.processes
def test_a_job_that_was_suspended_goes_on(tmp_path: Path) -> None:
    ranks = start_ranks(meet_until_told, 3, str(tmp_path))
    wait_until_busy(ranks, tmp_path)
    for pid in ranks.pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2 * TIMEOUT_S)
    for pid in ranks.pids:
        os.kill(pid, signal.SIGCONT)
    (tmp_path / "enough").touch()
    outcomes = ranks.join()
    assert [outcome.error for outcome in outcomes] == [""] * 3
    assert len({outcome.result for outcome in outcomes}) == 1


def leave_with_an_error() -> None:
    # nobody waits for the timeout, which is longer than what the test waits; a busy machine needs time to read who left
    with DistributedCommunicator.join(["a", "b"], timeout_s=300, grace_s=10.0) as comm:
        comm.heartbeat(phase="train", round=4, client="b", step=2)
        if comm.rank == 2:
            raise KeyError("the secret text of a client")
        comm.barrier("reports", round=4)


@pytest.mark.processes
def test_a_rank_that_raises_is_named_at_once_without_its_text() -> None:
    for outcome in expect_exit(leave_with_an_error, 3)[:2]:
        assert "rank 2 left the job with KeyError: client `b`, round 4, phase train, step 2" in outcome.error
        assert "secret" not in outcome.error


def read_the_verdict_late() -> None:
    """Rank 1 takes note of who has left before it reads what was sent to it earlier, as on a busy machine."""
    with DistributedCommunicator.join(["a", "b"], timeout_s=20, grace_s=10.0) as comm:
        comm.barrier("train", round=4)
        if comm.rank == 2:
            raise KeyError("the secret text of a client")
        if comm.rank == 1:
            deliver = comm._rendezvous._links._deliver

            def deliver_late(*told: Any) -> None:
                while not comm._liveness.left():
                    time.sleep(0.05)
                    comm._liveness.read_all()
                time.sleep(0.3)
                deliver(*told)

            comm._rendezvous._links._deliver = deliver_late  # type: ignore[method-assign]
        comm.barrier("reports", round=4)


@pytest.mark.processes
def test_a_rank_that_reads_the_verdict_late_names_who_left_first() -> None:
    for outcome in expect_exit(read_the_verdict_late, 3)[:2]:
        assert "rank 2 left the job with KeyError" in outcome.error


def connect_late(folder: str) -> None:
    """Rank 1 comes to the server once that has told everyone why it leaves."""
    said, hello = Path(folder) / "said", Links.send
    if os.environ["RANK"] == "1":

        def send_late(self: Links, *told: Any) -> None:
            while not said.exists():
                time.sleep(0.02)
            hello(self, *told)

        Links.send = send_late  # type: ignore[method-assign]
    with DistributedCommunicator.join(["a", "b"], timeout_s=300, grace_s=10.0) as comm:
        if comm.rank == 2:
            raise KeyError("the secret text of a client")
        try:
            comm.barrier("reports", round=4)
        finally:
            said.touch()


@pytest.mark.processes
def test_a_rank_that_connects_late_names_who_left_first(tmp_path: Path) -> None:
    for outcome in expect_exit(connect_late, 3, str(tmp_path))[:2]:
        assert "rank 2 left the job with KeyError" in outcome.error


def compare_facts(timeout_s: float) -> None:
    with DistributedCommunicator.join(["a"], timeout_s=timeout_s) as comm:
        facts = {"config": "abc", "seed": "0", "code": "1"}
        if comm.rank == 1:
            facts |= {"seed": "1", "torch": "2.13"}
        if comm.rank == 2:
            del facts["code"]
        comm.preflight(facts)


@pytest.mark.processes
def test_preflight_lists_every_difference_on_every_rank() -> None:
    for outcome in expect_exit(compare_facts, 3, 20.0):
        for line in (
            "seed: rank 1 has 1, the server has 0",
            "torch: rank 1 has 2.13, the server has nothing",
            "code: rank 2 has nothing, the server has 1",
        ):
            assert line in outcome.error
        assert "config" not in outcome.error.split("PreflightError")[-1]
        assert outcome.exit_code == PreflightError.exit_code


def meet_for_different_things() -> None:
    with DistributedCommunicator.join(["a"], timeout_s=20) as comm:
        comm.barrier("train" if comm.rank else "evaluate", round=2)


@pytest.mark.processes
def test_ranks_at_different_phases_are_told() -> None:
    for outcome in expect_exit(meet_for_different_things, 2):
        assert "rank 1 came for phase train of round 2 and the server for phase evaluate of round 2" in outcome.error


def come(network: Network, late: int, after_s: float | None) -> None:
    """One rank is late, or (None) never comes."""
    if int(os.environ["RANK"]) == late:
        if after_s is None:
            return
        time.sleep(after_s)
    with DistributedCommunicator.join(["a"], timeout_s=TIMEOUT_S, grace_s=GRACE_S, network=network) as comm:
        comm.preflight({})


@pytest.mark.processes
def test_a_rank_that_never_came_is_named() -> None:
    for outcome in expect_exit(come, 3, Network(start_s=1.0, who={2: "south"}), 2, None)[:2]:
        assert "rank 2 (south) was never there in 1 s (system.start_timeout)" in outcome.error


@pytest.mark.processes
@pytest.mark.parametrize("late", [0, 2])
def test_a_rank_that_is_late_is_waited_for_longer_than_one_that_is_silent(late: int) -> None:
    run_ranks(come, 3, Network(start_s=30.0), late, TIMEOUT_S + 1.0)


def join_only() -> None:
    DistributedCommunicator.join(["a"], timeout_s=TIMEOUT_S, grace_s=GRACE_S, network=Network(start_s=TIMEOUT_S))


@pytest.mark.processes
def test_a_taken_port_is_named_with_the_variable_that_sets_it() -> None:
    with socket.socket() as sock:
        sock.bind(("", 0))
        sock.listen()
        port = sock.getsockname()[1]
        outcomes = expect_exit(join_only, 2, environ={"MASTER_PORT": str(port)})
    assert f"port {port} of 127.0.0.1 is taken" in outcomes[0].error
    assert "MASTER_PORT" in outcomes[0].error
    assert f"rank 1 found no store at MASTER_ADDR=127.0.0.1 MASTER_PORT={port}" in outcomes[1].error
    assert [outcome.exit_code for outcome in outcomes] == [PreflightError.exit_code] * 2


@pytest.mark.parametrize("key", ["RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR"])
def test_an_incomplete_environment_is_named(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(key)
    with pytest.raises(PreflightError, match=key):
        DistributedCommunicator.join(["a"])


def talk() -> Any:
    with DistributedCommunicator.join(["a", "b", "c"], timeout_s=20) as comm:
        mine = [Packet(NO_CLIENT, "numbers", numbers={"rank": comm.rank})]
        if comm.rank == 1:
            mine += [Packet(2, "score", numbers={"f1": 0.1}), Packet(0, "score", numbers={"f1": float("inf")})]
        if comm.rank == 2:
            mine = [Packet(1, "score", lists={"curve": (0.1, 1e-300)})]
        gathered = comm.gather(mine, round=1)
        shared = comm.broadcast_packets(
            [Packet(NO_CLIENT, "decision", "stop", {"best": 0.3})] if comm.is_server else [], round=1
        )
        return gathered, shared, comm.broadcast_packets([], round=2), comm.gather([], round=2)


@pytest.mark.processes
def test_messages_are_gathered_by_client_and_shared_with_all() -> None:
    server, *workers = run_ranks(talk, 3)
    gathered, shared, nothing, nobody = server
    assert [(m.client, m.numbers.get("rank")) for m in gathered] == [(-1, 0), (-1, 1), (0, None), (1, None), (2, None)]
    assert gathered[3].lists == {"curve": (0.1, 1e-300)}
    assert shared == [Packet(NO_CLIENT, "decision", "stop", {"best": 0.3})]
    assert nothing == nobody == []
    assert workers == [([], shared, [], [])] * 2
