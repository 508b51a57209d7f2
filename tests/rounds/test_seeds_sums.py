"""Sums of scalars as ordinary sums: bytes that move, secure sum, public scale and client-level privacy."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import make_config, make_runner
from ranks import run_ranks
from toy import Quadratic

from fedtorch.algorithms.seeds.fedkseed import DeComFL, FedKSeed
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import ClientConfig, ClientsConfig, SystemConfig
from fedtorch.core.errors import NonFiniteError
from fedtorch.privacy.settings import PrivacyConfig, SecureSum
from fedtorch.rounds.scalar_record import NAME, Reader, ScalarRecord

CLIENTS = {f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(6)}
TASK = Quadratic(clients=CLIENTS, start=tuple(0.1 * i for i in range(50)), noise=0.7, double=False)
CLIENT = ClientConfig(optimizer="sgd", lr=0.002, batch_size=4, steps=6)
POOL = FedKSeed(seeds=32, eps=1e-2, weights="equal")
ROUNDS = 3
HIDDEN: dict[str, Any] = {
    "plain": {},
    "public": {"privacy": PrivacyConfig(clip=4096.0), "system": SystemConfig(sum_scale="public")},
    "secure": {"privacy": PrivacyConfig(clip=4096.0, secure_sum=SecureSum())},
}


def config_of(folder: str, algorithm: FedKSeed, **changes: Any) -> Any:
    settings = {"client": CLIENT, "rounds": ROUNDS, **changes}
    return make_config(Path(folder), TASK, algorithm, **settings)


def on_ranks(folder: str, algorithm: FedKSeed, changes: dict[str, Any]) -> tuple[str, dict[str, int]]:
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        runner = make_runner(config_of(folder, algorithm, **changes), comm)
        return runner.run().digest, comm.meter.totals()


@pytest.mark.parametrize("algorithm", [POOL, DeComFL(perturbations=2)], ids=["pool", "round"])
@pytest.mark.processes
def test_a_secure_sum_has_the_bits_of_the_plain_one(algorithm: FedKSeed, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    plain = make_runner(config_of(str(tmp_path / "plain"), algorithm)).run().digest
    public = make_runner(config_of(str(tmp_path / "public"), algorithm, **HIDDEN["public"])).run().digest
    (secure, _), *_ = run_ranks(on_ranks, 4, str(tmp_path / "secure"), algorithm, HIDDEN["secure"])
    assert plain == public == secure
    records = [(tmp_path / name / NAME).read_text() for name in HIDDEN]
    assert records[0] == records[1] == records[2]


@pytest.mark.processes
def test_the_bytes_on_the_meter_are_4_of_each_drawn_seed_up_and_8_of_each_seed_down(tmp_path: Path) -> None:
    system = SystemConfig(server_works=False, shared_memory="never", exchange="send")
    (_, totals), *_ = run_ranks(on_ranks, 2, str(tmp_path), POOL, {"system": system})
    algorithm = make_runner(config_of(str(tmp_path / "one"), POOL)).context.algorithm
    assert isinstance(algorithm, FedKSeed)
    drawn = [len(np.unique(algorithm.drawn(name, round))) for round in range(ROUNDS) for name in CLIENTS]
    assert totals["aggregate/physical_up"] == 4 * sum(drawn) <= 4 * CLIENT.steps * len(CLIENTS) * ROUNDS
    # before rounds 2 and 3, and at the end for the best model; before round 1 all ranks have zeros
    assert totals["broadcast/physical_down"] - base_bytes(TASK) == 8 * POOL.seeds * ROUNDS


def base_bytes(task: Quadratic) -> int:
    """What goes down once: w^0, which is the server's and not assumed equal."""
    return 4 * len(task.start)


def test_the_title_of_the_paper_is_18_kilobytes() -> None:
    assert 4096 * 4 + 200 * (4 + 4) == 17_984


