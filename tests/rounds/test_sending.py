"""What a client's algorithm hands over: every vector once, in one of two ways; the rest is an error that names it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from harness import SGD, make_config, make_runner
from torch import Tensor
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.algorithms.kept import Kept
from fedtorch.algorithms.limits import Limits
from fedtorch.algorithms.message import MessageAlgorithm
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.core.errors import ConfigError, FedtorchError, UpdateError
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report, Update
from fedtorch.core.weights import Layout
from fedtorch.rounds.runner import Runner
from fedtorch.train.job import ClientJob
from fedtorch.train.outgoing import Outgoing

TASK = Quadratic(clients={"a": (1.0, 1.0, 4), "b": (2.0, -1.0, 8)}, start=(0.3, -0.7))


def weights(folder: Path, algorithm: Algorithm) -> Tensor:
    runner = make_runner(make_config(folder, TASK, algorithm))
    runner.run()
    assert [report.client for report in runner.context.server.accepted] == ["a", "b"]
    return torch.cat([runner.context.server.weights, *runner.context.server.tensors.values()])


@dataclass(frozen=True)
class FillsControl(Scaffold):
    """As users' algorithms did before there was `send`: writes to the job's vectors and returns one of them."""

    def client_update(self, job: ClientJob) -> Update:  # type: ignore[override]
        received, control = job.received["weights"], job.received["control"]
        own = job.state.tensors.get("control", torch.zeros_like(control))
        curve = job.train(received, before_step=self.correction(job))
        job.send_difference(received)
        fresh = own - control + job.outgoing["weights"] * (1.0 / (curve.taken * job.hp.lr))
        torch.sub(own, fresh, out=job.outgoing["control"])
        job.state.tensors["control"] = fresh
        return Update(job.outgoing["weights"], self.report(job, curve))


@dataclass(frozen=True)
class Concatenates(Scaffold):
    """Sends the same vectors, and returns them end to end in one of its own."""

    def client_update(self, job: ClientJob) -> Update:  # type: ignore[override]
        inner = replace(job, outgoing=Outgoing(torch.zeros_like(job.outgoing.flat), self.travels.vectors, "inner"))
        report = super().client_update(inner)
        return Update(inner.outgoing.flat.clone(), report)


@pytest.mark.parametrize("algorithm", [FillsControl(), Concatenates()], ids=["fills", "concatenates"])
def test_an_update_may_be_returned_in_place_of_being_sent(algorithm: Algorithm, tmp_path: Path) -> None:
    assert torch.equal(weights(tmp_path / "old", algorithm), weights(tmp_path / "new", Scaffold()))


@dataclass(frozen=True)
class Sends(Scaffold):
    """Does `how` in place of sending its two vectors."""

    how: str = ""

    def client_update(self, job: ClientJob) -> Any:  # type: ignore[override]
        curve = job.train(job.received["weights"])
        if self.how == "nothing":
            return None
        sent = job.send_difference(job.received["weights"])
        job.state.tensors["control"] = sent
        if self.how == "twice":
            job.send("weights", sent)
        elif self.how == "unknown":
            job.send("wieghts", sent)
        elif self.how == "shape":
            job.send("control", sent[:1])
        elif self.how == "dtype":
            job.send("control", sent.float())
        elif self.how == "update":
            return Update(job.outgoing["weights"], self.report(job, curve))
        elif self.how == "short":
            return Update(sent.clone(), self.report(job, curve))
        return self.report(job, curve)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("forgets", "Sends did not send `control`; use job.send or job.send_difference"),
        ("update", "Sends did not send `control`; use job.send or job.send_difference"),
        ("twice", "Sends sent `weights` twice; send it once, when it is complete"),
        ("unknown", "Sends sent `wieghts`, but its clients send `weights`, `control`"),
        ("shape", "Sends sent `control` with shape (1,) and torch.float64; expected (2,) and torch.float64"),
        ("dtype", "Sends sent `control` with shape (2,) and torch.float32; expected (2,) and torch.float64"),
        ("nothing", "Sends.client_update returned NoneType; return a Report"),
        ("short", "Sends returned an Update whose grad has shape (2,), expected (4,)"),
    ],
)
def test_what_was_not_sent_as_it_should_be_is_named(how: str, message: str, tmp_path: Path, caplog: Any) -> None:
    runner = make_runner(make_config(tmp_path, TASK, Sends(how=how), rounds=1))
    result = runner.run()
    assert f"client a failed in round 1: UpdateError: {message}" in caplog.text
    assert "client a is left out: failed:UpdateError" in caplog.text and result.weights == {}
    assert "control" not in runner.context.store.get("a").tensors
    assert runner.context.server.weights.tolist() == [0.3, -0.7]


@dataclass(frozen=True)
class Keeps(FedAvg):
    """Keeps the memory of a vector of the round: received, sent, a part of one, a copy of one, or the server's grad."""

    of: str = ""

    def client_update(self, job: ClientJob) -> Report:
        curve = job.train(received := job.received["weights"])
        sent = job.send_difference(received)
        kept = {"received": received, "sent": sent, "part": received[1:], "copy": received.clone(), "grad": sent + 0}
        job.state.tensors["mine"] = kept[self.of]
        return self.report(job, curve)

    def server_update(self, server: ServerState, grad: Tensor) -> None:
        server.tensors["last"] = grad if self.of == "grad" else grad.clone()
        server.optimizer.step(server, grad)

    def kept(self, layout: Layout, private: Layout) -> Kept:
        return Kept(by_clients=True)


