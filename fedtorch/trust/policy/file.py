"""A site's policy: a file of its own that says what may leave it, what a run must promise, and how much is too much.

may_leave:
  parameters: ["*.lora_A.*", "score.*"]
  reports: [status, steps]
  scores: false
require:
  secure_sum: {parties: 3}
limits: {rounds: 200, bytes_per_round: 50MB, between: ["20:00", "06:00"]}
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from fedtorch.core.errors import ConfigError
from fedtorch.core.yaml_tree import Key, Tree, describe, read_file
from fedtorch.trust.policy.kinds import NAMES

Promise = Literal["record", "client"]
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|kB|MB|GB|KiB|MiB|GiB)?")
_UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True)
class MayLeave:
    """`may_leave`: nothing leaves that is not named here."""

    parameters: tuple[str, ...] = ()
    """Shell patterns over names of parameters whose updates may leave."""
    reports: tuple[str, ...] = ()
    """Which numbers may go with an update, of `kinds.NAMES`."""
    scores: bool = False
    """May scores of this site's rows leave?"""

    def allows(self, parameter: str) -> bool:
        """May updates of the parameter leave?"""
        return any(fnmatchcase(parameter, pattern) for pattern in self.parameters)


@dataclass(frozen=True)
class PrivacyWanted:
    """`require.privacy`: a promise that a run must make."""

    kind: Promise
    """Unit that is protected: rows or persons (record), or the whole silo (client)."""
    max_epsilon: float
    """Largest ε, with `record` by this site's own ledger, over all runs."""
    delta: float
    """Largest δ."""


@dataclass(frozen=True)
class Require:
    """`require`: what a run must have; None: it need not."""

    secure_sum: int | None = None
    """`{parties: N}`: a sum is opened with the parts of at least so many silos."""
    privacy: PrivacyWanted | None = None
    """A promise."""
    clip: float | None = None
    """The norm of an update is at most this."""
    verified: float | None = None
    """The share of the server's work that is checked is at least this."""


@dataclass(frozen=True)
class Limits:
    """`limits`: how much is too much; None: there is no limit."""

    rounds: int | None = None
    """Rounds of a run."""
    bytes_per_round: int | None = None
    """Bytes of updates and reports that leave in a round; `50MB` and the like in the file."""
    between: tuple[time, time] | None = None
    """From when until when something may leave, by this site's clock; over midnight if the end is before."""

    def is_open(self, now: time) -> bool:
        """May something leave at this time of day?"""
        if self.between is None:
            return True
        begin, end = self.between
        return begin <= now < end if begin <= end else now >= begin or now < end


@dataclass(frozen=True)
class Policy:
    """A site's policy as it was read."""

    path: Path
    """Its file, for messages."""
    may_leave: MayLeave
    """Nothing else leaves."""
    require: Require
    """A run must have it."""
    limits: Limits
    """A run stays below them."""
    code: tuple[str, ...] | None = None
    """sha256:... of all code that may run, as `fedtorch digest` prints it; None: whatever there is."""
    members: str | None = None
    """sha256:... of the list of members; None: any."""
    initial: str | None = None
    """sha256:... of the weights to start from: the root of `trust.merkle` over the shared ones; None: any."""
    marks: Mapping[Key, str] = field(default_factory=dict, repr=False)
    """Key -> `file:line` where it stands."""

    def where(self, key: str) -> str:
        """`file:line` of a key, or of the section around it, or the file."""
        return Tree({}, dict(self.marks)).where(tuple(key.split("."))) or str(self.path)


def read_policy(path: Path) -> Policy:
    """Read a policy.

    Raises:
        ConfigError: it cannot be read, or something in it cannot be; names the line.
    """
    tree, _ = read_file(path, "--policy")
    return _Reader(path, tree).policy()