@pytest.mark.parametrize("steps", [1, 200])
def test_a_client_of_200_steps_sends_at_most_800_bytes(steps: int, tmp_path: Path) -> None:
    algorithm = FedKSeed(seeds=4096)
    runner = make_runner(config_of(str(tmp_path), algorithm, client=replace(CLIENT, steps=steps)))
    assert 4 * max(runner.context.updates.length(name) for name in CLIENTS) <= 4 * steps
    assert runner.context.updates.dtype.itemsize == 4 and runner.context.vectors.flat.nbytes == 8 * 4096


def test_forty_rounds_of_two_thousand_sums_are_a_record_of_at_most_a_megabyte(tmp_path: Path) -> None:
    record, drawn = ScalarRecord(tmp_path, {"scalars": 1, "length": 4096}), np.random.default_rng(0)
    sums = np.zeros(4096)
    record.begin(torch.from_numpy(sums), 0)
    for round in range(40):
        places = drawn.choice(4096, 2000, replace=False)
        sums[places] += np.rint(drawn.standard_normal(2000) * 0.2 * 2**24)  # a number is near 1, of ten clients a mean
        record.add(round + 1, torch.from_numpy(sums))
    assert (tmp_path / NAME).stat().st_size <= 10**6


def test_client_level_privacy_clips_and_blurs_in_k_numbers(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    noise, clip, rate = 2.0, 0.5, 0.5
    privacy = PrivacyConfig(kind="client", clip=clip, noise_multiplier=noise, delta=1e-3)
    algorithm = FedKSeed(seeds=600, eps=1e-2, weights="equal")
    clients = ClientsConfig(sampling="poisson", rate=rate)
    runner = make_runner(config_of(str(tmp_path), algorithm, privacy=privacy, clients=clients))
    result = runner.run()
    reader = Reader(tmp_path / NAME)
    changes = [line["sums"] for line, _ in reader.up_to(ROUNDS)]
    assert [len(each) for each in changes] == [600] * ROUNDS  # not one place tells who was there
    blurred = np.array(changes).reshape(-1) * 2.0**-24 * rate * len(CLIENTS)
    assert blurred.std() == pytest.approx(noise * clip, rel=0.1)
    assert result.privacy["releases"] == ROUNDS
    by_hand = runner.context.vectors.model
    assert by_hand is not None and math.isfinite(float(runner.context.vectors.weights.sum()))


def test_new_seeds_of_a_round_are_blurred_alone(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    privacy = PrivacyConfig(kind="client", clip=0.5, noise_multiplier=1.0, delta=1e-3)
    clients = ClientsConfig(sampling="poisson", rate=0.5)
    make_runner(config_of(str(tmp_path), DeComFL(perturbations=5), privacy=privacy, clients=clients)).run()
    lines = [json.loads(line) for line in (tmp_path / NAME).read_text().splitlines()[1:]]
    places = [np.cumsum(line["gaps"]).tolist() for line in lines]
    assert places == [list(range(30 * round, 30 * (round + 1))) for round in range(ROUNDS)]


@pytest.mark.parametrize("robust", ["median", "trimmed_mean", "krum", "clip"])
def test_robust_rules_need_no_change(robust: str, tmp_path: Path) -> None:
    whole = make_runner(config_of(str(tmp_path / "rule"), replace(POOL, robust=robust)))
    plain = make_runner(config_of(str(tmp_path / "plain"), POOL))
    whole.run()
    plain.run()
    assert whole.context.vectors.weights.isfinite().all()
    assert whole.context.vectors.weights.tolist() != plain.context.vectors.weights.tolist() or robust == "clip"


def test_sums_that_would_no_longer_be_exact_end_the_run(tmp_path: Path) -> None:
    runner = make_runner(make_config(tmp_path, TASK, FedKSeed(seeds=6, eps=1e-2), client=CLIENT))
    runner.context.server.tensors["sums"].fill_(2.0**50)
    with pytest.raises(NonFiniteError, match=r"more than 2\^52 together"):
        runner.context.algorithm.server_update(runner.context.server, runner.context.vectors.flat * 0.0)
