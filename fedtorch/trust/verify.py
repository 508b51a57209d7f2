"""Looks again, offline, at what a party has of a run: signatures, the chain of records, receipts, sums, decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedtorch.core.errors import CheckpointError, ConfigError, TrustError
from fedtorch.core.prime import added
from fedtorch.trust.kept import KeptFiles, KeptLeaves
from fedtorch.trust.members import Members
from fedtorch.trust.merkle import LEAF
from fedtorch.trust.policy.decisions import FILE as DECISIONS
from fedtorch.trust.policy.decisions import read_decisions
from fedtorch.trust.receipts import FILE, NOTHING, ReceiptsFile, Signed, is_enough
from fedtorch.trust.tags import TagKey


@dataclass
class Verified:
    """Findings in one party's files."""

    party: str
    """Whose they are."""
    lines: list[tuple[str, str]] = field(default_factory=list)
    """(kind, what of it is right)."""
    failures: list[str] = field(default_factory=list)
    """What is wrong, first of all the first."""

    def shown(self) -> str:
        """For the terminal."""
        width = max((len(kind) for kind, _ in self.lines), default=0)
        text = [f"{self.party}:", *(f"  {kind:<{width}}  {found}" for kind, found in self.lines)]
        return "\n".join([*text, *(f"  WRONG: {failure}" for failure in self.failures)])


