"""The dry run of a model of 4 MiB: bytes and memory that a reader can redo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import make_config
from toy import Quadratic

from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.algorithms.local import Local
from fedtorch.compression.compressors import TopK
from fedtorch.config.schema import ClientConfig, EngineConfig, ServerConfig, SystemConfig
from fedtorch.planning.bench import Measured, step_key, write
from fedtorch.planning.cost_model import Constants
from fedtorch.planning.dry_run import describe
from fedtorch.planning.scale import Cluster, model_size, round_work
from fedtorch.planning.step_time import Training
from fedtorch.setup.build import BuiltRun, build

CONSTANTS = Constants(2, *[1e-9] * 9, 1e-4, 1e-3, 1e-4, 1e-3, 1e-4, *[1e-4] * 4, 1 << 20)
TRAINING = Training(0.5, 0.25)
TASK = Quadratic(clients={name: (1.0, 0.0, 4) for name in "abcd"}, start=(1.0,), width=1 << 20, double=False)


def built_run(folder: Path, ranks: int = 8, **changes: Any) -> BuiltRun:
    changes = {"client": ClientConfig(optimizer="sgd", lr=0.1, batch_size=2), **changes}
    config = make_config(folder, TASK, **changes)
    return build(config, num_ranks=ranks, rank=0)


def test_a_model_goes_to_every_other_rank_and_updates_come_from_every_client(tmp_path: Path) -> None:
    lines = describe(built_run(tmp_path), num_ranks=8).splitlines()
    size = "1,048,576 shared and 0 private numbers"
    assert f"traffic: {size}; per round at most 28.0 MiB down and 16.0 MiB up, 4 clients" in lines
    # two ranks: the sum of eight bytes a number is less than four updates
    assert "at most 4.0 MiB down and 8.0 MiB up" in describe(built_run(tmp_path, 2), num_ranks=2)
    assert (
        "memory per rank, without activations and libraries: weights 8 MiB, gradients and optimiser 4 MiB, "
        "updates 24 MiB, server only 16 MiB"
    ) in lines
    assert "while the model is built: 4 MiB of the host's memory for each rank of a machine" in lines
    assert "  rank 1    25.0%  a" in lines and "  rank 5-7   0.0%  (idle)" in lines


def test_ranks_that_share_out_a_model_never_have_it_whole(tmp_path: Path) -> None:
    """Two ranks: half of 4 MiB, and the largest layer, which is all of them here."""
    system, client = SystemConfig(ranks_per_worker=2, server_works=False), ClientConfig(optimizer="sgd", accumulation=2)
    text = describe(built_run(tmp_path, 5, engine=EngineConfig(kind="fsdp"), system=system, client=client), num_ranks=5)
    assert (
        "while the model is built: 4 MiB of the host's memory for the server, as much again for what all ranks of its "
        "machine read, and at most 6 MiB for each of them; 4 MiB more for each rank of another machine\n"
    ) in text


def test_twenty_clients_of_a_rank_are_named(tmp_path: Path) -> None:
    for count, more in ((20, ""), (21, " and 1 more")):
        task = Quadratic(clients={f"c{number}": (1.0, 0.0, 4) for number in range(count)})
        text = describe(build(make_config(tmp_path, task), num_ranks=1, rank=0), num_ranks=1)
        names = ", ".join(f"c{number}" for number in range(20))
        assert f"  rank 0   100.0%  {names}{more}\n" in text


def test_a_round_on_four_nodes(tmp_path: Path) -> None:
    """Ranks 1 to 4 have a client each, the first of them on the server's node, so that three updates cross a wire."""
    built, path = built_run(tmp_path), tmp_path / "c.json"
    write(path, Measured(CONSTANTS, {step_key(built): TRAINING}))
    text = describe(built, num_ranks=8, cluster=Cluster(nodes=4, ranks_per_node=2, gbit=25, constants=path))
    assert "  server                 28.0 MiB down         16.0 MiB up" in text
    assert "  busiest worker          4.0 MiB down          4.0 MiB up" in text
    assert "busiest wire, one rank of a node talks: 8.0 MiB in the broadcast, 12.0 MiB in the sum" in text
    work = round_work(built, 8, TRAINING)  # two steps of half a second, and a quarter before the first
    assert work.train_s == (0.0, 1.25, 1.25, 1.25, 1.25, 0.0, 0.0, 0.0) and work.hosted == (0, 1, 1, 1, 1, 0, 0, 0)


def test_the_first_weights_are_kept_by_rules_that_read_them_and_where_nothing_is_exchanged(tmp_path: Path) -> None:
    assert not model_size(built_run(tmp_path)).keeps_initial
    alone = model_size(built_run(tmp_path, 1, algorithm=Local(), paradigm="local"))
    assert alone.keeps_initial and (alone.shared, alone.private, alone.item_bytes) == (1 << 20, 0, 4)
    assert model_size(built_run(tmp_path)).update_bytes == 1 << 30


@pytest.mark.parametrize(("exchange", "down"), [("star", 7.9), ("replicated", 31.5), ("allreduce", 7.9)])
def test_a_message_goes_to_the_server_and_its_choice_to_all_or_every_message_does(
    exchange: Any, down: float, tmp_path: Path
) -> None:
    """A quarter of the numbers and a bit for each place: 1.125 MiB from each of four clients, to seven ranks."""
    topk, step = TopK(ratio=0.25), ServerConfig(optimizer="sgd", lr=1.0)
    rule = FedAssistant(payload="delta", compression="topk", topk=topk, exchange=exchange, weights="equal")
    text = describe(built_run(tmp_path, algorithm=rule, server=step), num_ranks=8)
    assert f"per round at most {down} MiB down and 4.5 MiB up, 4 clients" in text


def test_rows_of_fsdp_and_what_is_gathered(tmp_path: Path) -> None:
    """A model of 4 MiB without layers: a rank keeps half of weights and gradients, and gathers 12 MiB."""
    engine, system = EngineConfig(kind="fsdp"), SystemConfig(ranks_per_worker=2)
    built = built_run(tmp_path, 3, engine=engine, system=system, client=ClientConfig(optimizer="sgd", accumulation=2))
    lines = describe(built, num_ranks=3).splitlines()
    assert any("initial weights 4 MiB, updates" in line and "gradients" not in line for line in lines)
    at = lines.index(
        "FSDP, fp32, workers of 2 ranks: parameters, gradients and optimiser, and what is gathered, per rank, in GiB"
    )
    assert lines[at + 1].split() == ["numbers", "device", "host"]
    assert lines[at + 2].split() == ["this", "model", "1,048,576", "0.02", "0.00"]  # 16 MiB
