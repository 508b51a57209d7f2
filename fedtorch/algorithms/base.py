"""The functions an algorithm may define. All are pure: what outlives a round is in ServerState and ClientState."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from fedtorch.algorithms.limits import NAMES, Limits
from fedtorch.core.client import ClientState
from fedtorch.core.overrides import definer, overrides
from fedtorch.core.places import Places
from fedtorch.core.renamed import refuse_old_names
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
    "exchanged": "exchanged_vectors",
    "judged_weights": "eval_weights",
    "why_not_ahead": "own_weight",
}
"""Members that an algorithm may have defined before -> what says the same now."""
OF_CLIENTS = {"client_update", "correction", "report"}
"""Members that get a ClientJob while a client trains."""


@dataclass(frozen=True)
class Algorithm:
    """Rules for what clients compute and how the server combines it; fields of a subclass are its YAML keys."""

    exchanged_vectors: ClassVar[tuple[str, ...]] = ("weights",)
    """the flat vectors that travel each round, down under these names and up as their pseudo-gradients, all over the
    shared layout and laid end to end. Empty: nothing is sent. The server keeps one tensor of each name in
    `ServerState.tensors`; `weights` are the model's, others start at zero"""
    varying_vectors: ClassVar[tuple[str, ...]] = ()
    """further flat vectors of the server, of the shared layout's dtype and of a length that its step may change, which
    go down beside those above: what was added to an adapter's base. In `ServerState.tensors`; one that is missing is
    empty. `server_update` replaces them; of one that only grew, what is new travels"""
    is_personal: ClassVar[bool] = False
    """clients are evaluated with models of their own, each at its home"""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_old_names(cls, OLD_NAMES)

    @property
    def limits(self) -> Limits:
        """Needs of the algorithm, and what it cannot be combined with.

        A class changes what these functions of its own mean: `replace(super().limits, precisions=("fp32", "bf16"))`.
        `steps_with_optimizer` is False for one with a `server_update`, and `reads_initial` True for one from outside
        this package that says what clients do.
        """
        cls = type(self)
        of_clients = [base for name in OF_CLIENTS if (base := definer(cls, name)) is not None]
        return Limits(
            weighting=str(getattr(self, "weights", "equal")),
            is_sum=not overrides(cls, "aggregate", Algorithm),
            trains_server=overrides(cls, "server_train", Algorithm),
            steps_with_optimizer=not overrides(cls, "server_update", Algorithm),
            reads_initial=not all(base.__module__.startswith("fedtorch.") for base in of_clients),
        )

    def check(self, hp: ClientConfig) -> None:
        """Called at start-up with every distinct client setting; raises ConfigError for what cannot work."""

    def check_task(self, task: Any) -> None:
        """Called at start-up with the task that clients train on; raises ConfigError for what it lacks."""

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
        """One client's work of the round: train, `job.send` every exchanged vector, return the client's numbers.

        An `Update`, which carries vector and report together, may be returned in place of sending.
        """
        raise NotImplementedError

    def weigh(self, reports: Sequence[Report]) -> list[float]:
        """One weight per accepted report, in the same order."""
        raise NotImplementedError

    def own_weight(self, report: Report) -> float | None:
        """The number a_i of which `weigh` makes a_i / Σ a_j, from what is known when this client is done.

        0 where the client cannot count. None: there is no such number, in no round. Where a class defines it, it must
        fit the `weigh` of that same class. See `sums.why_not_ahead`.
        """
        return None

    def aggregate(self, updates: Updates, weights: Sequence[float]) -> Tensor:
        """Combine the updates into one flat vector; by default their weighted sum."""
        return updates.weighted_sum(weights)

    def sent_places(self, layout: Layout, client: str, round: int) -> Places | None:
        """Which numbers of what a client sends travel in a round (from 0); the rest of it is 0. None: all.

        In the exchanged vectors laid end to end. A function of its arguments and fields, asked for on all ranks.
        """
        return None

    def received_places(self, layout: Layout, client: str, round: int) -> Places | None:
        """Which numbers of the server's vectors a client gets in a round (from 0); None: all. For the count of bytes.

        A rank gets what any of its clients may need.
        """
        return None

    def broadcast_places(self, layout: Layout, round: int) -> Places | None:
        """Which numbers of what the server sends can differ after its step of that round; only they travel. None: all.

        All do at the start of a run, after a resume, and for an evaluation of the best model.
        """
        return None

    def adopt(self, engine: Engine, task: Any, vectors: Mapping[str, Tensor]) -> None:
        """Bring the `varying_vectors`, as the server has them now, into the model; called on every rank after a change.

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

    def kept_tensors(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        """Name -> shape of its own tensors in states, which have the dtype of `layout`, the shared one.

        A checkpoint that has another tensor under such a name is refused. What is not named here is not looked at.
        """
        return {}

    def needed_entries(self, layout: Layout, *, of_server: bool) -> Iterable[str]:
        """Names of its own entries that a state always has: the server's after a step, a client's after a training.

        A checkpoint that lacks one of them is refused, so that nothing begins at 0 again unnoticed.
        """
        return ()

    def stateful(self, private: Layout) -> bool:
        """Does a client keep anything that a later round needs? Then it trains at its home worker only."""
        return self.is_personal or private.size > 0