class Verifier:
    """Looks through the files of one party."""

    def __init__(self, folder: Path, members: Members | None) -> None:
        """members: a list in place of those that are kept beside the receipts.

        Raises:
            CheckpointError: the receipts cannot be read.
        """
        self.party, self._given = folder.name, members
        self.file, self.kept = ReceiptsFile(folder / FILE), KeptFiles(folder)
        self.found = Verified(self.party)
        self._lists: dict[str, Members] = {}

    @cached_property
    def records(self) -> list[Signed]:
        """The server's, in order."""
        return self.file.records()

    @cached_property
    def _right(self) -> set[str]:
        return self.file.right(self.party)

    def verify(self) -> Verified:
        """Look at everything; what is wrong with one kind does not keep from looking at the next."""
        looks = self._signatures, self._chain, self._receipts, self._acknowledgements, self._sums, self._decisions
        for look in (*looks, self._evidence):
            try:
                look()
            except (TrustError, ConfigError, CheckpointError) as error:
                self.found.failures.append(str(error))
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                self.found.failures.append(f"a text does not say what it should ({type(error).__name__}: {error})")
        return self.found

    def _says(self, kind: str, found: str) -> None:
        self.found.lines.append((kind, found))

    def members(self, digest: str) -> Members:
        """The list with this digest.

        Raises:
            TrustError: it is not there.
        """
        if self._given is not None and self._given.digest == digest:
            return self._given
        if digest not in self._lists:
            found = self.kept.members(digest)
            if found is None:
                raise TrustError(
                    f"there is no list of members with the sha256 {digest[:16]}..., under which something was signed; "
                    "name it with --members"
                )
            self._lists[digest] = found
        return self._lists[digest]

    def _signatures(self) -> None:
        lists: list[Members] = []
        for number, signed in enumerate(self.file.signed, start=1):
            digest = signed.about.get("members")
            if isinstance(digest, str):
                lists = [self.members(digest)]
            if not lists:
                raise TrustError(f"line {number} of {self.file.path} comes before any record")
            signed.check_line(lists[0], number, self.file.path)
        if not self.file.signed:
            raise TrustError(f"{self.file.path} has nothing in it")
        self._says("signatures", f"{len(self.file.signed)}, each of the member whose text it is")

    def _chain(self) -> None:
        known: dict[str, Signed] = {}
        before: Signed | None = None
        for record in self.records:
            about, where = record.about, _where(record)
            wanted = before.digest if before else NOTHING
            if record.party != self.members(about["members"]).server:
                raise TrustError(f"{where} is of `{record.party}`, which is not the server")
            if about["previous"] != wanted:
                raise TrustError(f"{where} follows {about['previous'][:16]}, but before it stands {wanted[:16]}")
            if before is not None and about["run"] != before.about["run"]:
                raise TrustError(f"{where} is of another run")
            origin = known.get(about["from"])
            if origin is None and about["from"] != NOTHING:
                raise TrustError(f"{where} starts from the record {about['from'][:16]}, which is not there")
            if origin is not None and "begins" in about and not record.says(_point(origin)):
                raise TrustError(f"{where} does not begin with the weights and the state of the record it starts from")
            if origin is None and before is not None:
                raise TrustError(f"{where} starts from nothing, though there are records before it")
            if "begins" not in about and (before is None or about["from"] != before.digest):
                raise TrustError(f"{where} does not start from the record before it")
            known[record.digest], before = record, record
        rounds = [record.about["round"] + 1 for record in self.records if "begins" not in record.about]
        begun = len(self.records) - len(rounds)
        shown = f", rounds {min(rounds)} to {max(rounds)}" if rounds else ""
        times = f", {begun} starts" if begun > 1 else ""
        self._says("records", f"{len(self.records)}{shown}{times}, in one chain")

    def _receipts(self) -> None:
        known = {each.digest: each for each in self.file.signed if each.kind == "receipt"}
        own, counted = 0, 0
        for record in self.records:
            for party, digest in record.about.get("receipts", {}).items():
                receipt = known.get(digest)
                if receipt is None:
                    if self._is_missed(record):
                        continue
                    raise TrustError(f"the receipt of `{party}` that {_where(record)} names is not there")
                same = {name: record.about[name] for name in ("attempt", "meeting", "round", "run")}
                origin = self._origin(record)
                if receipt.party != party or not receipt.says({**same, "weights": origin.about["next"]}):
                    raise TrustError(f"the receipt of `{party}` that {_where(record)} names is of something else")
                counted, own = counted + 1, own + (party == self.party)
        self._says("receipts", f"{counted}, {own} of them of this party")

    def _origin(self, record: Signed) -> Signed:
        for each in self.records:
            if each.digest == record.about["from"]:
                return each
        raise TrustError(f"{_where(record)} starts from a record that is not there")

    def _is_missed(self, record: Signed) -> bool:
        """Was this party away, and got the record afterwards?"""
        return record.digest not in self._right and self.party not in record.about["receipts"]

    def _acknowledgements(self) -> None:
        silos: dict[str, set[str]] = {}
        for each in self.file.signed:
            if each.kind == "acknowledgement":
                silos.setdefault(each.about["record"], set()).add(each.party)
        counts = []
        for record, following in zip(self.records, self.records[1:], strict=False):
            if following.about["meeting"] != record.about["meeting"] or self._is_missed_start(following):
                continue  # the attempt ended there
            members = self.members(record.about["members"])
            there = silos.get(record.digest, set()) & set(members.silos)
            if not is_enough(len(there), len(members.silos), record.about["colluders"]):
                raise TrustError(
                    f"{_where(record)} was acknowledged by {len(there)} of {len(members.silos)} silos "
                    f"({', '.join(sorted(there)) or 'none'}), and was followed by another one all the same"
                )
            counts.append(len(there))
        least = f", each by {min(counts)} silos or more" if counts else ""
        has_end = bool(self.records) and bool(silos.get(self.records[-1].digest))
        end = "the last one too" if has_end else "the last one not yet"
        self._says("acknowledgements", f"of {len(counts)} records{least}; {end}")

    def _is_missed_start(self, following: Signed) -> bool:
        return "begins" not in following.about and self._is_missed(following)

    def _sums(self) -> None:
        looked, rounds, whole = 0, 0, 0
        if hidden := [record for record in self.records if record.is_of_round and "sum" not in record.about]:
            self._says("sums", f"not checked in {len(hidden)} rounds: the server's own noise is its secret")
        for record in self.records:
            if "sum" not in record.about or (kept := self.kept.leaves(record.digest)) is None:
                continue
            origin = self._origin(record)
            self._check_leaves(record, origin, kept)
            looked, rounds, whole = looked + len(kept.places), rounds + 1, whole + int(record.about["leaves"])
        if looked:
            self._says("sums", f"{looked} of {whole} leaves in {rounds} rounds, with the tags of the parts")
        elif not hidden:
            self._says("sums", "no leaves are kept here")

    def _check_leaves(self, record: Signed, origin: Signed, kept: KeptLeaves) -> None:
        about, where = record.about, _where(record)
        for place, found in zip(kept.places, kept.roots(int(about["leaves"])), strict=True):
            if found != about["sum"]:
                raise TrustError(f"leaf {place} that is kept of {where} is not of its sum")
        if (key := self.kept.key(about["meeting"])) is None:
            raise TrustError(f"the key of the tags of {where} is not there, though leaves are")
        name = f"{about['run']}/{about['round']}/{about['attempt']}/{origin.about['next']}"
        tags, count = TagKey(key, name), int(about["leaves"])
        pads = added([tags.pads(party, count) for party in about["receipts"]], count)
        parts = [kept.sums[at * LEAF : (at + 1) * LEAF] for at in range(len(kept.places))]
        known = np.concatenate([tags.tags(part, place) for part, place in zip(parts, kept.places, strict=True)])
        wrong = np.flatnonzero(added([known, pads[list(kept.places)]], len(known)) != kept.tags)
        if len(wrong):
            raise TrustError(f"leaf {kept.places[int(wrong[0])]} that is kept of {where} is not the sum of the parts")

    def _decisions(self) -> None:
        """Has the party's gate, where it has one, let out all that it has signed a receipt for?"""
        folder = self.file.path.parents[2]
        lines = read_decisions(folder)
        let_out = {str(line["sent"]) for line in lines if "sent" in line and line.get("party") == self.party}
        if not let_out:
            return
        own = [each for each in self.file.signed if each.kind == "receipt" and each.party == self.party]
        if missing := [each.about["round"] for each in own if each.about["sent"] not in let_out]:
            raise TrustError(f"a part of round {missing[0] + 1} has left of which {folder / DECISIONS} has no decision")
        refused = sum(line["verdict"] == "refused" for line in lines)
        self._says("decisions", f"{len(lines)} by the site's policy, {refused} of them refused something")

    def _evidence(self) -> None:
        if self.file.evidence.exists():
            raise TrustError(f"this party stopped the run as it found something wrong: see {self.file.evidence}")


def forks(verifiers: Sequence[Verifier], beside: Sequence[ReceiptsFile]) -> list[str]:
    """Two records that the server has signed of one exchange, or of one beginning, are proof against it."""
    seen: dict[tuple[Any, ...], Signed] = {}
    found = []
    lists = verifiers[0]
    for file in (*(each.file for each in verifiers), *beside):
        for record in file.records():
            try:
                record.check(lists.members(record.about["members"]))
            except (TrustError, KeyError):
                continue  # nobody's word
            about = record.about
            place = tuple(str(about.get(name)) for name in ("run", "round", "attempt", "meeting", "begins"))
            other = seen.setdefault(place, record)
            if other.digest != record.digest:
                found.append(
                    f"`{record.party}` has signed two records of one exchange: {_where(record)} in {file.path}"
                )
    return found


def _where(record: Signed) -> str:
    about = record.about
    what = "the beginning" if "begins" in about else "round"
    place = f"after {about.get('round')} rounds" if "begins" in about else f"{int(about.get('round', -1)) + 1}"
    return f"the record of {what} {place}"


def _point(record: Signed) -> dict[str, Any]:
    return {name: record.about[name] for name in ("next", "state")}
