"""Manifests of checkpoints made at random, sealed or not: read, or refused with 8."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from fuzzing import cases, only_named_errors, spoilt, text_of, torn
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_hexdigest

from fedtorch.checkpoint.store import Checkpoints
from fedtorch.core.client import ClientState
from fedtorch.core.errors import CheckpointError
from fedtorch.core.server import ServerState

Change = Callable[[dict[str, Any]], bytes]


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


def changed(**changes: Any) -> Change:
    return lambda manifest: text_of({**manifest, **changes})


CORPUS: dict[str, Change] = {
    "a form that no log takes": changed(form="\ud800"),
    "a form with a terminal's commands": changed(form="\x1b[2J"),
    "a version of 100 kB": changed(form=2, fedtorch="x" * 10**5),
    "a round that is true": changed(round=True),
    "a round that is infinite": changed(round=math.inf),
    "a round of thousands of digits": lambda m: text_of(m).replace(b'"round": 1', b'"round": ' + b"9" * 5000),
    "a negative round": changed(round=-1),
    "clients that are a list": changed(clients=[]),
    "a client whose files are an object": lambda m: text_of({**m, "clients": {**m["clients"], "north": {}}}),
    "a client whose file is another's": lambda m: text_of({**m, "clients": {"north": m["clients"]["south"]}}),
    "a file that leads out of the folder": lambda m: text_of({**m, "files": {**m["files"], "../x": {}}}),
    "a file of 100 kB of name": lambda m: text_of({**m, "files": {**m["files"], "x" * 10**5: {}}}),
    "a size that is infinite": lambda m: text_of(
        {**m, "files": {**m["files"], "server.json": {"bytes": math.inf, "xxh3": "0"}}}
    ),
    "a digest that is a number": lambda m: text_of(
        {**m, "files": {**m["files"], "server.json": {"bytes": 1, "xxh3": 0}}}
    ),
    "a config that is null": changed(config=None),
    "homes that are a list": changed(homes=["north"]),
    "brackets thousands deep": lambda m: b"[" * 100_000,
    "an object that is empty": lambda m: b"{}",
    "half of it": lambda m: text_of(m)[:200],
    "nothing": lambda m: b"",
    "no UTF-8": lambda m: b"\xff\xfe" + text_of(m),
    "a NUL": lambda m: b"\0" + text_of(m),
}
"""What it once broke, or may break -> the text of a manifest, made of a whole one; sealed where it can be parsed."""


@pytest.mark.parametrize("what", CORPUS)
def test_what_was_found_in_manifests_is_refused(what: str, checkpoints: Checkpoints, whole: dict[str, Any]) -> None:
    text = CORPUS[what](whole)
    with suppress(ValueError, RecursionError):
        manifest = json.loads(text)
        text = json.dumps({"xxh3": xxh3_64_hexdigest(json.dumps(manifest).encode()), "manifest": manifest}).encode()
    (checkpoints.folder / "round_000001" / "manifest.json").write_bytes(text)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.latest()
    message = str(caught.value)
    message.encode()
    assert len(message) < 1200 and "\x1b" not in message


def test_a_manifest_that_is_a_fifo_is_refused(checkpoints: Checkpoints) -> None:
    path = checkpoints.folder / "round_000001" / "manifest.json"
    path.unlink()
    os.mkfifo(path)
    try:
        with pytest.raises(CheckpointError, match="no regular file"):
            checkpoints.latest()
    finally:
        path.unlink()


@pytest.mark.long
@cases(50)
@given(data=st.data())
def test_a_random_manifest_is_read_or_refused(data: Any, checkpoints: Checkpoints, whole: dict[str, Any]) -> None:
    try_manifest(data.draw, checkpoints, whole)


@cases(10_000)
@given(data=st.data())
def test_ten_thousand_manifests_are_read_or_refused(data: Any, checkpoints: Checkpoints, whole: dict[str, Any]) -> None:
    try_manifest(data.draw, checkpoints, whole)
