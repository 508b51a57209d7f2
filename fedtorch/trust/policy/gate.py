"""The gate's judgement: it holds a silo's key, and signs what it knows and has measured itself.

1. It begins with what the run asks for, and judges that by the policy that it has read itself.
2. Every update comes to it before the report on it does. It looks at the places, the norm, the bytes, the round and the
   time of day, and gives the root of the update, by which others can tell that it is this one (`trust.merkle`).
3. A report is signed only if it has nothing that the policy does not allow, and is of updates that came.
4. Where a silo adds noise to its part of a sum, the gate does, and no part without it is let out.
5. What leaves of the updates it makes itself of what it has measured (`parts`), under masks where there is a secure
   sum, and signs a receipt of that and of nothing else.

After the first violation nothing more is signed but signs of life and the refusal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from fedtorch.core.errors import PolicyError, PreflightError
from fedtorch.core.prime import Words
from fedtorch.privacy.record.silo import Block, Silo, Step
from fedtorch.privacy.secure_sum.terms import SumTerms
from fedtorch.trust.keys import PrivateKey
from fedtorch.trust.merkle import LEAF, root
from fedtorch.trust.policy.asked import Asked
from fedtorch.trust.policy.decisions import Decisions
from fedtorch.trust.policy.file import Policy
from fedtorch.trust.policy.gate_tags import GateTags
from fedtorch.trust.policy.judge import judge, refuse
from fedtorch.trust.policy.noised import leaves_nothing_bare
from fedtorch.trust.policy.notes import Note, read_note, read_text
from fedtorch.trust.policy.parts import WAYS, MaskedSum, OutgoingPart, factors_of
from fedtorch.trust.policy.spent import BEGINS, Spent
from fedtorch.trust.silo_tags import OwnMeeting

Vector = npt.NDArray[np.floating]
_WINDOW = 1 << 20
_SLACK = 1e-6
_WHOLE = 8
_EXACT = float(1 << 53)  # above it not every whole number is a float64
_HIDDEN = "(hidden)"  # as signs of life name whoever is not to be known
_MOST_DRAWS = 65  # how often a client is drawn for a round may be its weight
_TAGS = "key of tags"  # a meeting
_FREE = ("hello", "joined", "bye", "gone", "heard", "knock", "knocks", "heartbeat", "start", "transcript", "refusal")
"""Notes that a side signs whose policy refuses the run: by them it comes, says so and leaves."""


@dataclass(frozen=True)
class Leaving:
    """Something in the mail that goes with a note."""

    line: str
    """Key of the policy that decides about it; empty: none."""
    kind: str
    """Its kind, as `kinds` has it, or a word for what is none."""
    client: str = ""
    """Whose update it reports, where it does."""
    numbers: tuple[float, ...] = ()
    """All that are in the report."""


class Reader(Protocol):
    """Finds out what is in a mail."""

    def __call__(self, mail: bytes, asked: Asked, names: Sequence[str]) -> Iterator[Leaving]:
        """Everything in it that is not always allowed. names: of all clients, by index."""
        ...


@dataclass(frozen=True)
class Side:
    """This side of a run."""

    federation: str
    """Name of the federation."""
    name: str
    """Name of this member."""
    rank: int
    """Number of its process."""
    clients: tuple[str, ...]
    """Clients that live here."""
    names: tuple[str, ...]
    """Names of all clients, by index."""
    public: tuple[tuple[int, str], ...] = ()
    """(rank, public key of its party, hexadecimal), by this site's list."""


