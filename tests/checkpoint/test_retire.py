"""What checkpoints of many clients leave on the disk, although none of them looks at all files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from fedtorch.checkpoint import manifest, retire
from fedtorch.checkpoint.retire import Retiring
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.core.client import ClientState
from fedtorch.core.errors import CheckpointError
from fedtorch.core.server import ServerState

CLIENTS = [f"client{index}" for index in range(40)]


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number of clients is many."""
    monkeypatch.setattr(retire, "FEW", 0)
    monkeypatch.setattr(manifest, "FEW", 0)


@pytest.fixture
def whole_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds with a whole pass."""
    rounds: list[int] = []
    whole = Retiring._whole

    def counted(self: Retiring, round: int) -> list[int]:
        rounds.append(round)
        return whole(self, round)

    monkeypatch.setattr(Retiring, "_whole", counted)
    return rounds


def state(round: int) -> ClientState:
    return ClientState({"head": torch.full((3,), float(round))}, {"cursor": round})


def save(checkpoints: Checkpoints, round: int, clients: list[str]) -> None:
    entries = {client: [checkpoints.write_client(round, client, state(round))] for client in clients}
    server = ServerState({"weights": torch.full((3,), float(round))}, {}, num_clients=len(CLIENTS))
    checkpoints.write(round, server, entries, config={}, facts={})


def lying(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def needed(checkpoints: Checkpoints) -> list[str]:
    kept = [checkpoints.open(folder) for folder in sorted(checkpoints.folder.glob("round_*"))]
    own = ("manifest.json", "server.json", "server.safetensors")
    clients = {path for found in kept for paths in found.clients.values() for path in paths}
    return sorted([f"{found.folder.name}/{name}" for found in kept for name in own] + list(clients))


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_only_what_kept_checkpoints_name_stays(keep: int, tmp_path: Path, many: None, whole_passes: list[int]) -> None:
    draw, checkpoints = random.Random(keep), Checkpoints(tmp_path / "checkpoints", keep=keep)
    newest = dict.fromkeys(CLIENTS, 1)
    save(checkpoints, 1, CLIENTS)
    for round in range(2, 25):
        changed = draw.sample(CLIENTS, draw.choice([0, 1, 2]))
        save(checkpoints, round, changed)
        newest |= dict.fromkeys(changed, round)
        assert lying(checkpoints.folder) == needed(checkpoints)
    assert 1 < len(whole_passes) < 8, "most checkpoints look at what changed only, and some look at all"
    found = checkpoints.latest()
    assert found is not None and found.round == 24
    assert {name: checkpoints.load_client(found, name).numbers["cursor"] for name in CLIENTS} == newest


def test_going_back_leaves_nothing_of_later_rounds_once_they_are_reached(tmp_path: Path, many: None) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    save(checkpoints, 1, CLIENTS)
    for round in range(2, 6):
        save(checkpoints, round, CLIENTS[round : round + 2])
    again = Checkpoints(checkpoints.folder, keep=2)
    again.load_server(again.at(4))
    for round in (5, 6, 7):
        save(again, round, CLIENTS[:1])
        assert lying(again.folder) == needed(again)


def test_what_a_dead_process_wrote_ahead_is_removed_when_its_round_is_there(
    tmp_path: Path, many: None, whole_passes: list[int]
) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    for client in CLIENTS[:3]:
        checkpoints.write_client(3, client, state(3))
    save(checkpoints, 1, CLIENTS)
    save(checkpoints, 2, [])
    assert len(lying(checkpoints.folder)) == len(needed(checkpoints)) + 3
    save(checkpoints, 3, CLIENTS[:1])  # one of the three is written again, and stays
    assert whole_passes == [1] and lying(checkpoints.folder) == needed(checkpoints)


def test_after_a_checkpoint_that_failed_all_is_looked_at(
    tmp_path: Path, many: None, whole_passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    save(checkpoints, 1, CLIENTS)
    with monkeypatch.context() as patched:
        patched.setattr("fedtorch.checkpoint.store.put_in_place", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(CheckpointError, match="full"):
            save(checkpoints, 2, CLIENTS[:2])
    assert lying(checkpoints.folder) == needed(checkpoints)
    save(checkpoints, 3, CLIENTS[:2])
    assert whole_passes == [1, 3] and lying(checkpoints.folder) == needed(checkpoints)


def test_a_disk_that_refuses_to_delete_is_asked_again(
    tmp_path: Path, many: None, whole_passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    save(checkpoints, 1, CLIENTS)
    with monkeypatch.context() as patched:
        patched.setattr(retire, "remove_folder", lambda _: (_ for _ in ()).throw(OSError("refused")))
        save(checkpoints, 2, CLIENTS[:2])
    assert lying(checkpoints.folder) != needed(checkpoints) or len(list(checkpoints.folder.glob("round_*"))) == 2
    save(checkpoints, 3, [])
    assert whole_passes == [1, 3] and lying(checkpoints.folder) == needed(checkpoints)
