"""The list of members: who may take part, and what in it cannot be."""

from __future__ import annotations

import hashlib
import os
from datetime import date
from pathlib import Path

import pytest

from fedtorch.core.errors import ConfigError, PreflightError
from fedtorch.trust.members import Members, read_members

HUB, NORTH, SOUTH, OLD = (letter * 64 for letter in "abcd")
LIST = f"""federation: stroke-registry
members:
  hub: {{role: server, key: {HUB}}}
  north: {{role: silo, key: {NORTH}, until: 2027-06-30}}
  south: {{role: silo, key: {SOUTH}}}
revoked: [{OLD}]
"""
TODAY = date(2026, 11, 28)


def listed(folder: Path, text: str = LIST) -> Members:
    path = folder / "members.yaml"
    path.write_text(text)
    return read_members(path)


def test_a_list_is_read_whole(tmp_path: Path) -> None:
    members = listed(tmp_path)
    assert members.federation == "stroke-registry" and members.server == "hub"
    assert [(m.name, m.role, m.key.hex(), m.until) for m in members.members] == [
        ("hub", "server", HUB, None),
        ("north", "silo", NORTH, date(2027, 6, 30)),
        ("south", "silo", SOUTH, None),
    ]
    assert members.revoked == {bytes.fromhex(OLD)} and members.digest == hashlib.sha256(LIST.encode()).hexdigest()
    assert members.owner(bytes.fromhex(SOUTH)) == "south" and members.owner(bytes(32)) == ""
    members.check([("hub", "server"), ("north", "silo"), ("south", "silo")], TODAY)


def test_a_member_is_one_until_its_day_has_passed(tmp_path: Path) -> None:
    members = listed(tmp_path)
    assert members.fault("north", "silo", date(2027, 6, 30)) == ""
    said = "`north` is a member until 2027-06-30 by .*members.yaml, and today is 2027-07-01"
    with pytest.raises(PreflightError, match=said) as caught:
        members.check([("hub", "server"), ("north", "silo")], date(2027, 7, 1))
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("text", "name", "role", "said"),
    [
        (LIST, "west", "silo", "`west` is not among the members .*hub, north, south"),
        (LIST, "north", "server", "has `north` as silo, and here it would be a server"),
        (LIST.replace(OLD, NORTH), "north", "silo", "the key of `north` is revoked"),
    ],
)
def test_who_may_not_take_part_is_named_with_the_reason(
    text: str, name: str, role: str, said: str, tmp_path: Path
) -> None:
    members = listed(tmp_path, text)
    with pytest.raises(PreflightError, match=said):
        members.check([("hub", "server"), (name, role)], TODAY)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LIST.replace("stroke-registry", "a registry"), ":1: `federation` is a registry; expected a name of 1 to 64"),
        (LIST.replace("federation: stroke-registry\n", ""), "`federation` is null"),
        ("federation: x\nmembers: {}\n", ":2: `members` is a mapping of 0"),
        ("federation: x\nmembers: [a]\n", ":2: `members` is a list of 1"),
        (LIST.replace("role: server", "role: silo"), ":2: `members` is no server; expected exactly one"),
        (LIST.replace(f"silo, key: {SOUTH}", f"server, key: {SOUTH}"), "`members` is hub, south; expected exactly one"),
        (LIST.replace(SOUTH, NORTH), ":5: `members.south.key` is that of `north`; expected a key of its own"),
        (LIST.replace(SOUTH, "abc"), ":5: `members.south.key` is abc; expected 64 hexadecimal digits"),
        (LIST.replace(f", key: {SOUTH}", ""), ":5|members.south.key` is null"),
        (LIST.replace(f"{{role: silo, key: {SOUTH}}}", SOUTH), f":5: `members.south` is {SOUTH[:40]}"),
        (LIST.replace("2027-06-30", "next year"), ":4: `members.north.until` is next year; expected a day"),
        (LIST.replace("role: silo", "role: client", 1), ":4: `members.north.role` is client; expected server or silo"),
        (LIST + "secret: 1\n", ":7: `secret` is a key that is not known here; expected one of federation, members"),
        (LIST.replace("until:", "till:"), ":4: `members.north.till` is a key that is not known here"),
        (LIST.replace(f"[{OLD}]", OLD), f":6: `revoked` is {OLD[:40]}"),
        (LIST.replace(OLD, "x"), ":6: `revoked.0` is x; expected 64 hexadecimal digits"),
        (LIST + "members: {}\n", "duplicate key `members`"),
        ("- a\n", "should hold `key: value` lines"),
        (LIST.replace("south", '"so\\u001b[31muth"'), "expected a name that a terminal can show"),
    ],
)
def test_what_cannot_be_is_named_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        listed(tmp_path, text)


def test_what_is_no_text_or_not_there_or_huge_is_said(tmp_path: Path) -> None:
    path = tmp_path / "members.yaml"
    with pytest.raises(ConfigError, match="trust.members is .*cannot be read"):
        read_members(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        read_members(path)
    with pytest.raises(ConfigError, match="no regular file"):
        read_members(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="no regular file"):
        read_members(tmp_path / "pipe")
    path.write_text("# " + "x" * (1 << 20))
    with pytest.raises(ConfigError, match="expected at most"):
        read_members(path)
