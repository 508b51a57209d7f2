"""Runs with a secure sum: the bits of the plain sum at the public scale, whoever is killed and when."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factors import Regression
from harness import make_config, make_runner
from losses import lose_at
from ranks import run_ranks, start_ranks
from toy import Quadratic

from fedtorch.algorithms.adapters.rolora import RoLoRA
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.sums import masked
from fedtorch.config.schema import (
    CheckpointConfig,
    ClientConfig,
    ClientsConfig,
    Config,
    EvalConfig,
    PartitionConfig,
    SystemConfig,
)
from fedtorch.core.errors import DeadlineError, FedtorchError
from fedtorch.core.update import Report
from fedtorch.privacy import client_level, public_sum
from fedtorch.privacy.public_sum import Masking, exact_sum
from fedtorch.privacy.secure_sum import party
from fedtorch.privacy.settings import PrivacyConfig, SecureSum
from fedtorch.rounds.placement import place
from fedtorch.rounds.result import Result
from fedtorch.setup.build import build
from fedtorch.train.job import ClientJob

pytest.importorskip("cryptography")

pytestmark = pytest.mark.processes

CLIENTS = {f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(7)}
TASK = Quadratic(clients=CLIENTS, start=tuple(0.1 * i for i in range(50)), noise=0.7, double=False)
SIZE, ROUND = 5, 1
CLIP = 0.5
FAILS, COUNTS = ("gather", ROUND, True), ("broadcast", ROUND + 1, False)


def config(folder: Path | str, *, secure: bool, **changes: Any) -> Config:
    settings: dict[str, Any] = {
        "client": ClientConfig(optimizer="adamw", lr=0.05, batch_size=4, optimizer_state="keep"),
        "clients": ClientsConfig(on_loss="continue"),
        "rounds": 3,
        "eval": EvalConfig(every=1),
        "checkpoint": CheckpointConfig(every=1),
        "privacy": PrivacyConfig(clip=CLIP),
        "system": SystemConfig(sum_scale="public"),
        "task": TASK,
        "algorithm": FedAvg(weights="equal"),
        "threshold": 0.51,
        **changes,
    }
    threshold, task, algorithm = (settings.pop(name) for name in ("threshold", "task", "algorithm"))
    if secure:
        settings["privacy"] = replace(settings["privacy"], secure_sum=SecureSum(threshold=threshold))
    return make_config(Path(folder), task, algorithm, **settings)


def as_rank(
    folder: str, victims: dict[int, str], changes: dict[str, Any], recovers: bool = True
) -> tuple[Result, frozenset[int], Any]:
    """One rank; on the server with the parts that it received, on the others with its own before they were hidden."""
    rank, plain = int(os.environ["RANK"]), list[bytes]()
    os.environ["FEDTORCH_TESTING"] = "1"
    os.environ["FEDTORCH_FAULTS"] = f"kill:phase={victims[rank]},round={ROUND}" if rank in victims else ""
    original = party.Party.mask

    def mask(self: party.Party, window: Any) -> None:
        plain.append(window.tobytes())
        original(self, window)

    party.Party.mask = mask  # type: ignore[method-assign]
    digest = masked.window_digest
    masked.window_digest = lambda window: plain.append(window.numpy().tobytes()) or digest(window)  # type: ignore[func-returns-value]
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=60, recovers=recovers) as comm:
        comm.preflight({})
        runner = make_runner(config(folder, secure=True, **changes), comm)
        return runner.run(), comm.lost, plain


def victims_clients(setting: Config, ranks: set[int]) -> list[str]:
    """The clients at home on the ranks that die."""
    built = build(setting, num_ranks=SIZE, rank=1)
    homes = place(setting, built.task, built.training, built.clients, built.topology).homes
    return [name for name, worker in homes.items() if ranks & {*built.topology.workers[worker]}]


def alone(
    folder: Path, at: tuple[str, int, bool] | None = None, ranks: set[int] = frozenset(), **changes: Any
) -> Result:  # type: ignore[assignment]
    """The plain sum at the public scale in one process, in which the same clients are lost at that meeting."""
    setting = config(folder, secure=False, **changes)
    runner, gone = make_runner(setting), victims_clients(setting, ranks)

    lose_at(runner, at, gone)
    return runner.run()


def test_it_has_the_bits_of_the_plain_sum_and_the_server_receives_nothing_else(tmp_path: Path) -> None:
    expected = alone(tmp_path / "alone")
    outcomes = run_ranks(as_rank, SIZE, str(tmp_path / "run"), {}, {}, timeout=90)
    (result, lost, received), *others = outcomes
    assert result.digest == expected.digest and not lost
    assert len(received) == 3 * (SIZE - 1)
    whole = b"".join(received)
    plain = [bytes(part) for _, _, parts in others for part in parts[::2]]  # before and after, in turn
    assert len(plain) == 3 * (SIZE - 1) and all(any(np.frombuffer(part, np.int64)) for part in plain)
    for part in plain:
        assert part not in whole and part[:16] not in whole and part[-16:] not in whole


@pytest.mark.parametrize(
    ("victims", "at"),
    [
        ({2: "sum_shares"}, FAILS),
        ({2: "sum_masks"}, FAILS),  # others have sent theirs, and wait for the server's word
        ({2: "sum_reveal"}, COUNTS),  # its part had arrived
        pytest.param({2: "sum_keys"}, FAILS, marks=pytest.mark.slow),
        pytest.param({3: "sum_keys"}, FAILS, marks=pytest.mark.slow),
        pytest.param({1: "sum_masks"}, FAILS, marks=pytest.mark.slow),
        pytest.param({4: "sum_reveal"}, COUNTS, marks=pytest.mark.slow),
    ],
)
def test_a_worker_killed_in_any_step_leaves_the_plain_sum_of_the_others(
    victims: dict[int, str], at: tuple[str, int, bool], tmp_path: Path
) -> None:
    expected = alone(tmp_path / "alone", at, set(victims))
    outcomes = start_ranks(as_rank, SIZE, str(tmp_path / "run"), victims, {}).join(timeout=90)
    for rank, outcome in enumerate(outcomes):
        assert outcome.exit_code == (-signal.SIGKILL if rank in victims else 0), outcome.error
    result = outcomes[0].result[0]
    assert result.lost == expected.lost and set(result.lost.values()) == {ROUND + 1}
    assert result.digest == expected.digest and result.scores == expected.scores


@pytest.mark.parametrize("phase", [pytest.param("sum_keys", marks=pytest.mark.slow), "sum_masks"])
def test_where_no_loss_is_borne_all_others_name_the_worker_that_was_killed(phase: str, tmp_path: Path) -> None:
    outcomes = start_ranks(as_rank, SIZE, str(tmp_path / "run"), {2: phase}, {}, False).join(timeout=90)
    for rank, outcome in enumerate(outcomes):
        if rank != 2:
            assert outcome.exit_code == DeadlineError.exit_code, outcome.error
            assert "the process of rank 2 is gone" in outcome.error


@dataclass(frozen=True)
class FailingOnce(FedAvg):
    """FedAvg whose clients all fail in one round."""

    def client_update(self, job: ClientJob) -> Report:
        if job.round == ROUND:
            raise ValueError("as if the round were given up")
        return super().client_update(job)


@pytest.mark.slow
def test_with_too_few_answers_the_round_is_given_up_and_named(tmp_path: Path) -> None:
    expected = alone(tmp_path / "alone", COUNTS, {2}, algorithm=FailingOnce(weights="equal"))
    changes = {"threshold": 1.0}
    outcomes = start_ranks(as_rank, SIZE, str(tmp_path / "run"), {2: "sum_reveal"}, changes).join(timeout=90)
    assert [o.exit_code for o in outcomes] == [0, 0, -signal.SIGKILL, 0, 0], [o.error for o in outcomes]
    assert outcomes[0].result[0].digest == expected.digest


def lying(lie: str) -> None:
    """The server of this process begins with other terms than the config's."""
    parties = Masking.parties
    if lie == "lower threshold":
        Masking.needed = lambda self, round, parties: len(parties) // 2 + 1  # type: ignore[method-assign]
    elif lie == "one party fewer":
        Masking.parties = lambda *about: parties(*about)[:-1]  # type: ignore[method-assign]
    else:
        client_level.exact_sum = public_sum.exact_sum = lambda *about: exact_sum(*about[:3], None)


