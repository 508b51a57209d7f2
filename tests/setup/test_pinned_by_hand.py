"""Sizes of clients on their own disks, as numbers: from the manifest and back, and who speaks for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import make_config
from toy import Quadratic

from fedtorch.comm.local import LocalCommunicator
from fedtorch.comm.wire import Packet
from fedtorch.config.schema import Config, SystemConfig
from fedtorch.core.errors import DataError
from fedtorch.core.names import Names
from fedtorch.setup import pinned_data
from fedtorch.setup.pinned_data import exchange_sizes
from fedtorch.tasks.prepared import Prepared

DIGESTS = {name: f"{number:x}" * 64 for number, name in enumerate("abc", start=10)}
ENTRIES = {
    name: {"splits": {"train": {"examples": 7, "characters": 90, "rows": [1, 2], "sha256": DIGESTS[name]}}}
    for name in "abc"
}


@dataclass(frozen=True)
class Own(Prepared):
    """Rows that are not read: a test is about what the manifest counts."""

    kind = "own"
    read: tuple[str, ...] = ("a", "b", "c")
    """Clients whose files are here."""

    @property
    def prepared(self) -> dict[str, Any]:
        return {"clients": {name: ENTRIES[name] for name in self.read}, "record": {}}

    def own_entry(self, client: str) -> Any:
        if client not in self.read:
            raise DataError(f"no `{client}`")
        return ENTRIES[client]

    def with_entries(self, entries: Mapping[str, Any]) -> Any:
        return SimpleNamespace(prepared={"clients": dict(entries)})


def config_of(folder: Path, read: str, pinned: Mapping[str, int]) -> Config:
    config = make_config(folder, Quadratic({"a": (1.0, 0.0, 3)}))
    system = SystemConfig(placement="pinned", pinned=dict(pinned), server_works=False)
    return replace(config, task=Own(read=tuple(read)), system=system)


@pytest.fixture(autouse=True)
def _no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned_data, "config_facts", lambda config: {})  # of a task that no config names


def test_entries_travel_as_numbers_and_are_those_of_the_manifest(tmp_path: Path) -> None:
    config = config_of(tmp_path, "abc", {"a": 0, "b": 0, "c": 0})
    assert exchange_sizes(config, LocalCommunicator(Names("abc"))).task.prepared == {"clients": ENTRIES}


def test_a_client_whose_files_are_missing_is_named(tmp_path: Path) -> None:
    config = config_of(tmp_path, "ab", {"a": 0, "b": 0, "c": 0})
    with pytest.raises(DataError, match="client `c` is pinned to rank 0: no `c`"):
        exchange_sizes(config, LocalCommunicator(Names("abc")))


class Said(Exception):
    """In place of what follows the messages of this rank."""


class Rank:
    """One of four, of which rank 3 may be lost; the worker of ranks 2 and 3 has its first rank speak."""

    size = 4

    def __init__(self, rank: int, lost: tuple[int, ...] = ()) -> None:
        self.rank, self.lost, self.is_server, self.meetings = rank, lost, rank == 0, list[tuple[str, int]]()

    def preflight(self, facts: Mapping[str, str], *, crosses: str = "") -> None: ...

    def barrier(self, phase: str, *, round: int) -> None:
        self.meetings.append((phase, round))

    def gather(self, packets: list[Packet], *, round: int) -> list[Packet]:
        raise Said([(packet.client, packet.numbers["train/examples"]) for packet in packets])


def said(config: Config, rank: int, known: Config | None = None, lost: tuple[int, ...] = ()) -> list[tuple[int, int]]:
    comm: Any = Rank(rank, lost)
    with pytest.raises(Said) as found:
        exchange_sizes(config, comm, known)
    assert comm.meetings == [("sizes", 0)]
    told: list[tuple[int, int]] = found.value.args[0]
    return told


def test_a_rank_speaks_for_its_own_clients_and_the_server_for_those_that_are_away(tmp_path: Path) -> None:
    config = config_of(tmp_path, "abc", {"a": 1, "b": 3, "c": 3})
    assert [said(config, rank) for rank in range(4)] == [[], [(0, 7)], [], [(1, 7), (2, 7)]]
    known = replace(config, task=Own())
    assert said(config, 0, known, lost=(3,)) == [(1, 7), (2, 7)]
    assert said(config, 1, known, lost=(3,)) == [(0, 7)], "the server alone speaks for others"


def test_a_workers_first_rank_speaks_for_it(tmp_path: Path) -> None:
    config = config_of(tmp_path, "abc", {"a": 1, "b": 2, "c": 2})
    config = replace(config, system=replace(config.system, ranks_per_worker=(1, 2)))
    assert [said(config, rank) for rank in range(4)] == [[], [(0, 7)], [(1, 7), (2, 7)], []]
