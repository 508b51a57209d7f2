"""Updates that travel while others train: the sum has the bits of the one made at the end, or that one counts."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from narrow import NARROW, narrow_windows
from ranks import run_ranks

from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.local import LocalCommunicator
from fedtorch.comm.sums import early_sides, local_updates
from fedtorch.comm.sums.accepted import AcceptedUpdates
from fedtorch.comm.sums.server_updates import Exchange
from fedtorch.comm.transport.update_memory import LEAST_BYTES
from fedtorch.core.errors import DeadlineError, FedtorchError, PreflightError
from fedtorch.core.norms import norm_and_max
from fedtorch.core.seeds import generator_for
from fedtorch.core.update import Report, UpdateBuffer
from fedtorch.core.weights import digest_of
from tests.support.combined import combined

pytestmark = pytest.mark.processes

NAMES = tuple(f"client-{k}" for k in range(7))
OWN = (3.0, 1.0, 0.0, 8.0, 5.0, 2.5, 100.0)  # client-2 counts nothing
SIZE = NARROW + 12_345  # two windows, the second one short
EXPONENT = 36  # of the sum of these updates, with room to spare
HOMES = {2: [1, 1, 1, 0, 1, 1, 0], 3: [1, 2, 0, 2, 1, 2, 1], 4: [1, 2, 3, 3, 1, 1, 0]}


def fill(comm: Communicator, homes: list[int], folder: str) -> tuple[UpdateBuffer, list[Report]]:
    """This rank's buffer (most of it in files) and reports; client-4's update is zero."""
    local = UpdateBuffer(SIZE, torch.float32, Path(folder) / str(comm.rank), memory_bytes=8 * SIZE)
    reports = []
    for place, name in enumerate(NAMES):
        if homes[place] == comm.rank:
            grad = torch.randn(SIZE, generator=generator_for(0, "test", name)) * (place != 4)
            local.put(name, grad)
            norm, max_abs = norm_and_max(grad)
            reports.append(Report(name, examples=place, norm=norm, max_abs=max_abs))
    return local, reports


def one_round(comm: Communicator, homes: list[int], folder: str, without: str, exponent: int | None = EXPONENT) -> Any:
    """Digest of the sum without one client, and whether it was the early one."""
    local, reports = fill(comm, homes, folder)
    sender = comm.begin_early(
        local,
        exponent if comm.is_server else None,
        round=3,
        expected={rank: [name for name, home in zip(NAMES, homes, strict=True) if home == rank] for rank in {*homes}},
    )
    took: list[bool] = []
    if sender is not None:
        for report in reports:
            if weight := OWN[NAMES.index(report.client)]:
                sender.put(report.client, weight)
        sender.close(lambda: None)
        comm.barrier("sums", round=3)
        sender.finish()
        sum_of = sender.sum_of

        def noted(*args: Any) -> Any:
            found = sum_of(*args)
            took.append(found is not None)
            return found

        sender.sum_of = noted  # type: ignore[method-assign]
    gathered = comm.gather_reports(reports, round=3)

    def combine(updates: AcceptedUpdates) -> torch.Tensor:
        own = [OWN[NAMES.index(report.client)] for report in updates.reports]
        updates.fix_scale(EXPONENT, own)
        return updates.weighted_sum([number / sum(own) for number in own])

    total = combined(comm, local, [r for r in gathered if r.client != without], combine, round=3)
    return None if total is None else (digest_of({"combined": total}), took)


def distributed_round(homes: list[int], folder: str, without: str, exchange: Exchange, break_it: str = "") -> Any:
    narrow_windows()
    with DistributedCommunicator.join(NAMES, timeout_s=30, exchange=exchange) as comm:
        comm.preflight({"config": "same"})
        if exchange == "auto":  # in memory that they share nothing is sent early
            comm._store.shares_memory = False
        if break_it not in ("", "sockets"):
            BREAKS[break_it](comm)
        first = one_round(comm, homes, folder, without)
        if not break_it and first is not None:
            assert one_round(comm, homes, folder + "again", without) == first  # nothing of a round is left in the next
        elif not break_it:
            one_round(comm, homes, folder + "again", without)
        return first


def damage(comm: Communicator) -> None:
    """Rank 1 tells another digest than that of what it sends early."""
    if comm.rank == 1:
        send = early_sides.send_updates

        def spoilt(grads: Any, *args: Any, **keywords: Any) -> None:
            window_digest = local_updates.window_digest
            local_updates.window_digest = lambda window: window_digest(window) ^ 1  # type: ignore[assignment]
            send(grads, *args, **keywords)
            local_updates.window_digest = window_digest  # type: ignore[assignment]

        early_sides.send_updates = spoilt  # type: ignore[assignment]


def lie(comm: Communicator) -> None:
    """Rank 1 sends something else early than what it reports."""
    if comm.rank == 1:
        send = early_sides.send_updates
        early_sides.send_updates = lambda grads, *rest, **more: send([2 * grads[0]], *rest, **more)  # type: ignore[assignment]


def unreadable(comm: Communicator) -> None:
    """Rank 1 cannot read what it is to send."""
    if comm.rank == 1:

        def fail(*args: Any) -> None:
            raise OSError("no such file: updates of rank 1")

        early_sides.EarlySender._send = fail  # type: ignore[method-assign]


def together(comm: Communicator) -> None:
    """Every sender finds all its clients done at once."""
    if not comm.is_server:
        put, run = early_sides.EarlySender.put, early_sides.EarlySender._run
        waiting = threading.Event()

        def late(self: Any) -> None:
            waiting.wait(30)
            run(self)

        def close(self: Any, beat: Any) -> None:
            waiting.set()
            early_sides.Early.close(self, beat)

        early_sides.EarlySender._run, early_sides.EarlySender.close = late, close  # type: ignore[method-assign]
        assert put is early_sides.EarlySender.put


BREAKS = {"damage": damage, "lie": lie, "unreadable": unreadable, "together": together}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The sum of all, and without a client, in one process."""
    found = {}
    for without in ("", "client-3"):
        folder = str(tmp_path_factory.mktemp("alone"))
        found[without] = one_round(LocalCommunicator(NAMES), [0] * 7, folder, without)[0]
    return found


