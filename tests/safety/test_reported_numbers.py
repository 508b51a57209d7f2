"""A rank that lies about its clients' numbers, or whose updates are not what it says: left out, named, and no more."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from ranks import run_ranks
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm, Updates
from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fednova import FedNova
from fedtorch.algorithms.loss_reduction import LossReduction
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.algorithms.weighting import normalised
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.local import LocalCommunicator
from fedtorch.compression.compressors import TopK
from fedtorch.config.schema import CheckpointConfig, ClientConfig, ClientsConfig
from fedtorch.core.errors import CheckpointError, NonFiniteError, QuorumError
from fedtorch.core.settings import ServerConfig
from fedtorch.core.update import Report
from fedtorch.rounds.runner import Runner


@dataclass(frozen=True)
class Median(FedAvg):
    """Looks at the updates one by one."""

    def aggregate(self, updates: Updates, weights: Sequence[float]) -> torch.Tensor:
        return torch.stack([update.clone() for update in updates]).median(dim=0).values


Lie = Callable[[Report], Report]
Spoil = Callable[[torch.Tensor], object]

NAN, INF = math.nan, math.inf
CLIENTS = {"a": (1.0, 1.0, 20), "b": (2.0, -1.0, 15), "c": (0.5, 3.0, 12)}
TASK = Quadratic(clients=CLIENTS, start=(0.3, -0.7, 0.2), noise=0.5, double=False)
EQUAL, BY_LOSS, LORAR = FedAvg(weights="equal"), FedAvg(weights="loss_reduction"), FedAvg(weights="lorar")


class Lying:
    """Changes some clients' reports and updates on their way to the server; before a communicator."""

    lie: Lie | None = None
    spoil: Spoil | None = None
    of: tuple[str, ...] = ("b",)

    def gather_reports(self, reports: Any, **how: Any) -> list[Report]:
        told = [self.lie(r) if self.lie and r.client in self.of else r for r in reports]
        return super().gather_reports(told, **how)  # type: ignore[misc]

    def open_updates(self, local: Any, accepted: Any, *, round: int, **how: Any) -> Any:
        self._spoil(local, [report.client for report in accepted])
        return super().open_updates(local, accepted, round=round, **how)  # type: ignore[misc]

    def all_gather_updates(self, local: Any, accepted: Any, *, round: int) -> Any:
        self._spoil(local, accepted)
        return super().all_gather_updates(local, accepted, round=round)  # type: ignore[misc]

    def peers(self, local: Any, *, round: int) -> Any:
        self._spoil(local, self.of)
        return super().peers(local, round=round)  # type: ignore[misc]

    def _spoil(self, local: Any, accepted: Any) -> None:
        for client in accepted:
            if self.spoil and client in self.of and client in local:
                self.spoil(local.get(client))


class Liar(Lying, LocalCommunicator):
    """One process."""

    def __init__(self, lie: Lie | None = None, spoil: Spoil | None = None, of: tuple[str, ...] = ("b",)) -> None:
        super().__init__(tuple(CLIENTS))
        self.lie, self.spoil, self.of = lie, spoil, of


class LyingRank(Lying, DistributedCommunicator):
    """One of several ranks."""


def runner_for(folder: Path, algorithm: Algorithm, comm: LocalCommunicator | None = None, **changes: Any) -> Runner:
    changes = {"client": ClientConfig(optimizer="sgd", lr=0.1, batch_size=7), "rounds": 2, **changes}
    return make_runner(make_config(folder, changes.pop("task", TASK), algorithm, **changes), comm)


def weights(folder: Path, algorithm: Algorithm, comm: LocalCommunicator | None = None, **changes: Any) -> torch.Tensor:
    runner = runner_for(folder, algorithm, comm, **changes)
    runner.run()
    return runner.context.server.weights.clone()


def without_b(folder: Path, algorithm: Algorithm) -> torch.Tensor:
    return weights(folder, algorithm, task=replace(TASK, bad=("b",)))


def extra(**numbers: float) -> Lie:
    return lambda report: replace(report, extra={**report.extra, **numbers})


