"""Where a rank keeps what it received and what its clients send: on its device, unless the host looks at it."""

from __future__ import annotations

import logging
import math
from typing import Protocol

import torch

from fedtorch.algorithms.base import Algorithm
from fedtorch.config.schema import Config
from fedtorch.core import devices
from fedtorch.core.clients import Clients
from fedtorch.core.mechanism import Mechanism
from fedtorch.core.overrides import overrides
from fedtorch.rounds.components import RunComponents
from fedtorch.rounds.topology import Topology
from fedtorch.train.engine import Engine

log = logging.getLogger(__name__)

CPU = torch.device("cpu")
_OF_TRAINING = 3  # vectors of what is trained that gradients and an optimiser take, at most
_SPARE = 2.0  # times what vectors take must be free, as activations need room too


class Parts(Protocol):
    """Parts of a run, before or after its ranks have met."""

    @property
    def config(self) -> Config: ...
    @property
    def algorithm(self) -> Algorithm: ...
    @property
    def clients(self) -> Clients: ...
    @property
    def topology(self) -> Topology: ...
    @property
    def engine(self) -> Engine: ...


def place_of(components: RunComponents) -> torch.device:
    """The device of this rank, where vectors may lie on it in a round; else the CPU, and the log says why.

    A rank may come to another answer than its neighbour, whose device has less free memory: bits and messages are the
    same.
    """
    device = components.engine.device
    can_move = components.comm.size == 1 or components.comm.vector.device == device
    if device == CPU or not can_move:
        return CPU
    why = why_on_host(components) or ("" if devices.has_float64(device) else f"{device} has no float64")
    if not why and (type(components.mechanism) is not Mechanism or components.worker is not None):
        why = "a mechanism, or other ranks of the worker, look at them"
    needed, free = memory_bytes(components), _free_bytes(components, device)
    if not why and needed * _SPARE > free:
        why = f"they take {needed >> 20:,d} MiB, and {max(0, int(free)) >> 20:,d} MiB are left on {device}"
    if why:
        log.info("the vectors of a round go through the host's memory: %s", why)
    return CPU if why else device


def why_on_host(parts: Parts) -> str:
    """Why the vectors of a round cannot stay on devices; empty: they can, in one process or over NCCL.

    The server's own vectors are on the host, where it steps and saves; that costs each of them one way up and one down.
    A step on a GPU would save these, but its bits would hang on whether a kernel multiplies and adds in one rounding.
    """
    config, algorithm = parts.config, parts.algorithm
    cls, travels, shared = type(algorithm), algorithm.travels, parts.engine.shared
    reasons = {
        "nothing is exchanged": not travels.vectors,
        f"what clients of {cls.__name__} compute with them is on the CPU": not algorithm.limits.stays_on_device,
        f"{cls.__name__} does more with updates than add them up": not algorithm.limits.is_sum,
        "not all of them travels": overrides(cls, "places", Algorithm),
        "they are not the weights": travels.model is not None or travels.laid_out(shared) != shared,
        f"engine.kind is {config.engine.kind}": config.engine.kind != "torch",
        "a worker has several ranks": max(parts.topology.sizes, default=1) > 1,
        "client.trainer trains": config.has_trainers,
        "system.exchange is send": config.system.exchange == "send",
        "exchange.bits packs updates": config.exchange.bits != 32,
        "privacy is kept": config.privacy != type(config.privacy)() or config.system.sum_scale == "public",
        "parties sign with keys of their own": config.trust != type(config.trust)(),
        "rounds do not wait for their clients": config.asynchrony is not None,
        "clients attack": config.attack.kind != "none",
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def memory_bytes(parts: Parts) -> int:
    """Bytes that a rank's vectors take on its device: what was received, and updates that wait to be added up.

    Updates beyond `system.update_memory_mb` are in files; clients are taken to be shared out evenly.
    """
    layout = parts.engine.shared
    each = layout.size * layout.dtype.itemsize * len(parts.algorithm.travels.vectors)
    held = max(1, (parts.config.system.update_memory_mb << 20) // max(1, each))
    return each * (1 + min(held, math.ceil(len(parts.clients) / max(1, len(parts.topology.workers)))))


def _free_bytes(parts: Parts, device: torch.device) -> float:
    """Memory that is left when the engine trains; infinite where the device does not say."""
    free, total = devices.free_bytes(device)
    return free - _OF_TRAINING * sum(parameter.nbytes for parameter in parts.engine.trained) if total else math.inf