@pytest.mark.parametrize("of", ["received", "sent", "part", "grad", "copy"])
def test_what_is_kept_without_a_clone_ends_the_run(of: str, tmp_path: Path) -> None:
    """It would be another number in the next round, without a word."""
    runner = make_runner(make_config(tmp_path, TASK, Keeps(of=of)))
    if of == "copy":
        runner.run()
        return
    what = (
        "Keeps.server_update keeps `last` in the memory of `grad`" if of == "grad" else "Keeps keeps `mine` in a client"
    )
    with pytest.raises(FedtorchError, match=f"{what}.*the next round overwrites; keep a clone"):
        runner.run()


@dataclass(frozen=True)
class Picky(FedAvg):
    """Client `a` sends nothing and weighs nothing."""

    def client_update(self, job: ClientJob) -> Any:
        report = super().client_update(job)
        return Update(None, report) if job.client.name == "a" else report

    def weigh(self, reports: Any) -> list[float]:
        return [float(report.client != "a") for report in reports]


def test_a_client_may_return_an_update_without_a_vector(tmp_path: Path) -> None:
    runner = make_runner(make_config(tmp_path, TASK, Picky(), rounds=1, client=replace(SGD, lr=0.5)))
    assert runner.run().weights == {"a": 0.0, "b": 1.0}
    assert runner.context.server.weights.tolist() == pytest.approx([-1.0, -1.0])  # one step of `b` to its optimum


def test_a_later_client_does_not_send_what_an_earlier_one_left() -> None:
    flat = torch.ones(4)
    outgoing = Outgoing(flat, ("weights", "control"), "Mine")
    outgoing.put("weights", torch.zeros(2))
    with pytest.raises(UpdateError, match="Mine did not send `control`"):
        outgoing.close(Report("a"))
    assert not outgoing.is_sent and flat.tolist() == [0, 0, 1, 1]


def test_where_nothing_is_exchanged_nothing_is_missing() -> None:
    outgoing = Outgoing(torch.zeros(0), (), "Mine")
    assert outgoing.close(Report("a")) == Report("a") and not outgoing.is_sent
    with pytest.raises(UpdateError, match="Mine sent `weights`, but its clients send nothing"):
        outgoing.put("weights", torch.zeros(0))


# --- what an algorithm says of itself


@dataclass(frozen=True)
class Plain(FedAvg):
    """Says how long its messages are and is none of those that send any."""

    def message_bytes(self, layout: Any) -> int:
        return 8


def test_messages_of_another_kind_of_algorithm_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Plain, which has `message_bytes` but is no MessageAlgorithm; derive it"):
        make_runner(make_config(tmp_path, TASK, Plain()))


