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

pytestmark = pytest.mark.processes

PARTIES = {0: "hub", 1: "a", 2: "b", 3: "c"}
CLIENTS = {name: (1.0, float(place), 4) for place, name in enumerate("abc")}
SYSTEM = SystemConfig(placement="pinned", pinned_to="rank", pinned={"a": 1, "b": 2, "c": 3})
SECRET = PrivacyConfig(clip=1.0, secure_sum=SecureSum(threshold=1.0))
APART = Network(shares_memory=False)


def counted(folder: str, verify: Any, is_secret: bool = False) -> tuple[dict[str, int], dict[str, int]]:
    """This rank's round trips, by what for, until its third round ended, and until its fifth."""
    with pytest.MonkeyPatch.context() as patch:
        trips = Trips(patch)
        trust = TrustConfig(os.path.join(folder, "members.yaml"), verify=None if verify == "secret" else verify)
        config = make_config(
            os.path.join(folder, str(verify)),
            Quadratic(clients=CLIENTS),
            rounds=6,
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
            runner, seen = make_runner(config, comm), list[dict[str, int]]()
            one_round = runner._one_round

            def noted() -> None:
                one_round()
                seen.append(dict(trips.counted))

            runner._one_round = noted  # type: ignore[method-assign]
            runner.run()
            return seen[2], seen[4]


def sent(folder: str, verify: Any) -> tuple[str, int]:
    """Digest of a run of two rounds of which rank 2 has two clients, and bytes of this rank's parts."""
    rank, parties = int(os.environ["RANK"]), {0: "hub", 1: "a", 2: "b"}
    members = read_members(Path(folder, "members.yaml"))
    config = make_config(
        os.path.join(folder, str(verify)),
        Quadratic(clients=CLIENTS, double=False),
        rounds=2,
        algorithm=FedAvg(weights="equal"),
    )
    identity: Any = Identity(read_key(Path(folder, f"{parties[rank]}.key")), members, parties)
    trust = TrustConfig(os.path.join(folder, "members.yaml"), verify=verify)
    if verify is None:
        trust, identity = TrustConfig(), "known to all of the test"
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=60, network=APART, secret=identity) as comm:
        comm.preflight({})
        if verify is not None:
            comm.begin_checks()
        system = replace(SYSTEM, pinned={"a": 1, "b": 2, "c": 2})
        runner = make_runner(replace(config, trust=trust, system=system), comm)
        digest = runner.run().digest
        return digest, comm.meter.totals()["aggregate/physical_up"] // runner.context.vectors.flat.numel()


def of_a_round(folder: str, verify: Any, is_secret: bool = False) -> dict[str, int]:
    few, many = run_ranks(counted, len(PARTIES), folder, verify, is_secret)[-1]
    found = Counter(many)
    found.subtract(few)
    assert not any(trips % 2 for trips in found.values()), (few, many)
    return {phase: trips // 2 for phase, trips in found.items() if trips}


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Keys of the parties, and their list."""
    lines = ["federation: test", "members:"]
    for rank, name in getattr(request, "param", PARTIES).items():
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


@pytest.mark.parametrize("folder", [{0: "hub", 1: "a", 2: "b"}], indirect=True)
def test_the_sum_of_one_client_leaves_as_its_update_and_changes_no_bit(folder: Path) -> None:
    common = run_ranks(sent, 3, str(folder), None)
    for verify in ("all", 0.5):
        found = run_ranks(sent, 3, str(folder), verify)
        assert [digest for digest, _ in found] == [digest for digest, _ in common]
        rounds, update, whole = 2, 4, 8  # bytes of a number
        assert [sent for _, sent in found] == [rounds * (update + whole), rounds * update, rounds * whole]
