"""Answers that a party has given in secure sums, on its own disk: it answers for one sum of a round, and no other.

Of two sums of a round, of some parties and then of fewer, the difference is the part of those who are missing. So a
party that has answered answers again only where weights, survivors and its own part are the same, also after a restart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fedtorch.core.errors import CheckpointError, TrustError
from fedtorch.privacy.owner_files import append_own, whole_lines


class Answers:
    """The answers of one party in one run."""

    def __init__(self, path: Path) -> None:
        """path: need not be there."""
        self.path, self._given = path, dict[int, dict[str, str]]()
        try:
            content = path.read_bytes() if path.exists() else b""
            for line in whole_lines(content):
                found = json.loads(line)
                round = int(found.pop("round"))
                self._given[round] = {str(name): str(value) for name, value in found.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path} has what this party has answered in secure sums, and cannot be read ({error}); restore it "
                "from a copy, or begin a new run"
            ) from error

    def give(self, round: int, about: Mapping[str, str]) -> None:
        """Before an answer; a line of it is on the disk when this returns. about: all that the sum is of.

        Raises:
            TrustError: this party has answered for another sum in this round. CheckpointError: the disk refuses.
        """
        known = self._given.get(round)
        if known is not None and known != about:
            other = next(name for name in about if known.get(name) != about[name])
            raise TrustError(
                f"the server asks to unmask a sum of round {round + 1} with another `{other}` than the one for which "
                "this party has answered in that round; the difference would show somebody's part. Nothing is said"
            )
        if known is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                append_own(self.path, [{"round": round, **about}])
            except OSError as error:
                raise CheckpointError(
                    f"{self.path} cannot be written ({error}), so this party helps to unmask nothing; free some space "
                    "and start the run again"
                ) from error
            self._given[round] = dict(about)
