"""Meeting points: no collective runs, so a rank may take hours to come."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fedtorch.comm.job import addresses
from fedtorch.comm.job.awake import awake_s
from fedtorch.comm.job.links import Links
from fedtorch.comm.job.liveness import Liveness
from fedtorch.comm.job.notes import MOST_TOLD, read_note, read_verdict
from fedtorch.comm.job.store import Store
from fedtorch.core.errors import (
    DeadlineError,
    FedtorchError,
    ForgedNoteError,
    PreflightError,
    error_of_code,
)
from fedtorch.core.shown import plain

_KINDS: dict[str, type[FedtorchError]] = {
    "deadline": DeadlineError,
    "forged": ForgedNoteError,
    "preflight": PreflightError,
}
_LOOKS = 20  # how much longer than a look at the others the pause before the next one is
_LAST_S = 2.0  # how long what a rank sent before it left may take longer than the word that it left
_END = b"\0"  # of a note, which has no such byte
_SHOWN = 20  # differences in one message
_KEY, _CONFIG = "key `", "config"  # facts of single keys, and of all of them
Notes = dict[int, dict[str, Any]]  # by rank
Decide = Callable[[Notes], dict[str, Any]]
Answer = Callable[[Mapping[int, bytes]], bytes]


def nothing(_: Mapping[int, bytes]) -> bytes:
    """The answer to no mail."""
    return b""


class Rendezvous:
    """Every rank sends a note; the server reads them all and answers with one verdict for everybody.

    A verdict with `error` is raised on every rank. Notes and verdicts are signed, for this meeting alone; what goes
    with them as mail is only where parties sign with keys of their own.
    """

    def __init__(self, store: Store, links: Links, liveness: Liveness) -> None:
        self._store, self._links, self._liveness = store, links, liveness
        self._rank = liveness.rank
        self._meetings = 0

    def addresses(self, note: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
        """Agree on addresses by `addresses.decide`: places by network, hosts by rank."""
        self._liveness.beat(phase="addresses")

        def decide(notes: Notes) -> dict[str, Any]:
            for rank, other in notes.items():
                if "network" not in other:
                    return _preflight_error(
                        f"rank {rank} takes this for a job of one host and the server does not: LOCAL_WORLD_SIZE or "
                        "MASTER_ADDR differ, which the launcher sets"
                    )
            return addresses.decide(notes)

        verdict, _ = self._meet(dict(note), decide)
        return verdict["places"], tuple(verdict["hosts"])

    def preflight(self, facts: Mapping[str, str], own: Mapping[str, str], decide: Decide) -> dict[str, Any]:
        """Compare the facts of all ranks; where they agree, the verdict is what `decide` makes of their notes.

        own: what else this rank tells the others.
        """

        def compare_and_decide(notes: Notes) -> dict[str, Any]:
            facts = {rank: note.get("facts", {}) for rank, note in notes.items()}
            return _compare(facts, self._liveness.labels) or decide(notes)

        return self._meet({"facts": dict(facts), **own}, compare_and_decide)[0]

    def barrier(
        self,
        phase: str,
        round: int,
        *,
        stop: bool = False,
        ok: bool = True,
        allow_loss: bool = False,
        returned: Sequence[int] = (),
        then: str = "",
        mail: bytes = b"",
        answer: Answer = nothing,
    ) -> tuple[dict[str, Any], bytes]:
        """The verdict: `stop`, if any rank said so; `ok`, if all did; `lost`, rank -> why, with `allow_loss` only.

        allow_loss: ranks that have ended, left or are silent for the timeout are left out instead of being an error.
        returned: on the server, lost ranks that are back; on all ranks in the verdict.
        then: what all ranks do next, which is compared as the phase is.
        mail: bytes that go with this rank's note. answer: on the server, makes of every present rank's mail the bytes
        that go with the verdict, which are returned on all ranks; not called if a rank said `stop`.
        """
        note = {"phase": phase, "round": round, "then": then, "stop": stop, "ok": ok}

        def decide(notes: Notes) -> dict[str, Any]:
            return {**_agree(notes), "returned": list(returned)}

        verdict, answered = self._meet(note, decide, allow_loss=allow_loss, mail=mail, answer=answer)
        return {"returned": [], **verdict}, answered

    def refuse(self, told: str, code: int) -> None:
        """Tell all others at the next meeting, whatever they come for, that there will be no run.

        That they do not come is no error here: this rank leaves anyway. code: with which they end.
        """
        with suppress(FedtorchError):
            note = _refusal(told, code) if self._rank else {}
            self._meet(note, lambda _: {"error": told, "kind": "refused", "code": code})

    def wait(self, keys: Mapping[int, str], limit_s: float = float("inf")) -> bool:
        """Wait for all `keys`, each to be set by the rank it is given for; False if `limit_s` passed first.

        Raises DeadlineError when a rank whose key is missing is silent for too long or has left.
        """
        start = time.monotonic()
        check_every = min(1.0, self._liveness.timeout_s / 4)
        while not self._store.wait(list(keys.values()), min(check_every, start + limit_s - time.monotonic())):
            if time.monotonic() - start > limit_s:
                return False
            self._liveness.beat()
            awaited = [rank for rank, key in keys.items() if not self._store.has([key])]
            self._liveness.check(awaited, lambda missing: self._store.has(list(keys.values())))
        return True

    def wait_regardless(self, keys: Mapping[int, str], limit_s: float) -> None:
        """Wait for all `keys`, but those of ranks that are dead, or until `limit_s` has passed."""
        give_up_at = awake_s() + limit_s
        while awake_s() < give_up_at:
            awaited = [rank for rank, key in keys.items() if not self._store.has([key])]
            if len(self._liveness.dead(awaited)) == len(awaited):
                return
            time.sleep(0.02)

    def _wait_for_notes(self, name: str, ranks: Sequence[int]) -> None:
        """Wait until every one of the ranks has sent its note.

        Raises DeadlineError when one that has not is silent for too long or has left.
        """
        often = pause = min(1.0, self._liveness.timeout_s / 4)
        while not self._links.wait(name, ranks, pause):
            started = time.monotonic()
            self._liveness.beat()
            awaited = [rank for rank in ranks if not self._links.wait(name, [rank], 0.0)]
            self._liveness.check(awaited, lambda missing: self._came_late(name, missing))
            # over a long wire a look takes some trips, which must not be what this rank does when the note comes
            pause = min(max(often, _LOOKS * (time.monotonic() - started)), self._liveness.timeout_s / 4)

    def _came_late(self, name: str, missing: Sequence[int]) -> bool:
        """Have they sent their notes, of which that of one that left may still be on its way?"""
        late_s = min(_LAST_S, self._liveness.timeout_s / 4) if set(missing) & set(self._liveness.left()) else 0.0
        return self._links.wait_for_last(name, missing, late_s)

    def _wait_for_alive(self, name: str, ranks: Sequence[int]) -> list[int]:
        """Wait for the note of every rank that is alive; returns the ranks that are not."""
        ranks, lost = list(ranks), list[int]()
        check_every = min(0.5, self._liveness.timeout_s / 4)
        while True:
            came = self._links.wait(name, ranks, check_every)
            self._liveness.beat()
            awaited = [] if came else [rank for rank in ranks if not self._links.wait(name, [rank], 0.0)]
            for rank in dict.fromkeys([*self._liveness.missing(awaited), *self._liveness.dead(ranks)]):
                lost.append(rank)
                ranks.remove(rank)
            if came or not ranks:
                return lost

    @property
    def next(self) -> int:
        """Number of the next meeting, the same on all ranks."""
        return self._meetings

    def _hear(self, name: str, rank: int) -> tuple[str, bytes]:
        """The rank's note, or the server's verdict, which is there, and the mail that came with it.

        Raises:
            ForgedNoteError: it did not write that.
        """
        text, _, mail = self._links.take(name, rank).partition(_END)
        return self._store.signature.check(f"{name}/{rank}", text.decode("utf-8", "replace"), rank, mail), mail

    def _tell(self, name: str, rank: int, told: Mapping[str, Any], mail: bytes) -> None:
        signed = self._store.signature.sign(f"{name}/{self._rank}", json.dumps(told), mail)
        self._links.send(rank, name, signed.encode() + _END + mail)

    def _meet(
        self,
        note: dict[str, Any],
        decide: Decide,
        *,
        allow_loss: bool = False,
        mail: bytes = b"",
        answer: Answer = nothing,
    ) -> tuple[dict[str, Any], bytes]:
        name = f"meeting{self._meetings}"
        self._meetings += 1
        if self._rank:
            self._tell(name, 0, note, mail)
            self._wait_for_notes(name, [0])
            text, answered = self._hear(name, 0)
            return _raise_or_return(read_verdict(text), self._rank), answered
        others, lost, failed, answered = self._liveness.others, list[int](), None, b""
        try:
            if allow_loss:
                lost = self._wait_for_alive(name, others)
                self._liveness.check_refusals(lost)
            else:
                self._wait_for_notes(name, others)
            heard = {rank: self._hear(name, rank) for rank in others if rank not in lost}
            notes = {0: note, **{rank: read_note(text, rank) for rank, (text, _) in heard.items()}}
            verdict = _refused(notes) or decide(notes)
            if lost:
                verdict["lost"] = {rank: self._liveness.describe(rank) for rank in lost}
            if "error" not in verdict and not verdict.get("stop"):
                answered = answer({0: mail, **{rank: theirs for rank, (_, theirs) in heard.items()}})
        except (DeadlineError, ForgedNoteError, PreflightError) as error:
            kind = next(kind for kind, cls in _KINDS.items() if isinstance(error, cls))
            verdict, failed = {"error": str(error), "kind": kind}, error
        for rank in others:
            self._tell(name, rank, verdict, answered)
        if failed is not None:
            raise failed  # with what the others are not told: which ranks, and where they died
        return _raise_or_return(json.loads(json.dumps(verdict)), 0), answered


def _refusal(told: str, code: int) -> dict[str, Any]:
    """The note of a rank that refuses the job."""
    return {"refuses": plain(told)[:MOST_TOLD], "code": code}


def _refused(notes: Notes) -> dict[str, Any]:
    """The verdict where a rank refuses the job: its words, and the code with which all end; else none."""
    found = [note for note in notes.values() if "refuses" in note]
    told = "; ".join(plain(note["refuses"]) for note in found)
    return {"error": told, "kind": "refused", "code": found[0]["code"]} if found else {}


def _raise_or_return(verdict: dict[str, Any], rank: int) -> dict[str, Any]:
    if "code" in verdict:
        raise error_of_code(verdict["code"], verdict["error"])
    if "error" in verdict:
        raise _KINDS.get(verdict["kind"], PreflightError)(verdict["error"])
    lost = {int(other): why for other, why in verdict.get("lost", {}).items()}
    if rank in lost:
        raise DeadlineError(f"the others go on without this rank, which was taken for lost: {lost[rank]}")
    return {**verdict, "lost": lost}


def _agree(notes: Notes) -> dict[str, Any]:
    """Stop if anybody wants to; ok if all are; an error if they did not come for the same thing."""
    for rank, note in notes.items():
        if any(note.get(field) != notes[0][field] for field in ("phase", "round", "then")):
            return _preflight_error(
                f"rank {rank} came for {_purpose(note)} and the server for {_purpose(notes[0])}: "
                f"they do not run the same steps"
            )
    return {"stop": any(note["stop"] for note in notes.values()), "ok": all(note["ok"] for note in notes.values())}


def _purpose(note: dict[str, Any]) -> str:
    if "phase" not in note:
        return "preflight"
    return f"phase {note['phase']} of round {note['round']}" + (f", then {note['then']}," if note["then"] else "")


def _compare(facts: dict[int, dict[str, str]], labels: Mapping[int, str]) -> dict[str, Any]:
    """An error that lists the facts in which a rank differs from the server. labels: rank -> whose it is.

    Where keys of the config differ their names are the first, and its digest tells nothing more.
    """
    mine, differences, hidden = facts[0], list[str](), False
    for rank, theirs in facts.items():
        fields = [field for field in {**mine, **theirs} if theirs.get(field) != mine.get(field)]
        keys = [field for field in fields if field.startswith(_KEY)]
        hidden = hidden or (_CONFIG in fields and not keys)
        rest = sorted(field for field in fields if field not in keys and not (keys and field == _CONFIG))
        differences += [
            f"{field}: rank {rank}{labels.get(rank, '')} has {theirs.get(field, 'nothing')}, "
            f"the server has {mine.get(field, 'nothing')}"
            for field in [*keys, *rest]
        ]
    if not differences:
        return {}
    shown = "; ".join(differences[:_SHOWN])
    shown += f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    shown += " (in a key whose value is masked, or that is cut off above)" if hidden else ""
    return _preflight_error(f"the ranks do not run the same job; {shown}")


def _preflight_error(text: str) -> dict[str, Any]:
    return {"error": text, "kind": "preflight"}
