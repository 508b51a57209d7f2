"""Clients, what each keeps between rounds, and where that is kept."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedtorch.core.weights import unshared

log = logging.getLogger(__name__)

NOTHING: Mapping[str, int | float] = {}


@dataclass(frozen=True)
class Client:
    """One owner of data."""

    name: str
    """As the task's manifest has it; unique in a run, and the same on every rank."""
    index: int
    """Its place in the manifest's order."""
    sizes: dict[str, int] = field(default_factory=dict, hash=False)
    """Split -> number of examples."""


@dataclass
class ClientState:
    """All that outlives a round for one client."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Private weights, optimiser state, control variate, ..."""
    numbers: dict[str, int | float] = field(default_factory=dict)
    """Data cursor, the optimiser's counts, ..."""

    def copy(self) -> ClientState:
        """Independent dictionaries and numbers; the tensors are shared and must be replaced, not changed in place."""
        return ClientState(dict(self.tensors), dict(self.numbers))

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


def file_stem(name: str) -> str:
    """A safe file name for a client: its own letters, digits, `-`, `_`, and a hash against collisions."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in name)[:60]
    return f"{safe}-{blake2b(name.encode(), digest_size=4).hexdigest()}"


def folder_name(name: str) -> str:
    """A safe folder name that people can guess: the client's own name where that is one, else `file_stem`."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name) else file_stem(name)


class ClientStore:
    """The states of the clients at home on this rank.

    1. `get` gives a client's committed state (an empty one if it never had any).
    2. `stage` holds a new state back until the server has accepted the client's update.
    3. `commit` makes the staged states of the accepted clients current; all other staged states are dropped,
       so a client that failed, or whose update was refused, is where it was before the round.

    At most `memory_bytes` of tensors stay in memory; the least recently used go to `folder` (safetensors and JSON)
    and are read back when asked for. If the disk refuses them, they stay in memory, with one warning.
    `dirty` names what changed since the last `mark_clean`.
    """

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self.folder, self.memory_bytes = folder, memory_bytes
        self._current: dict[str, ClientState] = {}
        self._staged: dict[str, ClientState] = {}
        self._spilled: dict[bool, dict[str, Path]] = {False: {}, True: {}}  # is it staged? -> client -> file
        self._used = 0  # bytes of the tensors in memory, so that no round passes over all clients' states
        self._dirty: set[str] = set()
        self._is_warned = False
        shutil.rmtree(folder, ignore_errors=True)  # left by a process that died; what counts is in the checkpoint

    def get(self, client: str) -> ClientState:
        """A copy of the committed state (tensors shared: replace them, never change them in place)."""
        state = self._current.get(client)
        if state is None and (path := self._spilled[False].get(client)):
            state = _read(path)
        return state.copy() if state is not None else ClientState()

    def put(self, client: str, state: ClientState) -> None:
        """Set the committed state without a round (restore)."""
        self._keep(client, state, staged=False)

    def stage(self, client: str, state: ClientState) -> None:
        """Hold `state` until `commit`."""
        self._keep(client, state, staged=True)

    def commit(self, accepted: Iterable[str]) -> None:
        """Make the staged states of `accepted` clients current and drop all other staged ones."""
        for client in accepted:
            self.adopt(client, client)
        for client in list(self._staged):
            self._drop(self._staged, client)
        for path in self._spilled[True].values():
            _remove(path)
        self._spilled[True].clear()

    def adopt(
        self, staged: str, client: str, keep: Collection[str] = (), known: Mapping[str, int | float] = NOTHING
    ) -> None:
        """Make what was staged under that name, if anything was, the current state of `client`; the rest stays.

        keep: entries that stay as they are in the current state, also where it has none. known: by name, numbers that
        the staged state has as well, and that are known only now.
        """
        state = self._drop(self._staged, staged)
        if state is None and (path := self._spilled[True].pop(staged, None)):
            state = _read(path)
            _remove(path)
        if state is not None:
            state.numbers |= {name: number for name, number in known.items() if name in state.numbers}
            if keep:
                state = _with_entries(state, self.get(client), keep)
            self._keep(client, state, staged=False)
            self._dirty.add(client)

    def unstage(self, name: str) -> None:
        """Forget what was staged under that name, if anything was."""
        self._drop(self._staged, name)
        if path := self._spilled[True].pop(name, None):
            _remove(path)

    def staged(self, name: str) -> ClientState | None:
        """A copy of what was staged under that name, as `get`; None: nothing was."""
        state = self._staged.get(name)
        if state is None and (path := self._spilled[True].get(name)):
            state = _read(path)
        return None if state is None else state.copy()

    def clients(self) -> list[str]:
        """Names of all clients that have a committed state, sorted."""
        return sorted({*self._current, *self._spilled[False]})

    def dirty(self) -> list[str]:
        """Names of the clients whose state changed since the last `mark_clean`, sorted."""
        return sorted(self._dirty)

    def mark_clean(self) -> None:
        """Called when a checkpoint holds every dirty state."""
        self._dirty.clear()

    def _keep(self, client: str, state: ClientState, *, staged: bool) -> None:
        pool = self._staged if staged else self._current
        if path := self._spilled[staged].pop(client, None):
            _remove(path)
        self._drop(pool, client)
        pool[client] = state
        self._used += state.num_bytes
        for victims, is_staged in ((self._current, False), (self._staged, True)):
            while victims:
                if self._used <= self.memory_bytes:
                    return
                name = next(iter(victims))
                try:
                    self._spilled[is_staged][name] = self._write(name, victims[name], is_staged)
                except (OSError, SafetensorError) as error:
                    self._warn(error)
                    return
                self._drop(victims, name)

    def _drop(self, pool: dict[str, ClientState], client: str) -> ClientState | None:
        """Out of memory; what it was."""
        state = pool.pop(client, None)
        self._used -= 0 if state is None else state.num_bytes
        return state

    def _warn(self, error: Exception) -> None:
        if not self._is_warned:
            log.warning(
                "client states take more than system.state_memory_mb: %s cannot be written (%s); make room there",
                self.folder,
                type(error).__name__,
            )
        self._is_warned = True

    def _write(self, client: str, state: ClientState, is_staged: bool) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{file_stem(client)}{'.staged' if is_staged else ''}.safetensors"
        save_file(unshared(state.tensors), path)
        path.with_suffix(".json").write_text(json.dumps(state.numbers))
        return path


def without(state: ClientState, names: Collection[str]) -> ClientState:
    """Copy a state without the entries of these names; the tensors are shared."""
    tensors = {name: tensor for name, tensor in state.tensors.items() if name not in names}
    return ClientState(tensors, {name: number for name, number in state.numbers.items() if name not in names})


def _with_entries(state: ClientState, other: ClientState, names: Collection[str]) -> ClientState:
    """The state with the entries of these names as `other` has them."""
    found = without(state, names)
    found.tensors |= {name: tensor for name, tensor in other.tensors.items() if name in names}
    found.numbers |= {name: number for name, number in other.numbers.items() if name in names}
    return found


def _read(path: Path) -> ClientState:
    return ClientState(load_file(path), json.loads(path.with_suffix(".json").read_text()))


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(".json").unlink(missing_ok=True)
