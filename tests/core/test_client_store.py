"""What a client's state costs where very many clients have one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedtorch.core.client import ClientState, ClientStore


@pytest.mark.parametrize("memory_bytes", [0, 1 << 20])
def test_a_round_looks_at_the_states_of_its_own_clients_only(
    memory_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0

    def counted(self: ClientState) -> int:
        nonlocal looked
        looked += 1
        return sum(t.numel() * t.element_size() for t in self.tensors.values())

    monkeypatch.setattr(ClientState, "num_bytes", property(counted))
    store = ClientStore(tmp_path / "states", memory_bytes)
    for number in range(200):
        store.put(f"c{number}", ClientState({"w": torch.full((4,), float(number))}))
    store.mark_clean()
    looked = 0
    for number in (3, 150):
        state = store.get(f"c{number}")
        state.tensors["w"] = state.tensors["w"] + 1
        store.stage(f"c{number}", state)
    store.commit(["c3"])
    assert looked <= 5 * 2
    assert store.dirty() == ["c3"]
    assert store.get("c3").tensors["w"].tolist() == [4.0] * 4
    assert store.get("c150").tensors["w"].tolist() == [150.0] * 4
    assert len(store.clients()) == 200


def test_what_is_dropped_makes_room(tmp_path: Path) -> None:
    store = ClientStore(tmp_path / "states", memory_bytes=32)
    for _ in range(5):  # a state of 16 bytes, and the one that replaces it
        store.stage("a", ClientState({"w": torch.zeros(4)}))
        store.commit(["a"])
        store.stage("b", ClientState({"w": torch.zeros(4)}))
        store.commit([])
    assert not (tmp_path / "states").exists()
    store.put("c", ClientState({"w": torch.zeros(8)}))
    assert len([*(tmp_path / "states").glob("*.safetensors")]) == 1


@pytest.mark.parametrize("memory_bytes", [0, 1 << 20], ids=["files", "memory"])
def test_what_is_staged_under_other_names_is_adopted_one_by_one(memory_bytes: int, tmp_path: Path) -> None:
    """As a client's jobs leave it: the second one began with what the first has left."""
    store = ClientStore(tmp_path / "states", memory_bytes)
    store.put("a", ClientState({"w": torch.zeros(2), "best": torch.ones(2)}, {"n": 0, "round": 1}))
    store.mark_clean()
    for job, number in (("job 1", 1), ("job 2", 2), ("job 3", 3)):
        store.stage(job, ClientState({"w": torch.full((2,), float(number))}, {"n": number}))
    found = store.staged("job 1")
    assert found is not None and found.numbers == {"n": 1} and store.staged("job 9") is None
    assert store.get("a").numbers == {"n": 0, "round": 1} and store.dirty() == []
    store.adopt("job 1", "a", keep=("best", "round", "other"))
    assert store.get("a").numbers == {"n": 1, "round": 1} and store.dirty() == ["a"]
    assert store.get("a").tensors["w"].tolist() == [1, 1] and store.get("a").tensors["best"].tolist() == [1, 1]
    store.unstage("job 2")
    store.unstage("job 9")
    store.adopt("job 2", "a")
    assert store.get("a").numbers["n"] == 1 and store.staged("job 2") is None
    store.adopt("job 3", "a")
    assert store.get("a").numbers == {"n": 3} and set(store.get("a").tensors) == {"w"}
    assert store.staged("job 3") is None and store.clients() == ["a"]
