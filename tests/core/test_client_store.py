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
