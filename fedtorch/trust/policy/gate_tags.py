"""The key of tags in a gate: it makes and checks tags for the process that trains, which never learns the key.

Nothing that it answers tells more of the key than a guess would: tags of what leaves are padded, and of an exchange
there is one part; of a sum it says which leaves are wrong; and it says which leaves are looked at once the server has
signed the record, of one record for each exchange.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedtorch.core.errors import PolicyError, PreflightError, TrustError
from fedtorch.trust.kept import KeptFiles
from fedtorch.trust.keys import is_signed
from fedtorch.trust.receipts import FOLDER, Signed
from fedtorch.trust.silo_tags import OwnMeeting, OwnTags
from fedtorch.trust.tags import TagKey


@dataclass
class GateTags:
    """The key, and what was asked of it since the parties met."""

    folder: Path
    """Folder of the run."""
    party: str
    """Name of this silo."""
    meeting: OwnMeeting
    """At which silos agree on it."""
    boxes: bytes = b"{}"
    """Goes to the others with the note of the meeting."""
    used: set[str] = field(default_factory=set)
    """Names of exchanges of which a part has tags."""
    records: dict[str, str] = field(default_factory=dict)
    """Exchange -> digest of the record for which leaves were drawn."""

    @property
    def own(self) -> OwnTags:
        """The key.

        Raises:
            PolicyError: there is none yet.
        """
        if self.meeting.tags is None:
            raise PolicyError("the gate has no key of tags yet")
        return self.meeting.tags

    def once(self, exchange: str) -> TagKey:
        """Factors and pads for the part of an exchange; two parts with one pad would tell something of the factors.

        Raises:
            PolicyError: there was such a part.
        """
        if exchange in self.used:
            raise PolicyError("the gate makes the tags of one part in an exchange")
        self.used.add(exchange)
        return self.own.of(exchange)

    def answer(self, question: Mapping[str, Any], beside: memoryview) -> dict[str, Any] | None:
        """Answer a question about tags; None: it is no such question.

        Raises:
            PreflightError, TrustError: it cannot be.
        """
        asked = question.get("ask")
        if asked == "agree":
            self.meeting.agree(str(beside, "utf-8"), str(question["scope"]), _by_rank(question["signed"]))
        elif asked == "draw":
            boxes = self.meeting.draw()
            self.boxes = json.dumps(boxes).encode()
            return {"boxes": boxes}
        elif asked == "open":
            try:
                self.meeting.open(int(question["first"]), str(question["box"]))
            except ValueError as error:
                raise PreflightError(str(error)) from None
        elif asked == "keep":
            self.own.keep(KeptFiles(self.folder / FOLDER / self.party))
        elif asked == "check":
            return self._check(question, beside)
        elif asked == "leaves":
            self._draw(question, beside)
        else:
            return None
        return {}

    def _check(self, question: Mapping[str, Any], beside: memoryview) -> dict[str, Any]:
        whole = np.frombuffer(beside, np.int64)
        numbers, tags = whole[: int(question["count"])], whole[int(question["count"]) :].view(np.uint64)
        parties, places = [str(party) for party in question["parties"]], question["places"]
        about = str(question["exchange"]), parties, int(question["leaves"]), numbers, tags, places
        try:
            count, first = self.own.wrong(*about)
        except ValueError as error:
            raise TrustError(str(error)) from None
        return {"count": count, "first": first}

    def _draw(self, question: Mapping[str, Any], beside: memoryview) -> None:
        """Write a 1 for each leaf that is looked at."""
        record = Signed("record", "", str(question["text"]), str(question["signature"]))
        server = self.meeting.public.get(0, b"")
        if not is_signed(record.text.encode(), bytes.fromhex(record.signature), server):
            raise PolicyError("the gate draws leaves for a record that the server has signed")
        exchange = repr([record.about.get(name) for name in ("run", "round", "attempt")])
        if self.records.setdefault(exchange, record.digest) != record.digest:
            raise TrustError("the server has signed two records of one exchange")
        found = np.frombuffer(beside, np.uint8)
        found[self.own.drawn(record, len(found), float.fromhex(question["share"]))] = 1


def _by_rank(signed: Mapping[str, str]) -> dict[int, str]:
    return {int(rank): str(text) for rank, text in signed.items()}
