"""Manifests of checkpoints made at random, sealed or not: read, or refused with 8."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from fuzzing import cases, only_named_errors, spoilt, torn
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_hexdigest

from fedtorch.checkpoint.store import Checkpoints
from fedtorch.core.client import ClientState
from fedtorch.core.server import ServerState


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    made = Checkpoints(tmp_path_factory.mktemp("run") / "checkpoints", keep=2)
    state = ClientState({"head": torch.zeros(3)}, {"cursor": 1})
    entries = {client: [made.write_client(1, client, state)] for client in ("north", "south")}
    server = ServerState({"weights": torch.zeros(3)}, {"steps": 1}, num_clients=2)
    made.write(1, server, entries, config={"rounds": 3}, facts={"code": "abc"})
    return made


@pytest.fixture(scope="module")
def whole(checkpoints: Checkpoints) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((checkpoints.folder / "round_000001" / "manifest.json").read_bytes())
    return manifest["manifest"]  # type: ignore[no-any-return]


def try_manifest(draw: st.DrawFn, checkpoints: Checkpoints, manifest: dict[str, Any]) -> None:
    for _ in range(draw(st.integers(1, 3))):
        manifest = spoilt(draw, manifest)
    text = json.dumps(manifest).encode()
    sealed = json.dumps({"xxh3": xxh3_64_hexdigest(text), "manifest": manifest}).encode()
    data = torn(draw, sealed) if draw(st.integers(0, 3)) == 0 else sealed
    (checkpoints.folder / "round_000001" / "manifest.json").write_bytes(data)
    with only_named_errors():
        found = checkpoints.latest()
        assert found is not None
        checkpoints.check_fits(found, {"rounds": 3}, lambda old, new: [], {"code": "abc"})
        checkpoints.load_server(found)
        checkpoints.load_client(found, "north")


@cases(100)
@given(data=st.data())
def test_a_random_manifest_is_read_or_refused(data: Any, checkpoints: Checkpoints, whole: dict[str, Any]) -> None:
    try_manifest(data.draw, checkpoints, whole)


@cases(10_000)
@given(data=st.data())
def test_ten_thousand_manifests_are_read_or_refused(data: Any, checkpoints: Checkpoints, whole: dict[str, Any]) -> None:
    try_manifest(data.draw, checkpoints, whole)
