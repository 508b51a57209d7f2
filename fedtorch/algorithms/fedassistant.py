"""FedAssistant's exchange: gradients of a batch each round, made small by top-k with error feedback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.kept import Kept
from fedtorch.algorithms.limits import Limits, trains_as
from fedtorch.algorithms.message import MessageAlgorithm
from fedtorch.compression.compressors import Compressor, Feedback, Quantise, TopK, give_back, with_feedback
from fedtorch.compression.payload import Sparse, decode, encode
from fedtorch.compression.slices import Selection, nonzero
from fedtorch.core.errors import ConfigError
from fedtorch.core.norms import norm_and_max
from fedtorch.core.overrides import overrides
from fedtorch.core.seeds import seed_for
from fedtorch.core.server import ServerState
from fedtorch.core.state_keys import LEFT_OUT, SERVER_STEPS
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.train.engine import Engine, GradientHook
from fedtorch.train.job import ClientJob
from fedtorch.train.loop import LossCurve
from fedtorch.train.outgoing import MESSAGE
from fedtorch.train.settings import ClientConfig


@dataclass(frozen=True)
class FedAssistant(FedAvg, MessageAlgorithm):
    """FedAssistant, Algorithm 1 read as its origin, DGC.

    Each client adds its gradient to what it has not sent yet and sends the largest numbers of that; the server
    averages, chooses again, and takes a step of `server.optimizer`.

    In the parts that are shared a client takes no step of its own; its private parts learn by `client.optimizer`.
    Clients count equally (1/N). Where messages travel (`exchange` other than `dense`) every rank keeps the server's
    weights and optimiser and takes the same step, so weights never travel after the first broadcast.
    """

    weights: Literal["equal"] = "equal"
    """every client counts the same"""
    payload: Literal["gradient", "delta"] = "gradient"
    """gradient: of `client.accumulation` batches at the received weights, one step a round (Algorithm 1);
    delta: what `client.steps` or `client.epochs` of local training changed; the server adds it"""
    compression: Literal["none", "topk", "quantise"] = "none"
    """what is sent: everything, the largest numbers, or every number in one byte"""
    topk: TopK = field(default_factory=TopK)
    """of `compression: topk`"""
    quantise: Quantise = field(default_factory=Quantise)
    """of `compression: quantise`"""
    error_feedback: Feedback = True
    """true: what was not sent is kept and added to the next gradient; literal: what was sent is kept too, as the
    algorithm is printed; none: what is not sent is lost"""
    server_residual: Literal["server", "returned", "none"] = "server"
    """what the server's own choice leaves out: kept by the server, put back by the clients that sent it (those that
    take part in every round), or lost"""
    second_selection: bool = True
    """true: the step is only the largest numbers of the mean, as many as a client sends; false: all of the mean"""
    exchange: Literal["dense", "star", "replicated", "allreduce"] = "dense"
    """dense: full vectors both ways, whatever they hold; star: messages to the server, which sends one message to all;
    replicated: every rank gets all messages and combines them itself; allreduce: every rank sums a slice of them, and
    all get what is kept of it. The same bits all four ways"""
    check_every: int = 50
    """rounds between comparisons of the ranks' weights and optimisers, where each rank has its own"""

    def __post_init__(self) -> None:
        if self.compression == "none" and self.exchange != "dense":
            raise ConfigError(
                f"algorithm.exchange is {self.exchange} but algorithm.compression is none; set algorithm.compression "
                "to topk (with topk.ratio 1 nothing is left out) or algorithm.exchange to dense"
            )
        if self.compression != "topk" and (self.exchange == "allreduce" or not self.second_selection):
            key = "exchange is allreduce" if self.exchange == "allreduce" else "second_selection is false"
            raise ConfigError(
                f"algorithm.{key} but algorithm.compression is {self.compression}; only sparse messages are divided "
                "into slices or chosen from, set algorithm.compression to topk"
            )
        if self.server_residual == "returned" and not self.second_selection:
            raise ConfigError(
                "algorithm.server_residual is returned but algorithm.second_selection is false, so that nothing is "
                "left out that clients could put back; set algorithm.server_residual to none"
            )
        if self.error_feedback == "literal" and self.server_residual != "none":
            raise ConfigError(
                f"algorithm.error_feedback is literal but algorithm.server_residual is {self.server_residual}; the "
                "printed algorithm has none, set algorithm.server_residual to none"
            )
        if self.server_residual == "returned" and (self.exchange == "dense" or self.error_feedback is not True):
            raise ConfigError(
                "algorithm.server_residual is returned, which needs error_feedback: true and an exchange in which "
                f"clients see the step; algorithm.exchange is {self.exchange}, set it to star, replicated or allreduce"
            )
        if self.server_residual == "returned" and self.compression == "topk" and self.topk.values == "int8":
            raise ConfigError(
                "algorithm.server_residual is returned but algorithm.topk.values is int8; a number that the step's "
                "rounding makes 0 by chance would be put back as if it had been left out, so that the mean of many "
                "steps were too large; set algorithm.server_residual to server, or algorithm.topk.values to fp16"
            )
        if self.check_every < 1:
            raise ConfigError(f"algorithm.check_every is {self.check_every}; set it to at least 1")

    @property
    def compressor(self) -> Compressor | None:
        """The chosen one."""
        return {"none": None, "topk": self.topk, "quantise": self.quantise}[self.compression]

    @property
    def limits(self) -> Limits:
        """Messages have sums alone; with `payload: gradient` there is no step to be left out when fp16 overflows.

        What is sent, and what is kept of it, are made of steps, so of noised ones where steps are noised.
        """
        usual = super().limits
        return replace(
            usual,
            precisions=("fp32", "bf16") if self.payload == "gradient" else usual.precisions,
            steps_with_optimizer=not overrides(type(self), "server_update", FedAssistant),
            why_not_record="" if trains_as(type(self), FedAssistant) else None,
            why_not_robust="sends what is left over of earlier rounds, and messages in place of vectors",
        )

    def check(self, hp: ClientConfig, task: Any) -> None:
        """A gradient is that of one step.

        Raises:
            ConfigError: `client.steps` is not 1 although `payload` is `gradient`.
        """
        if self.payload == "gradient" and hp.steps != 1:
            raise ConfigError(
                f"client.steps is {hp.steps} but algorithm.payload is gradient, which is of one step a round; set "
                "client.steps to 1 (and client.accumulation to the number of batches), or algorithm.payload to delta"
            )

    # --- the client's round

    def client_update(self, job: ClientJob) -> Report:
        """One client's gradient or difference, compressed with what it had not sent yet."""
        layout = job.engine.shared
        if self.payload == "gradient":
            grad, received = layout.empty(), job.received["weights"]
            take = _take_gradient(grad, job.hp.max_grad_norm)
            curve = job.train(received, before_step=take, held={"gradient": grad})
        else:
            curve = job.train(job.received["weights"])
            grad = job.engine.difference(job.received["weights"])
        if self.compressor is not None:
            return self._compressed(job, grad, curve)
        job.send("weights", grad)
        return self.report(job, curve)

    def _compressed(self, job: ClientJob, grad: Tensor, curve: LossCurve) -> Report:
        assert self.compressor is not None
        layout, state = job.engine.shared, job.state
        message, residual = with_feedback(
            self.compressor, grad, self._residual(job), self.error_feedback, layout, seed=job.seed("compression")
        )
        if residual is not None:
            state.tensors[LEFT_OUT] = residual
        if self.server_residual == "returned":
            state.tensors["sent"] = message
            state.numbers["sent/round"] = job.round
        sent = self.compressor.decompress(message, layout)
        if self.exchange == "dense":
            job.send("weights", sent)
            return self.report(job, curve)
        job.send(MESSAGE, message)
        norm, max_abs = norm_and_max(sent)
        return replace(self.report(job, curve), norm=norm, max_abs=max_abs)

    def _residual(self, job: ClientJob) -> Tensor | None:
        """Return what the client had not sent, and what of it the last step left out."""
        residual = job.state.tensors.get(LEFT_OUT)
        is_last = job.state.numbers.get("sent/round") == job.round - 1
        if self.server_residual != "returned" or residual is None or not is_last:
            return residual
        sent = self.decode(job.state.tensors["sent"], job.engine.shared)
        if isinstance(sent, Tensor):
            sent = Sparse(sent.numel(), torch.arange(sent.numel(), dtype=torch.int32), sent)
        return give_back(residual, sent, job.received["step"])

    # --- the server's, on every rank where messages travel

    def weigh(self, reports: Sequence[Report]) -> list[float]:
        """1/N; `literal` has another 1/N from the printed algorithm, which divides at the client and at the server."""
        count = len(reports)
        return [1 / (count * count if self.error_feedback == "literal" else count)] * count

    def message_bytes(self, layout: Layout) -> int:
        """Length of every message, header included; 0 where vectors travel."""
        if self.exchange == "dense" or self.compressor is None:
            return 0
        return self.compressor.compress(layout.empty(), layout).numel()

    @property
    def combines_everywhere(self) -> bool:
        """Does every rank combine the messages itself (`exchange: replicated`)?"""
        return self.exchange == "replicated"

    @property
    def combines_in_slices(self) -> bool:
        """Does every rank combine a slice (`exchange: allreduce`)?"""
        return self.exchange == "allreduce"

    def selection(self, layout: Layout) -> Selection | None:
        """As many numbers as a client sends, unless `second_selection` is false."""
        return self.topk.kept(layout) if self.second_selection else None

    def choice_seed(self, server: ServerState) -> int:
        """Seed of this step of the server; every rank has the count of steps."""
        taken = int(server.numbers.get(SERVER_STEPS, 0))
        return taken if self.compression == "quantise" else seed_for(server.run_seed, "choice", taken)

    @property
    def keeps_left_out(self) -> bool:
        """`server_residual: server`."""
        return self.second_selection and self.server_residual == "server"

    @property
    def choice_varies(self) -> bool:
        """Everything that clients sent is one message of any length."""
        return not self.second_selection

    @property
    def replicas_compared_every(self) -> int:
        """`check_every`."""
        return self.check_every

    @property
    def kept_by_server(self) -> tuple[str, ...]:
        """Return what was not chosen yet, where the server alone chooses, or every rank in its slice."""
        return () if self.exchange == "replicated" else (LEFT_OUT,)

    def kept(self, layout: Layout, private: Layout) -> Kept:
        """Tensors that selections left out and the last step, as far as feedback uses them."""
        shapes = {LEFT_OUT: (layout.size,), "step": (layout.size,)}
        if self.compressor is None:
            return Kept(shapes, by_clients=True)
        returned = self.server_residual == "returned"
        server = ((LEFT_OUT,) if self.keeps_left_out else ()) + (("step",) if returned else ())
        client = ((LEFT_OUT,) if self.error_feedback != "none" else ()) + (("sent", "sent/round") if returned else ())
        return Kept(shapes, server, client, by_clients=True)

    def decode(self, message: Tensor, layout: Layout) -> Sparse | Tensor:
        """Decode a message into the vector that it stands for."""
        assert self.compressor is not None
        if isinstance(self.compressor, TopK):
            return decode(message, layout.size)
        return self.compressor.decompress(message, layout)

    def choose(self, server: ServerState, mean: Tensor) -> Tensor:
        """The step as a message: the server compresses the mean with what its earlier choices left out.

        With `second_selection: false`: all of the mean.
        """
        assert self.compressor is not None and server.layout is not None
        if not self.second_selection:
            return encode(nonzero(mean))
        rule: Feedback = True if self.server_residual == "server" else "none"
        message, residual = with_feedback(
            self.compressor, mean, server.tensors.get(LEFT_OUT), rule, server.layout, seed=self.choice_seed(server)
        )
        if residual is not None:
            server.tensors[LEFT_OUT] = residual
        return message

    def server_update(self, server: ServerState, grad: Tensor) -> None:
        """Choose where vectors travel (else it was done); then one step of the server optimiser.

        grad: the mean of what was sent, or the chosen step.
        """
        if self.compressor is not None and self.exchange == "dense" and self.second_selection:
            assert server.layout is not None
            grad = self.compressor.decompress(self.choose(server, grad), server.layout)
        if self.server_residual == "returned":
            server.tensors["step"] = grad.clone()
        server.optimizer.step(server, grad)
        if server.optimizer.settings.optimizer in ("none", "sgd"):
            server.numbers[SERVER_STEPS] = int(server.numbers.get(SERVER_STEPS, 0)) + 1


def _take_gradient(out: Tensor, max_norm: float | None) -> GradientHook:
    """A hook that moves the shared parameters' gradients into `out`, so that no step changes these parameters."""

    def take(engine: Engine) -> None:
        gradients = engine.shared_gradients()
        if max_norm is not None:
            _clip(gradients, max_norm)
        names = [name for name in engine.trained_names if name in set(engine.shared.names)]
        engine.shared.flatten(dict(zip(names, gradients, strict=True)), out)
        engine.forget_gradients(names)

    return take


def _clip(gradients: Sequence[Tensor], max_norm: float) -> None:
    """`clip_grad_norm_` of gradients that may belong to no parameter, in place."""
    holders = [torch.empty_like(gradient, requires_grad=True) for gradient in gradients]
    for holder, gradient in zip(holders, gradients, strict=True):
        holder.grad = gradient
    torch.nn.utils.clip_grad_norm_(holders, max_norm)
