"""Ranks that are forked from a process in which all is imported: importing takes far longer than joining a run."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from fedtorch.core.streams import flush_streams
from fedtorch.lifecycle.kept_texts import print_frames
from fedtorch.main import main

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""What a rank listens to, and who keeps it passes on."""
_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of <linux/prctl.h>
_OF_GPUS = ("/dev/nvidiactl", "/dev/kfd")
_MOST_BYTES = 1 << 16
ANSWER_S = 30.0
"""How long the server may take to fork a rank, which takes it milliseconds, before it is given up."""
CLOSE_S = 5.0
"""How long it may take to end by itself."""
_GO = b"1"


class Forked:
    """A forked rank, with what a launcher needs of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, −n of one that signal n ended; None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """The exit code, once it has ended."""
        code = self._wait(0)
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _wait(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


class ForkServer:
    """A child of this process that forks ranks on request; it ends with this process, or when it is closed.

    1. It has one thread and no GPU: what another thread holds when a process is forked is held in its child for ever,
       and a GPU that was in use before is lost to it. A launcher hosts a store, which has threads, so it begins this
       before it does anything else.
    2. Ranks are forked twice and so become children of the launcher itself, which then learns their exit codes; it is
       made their "subreaper" for that (Linux).
    3. One that does not answer in ANSWER_S, being stopped or stuck, is killed. A rank begins only once the launcher has
       its number, so that none is left over that nobody knows of.
    """

    def __init__(self, pid: int, channel: socket.socket) -> None:
        """Start the server; `begin` has the arguments."""
        self._pid, self._channel = pid, channel

    @classmethod
    def begin(cls, arguments: Sequence[str], rank: Callable[[list[str]], int] = main) -> ForkServer | None:
        """Fork it; None where that cannot be: not Linux, other threads, or a machine with GPUs.

        What is imported may have asked CUDA for its devices, after which a forked process cannot use them.

        arguments: of every rank. rank: what one is, given them; its exit code.
        """
        if sys.platform != "linux" or threading.active_count() > 1 or any(map(os.path.exists, _OF_GPUS)):
            return None
        if ctypes.CDLL(None).prctl(_SET_SUBREAPER, 1):
            return None
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        flush_streams()  # what waits in buffers would be written by every child once more
        gc.collect()
        pid = os.fork()
        if not pid:
            ours.close()
            _serve(its, list(arguments), rank)
        its.close()
        return cls(pid, ours)

    def start(self, environ: Mapping[str, str], output: int | None, held: int) -> Forked:
        """Fork a rank, in a session of its own.

        environ: is added to the environment. output: a file for what it prints; None: this process's own. held: a file
        that stays open while the rank lives.

        Raises:
            OSError: the server has gone, does not answer, or cannot fork.
        """
        reader, writer = os.pipe()
        try:
            files = [held, reader] if output is None else [held, reader, output]
            self._channel.settimeout(ANSWER_S)
            socket.send_fds(self._channel, [json.dumps(dict(environ)).encode()], files)
            answer = self._channel.recv(64)
            if not answer.isdigit():
                raise OSError(answer.decode() or "the process that forks ranks has ended")
            os.write(writer, _GO)
            return Forked(int(answer))
        except TimeoutError:
            os.kill(self._pid, signal.SIGKILL)
            raise OSError(f"the process that forks ranks, {self._pid}, has not answered for {ANSWER_S:g} s") from None
        finally:
            os.close(reader)
            os.close(writer)

    def close(self) -> None:
        """End it; ranks that run are not touched."""
        self._channel.close()
        give_up_at = time.monotonic() + CLOSE_S
        while os.waitpid(self._pid, os.WNOHANG)[0] == 0:
            if time.monotonic() >= give_up_at:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(0.01)


def _serve(channel: socket.socket, arguments: list[str], rank: Callable[[list[str]], int]) -> NoReturn:
    code = 0
    try:
        os.setsid()  # the terminal's Ctrl-C reaches the launcher only
        gc.freeze()  # what is imported stays in memory that all ranks share
        while True:
            request, files, _, _ = socket.recv_fds(channel, _MOST_BYTES, 3)
            if not request:
                break
            channel.send(_forked_twice(json.loads(request), files, channel, arguments, rank))
            for file in files:
                os.close(file)
    except BaseException as error:
        print_frames(error)
        code = 1
    finally:
        os._exit(code)


def _forked_twice(
    environ: dict[str, str],
    files: Sequence[int],
    channel: socket.socket,
    arguments: list[str],
    rank: Callable[[list[str]], int],
) -> bytes:
    """The number of the rank's process, or the error."""
    reader, writer = os.pipe()
    try:
        between = os.fork()
        if not between:
            _become_parent(writer, lambda: _become_rank(files, channel, (reader, writer), arguments, environ, rank))
        os.waitpid(between, 0)
    except OSError as error:
        os.write(writer, str(error).encode()[:64])
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        return said.read()


def _become_parent(writer: int, child: Callable[[], NoReturn]) -> NoReturn:
    """Fork a child and end, so that the launcher takes it over."""
    try:
        pid = os.fork()
        if not pid:
            child()
        os.write(writer, str(pid).encode())
    except OSError as error:
        os.write(writer, str(error).encode()[:64])
    finally:
        os._exit(0)


def _become_rank(
    files: Sequence[int],
    channel: socket.socket,
    pipe: tuple[int, int],
    arguments: list[str],
    environ: Mapping[str, str],
    rank: Callable[[list[str]], int],
) -> NoReturn:
    channel.close()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    _, go, *output = files
    for file in output:
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)

    def known(words: list[str]) -> int:
        """Wait until the launcher knows of this rank; one that it does not know of ends."""
        told = os.read(go, 1)
        os.close(go)
        return rank(words) if told == _GO else 1

    be_rank(known, arguments, environ, files=pipe)


def be_rank(
    rank: Callable[[list[str]], int],
    arguments: list[str],
    environ: Mapping[str, str],
    *,
    death_signal: signal.Signals | None = None,
    files: Sequence[int] = (),
) -> NoReturn:
    """Be a rank, in a process that was just forked, and nothing after it.

    death_signal: what it gets when the process that forked it dies (Linux). files: are closed once a signal would end
    the rank and no other process, so that who waits for that may send one.
    """
    code = 1
    try:
        os.setsid()  # the terminal's Ctrl-C reaches the other process only
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        for file in files:
            os.close(file)
        if death_signal is not None and sys.platform == "linux":
            ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, death_signal)
        os.environ.update(environ)
        code = rank(arguments)
    except SystemExit as end:  # as Python itself does
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        print_frames(error)
    finally:
        flush_streams()
        os._exit(code)