@dataclass(frozen=True)
class _Reader:
    """Checks a policy that was parsed."""

    path: Path
    """The file, for messages."""
    tree: Tree
    """Its content, and in which line each key stands."""

    def policy(self) -> Policy:
        sections = ("may_leave", "require", "limits", "code", "members", "initial")
        found = self._section((), self.tree.data, sections)
        if "may_leave" not in found:
            self._refuse(("may_leave",), None, "{parameters: [...], reports: [...], scores: true or false}")
        return Policy(
            self.path,
            self._may_leave(found["may_leave"]),
            self._require(found.get("require", {})),
            self._limits(found.get("limits", {})),
            self._code(found["code"]) if "code" in found else None,
            self._digest(("members",), found["members"]) if "members" in found else None,
            self._digest(("initial",), found["initial"]) if "initial" in found else None,
            self.tree.marks,
        )

    def _may_leave(self, data: Any) -> MayLeave:
        at = ("may_leave",)
        found = self._section(at, data, ("parameters", "reports", "scores"))
        reports = self._texts((*at, "reports"), found.get("reports", []))
        for place, name in enumerate(reports):
            if name not in NAMES:
                self._refuse((*at, "reports", place), name, f"one of {', '.join(NAMES)}")
        scores = found.get("scores", False)
        if not isinstance(scores, bool):
            self._refuse((*at, "scores"), scores, "true or false")
        return MayLeave(self._texts((*at, "parameters"), found.get("parameters", [])), reports, scores)

    def _require(self, data: Any) -> Require:
        at = ("require",)
        found = self._section(at, data, ("secure_sum", "privacy", "clip", "verified"))
        parties = privacy = None
        if "secure_sum" in found:
            wanted = self._section((*at, "secure_sum"), found["secure_sum"], ("parties",))
            parties = self._count((*at, "secure_sum", "parties"), wanted.get("parties"))
        if "privacy" in found:
            privacy = self._privacy((*at, "privacy"), found["privacy"])
        clip = self._number((*at, "clip"), found["clip"], math.inf) if "clip" in found else None
        verified = self._number((*at, "verified"), found["verified"], 1.0) if "verified" in found else None
        return Require(parties, privacy, clip, verified)

    def _privacy(self, at: Key, data: Any) -> PrivacyWanted:
        found = self._section(at, data, ("kind", "max_epsilon", "delta"))
        kind: Any = found.get("kind")
        if kind not in get_args(Promise):
            self._refuse((*at, "kind"), kind, "record or client")
        epsilon = self._number((*at, "max_epsilon"), found.get("max_epsilon"), math.inf)
        return PrivacyWanted(kind, epsilon, self._number((*at, "delta"), found.get("delta"), 1.0))

    def _limits(self, data: Any) -> Limits:
        at = ("limits",)
        found = self._section(at, data, ("rounds", "bytes_per_round", "between"))
        rounds = self._count((*at, "rounds"), found["rounds"]) if "rounds" in found else None
        most = self._bytes((*at, "bytes_per_round"), found["bytes_per_round"]) if "bytes_per_round" in found else None
        return Limits(rounds, most, self._between((*at, "between"), found["between"]) if "between" in found else None)

    def _bytes(self, at: Key, value: Any) -> int:
        told = _BYTES.fullmatch(str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else None
        if told is None:
            self._refuse(at, value, "a number of bytes, such as 50MB or 52428800")
        return math.floor(float(told[1]) * _UNITS[told[2] or ""])

    def _between(self, at: Key, value: Any) -> tuple[time, time]:
        told = [_CLOCK.fullmatch(each) for each in value if isinstance(each, str)] if isinstance(value, list) else []
        if len(told) != 2 or len(value) != 2 or told[0] is None or told[1] is None:
            self._refuse(at, value, 'two times of day in quotes, as ["20:00", "06:00"]')
        begin, end = (time(int(each[1]), int(each[2])) for each in told if each is not None)
        if begin == end:
            self._refuse(at, f"{value[0]} to {value[1]}", "two different times of day")
        return begin, end

    def _code(self, value: Any) -> tuple[str, ...]:
        return tuple(self._digest(("code", at), each) for at, each in enumerate(self._texts(("code",), value)))

    def _digest(self, at: Key, value: Any) -> str:
        if not isinstance(value, str) or not _DIGEST.fullmatch(value):
            self._refuse(at, value, "sha256: and 64 hexadecimal digits")
        return value

    def _texts(self, at: Key, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            self._refuse(at, value, "a list")
        for place, each in enumerate(value):
            if not isinstance(each, str) or not each:
                self._refuse((*at, place), each, "a word")
        return tuple(value)

    def _count(self, at: Key, value: Any) -> int:
        if type(value) is not int or value < 1:
            self._refuse(at, value, "a whole number, at least 1")
        return value

    def _number(self, at: Key, value: Any, most: float) -> float:
        if type(value) not in (int, float) or not 0 < value <= most or not math.isfinite(value):
            self._refuse(at, value, "a number above 0" + (f" and at most {most:g}" if math.isfinite(most) else ""))
        return float(value)

    def _section(self, at: Key, data: Any, keys: tuple[str, ...]) -> Mapping[str, Any]:
        if not isinstance(data, dict):
            self._refuse(at, data, f"a section with some of {', '.join(keys)}")
        for key in data:
            if key not in keys:
                self._refuse((*at, key), "a key that is not known here", f"one of {', '.join(keys)}")
        return data

    def _refuse(self, at: Key, value: Any, expected: str) -> NoReturn:
        """Raises ConfigError: where, what was found, what was expected."""
        shown = value if isinstance(value, str) else "missing" if value is None else describe(value)
        where = self.tree.where(at) or str(self.path)
        raise ConfigError(f"{where}: `{'.'.join(map(str, at))}` is {shown[:80]}; expected {expected}")
