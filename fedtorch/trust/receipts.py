"""Texts that parties sign of a round, with their signatures, and the file in which each party keeps them.

Every line of the file is JSON: what kind of text it is, whose, the text itself and its signature. The text is JSON too,
and is kept as the text that was signed: what is read and written again would be signed by nobody.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedtorch.core.errors import CheckpointError, TrustError
from fedtorch.privacy.owner_files import append_own, whole_lines, write_own
from fedtorch.trust.keys import Signer, is_signed
from fedtorch.trust.members import Members

FOLDER = "trust"
"""In the run folder; in it each party of this machine has a folder of its own."""
FILE = "receipts.jsonl"
"""Name of the file, in that one."""
NOTHING = 64 * "0"
"""In place of a digest where nothing comes before."""


def canonical(about: Mapping[str, Any]) -> str:
    """JSON with keys in order and no spaces, in ASCII; the same text for equal things, whoever writes it.

    Floats are given as `float.hex()`, by whoever calls this.
    """
    return json.dumps(about, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


@dataclass(frozen=True)
class Signed:
    """A text of a party, with its signature."""

    kind: str
    """receipt, record, acknowledgement."""
    party: str
    """Name of the member who has signed it."""
    text: str
    """As it was signed, ASCII."""
    signature: str
    """64 bytes, hexadecimal."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """What is kept beside it by this party alone, and never sent."""

    @classmethod
    def by(cls, key: Signer, kind: str, party: str, about: Mapping[str, Any]) -> Signed:
        """Sign what is said of it. about: the kind and the party are added."""
        unsigned = cls.unsigned(kind, party, about)
        return replace(unsigned, signature=key.sign(unsigned.text.encode()).hex())

    @classmethod
    def unsigned(cls, kind: str, party: str, about: Mapping[str, Any]) -> Signed:
        """Make such a text without a signature."""
        return cls(kind, party, canonical({**about, "kind": kind, "party": party}), "")

    @cached_property
    def digest(self) -> str:
        """sha256 of the text, hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """Entries of the text; none where it cannot be read."""
        if self.kind == "acknowledgement" and "\0" in self.text:  # one that was sworn at a meeting
            federation, _, key, value = [*self.text.split("\0"), "", "", ""][:4]
            weights, _, record = value.partition(" ")
            about = {"federation": federation, "kind": self.kind, "party": self.party}
            return {**about, "weights": weights, "record": record} if key.startswith("oath/") else {}
        try:
            found = json.loads(self.text)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def check(self, members: Members) -> None:
        """Look whether that party has signed it.

        Raises:
            TrustError: it has not, or speaks in another one's name.
        """
        member, said = members.by_name.get(self.party), self.about
        signature = bytes.fromhex(self.signature) if _is_hex(self.signature) else b""
        if member is None or not is_signed(self.text.encode("utf-8", "surrogatepass"), signature, member.key):
            raise TrustError(f"a {self.kind} was not signed by `{self.party}`, whose it is said to be")
        if (said.get("kind"), said.get("party"), said.get("federation")) != (
            self.kind,
            self.party,
            members.federation,
        ):
            raise TrustError(f"a {self.kind} of `{self.party}` is in truth another text that this party has signed")

    def says(self, expected: Mapping[str, Any]) -> bool:
        """Does the text have these entries?"""
        about = self.about
        return all(name in about and about[name] == value for name, value in expected.items())

    @property
    def is_of_round(self) -> bool:
        """Is it a record of a round, and not of where a run begins or goes on?"""
        return self.kind == "record" and "begins" not in self.about

    @property
    def is_right(self) -> bool:
        """Has this party found right what the text says?"""
        return self.kept.get("found") == "right"

    def found_right(self) -> Signed:
        """Make a copy that says, for this party's file, that it has found the text right."""
        return replace(self, kept={**self.kept, "found": "right"})

    def sent(self) -> dict[str, Any]:
        """For the way to others."""
        return {"kind": self.kind, "party": self.party, "text": self.text, "signature": self.signature}

    def check_line(self, members: Members, number: int, path: Path) -> None:
        """As `check`, of a line of a file.

        Raises:
            TrustError: that party has not signed it; names the line.
        """
        try:
            self.check(members)
        except TrustError as error:
            raise TrustError(f"line {number} of {path}: {error}") from None

    def line(self) -> dict[str, Any]:
        """For this party's file."""
        return {**self.sent(), "kept": dict(self.kept)} if self.kept else self.sent()

    @classmethod
    def of(cls, line: Any) -> Signed:
        """Read a line.

        Raises:
            ValueError: it is none.
        """
        if not isinstance(line, dict):
            raise ValueError("is no object")
        words = [line.get(name) for name in ("kind", "party", "text", "signature")]
        kept = line.get("kept", {})
        texts = [*words, *kept.values()] if isinstance(kept, dict) else [None]
        if not all(isinstance(text, str) for text in texts) or line.keys() - {
            "kind", "party", "text", "signature", "kept",
        }:  # fmt: skip
            raise ValueError("is not a signed text")
        kind, party, text, signature = map(str, words)
        return cls(kind, party, text, signature, kept)


