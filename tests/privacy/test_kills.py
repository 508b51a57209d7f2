"""A process that dies at any place of a release, of a repeated one too: what left is counted, once, with its own noise.

The server's own steps in one process, which dies before and after each line that it writes; on ranks: `test_ranks.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SGD, make_runner
from private_runs import TASK, private

from fedtorch.checkpoint.store import Checkpoints
from fedtorch.config.schema import CheckpointConfig, Config
from fedtorch.privacy import data_ledger, ledger, owner_files
from fedtorch.privacy.client_level import ClientLevel
from fedtorch.privacy.data_ledger import DataLedger
from fedtorch.privacy.ledger import Ledger


class Killed(BaseException):
    """Nothing catches it."""


@dataclass
class Left:
    """What left the server, in all lives of a run."""

    sums: dict[tuple[str, int, int], set[bytes]] = field(default_factory=dict)
    """(key, round, attempt) -> the sums that were released with that noise"""
    cohorts: dict[tuple[str, int, int], tuple[str, ...]] = field(default_factory=dict)
    """the same -> who was drawn"""


@contextmanager
def watching(left: Left, die_at: int | None, after: bool) -> Iterator[Callable[[], int]]:
    """Notes what leaves; the process dies before or after the line with this number. Gives how many there were."""
    written = 0
    append, release, draw = owner_files.append_own, ClientLevel.release, ClientLevel.draw

    def dying(path: Path, lines: Any, **how: Any) -> None:
        nonlocal written
        written += 1
        if written == die_at and not after:
            raise Killed
        append(path, lines, **how)
        if written == die_at:
            raise Killed

    def noted(self: ClientLevel, round: int, total: torch.Tensor, server: Any, places: Any) -> torch.Tensor | None:
        before = total.numpy().tobytes()
        found = release(self, round, total, server, places)
        if found is not None:
            left.sums.setdefault((self._own_ledger.run, round, self._attempt), set()).add(before)
        return found

    def drawing(self: ClientLevel, clients: Any, round: int) -> Any:
        found = draw(self, clients, round)
        names = tuple(client.name for client in found)
        assert left.cohorts.setdefault((self._own_ledger.run, round, self._attempt), names) == names
        return found

    with pytest.MonkeyPatch.context() as patch:
        for module in (ledger, data_ledger):
            patch.setattr(module, "append_own", dying)
        patch.setattr(ClientLevel, "release", noted)
        patch.setattr(ClientLevel, "draw", drawing)
        yield lambda: written


def go_on(config: Config, left: Left, die_at: int | None = None, after: bool = False) -> tuple[str | None, int]:
    """The run's digest, or None where it died; and how many lines it has written to ledgers."""
    last = Checkpoints(config.folder / "checkpoints", keep=9).latest()
    with watching(left, die_at, after) as written:
        try:
            return make_runner(config).run(None if last is None else last.round).digest, written()
        except Killed:
            return None, written()


def check(config: Config, left: Left) -> None:
    """Each noise is on one sum, each draw is counted once, in both ledgers, and so is all that left."""
    own = Ledger.open(config.folder / "privacy")
    known = DataLedger(Path(str(config.privacy.ledger))).runs()[own.run]
    assert set(known.releases.values()) == set(own.releases) and own.spent == known.spent == {1: len(own.releases)}
    assert all(len(sums) == 1 for sums in left.sums.values())
    assert {(round, attempt) for _, round, attempt in left.sums} == {(r.round, r.attempt) for r in own.releases}
    assert not any(release.is_open for release in own.releases)
    drawn = [left.cohorts[own.run, r.round, r.attempt] for r in own.releases]
    assert len(set(drawn)) == len(drawn)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Left]:
    """A run of one round whose second one was released, and is not saved: it died before its checkpoint."""
    folder, left = tmp_path_factory.mktemp("begun"), Left()
    config = config_of(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedtorch.rounds.runner.Saving.begin", saved_once())
        with pytest.raises(Killed):
            go_on_or_die(config, left)
    assert {(r.round, r.attempt) for r in Ledger.open(config.folder / "privacy").releases} == {(0, 0), (1, 0)}
    return folder, left


def saved_once() -> Callable[[Any], None]:
    from fedtorch.rounds.checkpointing import Saving

    begin = Saving.begin

    def once(self: Any, **about: Any) -> None:
        if self.context.round == 2:
            raise Killed
        begin(self, **about)

    return once


def go_on_or_die(config: Config, left: Left) -> None:
    with watching(left, None, False):
        make_runner(config).run()


def config_of(folder: Path) -> Config:
    task = replace(TASK, width=20)
    promise = {"ledger": str(folder / "ledger")}
    config = private(folder / "run", rate=0.5, rounds=3, task=task, privacy=promise)
    return replace(config, checkpoint=CheckpointConfig(every=1, keep=9))


def moved(begun: tuple[Path, Left], folder: Path) -> tuple[Config, Left]:
    """The run that was begun, in a folder of its own."""
    source, left = begun
    shutil.copytree(source / "run", folder / "run")
    shutil.copy(source / "ledger", folder / "ledger")
    path = folder / "run" / "privacy" / "ledger.jsonl"
    path.write_text(path.read_text().replace(str(source), str(folder)))
    again = Left({key: set(sums) for key, sums in left.sums.items()}, dict(left.cohorts))
    return config_of(folder), again


@pytest.mark.parametrize("lr", [0.1, 0.2], ids=["same sum", "another sum"])
def test_a_run_killed_at_any_line_of_a_repeated_round_ends_as_if_it_had_not_been(
    lr: float, begun: tuple[Path, Left], tmp_path: Path
) -> None:
    """Round 2 is done again. With another sum it has its second attempt: two lines in both ledgers, then round 3."""
    config, left = moved(begun, tmp_path / "whole")
    config = replace(config, client=replace(SGD, lr=lr))
    digest, lines = go_on(config, left)
    releases = {(0, 0), (1, 0), (2, 0)} | (set() if lr == 0.1 else {(1, 1)})
    check(config, left)
    assert {(r.round, r.attempt) for r in Ledger.open(config.folder / "privacy").releases} == releases
    assert lines == 2 * (1 if lr == 0.1 else 3)
    for die_at in range(1, lines + 1):
        for after in (False, True):
            each, left = moved(begun, tmp_path / f"{die_at}{after}")
            each = replace(each, client=replace(SGD, lr=lr))
            assert go_on(each, left, die_at, after)[0] is None
            assert go_on(each, left)[0] == digest, (die_at, after)
            check(each, left)
            assert {(r.round, r.attempt) for r in Ledger.open(each.folder / "privacy").releases} == releases


def test_a_run_killed_twice_with_another_sum_each_time_counts_each(begun: tuple[Path, Left], tmp_path: Path) -> None:
    """Of the second attempt nothing had left when it died: its cohort is drawn again, and any sum of it may leave."""
    for die_at in (2, 3):  # after the attempt's beginning, and in its sum's line, which only the data's ledger has
        config, left = moved(begun, tmp_path / str(die_at))
        assert go_on(replace(config, client=replace(SGD, lr=0.2)), left, die_at, after=True)[0] is None
        assert go_on(replace(config, client=replace(SGD, lr=0.3)), left)[0] is not None
        found = {(r.round, r.attempt) for r in Ledger.open(config.folder / "privacy").releases}
        assert found == {(0, 0), (1, 0), (1, 1), (2, 0)} | ({(1, 2)} if die_at == 3 else set())
        own = Ledger.open(config.folder / "privacy")
        assert own.spent == {1: len(found)} and all(len(sums) == 1 for sums in left.sums.values())
