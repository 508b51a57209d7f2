"""Runs tests in several processes, forked once all tests are collected: what they import is imported once.

The workers take units (see schedule.py) from pipes, in order, and send their reports to the first process, which shows
them. Half of them begin with units that start processes, the others with those that do not: a core is idle where all
wait for ranks, and twelve ranks on two cores mostly wait for each other. Fork servers of ranks (see ranks.py) start
before, so that all workers have the same ones.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

import pytest
from ranks import start_servers
from schedule import unit_of

_FORK = get_context("fork")
Units = list[list[pytest.Item]]
SHOWN_S = 0.005
"""Of what takes less to set up or to take down, `--durations` shows nothing."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=1, help="processes that run tests beside each other")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in workers; None: pytest does it in this process.

    That is where nobody asked for more than one, or torch finds a GPU: what is forked could not use it, once libraries
    have asked for it while they were imported.
    """
    count, torch = session.config.getoption("workers"), sys.modules.get("torch")
    if count < 2 or session.config.option.collectonly or session.testsfailed or (torch and torch.cuda.is_available()):
        return None
    units: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        units.setdefault(unit_of(item.nodeid), []).append(item)
    start_servers({str(item.path) for item in session.items if starts_processes(item)})
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    starting = [any(map(starts_processes, items)) for items in units.values()]
    queues = [_queue(number for number, starts in enumerate(starting) if starts is kind) for kind in (True, False)]
    workers = [_fork(session, list(units.values()), queues[:: 1 - number % 2 * 2], number) for number in range(count)]
    for queue in queues:
        os.close(queue)
    try:
        _listen(session, {worker.pipe: worker for worker in workers})
    finally:
        for worker in workers:
            worker.stop()
    return True


def starts_processes(item: pytest.Item) -> bool:
    """Is the test marked as one that starts processes?"""
    return item.get_closest_marker("processes") is not None


def _queue(numbers: Iterable[int]) -> int:
    """A pipe from which each of these numbers can be read once."""
    reader, writer = os.pipe()
    os.write(writer, b"".join(number.to_bytes(2, "big") for number in numbers))
    os.close(writer)
    return reader


@dataclass
class _Worker:
    process: ForkProcess
    pipe: Connection
    running: str = ""
    """The test that it runs."""

    def stop(self) -> None:
        """Have it end its fixtures, and wait for that."""
        if self.process.is_alive():
            os.kill(self.process.pid or 0, signal.SIGINT)
        self.process.join()


def _fork(session: pytest.Session, units: Units, queues: Sequence[int], number: int) -> _Worker:
    receiver, sender = Pipe(duplex=False)
    process = _FORK.Process(target=_work, args=(session, units, queues, number, sender))
    process.start()
    sender.close()
    return _Worker(process, receiver)


def _listen(session: pytest.Session, workers: dict[Connection, _Worker]) -> None:
    """Show what the workers report, until all of them have ended or pytest has seen enough."""
    hook = session.config.hook
    while workers:
        for pipe in wait(list(workers)):
            assert isinstance(pipe, Connection)
            try:
                name, told = pipe.recv()
            except EOFError:
                worker = workers.pop(pipe)
                worker.process.join()
                if (code := worker.process.exitcode) and not session.shouldfail:
                    session.shouldfail = f"a worker ended with {code} in {worker.running or 'no test'}; others are left"
                continue
            if name == "begins":
                workers[pipe].running = told
            elif name == "warning":
                message = warnings.WarningMessage(*told.pop("message"))
                hook.pytest_warning_recorded.call_historic(kwargs={"warning_message": message, **told})
            else:
                report = hook.pytest_report_from_serializable(config=session.config, data=told)
                hook.pytest_runtest_logreport(report=report)
        if session.shouldfail or session.shouldstop:
            raise session.Failed(session.shouldfail or session.shouldstop)


def _work(session: pytest.Session, units: Units, queues: Sequence[int], number: int, pipe: Connection) -> None:
    """Run units of tests as long as there are any."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell has ignored in what it runs behind it
    config = session.config
    config.pluginmanager.unregister(name="terminalreporter")
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # the files that what is printed goes to are the other workers' too
    capture.start_global_capturing()
    capture.suspend_global_capture()
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.getbasetemp() / f"worker{number}"
    factory._basetemp.mkdir(mode=0o700)
    config.pluginmanager.register(_Telling(config, pipe))
    try:
        for item, after in pairwise(chain(_items(units, queues), [None])):
            assert item is not None
            pipe.send(("begins", item.nodeid))
            config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if session.shouldfail or session.shouldstop:
                break
    except KeyboardInterrupt:
        pass  # the first process says so
    finally:
        session._setupstate.teardown_exact(None)


def _items(units: Units, queues: Sequence[int]) -> Iterator[pytest.Item]:
    """The tests of one unit after the other, queue by queue; a unit that is begun here is begun nowhere else."""
    for queue in queues:
        while number := os.read(queue, 2):
            yield from units[int.from_bytes(number, "big")]


class _Telling:
    """A plugin that sends what the terminal is to show."""

    def __init__(self, config: pytest.Config, pipe: Connection) -> None:
        self._config, self._pipe = config, pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and report.when != "call" and not report.sections and report.duration < SHOWN_S:
            return  # two of three reports
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._pipe.send(("report", data))

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        text = f"{warning_message.category.__name__}: {warning_message.message}"
        message = (text, Warning, warning_message.filename, warning_message.lineno)
        about = {"message": message, "when": when, "nodeid": nodeid, "location": location}
        self._pipe.send(("warning", about))
