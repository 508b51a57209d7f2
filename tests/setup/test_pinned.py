"""Clients on disks of their own: a rank needs its own clients' files only, and the bits are those of one folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ranks import expect_exit, run_ranks

from fedtorch.config.schema import SystemConfig
from fedtorch.core.errors import ConfigError
from fedtorch.main import main
from fedtorch.rounds.topology import Topology
from tests.test_main import TINY

NODES = {0: "server", 1: "one", 2: "two"}  # rank -> the machine that it runs on
PINNED = {"north": 1, "south": 2, "west": 2}


def keep_only(source: Path, target: Path, clients: Sequence[str]) -> None:
    """A disk with these clients' files, a manifest of them, and the common vocabulary."""
    shutil.copytree(source / "tokenizer", target / "tokenizer")
    manifest = json.loads((source / "manifest.json").read_text())
    if clients:
        manifest["clients"] = {name: manifest["clients"][name] for name in clients}
        (target / "manifest.json").write_text(json.dumps(manifest))
    for name in clients:
        folder = manifest["clients"][name]["folder"]
        shutil.copytree(source / folder, target / folder)


def write_config(root: Path, run: str, **system: Any) -> Path:
    path = root / f"{run}.yaml"
    system = {"placement": "pinned", "pinned": PINNED, "timeout": 30.0, **system}
    text = TINY.replace("DIR", str(root / run)).replace("DATA", "data")
    path.write_text(f"{text}clients: {{per_round: 2}}\nsystem: {json.dumps(system)}\n")
    return path


@pytest.fixture
def disks(tmp_path: Path, tiny_data: Path) -> Path:
    keep_only(tiny_data, tmp_path / "server" / "data", [])
    keep_only(tiny_data, tmp_path / "one" / "data", ["north"])
    keep_only(tiny_data, tmp_path / "two" / "data", ["west", "south"])
    keep_only(tiny_data, tmp_path / "all" / "data", ["west", "north", "south"])
    return tmp_path


def as_rank(root: str, config: str, nodes: dict[int, str]) -> int:
    os.chdir(Path(root) / nodes[int(os.environ["RANK"])])
    return main(["--config", config])


def digest(run: Path) -> str:
    found: str = json.loads((run / "results.json").read_text())["digest"]
    return found


@pytest.mark.processes
def test_separate_disks_give_the_bits_of_one_folder(disks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_ranks(as_rank, 3, str(disks), str(write_config(disks, "apart")), NODES) == [0, 0, 0]
    monkeypatch.chdir(disks / "all")
    assert main(["--config", str(write_config(disks, "together"))]) == 0
    assert digest(disks / "apart") == digest(disks / "together")
    scores = [json.loads((disks / run / "results.json").read_text())["clients"] for run in ("apart", "together")]
    assert scores[0].keys() == PINNED.keys() and scores[0]["west"]["examples"] == 3
    assert {name: row["scores"] for name, row in scores[0].items()} == {n: r["scores"] for n, r in scores[1].items()}


@pytest.mark.processes
def test_a_client_without_files_where_it_is_pinned_is_named_on_every_rank(disks: Path) -> None:
    config = write_config(disks, "wrong", pinned={"north": 2, "south": 2, "west": 2})
    assert [o.result for o in expect_exit(as_rank, 3, str(disks), str(config), NODES)] == [3, 3, 3]
    logs = [(disks / "wrong" / f"log.rank{rank}.txt").read_text() for rank in range(3)]
    assert "client north is pinned to this rank: the manifest of data has no `north`; its clients are west" in logs[2]
    assert all("cannot be read where they are pinned to: `north` (rank 2)" in log for log in logs[:2])


@pytest.mark.processes
def test_a_client_that_has_no_place_is_an_error(disks: Path) -> None:
    config = write_config(disks, "short", pinned={"north": 1, "south": 2})
    assert [o.result for o in expect_exit(as_rank, 3, str(disks), str(config), NODES)] == [3, 3, 3]
    assert "has a client `west`, which system.pinned gives no place" in (disks / "short/log.rank2.txt").read_text()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("pinned", "message"),
    [
        ({"north": 7}, "system.pinned.north is 7 but rank 7 is not there: 3 ranks run; ranks that train: 1, 2"),
        ({"north": 0}, "system.pinned.north is 0 but rank 0 only serves (see system.server_works)"),
    ],
)
def test_a_rank_that_is_not_there_or_does_not_train(pinned: dict[str, int], message: str, disks: Path) -> None:
    config = write_config(disks, "absent", pinned=pinned)
    assert [o.result for o in expect_exit(as_rank, 3, str(disks), str(config), NODES)] == [2, 2, 2]
    assert message in (disks / "absent" / "log.rank1.txt").read_text()


def test_clients_of_a_node_are_shared_out_among_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from fedtorch.rounds.placement import workers_with_data

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    system = SystemConfig(placement="pinned", pinned={"a": 0, "b": 1, "c": 1, "d": 1, "e": 1}, pinned_to="node")
    topology = Topology(6)
    allowed = workers_with_data(SimpleNamespace(system=system), topology)  # type: ignore[arg-type]
    assert allowed == {"a": [0, 1], **dict.fromkeys("bcde", [2, 3, 4])}
    homes = topology.homes({"a": 9.0, "b": 1.0, "c": 2.0, "d": 3.0, "e": 1.0}, allowed)
    assert homes == {"a": 0, "b": 4, "c": 3, "d": 2, "e": 4}


def test_placement_and_pins_go_together() -> None:
    with pytest.raises(ConfigError, match="system.placement is pinned but system.pinned has 0 clients"):
        SystemConfig(placement="pinned")
    with pytest.raises(ConfigError, match="system.placement is balanced but system.pinned has 1 clients"):
        SystemConfig(pinned={"a": 1})


@pytest.mark.processes
def test_what_the_server_alone_cannot_read_ends_all_ranks_with_its_code(disks: Path) -> None:
    """The others are built already, and would take it for lost."""
    (disks / "server" / "data" / "tokenizer" / "tokenizer.json").write_text("{")
    config = write_config(disks, "torn")
    assert [o.result for o in expect_exit(as_rank, 3, str(disks), str(config), NODES)] == [2, 2, 2]
    for rank in (1, 2):
        assert "the server refused to begin; its own log says why" in (disks / f"torn/log.rank{rank}.txt").read_text()