@dataclass(frozen=True)
class Bytes(FedAvg, MessageAlgorithm):
    """Sends the difference's own bytes; every rank takes the mean, as it is."""

    everywhere: ClassVar[bool] = False

    @property
    def combines_everywhere(self) -> bool:
        return self.everywhere

    def message_bytes(self, layout: Any) -> int:
        return int(layout.empty().nbytes)

    def client_update(self, job: ClientJob) -> Report:
        curve = job.train(job.received["weights"])
        difference = job.engine.difference(job.received["weights"])
        job.send("message", difference.view(torch.uint8))
        size = float(difference.abs().max())
        return replace(self.report(job, curve), norm=float(difference.norm()), max_abs=size)

    def decode(self, message: Tensor, layout: Any) -> Tensor:
        return message.clone().view(layout.dtype)

    def choose(self, server: ServerState, mean: Tensor) -> Tensor:
        return mean.clone().view(torch.uint8)


@dataclass(frozen=True)
class BytesEverywhere(Bytes):
    """The same, combined on every rank."""

    everywhere: ClassVar[bool] = True


@pytest.mark.parametrize("algorithm", [Bytes(), BytesEverywhere()], ids=["star", "replicated"])
def test_messages_that_leave_nothing_out_give_the_bits_of_vectors(algorithm: Algorithm, tmp_path: Path) -> None:
    assert torch.equal(weights(tmp_path / "bytes", algorithm), weights(tmp_path / "dense", FedAvg()))


class Teaches(FedProx):
    """Says nothing but what the server does."""

    def server_train(self, server: ServerState, job: ClientJob | None) -> None:
        server.weights.fill_(7.0)


@dataclass(frozen=True)
class TeachesToo(Teaches):
    """Inherits it."""


@pytest.mark.parametrize("algorithm", [Teaches(), TeachesToo()], ids=["own", "inherited"])
def test_a_server_trains_where_the_algorithm_says_how(algorithm: Algorithm, tmp_path: Path) -> None:
    assert algorithm.limits.trains_server and not FedProx().limits.trains_server
    runner = make_runner(make_config(tmp_path, TASK, algorithm, rounds=1))
    runner.run()
    assert runner.context.server.weights.tolist() == [7.0, 7.0]


def test_an_algorithm_says_what_it_weighs_by() -> None:
    assert Algorithm().limits.weighting == "equal" and Scaffold().limits.weighting == "equal"
    assert [FedAvg().limits.weighting, FedAvg(weights="lorar").limits.weighting] == ["size", "lorar"]


@dataclass(frozen=True)
class PulledToStart(FedProx):
    """What a user may write: its correction looks at w^0."""

    def correction(self, job: ClientJob) -> None:
        assert torch.allclose(job.initial, torch.tensor([0.3, -0.7], dtype=job.initial.dtype))


@dataclass(frozen=True)
class Forgets(PulledToStart):
    """The same, but says that it does not."""

    @property
    def limits(self) -> Limits:
        """Nothing of the start."""
        return replace(super().limits, reads_initial=False)


def test_the_initial_weights_are_kept_for_those_who_may_ask_for_them(tmp_path: Path) -> None:
    kept = make_runner(make_config(tmp_path / "kept", TASK, PulledToStart()))
    kept.run()
    assert len(kept.context.server.accepted) == 2 and kept.components.engine.initial_shared.shape == (2,)
    runner = make_runner(make_config(tmp_path / "fedavg", TASK, FedAvg()))
    runner.run()
    with pytest.raises(
        FedtorchError, match="`limits.reads_initial` of the algorithm is False; set it to True in the class that asks"
    ):
        _ = runner.components.engine.initial_shared
    with pytest.raises(FedtorchError, match="`limits.reads_initial` of the algorithm is False"):
        make_runner(make_config(tmp_path / "forgets", TASK, Forgets())).run()
    shared = make_runner(make_config(tmp_path / "shared", TASK, FedAvg()))
    Runner(replace(shared.components, is_engine_shared=True)).run()
    assert shared.components.engine.initial_shared.tolist() == kept.components.engine.initial_shared.tolist()
