"""docs/trust.md: its list and settings are read by the package, and its commands run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from own_rows import weather, write_rows
from ranks import free_port

from fedtorch.cli.__main__ import main
from fedtorch.config.load import load
from fedtorch.text.byte_bpe import train_subwords
from fedtorch.trust.members import read_members
from fedtorch.trust.policy.file import read_policy

pytest.importorskip("cryptography")

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "trust.md").read_text()
BLOCKS = [(kind, text) for kind, text in re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)]
LIST, SETTINGS, POLICY = (text for kind, text in BLOCKS if kind == "yaml")
COMMANDS = {text.splitlines()[0]: text.splitlines()[1] for _, text in BLOCKS if text.startswith("# ")}


def silos_yaml() -> str:
    """The settings of docs/silos.md, to which the page adds its own."""
    found = re.search(r"```\n# both: /srv/fl/silos\.yaml\n(.*?)```", (DOCS / "silos.md").read_text(), re.DOTALL)
    assert found
    return found[1] + SETTINGS


def test_its_list_is_one(tmp_path: Path) -> None:
    (tmp_path / "members.yaml").write_text(LIST)
    members = read_members(tmp_path / "members.yaml")
    assert [member.name for member in members.members] == ["hub", "north", "south"] and members.server == "hub"


def test_its_settings_are_known(tmp_path: Path) -> None:
    (tmp_path / "silos.yaml").write_text(silos_yaml())
    config = load([tmp_path / "silos.yaml"], ["trust.key=north.key"])
    assert config.trust.members == "members.yaml" and set(config.system.pinned) == {"north", "south"}


def test_what_a_new_key_says_is_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(COMMANDS["# each on its own machine: hub, north, south"].split()[1:]) == 0
    shown = next(text for _, text in BLOCKS if text.startswith("north.key:"))
    said = capsys.readouterr().out
    key = (tmp_path / "north.pub").read_text().strip()
    assert said.replace(key, "KEY") == re.sub(r"[0-9a-f]{64}", "KEY", shown)


def test_its_dry_run_says_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    train_subwords([row["text"] for row in weather()], tmp_path / "words", size=270)
    settings = yaml.safe_load(silos_yaml())
    settings["task"]["tokenizer"], settings["run"]["dir"] = "words", "run"
    (tmp_path / "silos.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "members.yaml").write_text(LIST)
    (tmp_path / "policy.yaml").write_text(POLICY)
    command = COMMANDS["# south, before any run"].split()
    assert command[0] == "fedtorch" and main(command[1:]) == 11
    shown = next(text for _, text in BLOCKS if text.startswith("allowed "))
    said = capsys.readouterr()
    assert said.out == shown and said.err == ""


def test_the_example_of_a_policy_has_every_key() -> None:
    found = read_policy(DOCS / "examples" / "policy.yaml")
    for part in (found, found.may_leave, found.require, found.limits):
        values = {field.name: getattr(part, field.name) for field in fields(part)}
        assert None not in values.values() and () not in values.values(), values
    assert POLICY.startswith("# policy.yaml")


@pytest.mark.slow
@pytest.mark.processes
def test_its_commands_run_from_nothing_to_the_end(tmp_path: Path) -> None:
    names, port = ("hub", "north", "south"), free_port()
    train_subwords([row["text"] for row in weather()], tmp_path / "words", size=270)
    settings = yaml.safe_load(silos_yaml())
    settings["task"]["tokenizer"] = str(tmp_path / "words")
    settings["task"]["data"]["source"] = "rows.jsonl"
    settings["run"]["dir"] = "run"
    del settings["system"]["ports"]
    settings["system"] |= {"start_timeout": 60, "timeout": 60}
    for name in names:
        (tmp_path / name).mkdir()
        assert main(["keys", "new", name, "--folder", str(tmp_path / name)]) == 0
        write_rows(tmp_path / name / "rows.jsonl", [row for row in weather() if row["home"] == name])
    of_page = [member["key"] for member in yaml.safe_load(LIST)["members"].values()]
    listed = LIST
    for name, key in zip(names, of_page, strict=True):
        listed = listed.replace(key, (tmp_path / name / f"{name}.pub").read_text().strip())
    started = {}
    for name in names:
        (tmp_path / name / "members.yaml").write_text(listed)
        (tmp_path / name / "silos.yaml").write_text(yaml.safe_dump(settings))
        words = COMMANDS[f"# {name}"].replace("192.168.7.1:29500", f"127.0.0.1:{port}").split()
        command = [sys.executable, "-m", *words]
        where = tmp_path / name
        started[name] = subprocess.Popen(
            command, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    said = {name: process.communicate(timeout=200)[0] for name, process in started.items()}
    assert {name: process.returncode for name, process in started.items()} == dict.fromkeys(names, 0), said
    for name in names:
        assert (
            f"this side signs as {name}; federation stroke-registry: hub, north, south, by members.yaml" in said[name]
        )
    assert "final test accuracy" in said["hub"] and "round 3/3" in said["north"]
