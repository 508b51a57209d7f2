"""Predictions for many nodes: bytes beside those that ranks count, the file of constants, the command line."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from harness import make_config, make_runner, pinned
from ranks import run_ranks
from toy import Quadratic

from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.transport import machines
from fedtorch.compression.compressors import TopK
from fedtorch.config.schema import ClientConfig, Config, ServerConfig, SystemConfig
from fedtorch.core.errors import CheckpointError, ConfigError
from fedtorch.core.mechanism import RoundFacts
from fedtorch.main import main
from fedtorch.planning.bench import Measured, constants_of, default_path, read, step_key, write
from fedtorch.planning.bench import main as bench
from fedtorch.planning.cost_model import Constants
from fedtorch.planning.dry_run import describe
from fedtorch.planning.light_rounds import MANY
from fedtorch.planning.probe import run as run_light
from fedtorch.planning.round_work import RoundWork
from fedtorch.planning.scale import Cluster, round_work, steps_of
from fedtorch.planning.step_time import Training, training_seconds
from fedtorch.setup.build import build

CONSTANTS = Constants(2, *[1e-9] * 9, 1e-4, 1e-3, 1e-4, 1e-3, 1e-4, *[1e-4] * 4, 1 << 20)
TRAINING = Training(0.5, 0.25)
TASK = Quadratic(clients={name: (1.0, place, 4) for place, name in enumerate("abcd")}, width=500, double=False)
WAYS: dict[str, dict[str, Any]] = {
    "sums": {},
    "reduce": {"system": SystemConfig(exchange="reduce")},
    "updates": {"system": SystemConfig(exchange="send")},
    **{
        way: {
            "algorithm": FedAssistant(
                payload="delta", compression="topk", topk=TopK(ratio=0.2), exchange=way, weights="equal"
            ),
            "server": ServerConfig(optimizer="sgd", lr=1.0),
        }
        for way in ("star", "replicated")
    },
}


class Seen:
    """In place of a tracker: what this rank's meter counted in each round, and how often it met the others."""

    def __init__(self, comm: DistributedCommunicator) -> None:
        self.comm = comm
        self.rounds: list[tuple[dict[str, int], int, int]] = []

    def round(self, number: int, facts: RoundFacts) -> None:
        traffic = {name: int(value) for name, value in facts.traffic.items()}
        self.rounds.append((traffic, self.comm._group.sequence, self.comm._rendezvous._meetings))

    def working(self, text: str) -> None: ...

    def evaluation(self, *rest: Any, **more: Any) -> None: ...

    def end(self, *rest: Any) -> None: ...


def counted(folder: Path, way: str, where: str = "") -> list[tuple[dict[str, int], int, int]]:
    """What a rank saw. where: the machine of each rank, a letter each; empty: they are on one."""
    config = config_of(folder, way)
    if where:
        machines.machine = lambda: ord(where[int(os.environ["RANK"])])
    with DistributedCommunicator.join(tuple(TASK.clients), 60.0, config.system.exchange) as comm:
        seen: Any = Seen(comm)
        pinned(make_runner(config, comm, tracker=seen)).run()
    return seen.rounds


def config_of(folder: Path, way: str) -> Config:
    hp = ClientConfig(optimizer="sgd", lr=0.1, batch_size=2)
    return make_config(folder, TASK, rounds=3, client=hp, **WAYS[way])


@pytest.mark.processes
@pytest.mark.parametrize("way", list(WAYS))
def test_predicted_bytes_headers_and_meetings_are_those_of_a_run(way: str, tmp_path: Path) -> None:
    ranks = 4 if way == "reduce" else 3  # of two senders the server takes both sums
    work = round_work(build(config_of(tmp_path, way), num_ranks=ranks, rank=0), ranks, TRAINING)
    assert work.way == way and work.clients == 4
    for rank, rounds in enumerate(run_ranks(counted, ranks, tmp_path, way)):
        (_, headers, meetings), (traffic, more_headers, more_meetings) = rounds[:2]
        found = [
            sum(traffic.get(f"{phase}/physical_{direction}", 0) for phase in ("aggregate", "broadcast"))
            for direction in ("up", "down")
        ]
        assert found == list(work.counted(rank))
        with_a_meeting = int(work.message is None)  # the header of the weights' broadcast
        assert (more_headers - headers - with_a_meeting, more_meetings - meetings) == (work.headers, work.meetings)