@dataclass
class Gate:
    """State of a gate. Every method may be called with anything at all."""

    key: PrivateKey
    """The silo's."""
    policy: Policy
    """Its policy."""
    side: Side
    """This side."""
    asked: Asked
    """What the run asks for."""
    decisions: Decisions
    """Where every decision is written."""
    read_mail: Reader
    """Finds out what is in a mail."""
    now: Callable[[], datetime] = datetime.now
    """This site's clock."""
    round: int = -1
    """Round of the last update or report."""
    spent: Spent = field(default_factory=Spent)
    """Counts of what has left, in all attempts."""
    numbers: int = 0
    """Of the last update."""
    passed: dict[str, Vector] = field(default_factory=dict)
    """Client -> its update of this round, as the gate has measured it."""
    part: OutgoingPart | None = None
    """Is about to leave."""
    sent: str = ""
    """Salted digest of the part that has left last, of which a receipt may be signed."""
    masked: MaskedSum | None = None
    """This side of the secure sum under way."""
    tags: GateTags | None = None
    """The key of tags, and what was asked of it since the parties met last."""
    reported: set[float] = field(default_factory=set)
    """Numbers of the reports of this round that were let out."""
    paper: bytes = b""
    """The last text that was sworn to, with its signature."""
    is_closed: bool = False
    """Has something been refused?"""

    def begin(self, *, is_new: bool = False) -> None:
        """Judge what the run asks for. is_new: counts begin anew with it, and else go on where they were.

        Raises:
            PolicyError: a line refuses it; then only the refusal is signed from now on.
            CheckpointError: what has left before cannot be read.
        """
        if is_new:
            self.decisions.add({"at": "start", "verdict": "allowed", "about": BEGINS})
        self.spent = Spent.of(self.decisions.folder)
        try:
            refuse(judge(self.policy, self.asked))
        except PolicyError:
            self.is_closed = True
            raise

    def sign(self, text: bytes, beside: bytes = b"") -> bytes:
        """Signature of a note: federation, scope, key and value with zeros between. beside: the mail that goes with it.

        Raises:
            PolicyError: it is no note that this side signs, or something in the mail may not leave.
        """
        note = self._note(text) if not text.startswith(b"{") else self._text(text)
        if note is None:
            self._refuse("", "a note that no line of the policy knows")
        if self.is_closed and note.kind not in _FREE:
            self._refuse("", "something that comes after a refusal")
        if note.kind == "hello":  # another attempt, which may begin with an earlier round
            self.round = -1
        weights = f"sha256:{note.oath[:64]}"
        if note.kind == "sum" and note.phase != "survivors" and note.oath not in self._said:
            self._refuse("", "a text of a secure sum that the gate has not made")
        if note.kind == "oath" and self.round == 0 and weights != (self.policy.initial or weights):
            self._refuse("initial", "an update of other weights than those that the policy names")
        if beside:
            self._check_mail(note, beside)
        signature = self.key.sign(text, beside)
        if note.phase == "keys" and self.masked is not None:  # the others' are signed for the same meeting
            self.masked.scope = text.split(b"\0")[1].decode("utf-8", "surrogatepass")
        if note.kind in ("oath", "transcript"):
            self.paper = f"{signature.hex()} {note.oath}".encode()
        return signature

    def add_noise(self, step: Step, total: npt.NDArray[np.float64], blocks: Sequence[Block]) -> str:
        """Add the noise of a client's part, in place, to its sum of whole numbers; see `Silo.add_noise`.

        Only such parts leave; each counts as an update though it may not leave, or one could be chosen among many.
        blocks: of those that the run has asked for; whatever is outside of them is 0, or public.

        Raises:
            PolicyError: it is no such sum. CheckpointError: the noise's key cannot be read.
        """
        about = next((each for each in self.asked.noise if each[0] == step.client), None)
        if self.is_closed or about is None or step.client not in self.side.clients:
            self._refuse("require.privacy", "noise that the run has not asked for")
        if total.ndim != 1 or not np.all((np.rint(total) == total) & (np.abs(total) < _EXACT)):
            self._refuse("require.privacy", "a sum that is not of whole numbers, on which noise hides nothing")
        _, folder, kind, exponent, rounds = about
        unit, asked = math.ldexp(1.0, -exponent), rounds[min(step.round, len(rounds) - 1)]
        public = [block for block in asked if not block[2]]
        if not {*blocks} <= {*asked} - {*public} or not leaves_nothing_bare(total, blocks, public, 1 / unit):
            self._refuse("require.privacy", "numbers to which no noise would be added")
        noised = total.copy()  # not shown to the training process before it counts
        digest = Silo.open(Path(folder), "").add_noise(step, noised, kind, blocks)
        found = root((noised * unit).view(np.uint8), LEAF * total.itemsize).hex()
        self._count(step.client, step.round, found)
        of_noise = {"noise": kind, "deviation": min(block[2] for block in blocks) * unit} if blocks else {}
        said = {"at": f"round {step.round}", "verdict": "allowed", "line": "require.privacy", "client": step.client}
        self.decisions.add({**said, "noised": found, **of_noise})
        total[:] = noised
        return digest

    def pass_update(self, client: str, round: int, vector: Vector) -> str:
        """Root of a client's update, hexadecimal, which may leave. vector: flat, of float32 or float64.

        Raises:
            PolicyError: it may not.
        """
        if self.is_closed:
            self._refuse("", "something that comes after a refusal")
        if client not in self.side.clients:
            self._refuse("", "an update of a client that does not live here")
        self._enter(round)
        self._check_places(vector)
        if self.policy.require.clip is not None and self.asked.clips_updates:
            if not norm(vector) <= self.policy.require.clip * (1 + _SLACK):
                self._refuse("require.clip", "an update that is longer than the clip")
        found = root(vector.view(np.uint8), LEAF * vector.itemsize).hex()
        if self.asked.noise and found not in self.spent.roots.get((client, round), ()):
            self._refuse("require.privacy", "a part to which the gate has not added its noise")
        self._count(client, round, found)
        self.passed[client], self.numbers = vector, len(vector)
        self._check_bytes()
        self._allow("may_leave.parameters", client=client, root=found)
        return found

    def begin_part(
        self, way: str, round: int, terms: Sequence[tuple[str, float]], exponent: int, exchange: str = ""
    ) -> None:
        """A part is about to leave. terms: (client, its weight in the sum). exponent: of the scale of whole numbers.

        exchange: its name, where the part has tags.

        Raises:
            PolicyError: it may not.
        """
        wanted = self.policy.require.secure_sum
        if self.is_closed or way not in WAYS or not all(client in self.passed for client, _ in terms):
            self._refuse("may_leave.parameters", "a part of updates that the gate has not measured")
        if way != "masked" and (wanted is not None or self.asked.parties is not None):
            self._refuse("require.secure_sum", "a part without masks")
        if way == "updates" and exchange and len(terms) != 1:
            self._refuse("may_leave.parameters", "a part with tags, of which several updates leave as they are")
        self._enter(round)
        names, weights = [client for client, _ in terms], [weight for _, weight in terms]
        size = sum(count for _, count in self.asked.parameters) * self.asked.vectors
        party = self.masked.party if self.masked is not None else None
        about = [self.passed[n] for n in names], factors_of(weights, exponent), size, party
        key = self.tags.once(exchange) if exchange and self.tags is not None else None
        self.part = OutgoingPart(way, *about, key=key, name=self.side.name)
        self.sent = ""

    def finish_part(self) -> tuple[str, bytes, Words]:
        """(digest of what has left, its salt, its tags as they leave), of which a receipt may then be signed.

        Raises:
            PolicyError: there is no such part.
        """
        if self.part is None:
            self._refuse("may_leave.parameters", "a receipt of nothing")
        (self.sent, salt), tags = self.part.finish(), self.part.hidden_tags()
        self.part = None
        self._allow("may_leave.parameters", party=self.side.name, sent=self.sent)
        return self.sent, salt, tags

    def meet(self) -> str:
        """Begin to agree with the other silos on a key of tags; the public key of this side, hexadecimal."""
        public = {rank: bytes.fromhex(key) for rank, key in self.side.public}
        meeting = OwnMeeting(self.side.federation, self.side.rank, public)
        self.tags = GateTags(self.decisions.folder, self.side.name, meeting)
        return meeting.word

    def begin_masks(self, terms: Mapping[str, Any]) -> None:
        """A secure sum begins. terms: of `privacy.secure_sum.terms.SumTerms`.

        Raises:
            PolicyError: it is opened with fewer silos than the policy asks for.
        """
        if self.is_closed:
            self._refuse("", "something that comes after a refusal")
        found = SumTerms(**{**terms, "parties": tuple(terms["parties"])})
        if found.threshold < (self.policy.require.secure_sum or 0):
            self._refuse("require.secure_sum", "a sum that is opened with fewer silos")
        public = {rank: bytes.fromhex(key) for rank, key in self.side.public}
        self.masked = MaskedSum(self.side.federation, self.side.rank, public, found)

    @property
    def _said(self) -> Sequence[str]:
        return () if self.masked is None else self.masked.said

    def _note(self, text: bytes) -> Note | None:
        try:
            parts = text.decode("utf-8", "surrogatepass").split("\0")
        except UnicodeDecodeError:
            return None
        if len(parts) != 4 or parts[0] != self.side.federation:  # noqa: PLR2004
            return None
        return read_note(parts[2], parts[3], rank=self.side.rank, clients=(*self.side.clients, _HIDDEN))

    def _text(self, text: bytes) -> Note | None:
        """A text about a round; only of numbers that a report had, or that two of them come to together."""
        note = read_text(text.decode("ascii", "replace"), federation=self.side.federation, party=self.side.name)
        if note is not None and note.kind == "receipt" and note.round != self.round and self.passed:
            self._refuse("may_leave.parameters", "a receipt of another round than the update")
        if note is not None and note.kind == "receipt" and (not self.sent or note.oath != self.sent):
            self._refuse("may_leave.parameters", "a receipt of something that the gate has not made")
        known = {0.0, *self.reported, *(float(draws) for draws in range(_MOST_DRAWS))}
        products = {one * other for one in self.reported for other in self.reported}
        return note if note is not None and {*note.own} <= known | products else None

    def _check_mail(self, note: Note, mail: bytes) -> None:
        if note.kind != "meeting":
            self._refuse("", "bytes beside a note that has none")
        if note.phase == _TAGS and mail == (b"{}" if self.tags is None else self.tags.boxes):
            return
        if self.paper and mail.startswith(self.paper):  # what this side swears to goes with the meeting for it
            mail = mail[len(self.paper) :].removeprefix(b"\n")
        try:
            found = list(self.read_mail(mail, self.asked, self.side.names))
        except PreflightError:
            self._refuse("", "a mail that no silo writes")
        if not found:
            return
        self._enter(note.round if note.round is not None else -1)
        for each in found:
            allowed = (*self.policy.may_leave.reports, *(["scores"] if self.policy.may_leave.scores else []))
            if not each.line or each.kind not in allowed:
                self._refuse(each.line, each.kind)
            if each.client and each.client not in self.passed:
                self._refuse("may_leave.parameters", "a report on an update that the gate has not measured")
            self.reported |= {*each.numbers}
        self.spent.report(self.round, len(mail))
        self._check_bytes()
        self._allow("may_leave.reports", kinds=sorted({each.kind for each in found}), bytes=len(mail))

    def _enter(self, round: int) -> None:
        """Something of a round is about to leave."""
        if not self.policy.limits.is_open(self.now().time()):
            self._refuse("limits.between", "something at this time of day")
        if round > self.round:
            self.round = round
            self.passed.clear()
            self.reported.clear()
            self.part, self.sent = None, ""
        elif round < self.round:
            self._refuse("limits.rounds", "something of a round that is over")

    def _check_places(self, vector: Vector) -> None:
        size = sum(count for _, count in self.asked.parameters)
        if vector.ndim != 1 or not size or len(vector) != size * self.asked.vectors:
            self._refuse("may_leave.parameters", "an update of another length than that of the parameters")
        for start in range(0, len(vector), size):
            at = start
            for name, count in self.asked.parameters:
                if not self.policy.may_leave.allows(name) and np.any(vector[at : at + count] != 0):
                    self._refuse("may_leave.parameters", "an update of a parameter that no pattern allows")
                at += count

    def _count(self, client: str, round: int, found: str) -> None:
        """An update of this root is about to leave, or to get its noise."""
        most = self.policy.limits.rounds
        if most is not None and (round >= most or self.spent.updates(client, found, round) > most):
            self._refuse("limits.rounds", "an update of a round that is too many")
        self.spent.add(client, round, found)

    def _check_bytes(self) -> None:
        """Bytes of the round: as one sum of whole numbers or as single updates, whichever is more, and the reports.

        Over all attempts at it; an update that is the same again tells nothing more.
        """
        most = self.policy.limits.bytes_per_round
        whole = max(self.numbers * _WHOLE if self.passed else 0, sum(each.nbytes for each in self.passed.values()))
        whole *= max(1, self.spent.times(self.round))
        if most is not None and whole + self.spent.reports.get(self.round, 0) > most:
            self._refuse("limits.bytes_per_round", "more bytes than a round may have")

    def _allow(self, line: str, **about: object) -> None:
        self.decisions.add({"at": f"round {self.round}", "verdict": "allowed", "line": line, **about})

    def _refuse(self, line: str, what: str) -> NoReturn:
        """Write it down, sign nothing more, and raise PolicyError; what: without any value."""
        if not self.is_closed:
            self.decisions.add({"at": f"round {self.round}", "verdict": "refused", "line": line, "about": what})
        self.is_closed = True
        where = f"{self.policy.where(line)}: {line}" if line else f"{self.policy.path}: no line of it"
        raise PolicyError(f"the gate lets nothing out: {where}: {what}")


def norm(vector: Vector) -> float:
    """Euclidean norm in float64; NaN where one number is."""
    total = 0.0
    for start in range(0, len(vector), _WINDOW):
        window = vector[start : start + _WINDOW].astype(np.float64)
        total += float(window @ window)
    return float(np.sqrt(total))
