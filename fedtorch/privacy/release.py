"""A release as ledgers keep it: which draw of a round's cohort, with which noise, was put on which sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class TwoSumsError(ValueError):
    """A ledger has two sums under one attempt, and so one noise on both."""


def counted(number: object) -> int:
    """A whole number that is not negative, as it was written.

    Raises:
        ValueError: it is something else.
    """
    if type(number) is not int or number < 0:
        raise ValueError("not a count")
    return number


class Release(NamedTuple):
    """Something that has left the server, or was about to."""

    round: int
    """From 0."""
    attempt: int
    """Which draw of the round's cohort and of its noise: the next one where another sum than the last one's came."""
    digest: str | None
    """Of the sum before noise, keyed; empty: none has left under this attempt yet; None: an earlier version released
    one and did not write it down."""
    draw: int = 0
    """The attempt whose cohort it is of: its own, but 0 in ledgers of earlier versions, which kept a round's cohort."""

    @classmethod
    def begun(cls, round: int, attempt: int) -> Release:
        """One of which nothing has left yet."""
        return cls(round, attempt, "", attempt)

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Release:
        """As it was written.

        Raises:
            ValueError, KeyError, TypeError: the line is none.
        """
        digest = line.get("digest")
        if digest is not None and not isinstance(digest, str):
            raise TypeError("a digest is no text")
        return cls(counted(line["round"]), counted(line["attempt"]), digest, counted(line.get("draw", 0)))

    def line(self) -> dict[str, Any]:
        """Line of a ledger; without a draw of 0, as before."""
        found = self._asdict()
        return found if self.draw else {name: found[name] for name in ("round", "attempt", "digest")}

    @property
    def is_open(self) -> bool:
        """Has nothing left yet?"""
        return self.digest == ""

    def covers(self, other: Release) -> bool:
        """May `other` be the same release, as far as its digest was written down, or its beginning?"""
        return other.digest in ("", None, self.digest) or self.digest is None


def merge(known: dict[tuple[int, int], Release], release: Release) -> None:
    """Add a line to those before it: that of a sum takes the place of its attempt's beginning.

    Raises:
        TwoSumsError: two sums under one attempt, and so with one noise.
    """
    there = known.get((release.round, release.attempt))
    if there is None or there.is_open:
        known[release.round, release.attempt] = release
    elif not release.is_open and not there.covers(release):
        raise TwoSumsError(f"two sums of round {release.round + 1} under attempt {release.attempt}")