@pytest.mark.parametrize("size", HOMES)
@pytest.mark.parametrize("way", ["auto", "send"])
def test_what_came_early_is_the_sum(size: int, way: Exchange, alone: dict[str, str], tmp_path: Path) -> None:
    server, *_ = run_ranks(distributed_round, size, HOMES[size], str(tmp_path), "", way)
    assert server == (alone[""], [True])


def test_over_sockets_and_in_sums_of_several_clients_the_bits_are_the_same(
    alone: dict[str, str], tmp_path: Path
) -> None:
    for break_it in ("sockets", "together"):
        server, *_ = run_ranks(distributed_round, 3, HOMES[3], str(tmp_path / break_it), "", "auto", break_it)
        assert server == (alone[""], [True]), break_it


def test_without_a_client_that_was_sent_the_sum_is_made_anew(alone: dict[str, str], tmp_path: Path) -> None:
    server, *_ = run_ranks(distributed_round, 3, HOMES[3], str(tmp_path), "client-3", "auto")
    assert server == (alone["client-3"], [False])


@pytest.mark.parametrize("break_it", ["damage", "lie"])
def test_what_does_not_fit_its_report_is_asked_for_again(break_it: str, alone: dict[str, str], tmp_path: Path) -> None:
    server, *_ = run_ranks(distributed_round, 3, HOMES[3], str(tmp_path), "", "auto", break_it)
    assert server == (alone[""], [True])


def reduced(folder: str) -> Any:
    narrow_windows()
    with DistributedCommunicator.join(NAMES, timeout_s=30, exchange="reduce") as comm:
        comm.preflight({"config": "same"})
        return one_round(comm, HOMES[3], folder, "")


def unknown(folder: str) -> Any:
    narrow_windows()
    with DistributedCommunicator.join(NAMES, timeout_s=30, exchange="send") as comm:
        comm.preflight({"config": "same"})
        return one_round(comm, HOMES[3], folder, "", exponent=None), one_round(comm, [0] * 7, folder + "here", "")


