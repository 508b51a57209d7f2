"""A federation of DeepSpeed workers: two of two ranks equal one plain process, and a rank that fails is told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from harness import make_runner
from ranks import expect_exit, run_ranks, start_ranks
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from tests.test_main import TINY
from tests.train.test_deepspeed_ranks import Outcome, agree, federation, result

pytest.importorskip("deepspeed")

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import ClientsConfig, Config, EngineConfig, EvalConfig, SystemConfig
from fedtorch.main import main
from fedtorch.rounds import aggregation as decision
from fedtorch.rounds import runner as runner_module
from fedtorch.rounds.membership import Membership
from fedtorch.tasks.text2sql import Text2SQL


def as_rank(config: Config) -> Outcome:
    with DistributedCommunicator.join(tuple(config.task.manifest()), timeout_s=60) as comm:
        return result(config, comm)


@pytest.mark.processes
@pytest.mark.timeout(280)
@pytest.mark.parametrize("stage", [pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(("ranks", "sizes"), [(5, 2), (4, (2, 1))], ids=["two-and-two", "two-and-one"])
def test_workers_of_two_ranks_with_different_steps_equal_one_process(
    ranks: int, sizes: int | tuple[int, ...], stage: int, tmp_path: Path, tiny_data: Path
) -> None:
    """Clients of 12, 6 and 3 examples beside a server that has no DeepSpeed engine."""
    expected = result(federation(str(tmp_path / "one"), str(tiny_data)))
    engine, system = EngineConfig(kind="deepspeed", stage=stage), SystemConfig(ranks_per_worker=sizes)
    config = federation(str(tmp_path / "many"), str(tiny_data), engine=engine, system=system)
    agree(run_ranks(as_rank, ranks, config, timeout=240)[0], expected)


@pytest.mark.processes
@pytest.mark.timeout(280)
def test_fedavg_on_a_server_and_two_workers_equals_one_plain_process(tmp_path: Path, tiny_data: Path) -> None:
    expected = result(federation(str(tmp_path / "one"), str(tiny_data)))
    config = federation(str(tmp_path / "many"), str(tiny_data), engine=EngineConfig(kind="deepspeed", stage=1))
    agree(run_ranks(as_rank, 3, config, timeout=240)[0], expected)


@pytest.mark.long
def test_one_process_under_stage_3_evaluates_resumes_and_saves_the_whole_model(tmp_path: Path, tiny_data: Path) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text(TINY.replace("DIR", str(tmp_path / "run")).replace("DATA", str(tiny_data)))
    keys = ("engine.kind=deepspeed", "engine.stage=3", "engine.precision=bf16")
    assert main(["--config", str(config), "--set", *keys]) == 0
    assert main(["--config", str(config), "--set", *keys]) == 0  # resumes after the last round
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run" / "model")
    (weight,) = [
        p for name, p in model.named_parameters() if name.endswith("decoder.block.0.layer.0.SelfAttention.q.weight")
    ]
    assert weight.shape == (16, 16) and weight.dtype == torch.float32
    assert not torch.equal(weight, weight.bfloat16().float())  # from the masters


@dataclass(frozen=True)
class Unlucky(Text2SQL):
    """The second rank's forward pass of one client fails in the second round's first step."""

    error: ClassVar[type[Exception]] = ValueError

    def loss(self, model: nn.Module, batch: Any) -> Any:
        import os

        value = super().loss(model, batch)
        if model.training and os.environ.get("RANK") == "2":
            calls = getattr(Unlucky, "calls", 0) + 1
            type.__setattr__(Unlucky, "calls", calls)
            if calls == 3:
                raise self.error("bad row")
        return value


@dataclass(frozen=True)
class Starved(Unlucky):
    """The same for want of memory."""

    error: ClassVar[type[Exception]] = torch.OutOfMemoryError


def statuses(config: Config) -> list[str]:
    with DistributedCommunicator.join(tuple(config.task.manifest()), timeout_s=20) as comm:
        runner = make_runner(config, comm)
        seen: list[str] = []

        def watched(rank: Any, reports: Any, *about: Any) -> Any:
            seen.extend(report.status for report in reports)
            return decision.exchange(rank, reports, *about)

        runner_module.exchange = watched  # type: ignore[attr-defined]
        runner.run()
        return seen


def unlucky(folder: Path, data: Path, stage: int) -> Config:
    engine, system = EngineConfig(kind="deepspeed", stage=stage), SystemConfig(ranks_per_worker=2)
    config = federation(str(folder), str(data), engine=engine, system=system, eval=EvalConfig(every=0))
    return replace(config, task=Unlucky(**vars(config.task)))


@pytest.mark.processes
@pytest.mark.timeout(280)
def test_a_forward_pass_that_fails_on_one_rank_is_the_clients_failure_on_both(tmp_path: Path, tiny_data: Path) -> None:
    server, *_ = run_ranks(statuses, 3, unlucky(tmp_path, tiny_data, 2), timeout=240)
    assert len(server) == 6 and sum(status.startswith("failed:") for status in server) == 1


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_worker_of_which_one_rank_is_out_of_memory_tries_again_together(tmp_path: Path, tiny_data: Path) -> None:
    config = unlucky(tmp_path / "many", tiny_data, 2)
    starved = replace(config, task=Starved(**vars(config.task)), eval=EvalConfig(every=1))
    weights, losses = run_ranks(as_rank, 3, starved, timeout=240)[0]
    agree((weights, losses), result(federation(str(tmp_path / "one"), str(tiny_data))))


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(280)
def test_one_that_fails_among_gathered_parameters_ends_the_run(tmp_path: Path, tiny_data: Path) -> None:
    outcomes = expect_exit(statuses, 3, unlucky(tmp_path, tiny_data, 3), timeout=240)
    assert all(outcome.error and "still running" not in outcome.error for outcome in outcomes)


# --- going on without a lost worker

GOES_ON = ClientsConfig(on_loss="continue")


def surviving(config: Config) -> tuple[Outcome, dict[str, int]]:
    with DistributedCommunicator.join(tuple(config.task.manifest()), timeout_s=60, recovers=True) as comm:
        runner = make_runner(config, comm)
        found = runner.run()
        losses = {name: pairs["loss"][0] for name, pairs in found.scores.items()}
        return (runner.context.vectors.weights.tolist(), losses), found.lost


def alone(config: Config, lost: dict[str, int]) -> Outcome:
    """In one process, by the plain engine; the same clients are lost before the updates of that round are gathered."""
    runner = make_runner(config)

    class Losing(Membership):
        def meet(self, phase: str, meeting: Any, *, may_stop: bool = True) -> Any:
            found = super().meet(phase, meeting, may_stop=may_stop)
            if (phase, self.progress.round) == ("gather", max(lost.values()) - 1):
                self.lose(list(lost))
            return found

    runner.context.members.__class__ = Losing
    scores = runner.run().scores
    return runner.context.vectors.weights.tolist(), {name: pairs["loss"][0] for name, pairs in scores.items()}


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("size", "each", "codes"), [(3, 1, [0, 0, -9]), (5, 2, [0, None, -9, 0, 0])])
def test_the_others_go_on_without_a_killed_deepspeed_worker(
    size: int, each: int, codes: list[int | None], tmp_path: Path, tiny_data: Path
) -> None:
    engine, system = EngineConfig(kind="deepspeed", stage=1), SystemConfig(ranks_per_worker=each)
    changes = {"clients": GOES_ON, "rounds": 3}
    config = federation(str(tmp_path / "many"), str(tiny_data), engine=engine, system=system, **changes)
    environ = {"FEDTORCH_TESTING": "1", "FEDTORCH_FAULTS": "kill:rank=2,round=1,phase=train,step=1"}
    outcomes = start_ranks(surviving, size, config, environ=environ).join(300)
    for rank, code in enumerate(codes):
        wanted = (1, 7) if code is None else (code,)  # the other one of its worker leaves too
        assert outcomes[rank].exit_code in wanted, outcomes[rank].error
    found, lost = outcomes[0].result
    assert set(lost.values()) == {2} and 0 < len(lost) < 3
    agree(found, alone(federation(str(tmp_path / "one"), str(tiny_data), **changes), lost))
