"""The launcher's key-value store: found or hosted from the environment, and never waited on without a limit."""

from __future__ import annotations

import copy
import queue
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch.distributed as dist

from fedtorch.comm.job.attempt import agree_on_attempt
from fedtorch.comm.job.awake import lefts
from fedtorch.comm.job.call_thread import Answer, CallThread
from fedtorch.comm.job.interfaces import LOOPBACK_NAMES, is_own
from fedtorch.comm.job.parties import Identity, signature_of
from fedtorch.comm.job.ports import Ports
from fedtorch.comm.job.same_secret import check_secret
from fedtorch.comm.job.signing import UNSIGNED, Signature
from fedtorch.core.errors import DeadlineError, ForgedNoteError, NoStoreError, PreflightError

OPTION = "FEDTORCH_ADDRESS_OPTION"  # by which a launcher was told host and port
NOBODY: Mapping[int, str] = {}
STAY = "FEDTORCH_STAY"
"""Environment variable of a rank 0 that hosts the store: `Store.stays_s`."""
_START_S = 60.0
_FOREVER = timedelta(days=20)  # more milliseconds do not fit into an int


@dataclass(frozen=True)
class JobMember:
    """This rank's place in a job."""

    store: Store
    """Shared by all ranks of the job."""
    rank: int
    """This process's; 0 is the server."""
    size: int
    """Ranks of the job."""
    hosts_store: bool
    """Whether the store ends with this process."""
    is_servers: bool = True
    """Is the store the server's own, so that it is not there before the server, nor after it?"""
    entry: Entry = field(default_factory=lambda: Entry())
    """How this rank came in."""


@dataclass(frozen=True)
class Entry:
    """Into which part of an attempt of a job a rank comes, see `comm.job.rejoin`."""

    number: int = 0
    """How often the ranks have joined again in this attempt, with one that has come back."""
    lost: frozenset[int] = frozenset()
    """Ranks that are still away."""
    hosts: tuple[str, ...] = ()
    """As `Communicator.hosts` was before."""
    is_over: bool = False
    """Has the run ended, which this rank missed?"""


