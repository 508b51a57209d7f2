"""Counts of what has left a site in a run, over all attempts and starts, by its `policy.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtorch.trust.policy.decisions import FILE, read_decisions, unreadable

BEGINS = "a new run"
"""What a line is about from which counts begin anew."""


@dataclass
class Spent:
    """Counts of one run."""

    roots: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """(client, round) -> roots of its updates, of those that only got their noise too; the same one counts once."""
    reports: dict[int, int] = field(default_factory=dict)
    """Round -> bytes of reports."""

    @classmethod
    def of(cls, folder: Path) -> Spent:
        """Counts of the run in a folder; all of them 0 where it has no decisions.

        Raises:
            CheckpointError: the decisions cannot be read.
        """
        found, lines = cls(), read_decisions(folder)
        try:
            for line in lines:
                found._see(line)
        except (ValueError, KeyError, TypeError) as error:
            raise unreadable(folder / FILE, error) from error
        return found

    def _see(self, line: Mapping[str, Any]) -> None:
        word, _, number = line["at"].partition(" ")
        if line.get("about") == BEGINS:
            self.roots.clear()
            self.reports.clear()
        elif word == "round" and line["verdict"] == "allowed":
            if "root" in line or "noised" in line:
                self.add(str(line["client"]), int(number), str(line.get("root", line.get("noised"))))
            elif "sent" not in line:
                self.report(int(number), int(line["bytes"]))

    def add(self, client: str, round: int, root: str) -> None:
        """An update leaves, or has its noise."""
        self.roots.setdefault((client, round), set()).add(root)

    def report(self, round: int, num_bytes: int) -> None:
        """Reports have left."""
        self.reports[round] = self.reports.get(round, 0) + num_bytes

    def updates(self, client: str, root: str, round: int) -> int:
        """How many different updates of the client would have left, in all rounds, with one of this root."""
        others = sum(len(found) for (name, _), found in self.roots.items() if name == client)
        return others + (root not in self.roots.get((client, round), ()))

    def times(self, round: int) -> int:
        """How often, at most, a client has sent another update in the round."""
        return max((len(found) for (_, at), found in self.roots.items() if at == round), default=0)
