"""Faults on purpose, for tests: `FEDTORCH_FAULTS="kill:rank=1,round=2,phase=train;..."` with `FEDTORCH_TESTING=1`.

Kinds: kill, stop, term, int (a signal to the own process), sleep, wait (until there is a `file`), hang (a dead loop),
raise, oom, gpu (errors; the last is that of a GPU that has failed), nan, explode (the client's update is spoilt),
diskfull, diskroom (no file may grow beyond `bytes`, and again at will). Clients that cheat are no faults: the section
`attack` of a config has them.
Phases: init, preflight, broadcast, train, update, header, payload, aggregate, evaluate, checkpoint, restore, and
whatever else a heartbeat names. Without `phase` a fault belongs to the phase in which its kind can do something.
Conditions, all of which must hold: rank, attempt (the launcher's restart count), round (rounds done when the phase is
reached), client, step. A fault happens once per process, round and client.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fedtorch.core import devices
from fedtorch.core.errors import ConfigError

log = logging.getLogger(__name__)

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM, "int": signal.SIGINT}
SPOILERS: dict[str, Callable[[Tensor], object]] = {
    "nan": lambda update: update[-1:].fill_(float("nan")),
    "explode": lambda update: update.mul_(1e6),
}
KINDS = (*SIGNALS, *SPOILERS, "sleep", "wait", "hang", "raise", "oom", "gpu", "diskfull", "diskroom")


class InjectedError(RuntimeError):
    """The error that a fault of the kind `raise` raises."""


@dataclass(frozen=True)
class Fault:
    """One fault and its conditions, of which None stands for any."""

    kind: str
    """One of `KINDS`."""
    phase: str = "train"
    """What a heartbeat calls what the rank is doing; `update` where the kind spoils an update."""
    rank: int | None = None
    """Of the job; 0 is the server."""
    attempt: int | None = None
    """The launcher's restart count."""
    round: int | None = None
    """Rounds done."""
    client: str | None = None
    """Its name, as the heartbeat has it."""
    step: int | None = None
    """Of the client's training."""
    seconds: float = 1.0
    """Of a sleep."""
    file: str = ""
    """What a wait is for: somebody has to make it. The rank gives no sign of life meanwhile."""
    bytes: int = 0
    """Of a file on a full disk."""

    @classmethod
    def parse(cls, text: str) -> Fault:
        """From `kind:key=value,...`.

        Raises:
            ConfigError: an unknown kind or key, a value that is no number, or a wait for nothing.
        """
        kind, _, rest = text.strip().partition(":")
        types = {field.name: str(field.type).split(" | ")[0] for field in fields(cls)}
        if kind not in KINDS:
            raise ConfigError(f"FEDTORCH_FAULTS has the kind {kind!r}; choose one of {', '.join(KINDS)}")
        values: dict[str, str | int | float] = {"phase": "update"} if kind in SPOILERS else {}
        for pair in filter(None, rest.split(",")):
            key, _, value = pair.partition("=")
            if key == "kind" or key not in types:
                raise ConfigError(f"FEDTORCH_FAULTS has the key {key!r}; choose one of {', '.join(list(types)[1:])}")
            try:
                values[key] = {"str": str, "int": int, "float": float}[types[key]](value)
            except ValueError:
                raise ConfigError(f"FEDTORCH_FAULTS: {key} is {value!r}, expected a number") from None
        if kind == "wait" and not values.get("file"):
            raise ConfigError("FEDTORCH_FAULTS has a wait without a file, which would never end; add file=PATH")
        return cls(kind, **values)  # type: ignore[arg-type]


class Faults:
    """The faults that can hit this process; called wherever the core reaches a phase."""

    def __init__(self, faults: tuple[Fault, ...] = ()) -> None:
        self._faults = faults
        self._happened: set[tuple[Fault, int, str]] = set()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Faults:
        """Those of FEDTORCH_FAULTS that are for this rank and attempt; none without FEDTORCH_TESTING=1."""
        if environ.get("FEDTORCH_TESTING") != "1":
            return cls()
        here = {"rank": int(environ.get("RANK", 0)), "attempt": int(environ.get("TORCHELASTIC_RESTART_COUNT", 0))}
        faults = [Fault.parse(text) for text in environ.get("FEDTORCH_FAULTS", "").split(";") if text.strip()]
        return cls(tuple(f for f in faults if all(getattr(f, key) in (None, value) for key, value in here.items())))

    def __call__(
        self, phase: str, *, round: int = 0, client: str = "", step: int = 0, update: Tensor | None = None
    ) -> None:
        """`phase` is reached: whatever was asked for happens now."""
        for fault in self._faults:
            now = {"phase": phase, "round": round, "client": client, "step": step}
            if any(getattr(fault, key) not in (None, value) for key, value in now.items()):
                continue
            if (fault, round, client) not in self._happened:
                self._happened.add((fault, round, client))
                _happen(fault, update)


def _happen(fault: Fault, update: Tensor | None) -> None:
    log.debug("injected: %s", fault)
    if fault.kind in SIGNALS:
        os.kill(os.getpid(), SIGNALS[fault.kind])
    elif fault.kind in SPOILERS:
        assert update is not None, f"{fault.kind} needs the phase `update`"
        SPOILERS[fault.kind](update)
    elif fault.kind == "sleep":
        time.sleep(fault.seconds)
    elif fault.kind == "wait":
        while not os.path.exists(fault.file):
            time.sleep(0.05)
    elif fault.kind == "hang":
        while True:
            time.sleep(0.001)  # of a rank that no longer answers; the core is left to the others
    elif fault.kind == "raise":
        raise InjectedError("injected")
    elif fault.kind == "oom":
        raise torch.OutOfMemoryError("injected")
    elif fault.kind == "gpu":
        raise devices.injected_fault()
    else:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.bytes if fault.kind == "diskfull" else most, most))
