"""Streaming DiLoCo's fragments travel while their clients train on: from when, with what bits, and taken back."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from ranks import run_ranks
from torch import Tensor, nn
from toy import Quadratic

from fedtorch.algorithms.fragments import ByLayers
from fedtorch.algorithms.streaming import StreamingDiLoCo
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.sums.early_sides import EarlyReceiver, EarlySender
from fedtorch.config.schema import CheckpointConfig, ClientConfig, ClientsConfig, Config, ServerConfig, SystemConfig
from fedtorch.core.errors import Interrupted
from fedtorch.rounds.runner import Runner

pytestmark = pytest.mark.processes

STEPS, DELAY, ROUNDS = 5, 2, 5


@dataclass(frozen=True)
class Layers(Quadratic):
    """A model of four layers with dropout, so that a step depends on all before it."""

    def build_model(self, seed: int) -> nn.Module:
        model = nn.Module()
        model.layers = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(4)])
        return model

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        point = nn.functional.dropout(torch.cat([*model.parameters()]), 0.2, model.training)
        return (0.5 * batch[:, :1] * (point - batch[:, 1:]) ** 2).sum(), len(batch)


TASK = Layers({"a": (1.0, 1.0, 8), "b": (2.0, -1.0, 8), "c": (0.5, 3.0, 6), "d": (1.5, 0.0, 7)}, noise=0.5)


def config_of(folder: Path | str, parts: int = 2, **changes: Any) -> Config:
    rule = StreamingDiLoCo(fragments=ByLayers(4 // parts), delay=DELAY, mixing=0.5)
    inner = ClientConfig(
        optimizer="adamw", lr=0.05, batch_size=2, steps=STEPS, epochs=None, optimizer_state="keep",
        schedule="cosine", schedule_span="run",
    )  # fmt: skip
    settings: dict[str, Any] = {
        "client": inner,
        "server": ServerConfig(optimizer="sgd", lr=0.7, momentum=0.9, nesterov=True),
        "system": SystemConfig(sum_scale="previous"),
        "rounds": ROUNDS,
        **changes,
    }
    return make_config(Path(folder), TASK, rule, **settings)


def watched(runner: Runner) -> tuple[list[bool], list[tuple[int, str, int]]]:
    """For every sum from now on at a known scale: was it the early one? (round, client, steps before it) of an update.

    A rank learns of the scale a little later than it puts the first one, so these are of all rounds.
    """
    took, put = list[bool](), list[tuple[int, str, int]]()
    sum_of, own_put = EarlyReceiver.sum_of, EarlySender.put

    def summed(self: EarlyReceiver, *args: Any) -> Any:
        found = sum_of(self, *args)
        if self._exponent is not None:
            took.append(found is not None)
        return found

    def noted(self: EarlySender, client: str, weight: float) -> None:
        put.append((runner.context.round, client, runner.trainer._steps))
        own_put(self, client, weight)

    EarlyReceiver.sum_of, EarlySender.put = summed, noted  # type: ignore[method-assign, assignment]
    return took, put


def run(folder: str, changes: dict[str, Any], fault: str = "", resume: int | None = None) -> Any:
    if fault:
        os.environ.update(FEDTORCH_TESTING="1", FEDTORCH_FAULTS=fault)
    with DistributedCommunicator.join(tuple(TASK.clients), 30, "send") as comm:  # in memory nothing is sent early
        comm.preflight({})
        runner = make_runner(config_of(folder, **changes), comm)
        took, put = watched(runner)
        return runner.run(resume).digest, took, put


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("size", [2, 3])
def test_a_fragment_travels_from_the_step_at_which_it_is_due(size: int, parts: int, tmp_path: Path) -> None:
    alone = make_runner(config_of(tmp_path / "alone", parts)).run().digest
    (digest, took, _), *others = run_ranks(run, size, str(tmp_path / "ranks"), {"parts": parts})
    assert (digest, took) == (alone, [True] * (ROUNDS - 1))
    sent = sorted(each for *_, put in others for each in put)
    assert sent == [(r, name, STEPS - DELAY - 1) for r in range(ROUNDS) for name in TASK.clients]


def test_a_delay_of_none_sends_at_the_end(tmp_path: Path) -> None:
    still = replace(config_of(tmp_path).algorithm, delay=0)
    alone = make_runner(replace(config_of(tmp_path / "alone"), algorithm=still)).run().digest
    assert run_ranks(run_without_delay, 2, str(tmp_path / "ranks"))[0] == (alone, [True] * (ROUNDS - 1))


def run_without_delay(folder: str) -> Any:
    with DistributedCommunicator.join(tuple(TASK.clients), 30, "send") as comm:
        comm.preflight({})
        config = config_of(folder)
        runner = make_runner(replace(config, algorithm=replace(config.algorithm, delay=0)), comm)
        took, _ = watched(runner)
        return runner.run().digest, took


@pytest.mark.parametrize("kind", ["raise", "oom"])
def test_a_client_that_fails_after_it_was_sent_is_taken_back(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without memory it is tried again, and what it sends then must not be mixed up with what travelled already."""
    fault = f"{kind}:client=b,step={STEPS},round=2"
    changes = {"clients": ClientsConfig(on_failure="skip")}
    digest, took, _ = run_ranks(run, 3, str(tmp_path / "ranks"), changes, fault)[0]
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    monkeypatch.setenv("FEDTORCH_FAULTS", fault)
    assert digest == make_runner(config_of(tmp_path / "alone", **changes)).run().digest
    assert took == [True, False, True, True]


def test_of_the_servers_own_client_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = f"oom:client=a,step={STEPS},round=2"
    system = SystemConfig(sum_scale="previous", server_works=True)
    changes = {"system": system, "clients": ClientsConfig(on_failure="skip")}
    digest, took, _ = run_ranks(run, 2, str(tmp_path / "ranks"), changes, fault)[0]
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    monkeypatch.setenv("FEDTORCH_FAULTS", fault)
    assert digest == make_runner(config_of(tmp_path / "alone", **changes)).run().digest
    assert took == [True, False, True, True]


def stopped(folder: str, step: int) -> Any:
    """Every rank is asked to stop in the third round, as soon as a client of it has taken so many steps."""
    with DistributedCommunicator.join(tuple(TASK.clients), 30, "send") as comm:
        comm.preflight({})

        def stop() -> bool:
            return runner.context.round == 2 and runner.trainer._steps >= step

        runner = make_runner(config_of(folder, checkpoint=SAVING), comm, stop=stop)
        with pytest.raises(Interrupted, match="2 rounds are saved"):
            runner.run()


SAVING = CheckpointConfig(every=1, every_steps=1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the run that nobody stops, in one process."""
    return make_runner(config_of(tmp_path_factory.mktemp("alone"))).run().digest


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_a_save_before_or_after_the_sending_sends_again(step: int, alone: str, tmp_path: Path) -> None:
    run_ranks(stopped, 3, str(tmp_path / "run"), step)
    (digest, took, _), *others = run_ranks(run, 3, str(tmp_path / "run"), {"checkpoint": SAVING}, "", 2)
    assert (digest, took) == (alone, [True] * 3)
    again = [steps for *_, put in others for round, _, steps in put if round == 2]
    assert len(again) == len(TASK.clients) and max(again) >= STEPS - DELAY - 1
