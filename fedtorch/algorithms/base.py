"""The functions an algorithm may define. All are pure: what outlives a round is in ServerState and ClientState."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from torch import Tensor

from fedtorch.algorithms.kept import Kept
from fedtorch.algorithms.limits import NAMES, Limits
from fedtorch.algorithms.run_facts import RunFacts
from fedtorch.algorithms.travels import Travels
from fedtorch.algorithms.weighting import shares
from fedtorch.core.client import ClientState
from fedtorch.core.overrides import definer, overrides
from fedtorch.core.places import Places
from fedtorch.core.renamed import refuse_old_arguments, refuse_old_names
from fedtorch.core.server import ServerState
from fedtorch.core.settings import ServerConfig
from fedtorch.core.update import Report, Update
from fedtorch.core.weights import Layout
from fedtorch.train.engine import Engine
from fedtorch.train.job import ClientJob
from fedtorch.train.settings import ClientConfig


class Updates(Protocol):
    """The accepted clients' pseudo-gradients of a round, wherever they are; exists on the server only."""

    @property
    def reports(self) -> Sequence[Report]:
        """The accepted reports, in client order."""
        ...

    @property
    def layout(self) -> Layout | None:
        """Layout of each vector in an update; None: they are messages."""
        ...

    @property
    def round(self) -> int:
        """Round of the run, from 0."""
        ...

    @property
    def kept(self) -> dict[str, float]:
        """Client -> the share of its weight that counts; an algorithm may fill it in, for the records."""
        ...

    def weighted_sum(self, weights: Sequence[float], *, max_norm: float | None = None) -> Tensor:
        """Σ weights_i · grad_i, the same bits for any placement of clients on ranks.

        It is refused where its norm is above Σ |weights_i| norm_i by the reports, or above `max_norm` in place of that.
        """
        ...

    def __iter__(self) -> Iterator[Tensor]:
        """Each grad by itself, in report order; a tensor is valid until the next one is taken."""
        ...

    def is_finite(self, vector: Tensor) -> bool:
        """Is every element? A sum that `weighted_sum` gave, and nobody has written to, is not looked at again."""
        ...

    def each_window(self, see: Callable[[Tensor], None]) -> None:
        """`see` gets all grads side by side, window by window: (clients, numbers), valid during the call."""
        ...

    def combine_windows(self, rule: Callable[[Tensor], Tensor]) -> Tensor:
        """A vector of what `rule` makes of each such window, which is one number of each column."""
        ...


OLD_NAMES = {name: f"limits.{name}" for name in NAMES} | {
    "exchanged": "travels.vectors",
    "exchanged_vectors": "travels.vectors",
    "exchanged_layout": "travels.layout",
    "varying_vectors": "travels.varying",
    "update_dtype": "travels.update_dtype",
    "on_device": "@on_device at each function",
    "judged_weights": "eval_weights",
    "why_not_ahead": "own_weight",
    "check_task": "check(hp, task)",
    "sent_places": "places",
    "received_places": "places",
    "broadcast_places": "places",
    "kept_tensors": "kept",
    "needed_entries": "kept",
    "stateful": "kept",
}
"""Members that an algorithm may have defined before -> what says the same now."""
Way = Literal["sent", "received", "broadcast"]
"""Direction of what travels: a client's update, the server's vectors as one client needs them, or as all get them."""
OF_CLIENTS = {"client_update", "correction", "report"}
"""Members that get a ClientJob while a client trains."""
_ON_DEVICE = set[Callable[..., Any]]()
Function = TypeVar("Function", bound=Callable[..., Any])


def on_device(function: Function) -> Function:
    """Say of a function of OF_CLIENTS that it takes received vectors, and sends, on the engine's device.

    It then mixes them with nothing that is on the CPU, such as states. Where all that a class has of these say so,
    vectors need not cross to the host in a round over NCCL. One that takes the place of another says it for itself.
    """
    _ON_DEVICE.add(function)
    return function


