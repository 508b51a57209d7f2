"""All updates side by side, window by window: over ranks the same as in one process, and nothing left hanging."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks

import fedtorch.comm.local
import fedtorch.comm.sums.local_updates
import fedtorch.comm.sums.server_updates
from fedtorch.algorithms.robust import RULES
from fedtorch.algorithms.robust.base import rule_of
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.local import LocalCommunicator
from fedtorch.comm.sums.accepted import AcceptedUpdates
from fedtorch.core.errors import FedtorchError, RefusedUpdatesError
from fedtorch.core.norms import norm_and_max
from fedtorch.core.places import Places
from fedtorch.core.seeds import generator_for
from fedtorch.core.update import Report, UpdateBuffer
from fedtorch.core.weights import digest_of
from tests.support.combined import combined

pytestmark = pytest.mark.processes

NAMES = tuple(f"client-{k}" for k in range(7))
WEIGHTS = (0.3, 0.1, 0.25, 0.0, 0.1, 0.05, 0.2)
SIZE = 5000
SOME = Places(torch.arange(0, SIZE, 3), SIZE)
FIELDS: dict[str, dict[str, Any]] = {
    "centred_clipping": {"tau": 50.0},
    "trimmed_mean": {"bucket": 2},
    "geometric_median": {"bucket": 2},
}


@pytest.fixture
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    small_windows(monkeypatch.setattr)


def small_windows(put: Any = setattr) -> None:
    """Several to an update."""
    for module in (fedtorch.comm.local, fedtorch.comm.sums.local_updates, fedtorch.comm.sums.server_updates):
        put(module, "WINDOW", 1024)
    put(fedtorch.comm.transport.windows, "WINDOW", 1024)


def update(name: str, whole: bool) -> torch.Tensor:
    drawn = torch.randn(SIZE, generator=generator_for(0, "test", name)) * (1 + NAMES.index(name))
    return drawn if whole else SOME.spread(SOME.take(drawn))


def one_round(comm: Communicator, homes: dict[str, int], folder: str, *, whole: bool = True, lie: str = "") -> Any:
    """rule -> (digest of what it makes, what clients keep), and what windows of a client that lies come to."""
    local = UpdateBuffer(SIZE, torch.float32, Path(folder) / str(comm.rank), memory_bytes=2 * SIZE * 4)
    if not whole:
        local.places = lambda client: SOME
    reports = []
    for name in (name for name in NAMES if homes[name] == comm.rank):
        local.put(name, update(name, whole))
        norm, max_abs = norm_and_max(update(name, whole))
        reports.append(Report(name, norm=norm * (2 if name == lie else 1), max_abs=max_abs))
    comm.barrier("train", round=3)
    gathered = comm.gather_reports(reports, round=3)
    found: dict[str, Any] = {}

    def combine(updates: AcceptedUpdates) -> torch.Tensor:
        for rule in ("median",) if lie else RULES:
            updates.kept.clear()
            made = rule_of({"name": rule, **FIELDS.get(rule, {})}).combine(updates, WEIGHTS)
            found[rule] = digest_of({"": made}), dict(updates.kept)
        return made

    try:
        combined(comm, local, gathered, combine, round=3)
    except RefusedUpdatesError as refused:
        return sorted(refused.reasons)
    return found


def distributed_round(homes: dict[str, int], folder: str, options: dict[str, Any]) -> Any:
    small_windows()
    with DistributedCommunicator.join(NAMES, timeout_s=30) as comm:
        comm.preflight({"config": "same"})
        return one_round(comm, homes, folder, **options)


@pytest.mark.usefixtures("_small_windows")
@pytest.mark.parametrize(("hosts", "options"), [([1, 2], {}), ([2, 0, 1, 1], {"whole": False})])
def test_every_rule_has_the_bits_of_one_process(hosts: list[int], options: dict[str, Any], tmp_path: Path) -> None:
    """Most of the updates go through files."""
    homes = {name: hosts[place % len(hosts)] for place, name in enumerate(NAMES)}
    alone = one_round(LocalCommunicator(NAMES), dict.fromkeys(NAMES, 0), str(tmp_path / "alone"), **options)
    assert set(alone) == set(RULES) and len({digest for digest, _ in alone.values()}) == len(RULES)
    assert run_ranks(distributed_round, 3, homes, str(tmp_path), options)[0] == alone


def test_who_lies_about_its_norm_is_named_wherever_it_is(tmp_path: Path) -> None:
    homes = {name: place % 3 for place, name in enumerate(NAMES)}
    found = run_ranks(distributed_round, 3, homes, str(tmp_path), {"lie": "client-4"})
    assert found == [["client-4"], [], []]


def failing_round(folder: str) -> str:
    """An error in the middle of the windows, in another rank's ears too."""
    small_windows()
    with DistributedCommunicator.join(NAMES[:2], timeout_s=30) as comm:
        comm.preflight({"config": "same"})
        local = UpdateBuffer(SIZE, torch.float32, Path(folder) / str(comm.rank), memory_bytes=2 * SIZE * 4)
        local.put(NAMES[comm.rank], update(NAMES[comm.rank], True))
        norm, max_abs = norm_and_max(update(NAMES[comm.rank], True))
        gathered = comm.gather_reports([Report(NAMES[comm.rank], norm=norm, max_abs=max_abs)], round=0)

        def combine(updates: AcceptedUpdates) -> torch.Tensor:
            return updates.combine_windows(lambda rows: 1 // 0)  # type: ignore[arg-type, return-value]

        try:
            combined(comm, local, gathered, combine, round=0)
        except (FedtorchError, ZeroDivisionError) as error:
            return type(error).__name__
    return "nothing"


def test_a_rule_that_fails_is_an_error_on_all_ranks_at_once(tmp_path: Path) -> None:
    assert run_ranks(failing_round, 2, str(tmp_path)) == ["ZeroDivisionError", "FedtorchError"]
