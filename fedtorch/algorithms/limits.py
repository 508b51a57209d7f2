"""Limits of an algorithm: its needs and what it cannot be combined with, known before the run begins."""

from __future__ import annotations

from dataclasses import dataclass, fields

from fedtorch.core.overrides import definer


@dataclass(frozen=True)
class Limits:
    """Facts of an algorithm with its settings. A reason is a clause after its name; empty: nothing is against it."""

    engines: tuple[str, ...] = ("torch", "deepspeed")
    """kinds of engine it works on: `torch`; `deepspeed`, or `deepspeed/0` to `deepspeed/3` for single stages. FSDP asks
    of an algorithm what stage 3 asks, and is meant with it.

    One that touches the engine's module, parameters or gradients by itself, other than in a `before_step` hook through
    `trained_shared`, `shared_gradients` and `forget_gradients`, needs `torch`: under the others such changes would be
    lost. One whose loss runs the model in its own way sets `whole_passes` in the task that it trains with"""
    why_not_deepspeed: str = "works on the model's own parameters and gradients"
    """reason why `engines` says no"""
    precisions: tuple[str, ...] = ("fp32", "bf16", "fp16")
    """values of `engine.precision` it works with. One that takes gradients by itself, other than through `Engine.step`,
    has no loss scale and cannot use fp16. One that runs the engine's module by itself does so inside
    `Engine.autocast`"""
    weighting: str = "equal"
    """rule that `weigh` goes by, as in the algorithm's YAML; `equal`: every draw of a client counts the same.
    Size-proportional sampling (`clients.sampling`) favours large clients by itself and asks for `equal`"""
    is_sum: bool = True
    """is `aggregate` the weighted sum of the updates, and nothing else?"""
    needs_labels: bool = True
    """do clients train on the task's own loss?"""
    trains_clients: bool = True
    """do clients take part? If not, a round is the server's training alone"""
    trains_server: bool = False
    """does the server train on data of its own (`server_train`)?"""
    steps_with_optimizer: bool = True
    """does `server_update` take a step of `server.optimizer`, whose buffers a checkpoint must then have?"""
    steps_each_number: bool = False
    """does an own `server_update` make each number of vectors and state of those of the same place alone?"""
    reads_initial: bool = True
    """may clients ask for w^0 (`ClientJob.initial`)? Where not, no rank keeps it"""
    reads_num_rounds: bool = False
    """does the rule read how many rounds the run has (`ServerState.num_rounds`, `ClientJob.rounds`)? Then a run cannot
    go on with more of them than it was begun with"""
    why_not_robust: str = "has no field `robust`"
    """why no rule can take the place of its weighted sum"""
    why_not_sampled: str = ""
    """why all clients take part in every round; empty: a round may be of some"""
    why_not_rounded: str = ""
    """why its updates cannot travel in fewer bits (`exchange.bits`), though they are one vector and add up; empty: they
    can. Only differences are small enough beside what they change"""
    why_not_record: str | None = None
    """why it cannot keep the privacy of rows (`privacy.kind: record`); None: what `algorithms.sums.why_not_record`
    finds of the class. With it all that leaves a client is a function of what it received, of public numbers and of the
    noised steps of `job.train`, of which each trains on the client's own rows. A class with a `client_update` of its
    own that keeps to it says so by an empty reason"""
    why_not_saved: str | None = None
    """why a training of its clients cannot be saved while it is under way (`checkpoint.every_steps`); None: what
    `algorithms.sums.why_not_saved` finds of the class. What its steps change must be in the engine or among the `held`
    tensors of `job.train`. A class with steps or a `client_update` of its own that keeps to it says so by an empty
    reason"""
    stays_on_device: bool = False
    """do its clients take what they received, and send, where the engine computes? `on_device` says so of functions"""
    trainings: int = 1
    """of a client in a round on its own rows, each of as many steps: all of them are on the account of its rows"""
    public_numbers: tuple[str, ...] = ()
    """further numbers of its reports that follow from these alone, which the server then gets with it"""
    why_not_private: str | None = None
    """why it cannot keep client-level privacy; None: what `algorithms.sums.why_not_private` finds of the class. With
    privacy a round is one sum of clipped updates, all of the same places and with public weights, and the step looks at
    nothing else that depends on clients. A class that has functions of its own for that, and keeps to it, says so by an
    empty reason"""


def why_not_weighed(rule: str) -> str:
    """Why a rule that weighs clients keeps no privacy of rows; empty: nothing is against it."""
    if rule in ("equal", "declared"):
        return ""
    return f"weighs clients by {rule}, which depends on their rows; set algorithm.weights to equal or declared"


def trains_as(cls: type, rule: type) -> bool:
    """Do clients of the class train as `rule` says, or another class of this package, and not as a subclass elsewhere?

    For limits of `rule` on what its `client_update` makes of rows: another one may do anything.
    """
    own = definer(cls, "client_update")
    return own is definer(rule, "client_update") or (own is not None and own.__module__.startswith("fedtorch."))


NAMES = frozenset(field.name for field in fields(Limits))
"""Fields, none of which may be a member of an algorithm: it would be looked at by nobody."""