def is_enough(count: int, silos: int, colluders: int) -> bool:
    """Are they so many that of any two such groups of silos an honest one is in both? So a server cannot fork them."""
    return 2 * count > silos + colluders


def _is_hex(text: str) -> bool:
    return len(text) == 128 and all(letter in "0123456789abcdef" for letter in text)


class ReceiptsFile:
    """The texts that one party has of a run, in the order in which it got them."""

    def __init__(self, path: Path) -> None:
        """path: it need not be there.

        Raises:
            CheckpointError: it cannot be read, or a line of it is none; but for a last one that was cut off.
        """
        self.path, self.signed = path, list[Signed]()
        try:
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error
        for number, line in enumerate(whole_lines(content), start=1):
            try:
                self.signed.append(Signed.of(json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise CheckpointError(
                    f"line {number} of {path} {error}; somebody has changed it, or the disk. Restore the file from a "
                    "copy, or begin a new run"
                ) from None

    def add(self, signed: Iterable[Signed]) -> None:
        """Write them; they are on the disk when this returns.

        Raises:
            CheckpointError: the disk refuses.
        """
        added = list(signed)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            append_own(self.path, [each.line() for each in added])
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be written ({error.strerror or error}), and nothing may leave without a receipt; "
                "free some space and start the run again"
            ) from error
        self.signed += added

    @property
    def evidence(self) -> Path:
        """File of a party that has found something wrong: with what it found and what the server had sent."""
        return self.path.with_name("evidence.json")

    def keep_evidence(self, why: str, told: Iterable[Signed]) -> None:
        """Write what was found, and the texts that the server sent; where the disk refuses, the reason says it too."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_own(self.evidence, json.dumps({"why": why, "told": [each.line() for each in told]}).encode())

    def refuse_evidence(self) -> None:
        """Raises TrustError: this party has found something wrong in the run before."""
        if self.evidence.exists():
            raise TrustError(
                f"this party has found something wrong in this run before, see {self.evidence}; speak with the others, "
                "and go on only if all know what it was: move the file away"
            )

    def set_aside(self) -> None:
        """A new run begins in the folder: what is there of an old one gets another name."""
        for path in (self.path, self.evidence):
            number = 1
            while (aside := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
                number += 1
            if path.exists():
                path.rename(aside)
        self.signed.clear()

    def right(self, party: str) -> set[str]:
        """Digests of the records that this party has found right, or has said so of in a text of its own."""
        own = (each for each in self.signed if each.kind == "acknowledgement" and each.party == party)
        return {r.digest for r in self.records() if r.is_right} | {str(each.about.get("record")) for each in own}

    def records(self) -> list[Signed]:
        """The server's, in order."""
        return [each for each in self.signed if each.kind == "record"]