@dataclass(frozen=True)
class Algorithm:
    """Rules for what clients compute and how the server combines it; fields of a subclass are its YAML keys."""

    of_run: ClassVar[RunFacts | None] = None
    """facts of the run that it is part of; None before there is one"""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_old_names(cls, OLD_NAMES)
        refuse_old_arguments(cls, "check", "hp, task")

    @property
    def travels(self) -> Travels:
        """Vectors that travel each round; by default the weights.

        A class changes what is its own: `replace(super().travels, vectors=("weights", "control"))`.
        """
        return Travels()

    @property
    def limits(self) -> Limits:
        """Needs of the algorithm, and what it cannot be combined with.

        A class changes what these functions of its own mean: `replace(super().limits, precisions=("fp32", "bf16"))`.
        `steps_with_optimizer` is False for one with a `server_update`, and `reads_initial` True for one from outside
        this package that says what clients do.
        """
        cls = type(self)
        of_clients = {name: base for name in OF_CLIENTS if (base := definer(cls, name)) is not None}
        return Limits(
            weighting=str(getattr(self, "weights", "equal")),
            is_sum=not overrides(cls, "aggregate", Algorithm),
            trains_server=overrides(cls, "server_train", Algorithm),
            steps_with_optimizer=not overrides(cls, "server_update", Algorithm),
            reads_initial=not all(base.__module__.startswith("fedtorch.") for base in of_clients.values()),
            stays_on_device={vars(base)[name] in _ON_DEVICE for name, base in of_clients.items()} == {True},
        )

    def check(self, hp: ClientConfig, task: Any) -> None:
        """Called at start-up with every distinct client setting; raises ConfigError for what cannot work.

        task: that clients train on.
        """

    def check_server(self, server: ServerConfig) -> None:
        """Called when a config is read, with its `server` section; raises ConfigError for what cannot work."""

    def server_train(self, server: ServerState, job: ClientJob | None) -> None:
        """The server's own training, before the first round and after each; nothing by default.

        Changes `server.weights`, which are evaluated and then sent by the next broadcast. job: the server's own data of
        the task (`Task.server_examples`) as if it were the client `server`, in round 0 for the first time, then 1,
        2, ...; None if the task has none. May be called again for the same round if it was interrupted: change
        `server` only at the end.
        """

    def client_update(self, job: ClientJob) -> Report | Update:
        """One client's work of the round: train, `job.send` each of `travels.vectors`, return the client's numbers.

        An `Update`, which carries vector and report together, may be returned in place of sending.
        """
        raise NotImplementedError

    def own_weight(self, report: Report) -> float | None:
        """The number a_i from which `weigh` makes a_i / Σ a_j, from what is known when this client is done.

        0 where the client cannot count. None: there is no such number, in no round, and `weigh` is of its own.
        """
        return None

    def weigh(self, reports: Sequence[Report]) -> list[float]:
        """One weight per accepted report, in the same order: its `own_weight` divided by the sum of all.

        Raises:
            NothingToWeighError: there are reports, and all of them weigh 0.
        """
        own = [self.own_weight(report) for report in reports]
        if known := [weight for weight in own if weight is not None]:
            return shares(known)
        if reports:
            raise NotImplementedError(f"{type(self).__name__} defines neither `own_weight` nor `weigh`")
        return []

    def aggregate(self, updates: Updates, weights: Sequence[float]) -> Tensor:
        """Combine the updates into one flat vector; by default their weighted sum."""
        return updates.weighted_sum(weights)

    def places(self, way: Way, layout: Layout, client: str, round: int) -> Places | None:
        """Which numbers of `travels.vectors`, laid end to end, travel in a round (from 0). None: all.

        A function of its arguments, fields and `of_run`, asked for on all ranks. layout: of one of these vectors.
        way: `sent`: of what a client sends, the rest of which is 0. `received`: of the server's vectors that a client
        gets, for the count of bytes; a rank gets what any of its clients may need. `broadcast`: of those that can
        differ after the server's step of that round, for all (client is empty); all travel at the start of a run,
        after a resume, and to evaluate the best model.
        """
        return None

    def adopt(self, engine: Engine, task: Any, vectors: Mapping[str, Tensor]) -> None:
        """Bring `travels.varying`, as the server has them now, into the model; called on every rank after a change.

        vectors: on the CPU, not to be changed. Training, evaluation and what is written to disk then have them.
        """

    def measure(self, server: ServerState, updates: Updates, weights: Sequence[float]) -> Mapping[str, float]:
        """Numbers of a round's combination for its record, by name; before the server's step, nothing by default."""
        return {}

    def server_update(self, server: ServerState, grad: Tensor) -> None:
        """Change `server` in place by the combined pseudo-gradient; by default one step of the server optimiser."""
        server.optimizer.step(server, grad)

    def eval_weights(self, received: Tensor, state: ClientState) -> Tensor:
        """The flat shared weights that a client is evaluated with (its private ones are added by the engine)."""
        return received

    def kept(self, layout: Layout, private: Layout) -> Kept:
        """Entries of its own in states. layout: the shared one. private: of what each client has for itself.

        A class adds to these: `replace(super().kept(layout, private), client=("control",), by_clients=True)`.
        """
        return Kept(by_clients=private.size > 0)