@pytest.mark.processes
def test_predicted_bytes_are_those_of_machines_of_several_ranks(tmp_path: Path) -> None:
    """Two clients are on the other machine: one sum comes from there, where two updates would be as many bytes."""
    work = round_work(build(config_of(tmp_path, "sums"), num_ranks=4, rank=0), 4, TRAINING)
    work = replace(work, machines=(0, 0, 1, 1))
    assert work.way == "reduce"
    for rank, rounds in enumerate(run_ranks(counted, 4, tmp_path, "sums", "aabb")):
        traffic = rounds[1][0]
        assert traffic["aggregate/physical_up"] == work.counted(rank).up
        assert traffic["broadcast/physical_down"] == work.counted(rank).down


def test_a_clients_steps_are_counted_as_they_are_taken() -> None:
    assert steps_of(ClientConfig(batch_size=4, epochs=3), 9) == 9
    assert steps_of(ClientConfig(batch_size=4, accumulation=2, epochs=1), 9) == 2
    assert steps_of(ClientConfig(steps=7), 9) == 7


def test_a_worker_trains_as_long_as_its_clients_take(tmp_path: Path) -> None:
    """Four clients of two steps each, a quarter of a second before the first and half a second for each."""
    work = round_work(build(config_of(tmp_path, "sums"), num_ranks=4, rank=0), 4, TRAINING)
    assert work.train_s == (0.0, 2.5, 1.25, 1.25) and work.numbers == 500


def test_constants_come_back_from_their_file_and_steps_of_other_models_stay(tmp_path: Path) -> None:
    path = tmp_path / "new" / "c.json"
    write(path, Measured(CONSTANTS, {"one": TRAINING}))
    write(path, Measured(replace(CONSTANTS, cores=4), {"other": TRAINING}))
    assert read(path) == Measured(replace(CONSTANTS, cores=4), {"one": TRAINING, "other": TRAINING})
    assert [found.name for found in path.parent.iterdir()] == ["c.json"]


def test_a_file_that_is_none_of_constants_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="was not measured; run `fedtorch bench`"):
        read(tmp_path / "none.json")
    lacking = {name: value for name, value in asdict(CONSTANTS).items() if name != "add_s"}
    for text in ("", "[]", '{"constants": 3}', json.dumps({"constants": lacking, "steps": {}})):
        (tmp_path / "c.json").write_text(text)
        with pytest.raises(ConfigError, match="is no file of constants"):
            read(tmp_path / "c.json")
    (tmp_path / "folder").write_text("")
    with pytest.raises(CheckpointError, match="set --out"):
        write(tmp_path / "folder" / "c.json", Measured(CONSTANTS))


def test_constants_of_an_earlier_version_are_refused_with_what_they_lack(tmp_path: Path) -> None:
    kept = {name: value for name, value in asdict(CONSTANTS).items() if name not in ("round_s", "report_s")}
    (tmp_path / "c.json").write_text(json.dumps({"constants": kept, "steps": {}}))
    with pytest.raises(ConfigError, match=r"it lacks report_s, round_s, and unknown are none\); run `fedtorch bench"):
        read(tmp_path / "c.json")
    write(tmp_path / "c.json", Measured(CONSTANTS, {"one": TRAINING}))
    assert read(tmp_path / "c.json") == Measured(CONSTANTS, {"one": TRAINING})


def test_constants_lie_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_path() == Path("/somewhere/fedtorch/bench.json")


