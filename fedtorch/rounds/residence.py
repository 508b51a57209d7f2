"""Where a rank keeps what it received and what its clients send: on its device where nothing else has to see it."""

from __future__ import annotations

import logging
import math

import torch

from fedtorch.algorithms.base import Algorithm
from fedtorch.core import devices
from fedtorch.core.mechanism import Mechanism
from fedtorch.core.overrides import overrides
from fedtorch.rounds.asynchrony.jobs import Jobs
from fedtorch.rounds.components import RunComponents

log = logging.getLogger(__name__)

CPU = torch.device("cpu")
_OF_TRAINING = 3  # vectors that an optimiser and gradients take beside the weights, at most
_SPARE = 2.0  # share of what vectors take that must be free beside them, for activations


def place_of(components: RunComponents, *, has_messages: bool) -> torch.device:
    """The device of this rank, where vectors may lie on it in a round; else the CPU.

    A rank may come to another answer than its neighbour, whose device has less free memory: bits and messages are the
    same. has_messages: do clients send compressed messages?
    """
    device = components.comm.device
    if device is None or has_messages or not _stays_there(components):
        return CPU
    needed, free = memory_bytes(components), _free_bytes(components, device)
    if needed * _SPARE > free:
        log.info("vectors of rounds stay on the host: %d MB of them, %d MB are free", needed >> 20, int(free) >> 20)
        return CPU
    return device


def memory_bytes(components: RunComponents) -> int:
    """Bytes that a rank's vectors take on its device: what was received, and updates that wait to be added up."""
    config, layout = components.config, components.engine.shared
    each = layout.size * layout.dtype.itemsize * len(components.algorithm.exchanged_vectors)
    held = max(1, (config.system.update_memory_mb << 20) // max(1, each))
    return each * (1 + min(held, math.ceil(len(components.clients) / max(1, len(components.topology.workers)))))


def _free_bytes(components: RunComponents, device: torch.device) -> float:
    """Memory that is left when the engine trains; infinite where the device does not say."""
    free, total = devices.free_bytes(device)
    trained = sum(parameter.nbytes for parameter in components.engine.trained)
    return free - _OF_TRAINING * trained if total else math.inf


def _stays_there(components: RunComponents) -> bool:
    """Does nothing on the host look at the vectors of a round, but for the server's step?"""
    config, algorithm, engine, comm = components.config, components.algorithm, components.engine, components.comm
    is_plain_sum = algorithm.limits.is_sum and config.system.exchange != "send" and config.exchange.bits == 32
    is_plain = type(components.mechanism) is Mechanism and not comm.swears and comm.witness is None
    trains_itself = not config.has_trainers and config.attack.kind == "none" and components.worker is None
    travels_whole = algorithm.model() is None and not overrides(type(algorithm), "places", Algorithm)
    return (
        bool(algorithm.exchanged_vectors)
        and algorithm.limits.stays_on_device
        and algorithm.exchanged_layout(engine.shared) == engine.shared
        and (config.engine.kind, engine.device) == ("torch", comm.device)
        and is_plain_sum
        and is_plain
        and trains_itself
        and travels_whole
        and Jobs.of(config, components.clients) is None
    )
