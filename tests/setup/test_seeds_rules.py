"""What FedKSeed and DeComFL refuse before anything is trained, each beside what they take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import make_config
from toy import Quadratic

from fedtorch.algorithms.seeds.fedkseed import DeComFL, FedKSeed
from fedtorch.algorithms.sums import why_not_ahead, why_not_private, why_not_record, why_not_saved, why_not_trainer
from fedtorch.config.load import load
from fedtorch.config.schema import (
    CheckpointConfig,
    ClientConfig,
    EngineConfig,
    ExchangeConfig,
    PartitionConfig,
    ServerConfig,
    SystemConfig,
)
from fedtorch.core.errors import ConfigError
from fedtorch.core.weights import Layout
from fedtorch.main import main
from fedtorch.rounds import scalar_record
from fedtorch.setup.build import build
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules import check_plan

TASK = Quadratic(clients={"a": (1.0, 0.0, 3), "b": (2.0, 1.0, 3)}, start=(1.0, 2.0), head=(0.5,), double=False)
CLIENT = ClientConfig(optimizer="sgd", lr=0.1, steps=4)
POOL = FedKSeed(seeds=4)

REFUSED: dict[str, tuple[FedKSeed, dict[str, Any], str]] = {
    "optimizer": (POOL, {"client": replace(CLIENT, optimizer="adamw")}, "client.optimizer is adamw but"),
    "momentum": (POOL, {"client": replace(CLIENT, momentum=0.9)}, "client.momentum is 0.9 but"),
    "decay": (POOL, {"client": replace(CLIENT, weight_decay=0.1)}, "client.weight_decay is 0.1 but"),
    "clipping": (POOL, {"client": replace(CLIENT, max_grad_norm=1.0)}, "client.max_grad_norm is 1.0 but"),
    "spill": (
        POOL,
        {"client": replace(CLIENT, accumulation=2, accumulation_rule="spill")},
        "client.accumulation_rule is spill but",
    ),
    "epochs": (POOL, {"client": replace(CLIENT, steps=None, epochs=1)}, "set client.steps"),
    "rate": (POOL, {"client": replace(CLIENT, lr=0.0)}, "client.lr is 0 but"),
    "fewer seeds": (FedKSeed(seeds=3), {}, "a round of a client takes 4 directions"),
    "perturbations": (FedKSeed(seeds=7, perturbations=2), {}, "takes 8 directions"),
    "one client": (POOL, {"per_client": {"b": {"steps": 5}}}, "a round of a client takes 5 directions"),
    "pro": (FedKSeed(seeds="round", pro=True), {}, "algorithm.pro is true but algorithm.seeds is round"),
    "steps": (DeComFL(), {"per_client": {"b": {"steps": 5}}}, "the same for all clients of a round"),
    "fp16": (POOL, {"engine": EngineConfig(precision="fp16")}, "engine.precision is fp16 but"),
    "deepspeed": (POOL, {"engine": EngineConfig(kind="deepspeed")}, "runs forward passes alone"),
    "4 bits": (POOL, {"exchange": ExchangeConfig(bits=4)}, "exchange.bits is 4 but"),
    "steps saved": (POOL, {"checkpoint": CheckpointConfig(every_steps=2)}, "takes steps without gradients"),
}


def checked(tmp_path: Path, algorithm: FedKSeed, num_ranks: int = 1, **changes: Any) -> Plan:
    plan = Plan.of(make_config(tmp_path, TASK, algorithm, **{"client": CLIENT, **changes}), num_ranks)
    check_plan(plan)
    return plan


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str, tmp_path: Path) -> None:
    algorithm, changes, message = REFUSED[name]
    with pytest.raises(ConfigError) as raised:
        checked(tmp_path, algorithm, **changes)
    assert message in str(raised.value)


def test_what_is_beside_it_is_taken(tmp_path: Path) -> None:
    for algorithm in (POOL, DeComFL(), FedKSeed(seeds=8, perturbations=2), FedKSeed(seeds="round"), DeComFL(seeds=20)):
        checked(tmp_path, algorithm)
    checked(tmp_path, POOL, engine=EngineConfig(precision="bf16"), per_client={"b": {"steps": 2, "lr": 0.3}})
    checked(tmp_path, POOL, client=replace(CLIENT, schedule="linear", warmup_steps=1, accumulation=2))


def test_a_server_with_an_optimizer_and_workers_of_several_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="server.optimizer is adam but algorithm.name is fedkseed"):
        make_config(tmp_path, TASK, POOL, client=CLIENT, server=ServerConfig(optimizer="adam", lr=0.1))
    with pytest.raises(ConfigError, match="system.ranks_per_worker is 2 but"):
        checked(tmp_path, POOL, 3, system=SystemConfig(ranks_per_worker=2))
    with pytest.raises(ConfigError, match="whose losses are measured by one rank"):
        checked(tmp_path, POOL, 4, system=SystemConfig(ranks_per_worker=(2, 1)))


def test_private_parameters_are_refused_and_frozen_ones_taken(tmp_path: Path) -> None:
    for partition, message in ((PartitionConfig(private=("head",)), "partition.private is set but"), (None, "")):
        taken = PartitionConfig(frozen=("head",)) if partition is None else partition
        config = make_config(tmp_path, TASK, POOL, client=CLIENT, partition=taken)
        if not message:
            assert build(config, num_ranks=1, rank=0).engine.shared.size == 2
            continue
        with pytest.raises(ConfigError, match=message):
            build(config, num_ranks=1, rank=0)


def test_what_other_features_ask_of_it() -> None:
    equal = replace(POOL, weights="equal")
    assert "weighs clients by size" in why_not_private(POOL) and not why_not_private(equal)
    assert "tells on them" in why_not_private(replace(equal, pro=True))
    assert "without noise" in why_not_record(equal) and "without gradients" in why_not_saved(equal)
    assert why_not_trainer(equal) and not why_not_ahead(equal)
    assert DeComFL().limits.reads_num_rounds and not POOL.limits.reads_num_rounds
    assert not replace(equal, pro=True).limits.why_not_robust == ""


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("{name: fedkseed, seeds: many}", "algorithm.seeds is 'many'"),
        ("{name: fedkseed, seeds: 0}", "algorithm.seeds is 0"),
        ("{name: fedkseed, bits: 25}", "algorithm.bits is 25"),
        ("{name: fedkseed, eps: 0.0}", "algorithm.eps is 0"),
        ("{name: fedkseed, z: cauchy}", "algorithm.z is 'cauchy'"),
        ("{name: decomfl, estimate: three_sided}", "algorithm.estimate is"),
        ("{name: fedkseed, weights: lorar}", "algorithm.weights is 'lorar'"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(keys: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"task: {{name: text2sql}}\nalgorithm: {keys}\n")
    with pytest.raises(ConfigError) as raised:
        load([path])
    assert message in str(raised.value)


def test_seeds_are_a_number_or_the_word_round(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for value, expected in (("round", "round"), ("17", 17)):
        path.write_text(f"task: {{name: text2sql}}\nalgorithm: {{name: fedkseed, seeds: {value}}}\n")
        assert load([path]).algorithm.seeds == expected


def test_a_dry_run_says_the_bytes_of_drawn_seeds_up_and_of_all_sums_down(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["smoke/fedkseed", "--dry-run", "--ranks", "3"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("traffic")]
    plan = Plan.of(load(Path("smoke/fedkseed")), 3)
    drawn = [plan.algorithm.places("sent", Layout(("sums",), ((64,),)), client.name, 0) for client in plan.clients]
    up = 4 * sum(len(places) for places in drawn if places is not None)
    assert 0 < up <= 4 * 4 * 8 and f"per round at most {2 * 64 * 8:,} bytes down and {up:,} bytes up" in line


def test_ranks_compare_the_directions_that_they_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(make_config(tmp_path, TASK, replace(POOL, z="normal"), client=CLIENT), num_ranks=1, rank=0)
    here = built.facts()["directions"]
    assert here == built.facts()["directions"]
    drawn = scalar_record.numbers
    monkeypatch.setattr(scalar_record, "numbers", lambda *given: drawn(*given) + 1e-7)  # as another machine may
    assert built.facts()["directions"] != here
    plain = build(make_config(tmp_path, TASK, client=CLIENT), num_ranks=1, rank=0)
    assert "directions" not in plain.facts()