def as_rank_of_a_liar(folder: str, lie: str, changes: dict[str, Any]) -> tuple[str, list[str]]:
    """One rank of a run whose server lies: the error that ends it, and the notes of steps that it was asked for."""
    rank, kept = int(os.environ["RANK"]), list[str]()
    leave, send = masked.Notes.leave, masked._send_masked
    masked.Notes.leave = lambda *about: (kept.append(about[1]), leave(*about))[1]  # type: ignore[method-assign]
    masked._send_masked = lambda *about: (kept.append("masked"), send(*about))[1]  # type: ignore[func-returns-value]
    if rank == 0:
        lying(lie)
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=60) as comm:
        comm.preflight({})
        try:
            make_runner(config(folder, secure=True, **changes), comm).run()
        except FedtorchError as error:
            return str(error), kept
    return "", kept


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ("lower threshold", r"the threshold 3 of 4 parties .* privacy.secure_sum.threshold 0.9 comes to 4; nothing"),
        ("one party fewer", r"the parties \[1, 2, 3\] for the secure sum of round 1, but they are \[1, 2, 3, 4\]"),
        ("no masks", r"the server asks for updates as they are \(\w+\) in round 1 of a run with privacy.secure_sum"),
    ],
)
@pytest.mark.parametrize(
    "hides", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["parties of the round", "everybody"]
)
def test_workers_send_nothing_on_other_terms_than_their_own(lie: str, said: str, hides: bool, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"threshold": 0.9, "clients": ClientsConfig()}
    if hides:
        changes |= {
            "privacy": PRIVATE,
            "clients": ClientsConfig(sampling="poisson", rate=1.0),
            "eval": EvalConfig(every=0),
        }
    outcomes = start_ranks(as_rank_of_a_liar, SIZE, str(tmp_path / "run"), lie, changes).join(timeout=90)
    for outcome in outcomes[1:]:
        error, kept = outcome.result
        assert re.search(said, error) and not kept


