"""Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512): fragments of a model in turn, with delay and mixing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedtorch.algorithms.base import Way
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fragments import ByLayers, Fragments, place_of, places_of
from fedtorch.algorithms.kept import Kept
from fedtorch.algorithms.limits import Limits
from fedtorch.core import state_keys as keys
from fedtorch.core.errors import ConfigError
from fedtorch.core.places import Places
from fedtorch.core.ranges import Share, Whole
from fedtorch.core.server import ServerState
from fedtorch.core.settings import ServerConfig
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.train.job import ClientJob
from fedtorch.train.loop import LossCurve
from fedtorch.train.settings import ClientConfig

OWN, SINCE = "streaming/weights", "streaming/round"


@dataclass(frozen=True)
class StreamingDiLoCo(FedAvg):
    """DiLoCo whose replicas go on with weights of their own, and exchange one of P fragments in each round.

    Round r exchanges fragment p = r mod P, so with H = P · `client.steps` each is exchanged once in H steps. A replica
    sends θ[p] − θ_i[p] as it is `delay` steps before the round's end and trains on, while that travels where the scale
    of the sum is known (`system.sum_scale: previous`); the server steps θ[p] alone; and at the end of the round
    θ_i[p] ← (1 − mixing) θ[p] + mixing θ_i[p]. Evaluated is θ.
    """

    weights: Literal["size", "equal", "declared", "loss_reduction", "lorar"] = "equal"
    """of the replicas in the average, as in FedAvg"""
    fragments: Fragments = field(default_factory=ByLayers)
    """lists of patterns over parameter names, each a fragment, or `{layers: 3, pattern: strided}`"""
    delay: Whole = 0
    """tau: steps between what is sent and the end of the round; below `client.steps`"""
    mixing: Share = 0.0
    """alpha: how much of its own a replica keeps of the fragment; 0 takes the server's, 1 keeps its own"""

    @property
    def limits(self) -> Limits:
        """A replica that were not there in a round would mix what is older than the others'."""
        return replace(
            super().limits,
            steps_with_optimizer=True,
            why_not_robust="sends one fragment a round",
            why_not_sampled="has replicas that go on from what they exchanged in the last round",
        )

    def check(self, hp: ClientConfig, task: Any) -> None:
        """Refuses rounds of epochs, and a delay that leaves no step before it."""
        if hp.steps is None:
            raise ConfigError("algorithm.name is streaming_diloco, whose rounds are counted in steps; set client.steps")
        if self.delay >= hp.steps:
            raise ConfigError(
                f"algorithm.delay is {self.delay} but client.steps is {hp.steps}, so that nothing is trained before a "
                f"fragment is sent; set it to {hp.steps - 1} or less"
            )

    def check_server(self, server: ServerConfig) -> None:
        """Refuses optimisers that count steps, of which each fragment has its own."""
        if server.optimizer not in ("none", "sgd"):
            raise ConfigError(
                f"algorithm.name is streaming_diloco but server.optimizer is {server.optimizer}, which counts steps "
                "that fragments do not share; set it to sgd"
            )

    def places(self, way: Way, layout: Layout, client: str, round: int) -> Places | None:
        """The round's fragment, up and down."""
        if way == "received":
            return None
        return places_of(self.fragments, layout, place_of(self.fragments, layout, round))

    def client_update(self, job: ClientJob) -> Report:
        """Go on from the replica's own weights, with the last fragment mixed in; send this round's."""
        layout, received, steps = job.engine.shared, job.received["weights"], job.hp.steps or 0
        start = self._mixed(job, layout, received)
        if not self.delay:
            curve = job.train(start, before_step=self.correction(job))
            self._send(job, job.engine.on_cpu())
        else:
            curve = self._train_on(job, start, layout.empty(), steps - self.delay)
        job.state.tensors[OWN], job.state.numbers[SINCE] = job.engine.snapshot(), job.round
        return self.report(job, curve)

    def _send(self, job: ClientJob, trained: Tensor) -> None:
        """Send the round's fragment of `trained`."""
        received, places = job.received["weights"], self.places("sent", job.engine.shared, job.client.name, job.round)
        if places is None:
            job.send_difference(received, trained)
        else:
            job.send("weights", places.spread(places.take(received) - places.take(trained)))

    def _train_on(self, job: ClientJob, start: Tensor, sent: Tensor, leaves: int) -> LossCurve:
        """Train; after `leaves` steps, or where a saved training goes on after them, send and hand over.

        sent: becomes the weights as they are then, shape (layout.size,); a save has them.
        """

        def on_step(n: int) -> None:
            if n == leaves:
                job.engine.snapshot(sent)
            if n >= leaves and job.outgoing.missing:
                self._send(job, sent)
                job.hand_over(self.report(job, LossCurve()))
            job.on_step(n)

        before_step = self.correction(job)
        curve = replace(job, on_step=on_step).train(start, before_step=before_step, held={"sent": sent})
        if job.outgoing.missing:  # the last step was saved, and none was left
            self._send(job, sent)
        return curve

    def _mixed(self, job: ClientJob, layout: Layout, received: Tensor) -> Tensor:
        """The weights that the replica goes on from: its own, with all that was exchanged since mixed in once."""
        own = job.state.tensors.get(OWN)
        if own is None:
            return received
        own, since = own.clone(), int(job.state.numbers[SINCE])
        for number in {place_of(self.fragments, layout, round) for round in range(since, job.round)}:
            if (places := places_of(self.fragments, layout, number)) is None:
                return torch.lerp(received, own, self.mixing)
            places.put(torch.lerp(places.take(received), places.take(own), self.mixing), own)
        return own

    def server_update(self, server: ServerState, grad: Tensor) -> None:
        """One step of the optimiser on the round's fragment, and on what it keeps of it."""
        assert server.layout is not None
        places = self.places("broadcast", server.layout, "", server.round)
        if places is None:
            server.optimizer.step(server, grad)
            return
        if server.optimizer.settings.momentum:
            server.tensors.setdefault(keys.MOMENTUM, torch.zeros_like(server.weights))
        kept = [name for name in (keys.WEIGHTS, keys.MOMENTUM) if name in server.tensors]
        part = ServerState({name: places.take(server.tensors[name]) for name in kept})
        server.optimizer.step(part, places.take(grad))
        for name in kept:
            places.put(part.tensors[name], server.tensors[name])

    def kept(self, layout: Layout, private: Layout) -> Kept:
        """The replica's weights."""
        found = super().kept(layout, private)
        return replace(found, shapes={OWN: (layout.size,)}, client=(OWN, SINCE), by_clients=True)
