"""An update that is one difference is measured while it is made; one that was changed since is measured once more."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from toy import Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.core.mechanism import Mechanism
from fedtorch.core.norms import norm_and_max
from fedtorch.core.update import Report
from fedtorch.rounds import local_training
from fedtorch.rounds.runner import Runner
from fedtorch.train.job import ClientJob
from fedtorch.train.outgoing import Outgoing

TASK = Quadratic(clients={"a": (1.0, 1.0, 3), "b": (-2.0, 2.0, 4)}, start=(0.3, -0.7))


def outgoing(*names: str) -> Outgoing:
    return Outgoing(torch.full((6,), math.nan), names, "Test")


def test_a_difference_is_known_until_somebody_writes_to_it() -> None:
    received, trained = torch.arange(6.0), torch.full((6,), 2.0)
    sent = outgoing("weights")
    assert sent.measured is None
    place = sent.subtract("weights", received, lambda _: trained)
    assert sent.measured == norm_and_max(received - trained) == norm_and_max(sent.flat)
    place[0] = 9.0
    assert sent.measured is None
    for change in (lambda flat: flat.mul_(2), lambda flat: flat[-1:].fill_(math.nan), lambda flat: flat[:2].zero_()):
        sent = outgoing("weights")
        sent.subtract("weights", received, lambda there: there.copy_(trained))
        assert sent.measured is not None
        change(sent.flat)
        assert sent.measured is None


def test_one_of_several_vectors_is_not_the_update() -> None:
    sent = outgoing("weights", "control")
    sent.subtract("weights", torch.ones(3), lambda _: torch.zeros(3))
    assert sent.measured is None
    assert sent["weights"].tolist() == [1.0, 1.0, 1.0]


def test_what_does_not_fit_is_said_as_it_always_was() -> None:
    with pytest.raises(RuntimeError, match="size of tensor"):
        outgoing("weights").subtract("weights", torch.ones(6), lambda _: torch.zeros(5))
    wide = outgoing("weights")
    with pytest.raises(RuntimeError, match="can't be cast"):
        wide.subtract("weights", torch.ones(6), lambda _: torch.zeros(6, dtype=torch.float64).to(torch.complex64))


@dataclass(frozen=True)
class Doubles(FedAvg):
    """Changes what it has sent, though it should only read that."""

    def client_update(self, job: ClientJob) -> Report:
        report = super().client_update(job)
        job.outgoing["weights"].mul_(2)
        return report


class Halved(Mechanism):
    """Changes updates where torch does not notice."""

    def outgoing(self, update: torch.Tensor, report: Report) -> Report:
        update.numpy()[:] *= 0.5
        return report


def reported(runner: Runner) -> dict[str, tuple[float, float]]:
    """What clients say of their updates, each compared with what the buffer has."""
    found = {report.client: (report.norm, report.max_abs) for report in runner.trainer.train_cohort()}
    for client, said in found.items():
        assert said == norm_and_max(runner.context.updates.get(client))
    return found


def test_norms_in_reports_are_those_of_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def counting(update: torch.Tensor) -> tuple[float, float]:
        counted.append(1)
        return norm_and_max(update)

    monkeypatch.setattr(local_training, "norm_and_max", counting)
    settings: dict[str, Any] = {"rounds": 1}
    plain = reported(make_runner(make_config(tmp_path / "plain", TASK, FedAvg(), **settings)))
    assert len(plain) == 2 and not counted
    doubled = reported(make_runner(make_config(tmp_path / "doubled", TASK, Doubles(), **settings)))
    assert len(counted) == 2
    other = make_runner(make_config(tmp_path / "halved", TASK, FedAvg(), **settings))
    halved = reported(Runner(replace(other.components, mechanism=Halved())))
    assert len(counted) == 4
    for client, (norm, largest) in plain.items():
        assert doubled[client] == pytest.approx((2 * norm, 2 * largest))
        assert halved[client] == pytest.approx((norm / 2, largest / 2))