def test_what_further_ranks_add_is_the_line_through_two_and_many() -> None:
    full = {name: 1e-9 for name in ("add", "add_sum", "result", "client", "step", "digest")}
    rank = full | {"broadcast": (1e-2, 5e-3), "broadcast_bytes": 10**6, "hop": 1e-4, "process_bytes": 7}
    two = [{"meeting": (1.0, 0.1), "header": (2.0, 0.1)}] * 2
    many = [{"meeting": (1.0 + 14 * 0.5, 0.1), "header": (1.5, 0.1)}] * MANY
    found = constants_of([rank] * 2, [rank] * 4, two, many, process_bytes=5)
    assert (found.meeting_s, found.meeting_rank_s, found.header_s, found.header_rank_s) == (1.0, 0.5, 2.0, 0.0)
    assert found.send_s == pytest.approx(4e-9) and found.flow_s == pytest.approx(9e-9) and found.process_bytes == 5


@pytest.mark.processes
def test_light_ranks_meet_and_say_how_long_it_took() -> None:
    found = run_light(2, small=True)
    assert [rank["rank"] for rank in found] == [0, 1]
    assert all(min(*rank["meeting"], *rank["header"]) > 0 for rank in found) and "add" not in found[0]


def test_the_dry_run_says_what_a_round_takes_on_nodes(tmp_path: Path) -> None:
    built = build(config_of(tmp_path, "sums"), num_ranks=8, rank=0)
    path = tmp_path / "c.json"
    cluster = Cluster(nodes=4, ranks_per_node=2, gbit=25, constants=path)
    write(path, Measured(CONSTANTS, {"another": TRAINING}))
    with pytest.raises(ConfigError, match="has no training step of this model"):
        describe(built, num_ranks=8, cluster=cluster)
    write(path, Measured(CONSTANTS, {step_key(built): TRAINING}))
    text = describe(built, num_ranks=8, cluster=cluster)
    assert "scale: 4 nodes of 2 ranks and 2 cores, 25 Gbit/s each" in text
    assert "s a round: broadcast" in text and "local training 1.25 s" in text
    assert "busiest wire, one rank of a node talks: " in text and "if every rank did: " in text


def test_what_comes_before_a_step_is_timed_apart_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(config_of(tmp_path, "sums"), num_ranks=1, rank=0)
    start = built.engine.start

    def slow(*rest: Any, **more: Any) -> None:
        time.sleep(0.05)
        start(*rest, **more)

    monkeypatch.setattr(built.engine, "start", slow)
    found = training_seconds(built)
    assert found.step_s > 0 and found.start_s > 0.04


@pytest.mark.processes
@pytest.mark.slow
def test_bench_measures_what_a_dry_run_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, of = tmp_path / "c.json", ["--config", "smoke/fedavg"]
    assert bench([*of, "--out", str(path)]) == 0
    written = asdict(read(path).constants)
    assert all(written[name] > 0 for name in ("add_s", "flow_s", "meeting_s", "client_round_s", "round_s"))
    assert main([*of, "--dry-run", "--nodes", "2", "--constants", str(path)]) == 0
    assert "whatever is sent" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dry-run", "--nodes", "0"), "--nodes is 0; give a number above 0"),
        (("--dry-run", "--nodes", "2", "--bandwidth", "0"), "--bandwidth is 0"),
        (("--dry-run", "--nodes", "2", "--constants", "/nowhere/c.json"), "/nowhere/c.json does not exist"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [("--nodes", "2"), ("--dry-run", "--cores", "2"), ("--dry-run", "--nodes", "2", "--ranks", "3")]
)
def test_options_of_a_cluster_go_together(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(options)
    assert "--nodes" in capsys.readouterr().err


@pytest.mark.processes
def test_bench_says_what_is_wrong_with_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(["--set", "rouds=2"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_more_ranks_than_clients_leave_some_idle(tmp_path: Path) -> None:
    work: RoundWork = round_work(build(config_of(tmp_path, "sums"), num_ranks=8, rank=0), 8, TRAINING)
    assert work.hosted == (0, 1, 1, 1, 1, 0, 0, 0)
