"""The list of members, which every party has: who may be the server and who a silo, and by which key each is known.

federation: stroke-registry
members:
  hub:   {role: server, key: 6a1f...}
  north: {role: silo, key: 03bc..., until: 2027-06-30}
revoked: [99aa...]
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from fedtorch.core.errors import ConfigError, PreflightError
from fedtorch.core.shown import plain
from fedtorch.core.yaml_tree import Tree, describe, read_file
from fedtorch.trust.keys import bytes_of

Role = Literal["server", "silo"]
_FEDERATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class Member:
    """A party by its name."""

    name: str
    """As the list has it."""
    role: Role
    """Its part in a run."""
    key: bytes
    """Its public key, 32 bytes."""
    until: date | None = None
    """The last day on which it is a member, by the clock of whoever looks; None: it has no end."""


@dataclass(frozen=True)
class Members:
    """The list, as one party has it."""

    path: Path
    """Its file, for messages."""
    federation: str
    """Its name, which is in everything that members sign."""
    members: tuple[Member, ...]
    """In the file's order."""
    revoked: frozenset[bytes]
    """Public keys that count no more, whoever has them."""
    digest: str
    """sha256 of the file's bytes, hexadecimal."""

    @cached_property
    def by_name(self) -> Mapping[str, Member]:
        """Name -> member."""
        return {member.name: member for member in self.members}

    @property
    def silos(self) -> list[str]:
        """Names of the silos."""
        return [member.name for member in self.members if member.role == "silo"]

    def fault(self, name: str, role: Role, today: date) -> str:
        """Say why nobody may take part in a run under this name and in this role, as a clause; empty if one may."""
        member = self.by_name.get(name)
        if member is None:
            return f"`{name}` is not among the members in {self.path} ({', '.join(self.by_name)})"
        if member.role != role:
            return f"{self.path} has `{name}` as {member.role}, and here it would be a {role}"
        if member.key in self.revoked:
            return f"the key of `{name}` is revoked in {self.path}"
        if member.until is not None and today > member.until:
            return f"`{name}` is a member until {member.until} by {self.path}, and today is {today}"
        return ""

    def check(self, parties: Iterable[tuple[str, Role]], today: date) -> None:
        """Refuse whoever may not take part.

        Raises:
            PreflightError: one of the parties is not in the list, has another role there, is revoked or past its end.
        """
        for name, role in parties:
            if fault := self.fault(name, role, today):
                raise PreflightError(f"a party of this run is refused: {fault}; agree on a new list with all members")

    @property
    def server(self) -> str:
        """Name of the one member that is the server."""
        return next(member.name for member in self.members if member.role == "server")

    def owner(self, key: bytes) -> str:
        """Name of the member with this public key; empty: nobody has it."""
        return next((member.name for member in self.members if member.key == key), "")


def read_members(path: Path) -> Members:
    """Read the list.

    Raises:
        ConfigError: it cannot be read, or something in it cannot be; names the line.
    """
    tree, content = read_file(path, "trust.members")
    return _Reader(path, tree).members(hashlib.sha256(content).hexdigest())


@dataclass(frozen=True)
class _Reader:
    """Checks a list that was parsed."""

    path: Path
    """The file, for messages."""
    tree: Tree
    """Its content, and in which line each key stands."""

    def members(self, digest: str) -> Members:
        data = self.tree.data
        self._known(data, ("federation", "members", "revoked"), ())
        federation = data.get("federation")
        if not isinstance(federation, str) or not _FEDERATION.fullmatch(federation):
            self._refuse(("federation",), federation, "a name of 1 to 64 letters, digits, dots and dashes")
        listed = data.get("members")
        if not isinstance(listed, dict) or not listed:
            self._refuse(("members",), listed, "NAME: {role: server or silo, key: ...} for each member")
        found = tuple(self._member(name, about) for name, about in listed.items())
        servers = [member.name for member in found if member.role == "server"]
        if len(servers) != 1:
            self._refuse(("members",), ", ".join(servers) or "no server", "exactly one member with the role server")
        self._unlike(found)
        revoked = data.get("revoked", [])
        if not isinstance(revoked, list):
            self._refuse(("revoked",), revoked, "a list of public keys")
        gone = frozenset(self._key(("revoked", at), each) for at, each in enumerate(revoked))
        return Members(self.path, federation, found, gone, digest)

    def _member(self, name: str, about: Any) -> Member:
        at = ("members", name)
        if plain(name) != name or not name.strip():
            self._refuse(at, name, "a name that a terminal can show")
        if not isinstance(about, dict):
            self._refuse(at, about, "{role: server or silo, key: ...}")
        self._known(about, ("role", "key", "until"), at)
        role: Any = about.get("role")
        if role not in get_args(Role):
            self._refuse((*at, "role"), role, "server or silo")
        until = about.get("until")
        try:
            last = None if until is None else date.fromisoformat(until)
        except (TypeError, ValueError):
            self._refuse((*at, "until"), until, "a day, as 2027-06-30")
        return Member(name, role, self._key((*at, "key"), about.get("key")), last)

    def _key(self, at: tuple[str | int, ...], text: Any) -> bytes:
        key = bytes_of(text) if isinstance(text, str) else None
        if key is None:
            self._refuse(at, text, "64 hexadecimal digits, as in the file NAME.pub of `fedtorch keys new NAME`")
        return key

    def _unlike(self, found: Iterable[Member]) -> None:
        """Refuse two names for one key: neither could be told from the other."""
        seen: dict[bytes, str] = {}
        for member in found:
            if other := seen.get(member.key):
                self._refuse(("members", member.name, "key"), f"that of `{other}`", "a key of its own for each member")
            seen[member.key] = member.name

    def _known(self, data: Mapping[str, Any], keys: tuple[str, ...], at: tuple[str | int, ...]) -> None:
        for key in data:
            if key not in keys:
                self._refuse((*at, key), "a key that is not known here", f"one of {', '.join(keys)}")

    def _refuse(self, at: tuple[str | int, ...], value: Any, expected: str) -> NoReturn:
        """Raises ConfigError: where, what was found, what was expected."""
        where = self.tree.marks.get(at, str(self.path))
        shown = value if isinstance(value, str) else describe(value)
        raise ConfigError(f"{where}: `{'.'.join(map(str, at))}` is {shown[:80]}; expected {expected}")
