"""`fedtorch serve` and `fedtorch join`: one command on each machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import Network

from fedtorch.main import main
from launchers import join, serve
from tests.setup.test_pinned import digest, keep_only
from tests.test_main import TINY

ROOT = Path(__file__).parents[2]
PINNED = {"north": 1, "south": 2, "west": 2}
SECRET = {"FEDTORCH_JOB_SECRET": "known to all ranks of the test"}


def write_config(root: Path, run: Path, data: Path, **system: object) -> str:
    path = root / "silos.yaml"
    system = {"placement": "pinned", "pinned": PINNED, "timeout": 60.0, **system}
    text = TINY.replace("DIR", str(run)).replace("DATA", str(data))
    path.write_text(f"{text}algorithm: {{name: ditto}}\nsystem: {json.dumps(system)}\n".replace(LORAR, ""))
    return str(path)


LORAR = "algorithm: {name: fedavg, weights: lorar}\n"


@pytest.mark.parametrize(
    ("words", "system", "environ", "code", "message"),
    [
        (["--silo", "nort"], {}, SECRET, 2, "--silo is nort, which system.pinned does not have; did you mean `north`?"),
        (["--silo", "north"], {}, {}, 4, "FEDTORCH_JOB_SECRET is not set; make one (openssl rand -hex 32)"),
        (["--silo", "north"], {"pinned_to": "node"}, SECRET, 2, "a silo is one rank, so set `placement: pinned`"),
        (
            ["--silo", "north"],
            {"pinned": {"north": 3}},
            SECRET,
            2,
            "system.pinned names ranks 3; number the silos",
        ),
        (["--silo", "north", "--server", "there"], {}, SECRET, 2, "--server is 'there'; expected HOST:PORT, such as"),
    ],
)
def test_what_a_silo_gets_wrong_is_said_before_it_connects(
    words: list[str],
    system: dict[str, object],
    environ: dict[str, str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("FEDTORCH_JOB_SECRET", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    config = write_config(tmp_path, tmp_path / "run", tmp_path / "data", **system)
    assert join.main(["--server", "10.83.0.1:29500", "--config", config, *words], prog="fedtorch join") == code
    said = capsys.readouterr()
    assert message in said.err and not said.out


@pytest.mark.slow
def test_two_silos_and_a_server_with_one_command_each(
    network: Callable[..., Network], tiny_data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hosts = network(names=("hub", "north", "other"))
    for name, clients in {"hub": [], "north": ["north"], "other": ["west", "south"]}.items():
        keep_only(tiny_data, hosts.hosts[name].disk / "data", clients)
    config = write_config(hosts.root, hosts.disk / "run", hosts.disk / "data")
    place, environ = "10.83.0.1:29500", {**os.environ, **SECRET, "PYTHONPATH": str(ROOT)}
    start = [sys.executable, "-m", "fedtorch.cli"]
    sides = [hosts.popen("hub", [*start, "serve", "--listen", place, "--config", config], env=environ)]
    for name, silo in (("north", "north"), ("other", "west")):
        words = [*start, "join", "--server", place, "--config", config, "--silo", silo]
        sides.append(hosts.popen(name, words, env=environ))
    assert [side.wait(200) for side in sides] == [0, 0, 0]
    run = hosts.hosts["hub"].disk / "run"
    assert {path.name for path in (hosts.hosts["other"].disk / "run" / "model").iterdir()} == {"south", "west"}
    assert f"serve --listen {place} --config {config}" in json.loads((run / "status.json").read_text())["command"]
    keep_only(tiny_data, tmp_path / "data", ["west", "north", "south"])
    assert main(["--config", write_config(tmp_path, tmp_path / "run", tmp_path / "data")]) == 0
    assert digest(run) == digest(tmp_path / "run")


def test_both_sides_say_what_the_other_will_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from launchers import silo

    monkeypatch.setenv("FEDTORCH_JOB_SECRET", SECRET["FEDTORCH_JOB_SECRET"])
    monkeypatch.setattr(silo, "train", lambda words: 0)
    monkeypatch.setattr(silo.os, "environ", dict(os.environ))
    config = write_config(tmp_path, tmp_path / "run", tmp_path / "data")
    assert serve.main(["--listen", "[fd00::1]:7", "--config", config], prog="fedtorch serve") == 0
    assert join.main(["--server", "[fd00::1]:7", "--config", config, "--silo", "west"], prog="fedtorch join") == 0
    said = capsys.readouterr().out
    assert "rank 0 of 3, at [fd00::1]:7; waits for north (rank 1), south and west (rank 2)" in said
    assert "silo south and west, rank 2 of 3, of the server" in said and "from which text can be inferred" in said
    assert (silo.os.environ["MASTER_ADDR"], silo.os.environ["RANK"]) == ("fd00::1", "2")
