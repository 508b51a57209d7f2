"""A manifest whose lines are kept from round to round says what one laid out at once would say."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from fedtorch.checkpoint import manifest as written
from fedtorch.checkpoint.files import MANIFEST, FileEntry, client_path, read_manifest, to_json
from fedtorch.checkpoint.manifest import ClientLines, write_folder
from fedtorch.core.server import ServerState

NAMES = ["b", "a", 'ä "quoted"', "c/d", "", "\\", "client10", "client9"]


def entries(client: str, round: int, parts: int = 1) -> tuple[FileEntry, ...]:
    return tuple(FileEntry(client_path(client, round, part), 10 * round + part, round << 60) for part in range(parts))


def laid_out(clients: dict[str, tuple[FileEntry, ...]]) -> tuple[Any, Any]:
    files = {e.path: {"bytes": e.bytes, "xxh3": f"{e.digest:016x}"} for name in sorted(clients) for e in clients[name]}
    return files, {name: [entry.path for entry in clients[name]] for name in sorted(clients)}


def test_lines_are_those_of_the_clients_as_they_are_now() -> None:
    lines, clients, drawn = ClientLines(), dict[str, tuple[FileEntry, ...]](), random.Random(3)
    for round in range(1, 12):
        changed = drawn.sample(NAMES, 3)
        clients = {**clients, **{name: entries(name, round, drawn.choice([1, 1, 2])) for name in changed}}
        if round == 7:  # training went back, before some of them took part
            clients = {name: clients[name] for name in sorted(clients)[::2]}
        files, names = lines.of(clients)
        expected = laid_out(clients)
        assert (f"{{{files}}}", f"{{{names}}}") == (to_json(expected[0]), to_json(expected[1]))
    assert lines.of({}) == ("", "")


def test_a_client_is_laid_out_when_its_files_change(monkeypatch: pytest.MonkeyPatch) -> None:
    laid: list[str] = []
    line_of = written._file_line
    monkeypatch.setattr(written, "_file_line", lambda entry: laid.append(entry.path) or line_of(entry))
    lines, clients = ClientLines(), {name: entries(name, 1) for name in NAMES}
    lines.of(clients)
    assert len(laid) == len(NAMES)
    lines.of({**clients, "a": entries("a", 2)})
    assert laid[len(NAMES) :] == [client_path("a", 2)]


@pytest.mark.parametrize("few", [0, 1000])
@pytest.mark.parametrize("homes", [{}, {"b": "host-1", "gone": "host-2"}])
@pytest.mark.parametrize("names", [[], NAMES])
def test_what_is_written_is_read_back(
    names: list[str], homes: dict[str, str], few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written, "FEW", few)
    clients = {name: entries(name, 3) for name in names}
    folder = tmp_path / "round_000003"
    folder.mkdir()
    config, facts = {"rounds": 3, "folder": Path("x")}, {"data": "ü"}
    write_folder(folder, 3, ServerState({}, {}, num_clients=9), clients, config, facts, homes, ClientLines())
    found = read_manifest(folder)
    assert {name: [found.files[path] for path in paths] for name, paths in found.clients.items()} == {
        name: [*files] for name, files in clients.items()
    }
    assert found.homes == {name: home for name, home in homes.items() if name in clients}
    assert found.config == {"rounds": 3, "folder": "x"} and found.facts == facts
    text = (folder / MANIFEST).read_text()
    assert (len(text.splitlines()) > 1) is (len(names) <= few)
    assert [*json.loads(text)["manifest"]][:5] == ["form", "fedtorch", "round", "config", "facts"]
