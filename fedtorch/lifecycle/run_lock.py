"""The lock of a run's folder: two runs in one folder would mix one's config with the other's results.

flock(2): it belongs to an open file, so it goes with the process that holds it, however that ends. What is written in
the file says who holds it, for messages alone. A launcher has a lock of its own (`launchers.pool`): it holds that one
between two attempts too, when there is no server, and a server that torchrun or SLURM starts cannot inherit it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from fedtorch.core.errors import CheckpointError, ConfigError

NAME = ".lock.run"
"""In a run's folder: held by its server, rank 0, while it runs, whatever has started it."""
PATIENCE_S = 5.0
"""How long a run waits for one before it in this folder, which may have been told to end a moment ago."""
ELSEWHERE_S = 120.0
"""The same where another machine holds it: a file server takes a dead machine's locks away after 90 s (NFS 4)."""
_NONE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_ONE_MACHINE = {
    "nfs": ("nolock", "local_lock=all", "local_lock=flock"),
    "nfs4": ("nolock", "local_lock=all", "local_lock=flock"),
    "lustre": ("localflock",),
    "cifs": ("nobrl",),
    "smb3": ("nobrl",),
    "fuse.sshfs": ("",),
}
"""Kind of file system -> the mount options with which a lock is not seen by other machines; "": with any."""

log = logging.getLogger(__name__)


@contextmanager
def held(folders: Sequence[Path]) -> Iterator[list[str]]:
    """Inside it no other run begins in any of these folders, which are made; yields what is to be warned of.

    Raises:
        ConfigError: another run is under way in one of them; nothing in it was touched.
        CheckpointError: a folder cannot be written.
    """
    with ExitStack() as stack:
        remarks = []
        for folder in dict.fromkeys(path.resolve() for path in folders):
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                file = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as error:
                raise CheckpointError(f"the run folder {folder} cannot be written ({error}); set `run.dir`") from error
            stack.callback(os.close, file)
            remarks += _hold(folder, file)
        yield remarks


def is_held(folder: Path) -> bool:
    """Does a run hold this folder now?"""
    try:
        file = os.open(folder / NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        return not take(file)
    except OSError:
        return False
    finally:
        os.close(file)


def take(file: int) -> bool:
    """Lock an open file if nobody holds it.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def refusal(folder: Path) -> str:
    """Message for a run whose folder another one holds."""
    who = f"; it is {_holder(folder)}" if is_held(folder) else ", a launcher"
    return (
        f"another process runs {folder}{who}; wait for it, or set run.name or run.dir to another folder. If it is on a "
        f"machine that is gone for good, remove {folder / NAME}"
    )


def _hold(folder: Path, file: int) -> list[str]:
    begun = time.monotonic()
    try:
        while not take(file):
            host = _holder(folder).rpartition(" of ")[2]
            patience = PATIENCE_S if host in ("", socket.gethostname()) else ELSEWHERE_S
            if time.monotonic() - begun >= patience:
                raise ConfigError(refusal(folder))
            time.sleep(0.1)
    except OSError as error:
        if error.errno not in _NONE:
            raise
        return [
            f"the file system of {folder} has no locks ({error.strerror}), so nothing stops a second run from starting "
            "there; see to it that none does"
        ]
    with suppress(OSError):  # a full disk: messages will not say who it is
        os.truncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} of {socket.gethostname()}\n".encode(), 0)
    kind = _of_one_machine(folder, Path("/proc/self/mounts"))
    if kind:
        return [f"{folder} is on {kind}, whose locks other machines do not see: a second run that starts on another "
                "machine in this folder is not stopped; see to it that none does"]  # fmt: skip
    return []


def _holder(folder: Path) -> str:
    try:
        return (folder / NAME).read_text()[:200].strip() or "unknown"
    except OSError:
        return "unknown"


def _of_one_machine(folder: Path, mounts: Path) -> str:
    """The kind and option of the file system, where its locks hold on one machine alone; empty elsewhere."""
    found = ("", "", "")
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, place, kind, options, *_ = line.split()
        place = place.encode().decode("unicode_escape")  # a space in it is \040
        if folder.is_relative_to(place) and len(place) >= len(found[0]):
            found = (place, kind, options)
    _, kind, options = found
    for option in _ONE_MACHINE.get(kind, ()):
        if not option or option in options.split(","):
            return f"{kind} ({option})" if option else kind
    return ""
