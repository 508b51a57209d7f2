"""Rounds that silos check cost so many round trips more, and no more."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import make_config, make_runner
from ranks import run_ranks
from toy import Quadratic
from trips import Trips

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.job.parties import Identity
from fedtorch.comm.options import Network
from fedtorch.config.schema import SystemConfig, TrustConfig
from fedtorch.privacy.settings import PrivacyConfig, SecureSum
from fedtorch.trust.keys import new_key, read_key
from fedtorch.trust.members import read_members

pytest.importorskip("cryptography")

PARTIES = {0: "hub", 1: "a", 2: "b", 3: "c"}
CLIENTS = {name: (1.0, float(place), 4) for place, name in enumerate("abc")}
SYSTEM = SystemConfig(placement="pinned", pinned_to="rank", pinned={"a": 1, "b": 2, "c": 3})
SECRET = PrivacyConfig(clip=1.0, secure_sum=SecureSum(threshold=1.0))
APART = Network(shares_memory=False)


def counted(folder: str, rounds: int, verify: Any, is_secret: bool = False) -> dict[str, int]:
    with pytest.MonkeyPatch.context() as patch:
        trips = Trips(patch)
        trust = TrustConfig(os.path.join(folder, "members.yaml"), verify=None if verify == "secret" else verify)
        config = make_config(
            os.path.join(folder, f"{verify}.{rounds}"),
            Quadratic(clients=CLIENTS),
            rounds=rounds,
            algorithm=FedAvg(weights="equal"),
        )
        rank, members = int(os.environ["RANK"]), read_members(Path(folder, "members.yaml"))
        identity: Any = Identity(read_key(Path(folder, f"{PARTIES[rank]}.key")), members, PARTIES)
        if verify == "secret":
            trust, identity = TrustConfig(), "known to all of the test"
        with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=60, network=APART, secret=identity) as comm:
            comm.preflight({})
            if trust.verify is not None:
                comm.begin_checks()
            trips.counted.clear()
            config = replace(config, trust=trust, system=SYSTEM, privacy=SECRET if is_secret else PrivacyConfig())
            make_runner(config, comm).run()
            return dict(trips.counted)


def of_a_round(folder: str, verify: Any, is_secret: bool = False) -> dict[str, int]:
    few, many = (run_ranks(counted, len(PARTIES), folder, rounds, verify, is_secret)[-1] for rounds in (3, 5))
    found = Counter(many)
    found.subtract(few)
    assert not any(trips % 2 for trips in found.values()), (few, many)
    return {phase: trips // 2 for phase, trips in found.items() if trips}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Keys of the parties, and their list."""
    lines = ["federation: test", "members:"]
    for rank, name in PARTIES.items():
        role, key = "silo" if rank else "server", new_key(tmp_path / f"{name}.key")
        lines.append(f"  {name}: {{role: {role}, key: {key.public.hex()}}}")
    (tmp_path / "members.yaml").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.slow
def test_a_secure_sum_by_parties_with_keys_takes_three_round_trips_more(folder: Path) -> None:
    trips = {verify: of_a_round(str(folder), verify, is_secret=True) for verify in ("secret", None, "all")}
    assert {verify: sum(found.values()) for verify, found in trips.items()} == {"secret": 17, None: 20, "all": 21}
    assert trips["secret"]["masked"] + 3 == trips[None]["masked"] == trips["all"]["masked"]


def test_checked_rounds_take_four_round_trips_more_at_most(folder: Path) -> None:
    trips = {verify: of_a_round(str(folder), verify) for verify in (None, "all", 0.5)}
    common = {"wait for broadcast": 1, "wait for gather": 1}
    assert trips[None] == {**common, "broadcast": 1, "reduce": 2}
    checked = {**common, "broadcast": 1, "send_sums": 2, "wait for record": 1}  # the sum, in place of the weights
    assert trips["all"] == checked
    # the weights, and what was asked for with its header
    assert trips[0.5] == {**checked, "broadcast": 3, "wait for leaves": 1}
    assert {verify: sum(found.values()) for verify, found in trips.items()} == {None: 5, "all": 6, 0.5: 9}
