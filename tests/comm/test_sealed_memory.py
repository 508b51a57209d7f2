"""What ranks of one machine share is written by the rank that made it alone, also where another one lies."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import make_config, make_runner
from ranks import run_ranks
from toy import Quadratic

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.options import Network
from fedtorch.comm.transport import segment
from fedtorch.comm.transport.segment import Segment, path_of
from fedtorch.comm.transport.update_memory import UpdateMemory
from fedtorch.core.kernels import Fold

if not hasattr(os, "memfd_create"):
    pytest.skip("this system has no memory without a name", allow_module_level=True)

CLIENTS = {f"c{i}": (1.0, 0.3 * i, i + 1) for i in range(5)}
WIDTH = 1000


def written_to(path: str, size: int) -> list[str]:
    """Ways in which another process's memory could be changed through this path."""
    done = []
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        return done
    big = np.full(size // 4, 1e3, dtype=np.float32).tobytes()
    try:
        with mmap.mmap(file, size, prot=mmap.PROT_READ | mmap.PROT_WRITE) as memory:
            memory[: len(big)] = big
            done.append("mmap")
    except OSError:
        pass
    for name, write in (("write", lambda: os.pwrite(file, big, 0)), ("truncate", lambda: os.ftruncate(file, 8))):
        try:
            write()
            done.append(name)
        except OSError:
            pass
    os.close(file)
    return done


def attacked(folder: str, is_attacked: bool) -> tuple[str, list[str]]:
    """A run in which rank 1 tries to change every memory that it is shown; its digest, and where rank 1 succeeded."""
    done: list[str] = []
    if is_attacked and os.environ["RANK"] == "1":
        made = Segment.__init__

        def first_tries(self: Segment, size: int, path: str | None = None, **options: Any) -> None:
            if path is not None:
                done.extend(written_to(path, size))
            made(self, size, path, **options)
            if path is not None:
                done.extend(written_to(f"/proc/self/fd/{self.file}", size))

        Segment.__init__ = first_tries  # type: ignore[method-assign]
    network = Network(shares_memory=True)
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=60, network=network) as comm:
        runner = make_runner(make_config(Path(folder), Quadratic(clients=CLIENTS, start=(0.1,), width=WIDTH)), comm)
        digest = runner.run().digest
        assert comm.vector.is_shared(runner.context.vectors.flat)
        return digest, done


@pytest.mark.processes
def test_a_worker_that_opens_the_servers_memory_changes_no_weight(tmp_path: Path) -> None:
    expected, _ = run_ranks(attacked, 2, str(tmp_path / "plain"), False)
    found, (_, done) = run_ranks(attacked, 2, str(tmp_path / "attacked"), True)
    assert done == []
    assert found == expected


def test_the_owner_goes_on_writing_and_others_see_it() -> None:
    own = Segment(64)
    other = Segment(64, path_of(os.getpid(), own.file))
    own.whole(torch.float32)[3] = 5.0
    assert other.whole(torch.float32)[3] == 5.0
    assert written_to(path_of(os.getpid(), own.file), 64) == []
    assert written_to(path_of(os.getpid(), other.file), 64) == []


def test_where_the_system_cannot_seal_nothing_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = fcntl.fcntl

    def older(file: int, command: int, argument: int = 0) -> int:
        """A kernel before 5.1 knows no seal of future writes."""
        if command == segment.F_ADD_SEALS and argument & segment.F_SEAL_FUTURE_WRITE:
            raise OSError(22, "Invalid argument")
        return sealed(file, command, argument)

    monkeypatch.setattr(segment.fcntl, "fcntl", older)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="cannot be sealed"):
        Segment(64)
    assert set(os.listdir("/proc/self/fd")) == before
    assert UpdateMemory(lambda: True).lend(1 << 20, torch.float32, 2) is None


@pytest.mark.parametrize("kind", ["fifo", "file", "plain memory", "device", "folder"])
def test_what_is_no_sealed_memory_is_not_mapped(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    if kind == "fifo":
        os.mkfifo(place)  # opening it must not wait for a writer
    elif kind == "file":
        place.write_bytes(b"\0" * 64)
    path = {"device": "/dev/zero", "folder": str(tmp_path)}.get(kind, str(place))
    if kind == "plain memory":  # its owner could make it shorter under the reader: SIGBUS
        file = os.memfd_create("fedtorch")
        os.ftruncate(file, 64)
        path = path_of(os.getpid(), file)
    with pytest.raises(OSError, match="sealed"):
        Segment(64, path)


@pytest.mark.parametrize("is_native", [True, False])
def test_what_is_measured_of_a_sum_is_what_was_added(is_native: bool) -> None:
    """While another thread, as another process would, changes the memory that the sum comes from."""
    theirs, total = np.ones(1 << 16), np.zeros(1 << 16)
    over = threading.Event()

    def changes() -> None:
        while not over.is_set():
            theirs.fill(3.0)
            theirs.fill(1.0)

    thread = threading.Thread(target=changes)
    thread.start()
    try:
        for _ in range(300):
            fold = Fold([], [], total, fresh=True, sums=theirs)
            if not is_native:
                fold._call = None
            fold.add(0, len(total))
            assert fold.last_squares == float(np.dot(total, total))  # small whole numbers: exact
    finally:
        over.set()
        thread.join()