def test_nothing_is_sent_early_in_a_ring_nor_without_a_scale_nor_to_oneself(
    alone: dict[str, str], tmp_path: Path
) -> None:
    assert run_ranks(reduced, 3, str(tmp_path / "reduce"))[0] == (alone[""], [])
    assert run_ranks(unknown, 3, str(tmp_path / "unknown"))[0] == ((alone[""], [False]), (alone[""], []))


def failing(folder: str) -> str:
    try:
        distributed_round(HOMES[3], folder, "", "auto", "unreadable")
    except DeadlineError as error:
        return str(error)
    return ""


def test_a_rank_that_cannot_send_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    logging.disable(logging.NOTSET)
    found = run_ranks(failing, 3, str(tmp_path))
    assert any("no such file: updates of rank 1" in text for text in found)
    assert all(found)


NOTES = {
    "a client that there is not": {"clients": [99], "weights": ["0x1p+0"]},
    "a client from the end": {"clients": [-6], "weights": ["0x1p+0"]},
    "a client of another rank": {"clients": [1], "weights": ["0x1p+0"]},
    "a client twice": {"clients": [0, 0], "weights": ["0x1p+0", "0x1p+0"]},
    "no client": {"clients": [], "weights": []},
    "another number of weights": {"clients": [0], "weights": []},
    "a client that is no number": {"clients": [True], "weights": ["0x1p+0"]},
    "an infinite weight": {"clients": [0], "weights": ["inf"]},
    "a weight that is none": {"clients": [0], "weights": ["nan"]},
    "a weight beyond float64": {"clients": [0], "weights": ["0x1p+99999"]},
    "a word": {"clients": [0], "weights": ["many"]},
    "a list": [1, 2],
    "no weights": {"clients": [0]},
}


def announcing(folder: str, note: Any) -> tuple[str, str]:
    """Rank 1 announces something else than it has; the class and text of what a rank ends with."""
    narrow_windows()
    if isinstance(note, dict) and 1 in note.get("clients", []):  # rank 2's, so it must not be sent before
        folder += "/other"
    dumps = json.dumps

    def lying(value: Any, **options: Any) -> str:
        is_part = isinstance(value, dict) and "weights" in value
        return (
            dumps(note) if is_part and threading.current_thread().name == "fedtorch-early" else dumps(value, **options)
        )

    try:
        with DistributedCommunicator.join(NAMES, timeout_s=30, exchange="send") as comm:
            comm.preflight({"config": "same"})
            if comm.rank == 1:
                early_sides.json.dumps = lying  # type: ignore[assignment]
            one_round(comm, HOMES[3], folder, "")
    except FedtorchError as error:
        return type(error).__name__, str(error)
    finally:
        json.dumps = dumps
    return "", ""


@pytest.mark.parametrize("kind", NOTES)
def test_an_announcement_that_cannot_be_names_the_rank_that_made_it(kind: str, tmp_path: Path) -> None:
    server, *others = run_ranks(announcing, 3, str(tmp_path), NOTES[kind])
    assert server[0] == PreflightError.__name__
    assert "the note of rank 1 of a part that it sends early" in server[1]
    assert all(kind and "rank 2" not in text for kind, text in others)


def in_memory(folder: str, exchange: Exchange, size: int) -> Any:
    globals()["SIZE"] = size
    with DistributedCommunicator.join(NAMES, timeout_s=30, exchange=exchange) as comm:
        comm.preflight({"config": "same"})
        return one_round(comm, HOMES[3], folder, "")


@pytest.mark.parametrize("size", [SIZE, LEAST_BYTES // 4])
def test_what_lies_in_memory_that_all_can_read_is_not_sent_early(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SIZE", size)
    whole = one_round(LocalCommunicator(NAMES), [0] * 7, str(tmp_path / "alone"), "")[0]
    assert run_ranks(in_memory, 3, str(tmp_path / "auto"), "auto", size)[0] == (whole, [])
    assert run_ranks(in_memory, 3, str(tmp_path / "send"), "send", size)[0] == (whole, [True])