PRIVATE = PrivacyConfig(kind="client", clip=CLIP, noise_multiplier=1.0, delta=0.01, simulate=True, seed=3)
FACTORS: dict[str, Any] = {
    "task": Regression(clients=CLIENTS, start=(0.0,)),
    "algorithm": RoLoRA(weights="equal"),
    "partition": PartitionConfig(private=("head",)),
    "client": ClientConfig(optimizer="sgd", lr=0.05, batch_size=4),
}


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy": PRIVATE, "clients": ClientsConfig(sampling="poisson", rate=0.6), "eval": EvalConfig(every=0)},
        pytest.param(FACTORS, marks=pytest.mark.slow),
        pytest.param({"system": SystemConfig(sum_scale="public", ranks_per_worker=(1, 2, 1))}, marks=pytest.mark.slow),
    ],
    ids=["noise of the server's", "factors of which one rests", "workers of several ranks"],
)
def test_it_has_the_bits_of_the_plain_sum_with(changes: dict[str, Any], tmp_path: Path) -> None:
    plain = changes if "system" not in changes else {}
    expected = alone(tmp_path / "alone", **plain)
    result = run_ranks(as_rank, SIZE, str(tmp_path / "run"), {}, changes, timeout=90)[0][0]
    assert result.digest == expected.digest and result.rounds == 3