LIES: dict[str, tuple[Lie, Algorithm, str]] = {
    "all the examples": (lambda r: replace(r, examples=10**9), FedAvg(), "1000000000 training examples, .* counts 15"),
    "one too many": (lambda r: replace(r, examples=16), FedAvg(), "16 training examples, the manifest counts 15"),
    "fewer than none": (lambda r: replace(r, examples=-15), FedAvg(), "-15 training examples"),
    "no number": (lambda r: replace(r, examples=NAN), FedAvg(), "not finite"),  # type: ignore[arg-type]
    "endless": (lambda r: replace(r, examples=INF), LORAR, "not finite"),  # type: ignore[arg-type]
    "a loss that is none": (lambda r: replace(r, loss_first=NAN), FedAvg(), "not finite"),
    "a curve that is none": (lambda r: replace(r, curve=(1.0, INF)), FedAvg(), "not finite"),
    "bytes that are none": (extra(sent_bytes=NAN), FedAvg(), "not finite"),
    "fewer than no steps": (lambda r: replace(r, steps=-1), FedAvg(), "-1 steps"),
    "a fall that no loss had": (extra(loss_reduction=1e12), LORAR, "reduction of 1e.12, but losses from"),
    "the same by itself": (extra(loss_reduction=1e12), BY_LOSS, "reduction of 1e.12, but losses from"),
    "a norm below none": (lambda r: replace(r, norm=-r.norm), FedAvg(), "has the norm -"),
    "a largest element below none": (lambda r: replace(r, max_abs=-r.max_abs), FedAvg(), "the largest one -"),
    "a largest element too small": (lambda r: replace(r, max_abs=r.max_abs / 9), FedAvg(), "no update of 3 numbers"),
    "a norm too small": (lambda r: replace(r, norm=r.norm / 9), FedAvg(), "no update of 3 numbers"),
    "both too small": (lambda r: replace(r, norm=r.norm / 9, max_abs=r.max_abs / 9), Median(), "but it reported"),
    "a weight without end": (extra(normaliser=5e-324), FedNova(), "weighs inf"),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_report_that_cannot_be_true_leaves_its_client_out(kind: str, tmp_path: Path, caplog: Any) -> None:
    lie, algorithm, reason = LIES[kind]
    runner = runner_for(tmp_path / "lie", algorithm, Liar(lie))
    runner.run()
    assert [report.client for report in runner.context.server.accepted] == ["a", "c"]
    found = [r.getMessage() for r in caplog.records if "is left out" in r.getMessage()]
    assert len(found) == 2 and all("client b is left out" in text for text in found)
    assert torch.equal(runner.context.server.weights, without_b(tmp_path / "without", algorithm))
    assert all(re.search(reason, text) for text in found)


def test_how_often_a_client_was_drawn_is_not_asked_of_it(tmp_path: Path) -> None:
    told = weights(tmp_path / "told", EQUAL, Liar(lambda r: replace(r, draws=10**12, extra={**r.extra, "draws": 1e12})))
    assert torch.equal(told, weights(tmp_path / "true", EQUAL))


def test_a_client_that_was_not_drawn_is_not_heard(tmp_path: Path, caplog: Any) -> None:
    class Intruder(Liar):
        def gather_reports(self, reports: Any, **how: Any) -> list[Report]:
            absent = next(name for name in CLIENTS if name not in {r.client for r in reports})
            return super().gather_reports([*reports, replace(reports[0], client=absent)], **how)

    two = {"clients": ClientsConfig(per_round=2)}
    told = weights(tmp_path / "told", EQUAL, Intruder(), **two)
    assert torch.equal(told, weights(tmp_path / "true", EQUAL, **two))
    assert "clients that were not drawn for the round are ignored" in caplog.text


def test_a_report_without_examples_weighs_nothing() -> None:
    reports = [
        Report("a", examples=4, loss_max=2.0, extra={"loss_reduction": 1.0}),
        Report("b", examples=0, loss_max=2.0, extra={"loss_reduction": 1.0}),
    ]
    for mode in ("size", "equal", "loss_reduction", "lorar"):
        assert normalised(mode, reports) == [1.0, 0.0]
        with pytest.raises(ValueError, match="no client with training examples"):
            normalised(mode, reports[1:])


@pytest.mark.parametrize("algorithm", [FedAvg(), EQUAL, BY_LOSS, Scaffold()])
def test_a_round_in_which_nobody_has_examples_is_void(algorithm: Algorithm, tmp_path: Path, caplog: Any) -> None:
    nobody = Liar(lambda report: replace(report, examples=0), of=tuple(CLIENTS))
    assert torch.equal(weights(tmp_path, algorithm, nobody), torch.tensor(TASK.start))
    assert caplog.text.count("the server takes no step") == 2
    with pytest.raises(QuorumError):
        weights(tmp_path / "long", algorithm, nobody, rounds=5)


@pytest.mark.parametrize("weighting", ["loss_reduction", "lorar"])
def test_a_cap_bounds_the_weight_that_a_made_up_fall_of_the_loss_can_have(weighting: Any, tmp_path: Path) -> None:
    def lie(report: Report) -> Report:
        return replace(report, loss_max=1e12, loss_min=0.0, extra={**report.extra, "loss_reduction": 1e12})

    free, capped = (
        runner_for(tmp_path / str(cap), FedAvg(weights=weighting, loss_reduction=LossReduction(cap=cap)), Liar(lie))
        for cap in (None, 0.5)
    )
    assert free.run().weights["b"] > 0.999999
    found = capped.run().weights
    raw = {
        report.client: min(0.5, report.extra["loss_reduction"]) * (report.examples if weighting == "lorar" else 1)
        for report in capped.context.server.accepted
    }
    assert found == pytest.approx({name: value / sum(raw.values()) for name, value in raw.items()})
    assert found["b"] < 0.9


SPOILT: dict[str, tuple[Spoil, str]] = {
    "nan": (lambda update: update[-1:].fill_(NAN), "is not finite, but it reported the norm"),
    "exploded": (lambda update: update.mul_(1e6), "has the norm .*, but it reported"),
}


@pytest.mark.parametrize("kind", SPOILT)
@pytest.mark.parametrize("algorithm", [FedAvg(), Scaffold(), Median()], ids=lambda a: type(a).__name__)
def test_an_update_that_is_not_what_was_reported_leaves_its_client_out(
    kind: str, algorithm: Algorithm, tmp_path: Path, caplog: Any
) -> None:
    spoil, reason = SPOILT[kind]
    config = {"clients": ClientsConfig(max_update_norm=100.0, max_norm_to_median=50.0)}
    runner = runner_for(tmp_path / "lie", algorithm, Liar(spoil=spoil), **config)
    runner.run()
    assert [report.client for report in runner.context.server.accepted] == ["a", "c"]
    assert torch.equal(runner.context.server.weights, without_b(tmp_path / "without", algorithm))
    assert len(re.findall(f"client b is left out: its update {reason}", caplog.text)) == 2


def damaged(message: torch.Tensor) -> object:
    """Its header is not intact any more."""
    return message[:8].add_(1)


def other_values(message: torch.Tensor) -> object:
    """An intact message of numbers that were not reported."""
    return message[-4:].view(torch.float32).mul_(1e6)


@pytest.mark.parametrize(("spoil", "reason"), [(damaged, "its message cannot be read"), (other_values, "has the norm")])
@pytest.mark.parametrize("exchange", ["star", "replicated", "allreduce"])
def test_a_message_that_is_none_or_not_what_was_reported_leaves_its_client_out(
    spoil: Spoil, reason: str, exchange: Any, tmp_path: Path, caplog: Any
) -> None:
    algorithm = FedAssistant(exchange=exchange, **TOPK)  # type: ignore[arg-type]
    runner = runner_for(tmp_path / "lie", algorithm, Liar(spoil=spoil))
    runner.run()
    assert [report.client for report in runner.context.server.accepted] == ["a", "c"]
    assert f"client b is left out: its {'message' if spoil is damaged else 'update'}" in caplog.text
    assert reason in caplog.text
    assert torch.equal(runner.context.server.weights, without_b(tmp_path / "without", algorithm))


TOPK = {"payload": "delta", "compression": "topk", "topk": TopK(ratio=1.0, encoding="index32")}
RUNS: list[tuple[Algorithm, Lie | None, Spoil | None]] = [
    (FedAvg(), None, SPOILT["nan"][0]),
    (Median(), None, SPOILT["exploded"][0]),
    (BY_LOSS, LIES["the same by itself"][0], None),
    (FedAssistant(exchange="star", **TOPK), None, damaged),  # type: ignore[arg-type]
    (FedAssistant(exchange="replicated", **TOPK), None, other_values),  # type: ignore[arg-type]
    (FedAssistant(exchange="allreduce", **TOPK), None, damaged),  # type: ignore[arg-type]
    (FedAssistant(exchange="allreduce", **TOPK), None, other_values),  # type: ignore[arg-type]
]


def as_ranks(folder: str) -> list[str]:
    """The digests of runs with a lying client each, one after the other."""
    found = []
    with LyingRank.join(tuple(CLIENTS), timeout_s=20) as comm:
        for place, (algorithm, comm.lie, comm.spoil) in enumerate(RUNS):
            found.append(runner_for(Path(folder) / str(place), algorithm, comm).run().digest)
    return found


@pytest.mark.processes
def test_a_lie_is_found_on_any_number_of_ranks_with_the_same_bits(tmp_path: Path) -> None:
    alone = [
        runner_for(tmp_path / f"alone{place}", algorithm, Liar(lie, spoil)).run().digest
        for place, (algorithm, lie, spoil) in enumerate(RUNS)
    ]
    assert run_ranks(as_ranks, 3, str(tmp_path))[0] == alone


def test_lies_of_all_end_the_run_with_the_weights_as_they_were(tmp_path: Path) -> None:
    everyone = Liar(spoil=lambda update: update.fill_(NAN), of=tuple(CLIENTS))
    runner = runner_for(tmp_path, FedAvg(), everyone, rounds=5)
    with pytest.raises(QuorumError):
        runner.run()
    assert torch.equal(runner.context.server.weights, torch.tensor(TASK.start))


def test_a_lie_can_end_the_run(tmp_path: Path) -> None:
    stop = {"clients": ClientsConfig(on_failure="stop")}
    for comm in (Liar(lambda r: replace(r, examples=10**9)), Liar(spoil=lambda update: update.fill_(NAN))):
        with pytest.raises(NonFiniteError):
            weights(tmp_path, FedAvg(), comm, **stop)


@dataclass(frozen=True)
class Diverges(FedAvg):
    """A server whose own step makes infinity of honest updates, in its third round."""

    def server_update(self, server: Any, grad: torch.Tensor) -> None:
        server.numbers["seen"] = server.numbers.get("seen", 0) + 1
        server.weights.sub_(grad)
        if server.numbers["seen"] == 3:
            server.weights[0] = INF


def test_a_checkpoint_is_never_of_weights_that_are_not_finite(tmp_path: Path) -> None:
    runner = runner_for(tmp_path, Diverges(), rounds=4, checkpoint=CheckpointConfig(every=1, keep=2))
    with pytest.raises(NonFiniteError, match="the global weights after round 3 are not finite and are not saved"):
        runner.run()
    checkpoints = runner.components.checkpoints
    assert [found.round for found in (checkpoints.at(1), checkpoints.at(2))] == [1, 2]
    assert torch.isfinite(checkpoints.load_server(checkpoints.at(2)).tensors["weights"]).all()
    with pytest.raises(CheckpointError):
        checkpoints.at(3)


def test_an_adaptive_server_survives_a_client_that_lies_about_its_norm(tmp_path: Path) -> None:
    """A server's moments would keep NaN for ever."""
    server = {"server": ServerConfig(optimizer="adam", lr=0.1)}
    found = weights(tmp_path, FedAvg(), Liar(spoil=lambda update: update.fill_(NAN)), **server)
    assert torch.isfinite(found).all()
