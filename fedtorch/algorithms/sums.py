"""Algorithms whose round is one sum: why one is none, or not the kind of sum that privacy and a known scale need."""

from __future__ import annotations

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.limits import why_not_weighed
from fedtorch.algorithms.local import Local
from fedtorch.core.overrides import definer, overrides
from fedtorch.core.update import Report

_ANY = Report("any", examples=1)


def why_not_private(rule: Algorithm) -> str:
    """Why it cannot keep client-level privacy, as a clause after its name; empty: nothing is against it.

    `Limits.why_not_private` where the class says it; else what can be seen of its functions.
    """
    limits, own = rule.limits, "of its own, in which it may look at more than the sum"
    if limits.why_not_private is not None:
        return limits.why_not_private
    if not rule.travels.vectors:
        return "exchanges nothing, so nothing is released"
    if not limits.is_sum:
        return f"combines updates in a way {own}"
    if any(definer(type(rule), name) not in (Algorithm, FedAvg) for name in ("weigh", "own_weight")):
        return "weighs clients in a way of its own, by numbers that depend on their data"
    if overrides(type(rule), "server_update", Algorithm):
        return f"takes the server's step in a way {own}"
    if limits.weighting not in ("equal", "declared"):  # which are public
        return f"weighs clients by {limits.weighting}, which depends on their data; set algorithm.weights to equal"
    return ""


def why_not_record(rule: Algorithm) -> str:
    """Why it cannot keep the privacy of rows, as a clause after its name; empty: nothing is against it.

    `Limits.why_not_record` where the class says it; else what can be seen of its functions.
    """
    limits = rule.limits
    if limits.why_not_record is not None:
        return limits.why_not_record
    if definer(type(rule), "client_update") is not FedAvg:
        return "trains clients in a way of its own, in which it may look at rows without noise"
    return why_not_weighed(limits.weighting)


def why_not_trainer(rule: Algorithm) -> str:
    """Why its clients cannot be trained by `client.trainer`, as a clause after its name; empty: nothing is against it.

    Such a trainer changes a model, and its steps are its own: an algorithm may only look at the difference.
    """
    if rule.limits.trains_server or not rule.limits.needs_labels:
        return "trains on other data than a client's own rows"
    if definer(type(rule), "client_update") not in (FedAvg, Local):
        return "trains clients in a way of its own"
    if overrides(type(rule), "correction", FedAvg):
        return "changes the gradient of every step"
    return ""


def why_not_saved(rule: Algorithm) -> str:
    """Why a client's training cannot be saved while it is under way, as a clause after its name; empty: it can.

    `Limits.why_not_saved` where the class says it; else what can be seen of its functions.
    """
    if rule.limits.why_not_saved is not None:
        return rule.limits.why_not_saved
    for name in ("client_update", "correction"):
        own = definer(type(rule), name)
        if own is not None and not own.__module__.startswith("fedtorch."):
            return f"has a `{name}` of its own, whose steps may change more than the engine holds"
    return ""


def why_not_ahead(rule: Algorithm) -> str:
    """Why the scale of its sum cannot be fixed before a round, as a clause after its name; empty: it can.

    For that a round must be one sum, and a client's weight known when the client is done: see `Algorithm.own_weight`.
    """
    if not rule.travels.vectors:
        return "exchanges nothing, so nothing is summed"
    if not rule.limits.is_sum:
        return "combines updates in a way of its own, which is no single sum"
    if definer(type(rule), "weigh") not in (Algorithm, FedAvg) or rule.own_weight(_ANY) is None:
        return "has weights that are known only when all clients are done"
    return ""