class Store:
    """Strings by key, shared by all ranks.

    torch's own store has no time limit on an answer: with a host that is stopped but alive, or a port that belongs to
    another program, its client waits for ever (*measured*, torch 2.13). So one thread of this class talks to it, and
    another one, over a connection of its own, waits for keys.
    Calls raise DeadlineError if there was no answer or the host is gone.
    """

    timeout_s: float
    """The longest that a call takes."""
    start_s: float
    """How long ranks wait for each other at the start."""
    where: str
    """Host and port, for messages."""
    inner: dist.Store
    """torch's store, under the keys of this attempt of the job."""
    spans_hosts: bool = False
    """Are the ranks on several hosts?"""
    shares_memory: bool = True
    """May payloads go through memory that ranks of one host share?"""
    address: str = ""
    """Where this rank's groups listen, which find each other by this store; empty: where gloo does by itself."""
    ports: Ports | None = None
    """Of which each listener has one; None: any."""
    stays_s: float = 0.0
    """On the server: how long it stays after the run's end for ranks that missed it."""
    stays_until: float = 0.0
    """By the monotonic clock, once it has ended."""
    signature: Signature
    """Of every value, so that nobody but the job's ranks can write one; not of what torch itself keeps here."""
    ignored: dict[str, int]
    """Key -> how many values were found there that no rank of this job has written, and `read` did not give back."""

    def __init__(
        self,
        connect: Callable[[], dist.Store],
        timeout_s: float,
        where: str,
        signature: Signature = UNSIGNED,
        start_s: float | None = None,
    ) -> None:
        self.timeout_s, self.where, self.signature = timeout_s, where, signature
        self.start_s = patience_at_start(start_s, timeout_s)
        self._is_dead = False
        self.ignored, self._forged = {}, dict[str, bytes]()
        self._calls = CallThread("fedtorch-store")
        self._waiter: tuple[CallThread, dist.Store] | None = None
        self._awaited: tuple[tuple[str, ...], queue.SimpleQueue[Answer]] | None = None
        self.inner = self._call(connect, self.start_s)

    @cached_property
    def door(self) -> Store:
        """Copy of the store as it is when the attempt begins, whatever is entered later; not to wait in."""
        return copy.copy(self)

    @classmethod
    def join(
        cls,
        environ: Mapping[str, str],
        timeout_s: float,
        secret: str | Identity = "",
        start_s: float | None = None,
        who: Mapping[int, str] = NOBODY,
    ) -> JobMember:
        """Find or host the store that the environment of torchrun or srun describes.

        secret: of the job, see `signing.job_secret`; empty: whoever reaches the port may write; or who this party is
        among parties with keys of their own. start_s: how long the store may be late; None: timeout_s, but 60 at
        least. who: rank -> whose it is.

        A launcher that hosts a store itself says so by TORCHELASTIC_USE_AGENT_STORE; otherwise rank 0 hosts it.
        Keys carry the launcher's attempt: without that the second attempt of `torchrun --max-restarts` finds the
        dead addresses of the first and hangs. With several machines the ranks agree on it (`agree_on_attempt`).

        Raises:
            PreflightError: a variable is missing or not a number, the port is taken, or the server there has another
                secret.
            NoStoreError: no store answers there.
        """
        rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
        port, host = _number(environ, "MASTER_PORT"), environ.get("MASTER_ADDR", "")
        if not host or not 0 <= rank < size:
            raise PreflightError(f"MASTER_ADDR={host!r} RANK={rank} WORLD_SIZE={size}; start with torchrun or srun")
        is_servers = environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        hosts, has_agents = rank == 0 and is_servers, int(environ.get("GROUP_WORLD_SIZE", 1)) > 1
        job = environ.get("TORCHELASTIC_RUN_ID", "none")
        limit, start_s = timedelta(seconds=timeout_s), patience_at_start(start_s, timeout_s)

        def connect() -> dist.Store:
            if hosts:
                store = host_store(host, port, limit)
            else:
                store = dist.TCPStore(host, port, timeout=timedelta(seconds=start_s), wait_for_workers=False)
                store.set_timeout(limit)
            return dist.PrefixStore(f"fedtorch/{job}", store)

        try:
            store = cls(connect, timeout_s, f"{host}:{port}", signature_of(secret, job), start_s)
            attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            if is_servers or has_agents:  # else the launcher has given all ranks the same secret
                check_secret(store, rank, who, is_hosted_by_server=is_servers)
            if has_agents:
                attempt = agree_on_attempt(store, rank, size)
            store.inner = dist.PrefixStore(f"attempt{attempt}", store.inner)
            store.signature = replace(store.signature, scope=f"{job}/{attempt}")
            store.stays_s = float(environ.get(STAY, 0)) if hosts else 0.0
            store.door  # noqa: B018  # from here on it is what it is
            return JobMember(store, rank, size, hosts, is_servers)
        except DeadlineError as error:
            text = str(error)
        raise _why_not(text, environ.get(OPTION, ""), rank, host, port, start_s)

    def set(self, key: str, value: str) -> None:
        """Write."""
        signed = self.signature.sign(key, value)
        self._call(lambda: self.inner.set(key, signed))

    def get(self, key: str, *, by: int | None) -> str:
        """Read; the key must exist.

        by: the rank that alone may have written it; None: any of this job.

        Raises:
            ForgedNoteError: it has not.
        """
        return self.signature.check(key, self._call(lambda: self.inner.get(key)).decode("utf-8", "replace"), by)

    def get_all(self, keys: Mapping[str, int]) -> list[str]:
        """Read several in one round trip; the keys must exist.

        keys: key -> the rank that alone may have written it.

        Raises:
            ForgedNoteError: it has not.
        """
        texts = self.signed_texts(keys)
        return [self.signature.check(key, text, by) for (key, by), text in zip(keys.items(), texts, strict=True)]

    def signed_texts(self, keys: Iterable[str]) -> list[str]:
        """As `get_all`, each with its signature, which was not looked at."""
        wanted = list(keys)
        found = self._call(lambda: self.inner.multi_get(wanted)) if wanted else []
        return [value.decode("utf-8", "replace") for value in found]

    def read(self, key: str, *, by: int | None) -> str | None:
        """As `get`, but None where another one has written what is there, which is then counted."""
        found = self._call(lambda: self.inner.get(key))
        try:
            return self.signature.check(key, found.decode("utf-8", "replace"), by)
        except ForgedNoteError:
            if self._forged.get(key) != found:  # not once more at each look
                self._forged[key] = found
                self.ignored[key] = self.ignored.get(key, 0) + 1
            return None

    def has(self, keys: Sequence[str]) -> bool:
        """Whether every key exists."""
        return not keys or self._call(lambda: self.inner.check(list(keys)))

    def wait(self, keys: Sequence[str], limit_s: float) -> bool:
        """Whether every key exists, now or before `limit_s` has passed; signals are handled meanwhile.

        Nothing is polled: that would take time from the ranks that train (*measured*: 0.2 ms of a core each time).
        torch's own wait ends in two warnings whenever its time is up, so it is not given a limit, and goes on when
        this one has passed; asking for the same keys again takes it up.
        """
        wanted = tuple(keys)
        if self._awaited is None or self._awaited[0] != wanted:
            if self._awaited is not None or self._waiter is None:  # the first one, or the last still blocks its thread
                self._waiter = CallThread("fedtorch-store-wait"), self._call(lambda: self.inner.clone())  # type: ignore[attr-defined]
            calls, connection = self._waiter
            self._awaited = wanted, calls.start(lambda: connection.wait(list(wanted), _FOREVER))
        try:
            _, problem = self._awaited[1].get(timeout=max(0.0, limit_s))
        except queue.Empty:
            return False
        self._awaited = None
        self._check(problem)
        return True

    def enter(self, number: int) -> None:
        """From now on under the keys of the ranks' next joining, see `Entry`."""
        self.inner = dist.PrefixStore(f"again{number}", self.door.inner)
        self.signature = replace(self.door.signature, scope=f"{self.door.signature.scope}/{number}")
        self._waiter = self._awaited = None
        self.start_s = self.timeout_s  # all were there a moment ago

    def bind(self, transcript: str) -> None:
        """From now on what is signed is good only among those who have agreed on this transcript."""
        self.signature = replace(self.signature, scope=f"{self.signature.scope}/{transcript}")

    def add(self, key: str, amount: int) -> int:
        """Add to a number that begins at 0, all at once; what it then is. Not signed."""
        found: int = self._call(lambda: self.inner.add(key, amount))
        return found

    def delete(self, keys: Sequence[str]) -> None:
        """Forget the keys."""
        self._call(lambda: [self.inner.delete_key(key) for key in keys])

    def _call(self, job: Callable[[], Any], limit_s: float | None = None) -> Any:
        if self._is_dead:
            raise DeadlineError(f"the store at {self.where} is gone, and rank 0 or the launcher with it")
        answers, limit_s = self._calls.start(job), limit_s or self.timeout_s
        for left_s in lefts(limit_s):
            with suppress(queue.Empty):
                value, problem = answers.get(timeout=left_s)
                self._check(problem)
                return value
        self._is_dead = True
        raise DeadlineError(
            f"the store at {self.where} gave no answer for {limit_s:g} s; its host (rank 0 or the launcher) is stopped "
            "or unreachable"
        )

    def _check(self, problem: str) -> None:
        if problem:
            self._is_dead = True
            raise DeadlineError(f"the store at {self.where} is gone, and rank 0 or the launcher with it: {problem}")


def host_store(host: str, port: int, limit: timedelta = timedelta(seconds=300)) -> dist.TCPStore:
    """A new store. port: 0: any free one.

    Where `host` is an address of this machine the store is to be reached there only: of a job whose ranks are all on
    this machine from nowhere else, of silos by the tunnel alone. torch's own server listens on every interface,
    whatever its address is (*measured*, torch 2.13), and so does this one where `host` is a name.

    Raises:
        OSError: the port is taken.
    """
    if host not in LOOPBACK_NAMES and not is_own(host):
        return dist.TCPStore(host, port, is_master=True, timeout=limit, wait_for_workers=False)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=1024) as listener:
        port = listener.getsockname()[1]
        descriptor = listener.detach()  # the store closes it
    return dist.TCPStore(host, port, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=descriptor)


def _number(environ: Mapping[str, str], key: str) -> int:
    text = environ.get(key, "")
    if not text.isdecimal():
        raise PreflightError(f"environment variable {key} is {text!r}, expected a number; start with torchrun or srun")
    return int(text)


def patience_at_start(start_s: float | None, timeout_s: float) -> float:
    """Seconds that ranks wait for each other at the start: as told, else as long as they may be silent, but a minute.

    A process on a busy machine, or one that reads its libraries over a network, takes longer to start than to give a
    sign of life.
    """
    return max(timeout_s, _START_S) if start_s is None else start_s


def _why_not(text: str, option: str, rank: int, host: str, port: int, start_s: float) -> PreflightError:
    """Why there is no store, for the user; option: by which host and port were given, where it was not the environment.

    text: how torch says it.
    """
    if "EADDRINUSE" in text or "Address already in use" in text:
        change = f"`{option}`" if option else "MASTER_PORT (torchrun: --master-port)"
        return PreflightError(f"port {port} of {host} is taken by another program; set {change} to a free one")
    where = f"{option} {host}:{port}" if option else f"MASTER_ADDR={host} MASTER_PORT={port}"
    return NoStoreError(
        f"rank {rank} found no store at {where} within {start_s:g} s (system.start_timeout); is rank 0 running, and is "
        f"the port its own? ({text})"
    )
