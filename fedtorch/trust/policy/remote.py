"""The way between a rank and its gate: one datagram for each question and each answer, and memory that both can read.

What is longer than a few bytes is in an anonymous file that goes with the question, so that a rank that is killed in
the middle leaves no half of one. An answer says which question it is to; that of a rank before this one is passed over.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtorch.core.errors import CheckpointError, ConfigError, FedtorchError, PolicyError, PreflightError, TrustError
from fedtorch.core.prime import Words
from fedtorch.privacy.record.silo import Block, Step
from fedtorch.privacy.secure_sum.party import PublicKeys
from fedtorch.privacy.secure_sum.terms import BrokenProtocolError, SumTerms, TooFewPartiesError
from fedtorch.trust.kept import KeptFiles
from fedtorch.trust.receipts import Signed

VARIABLE = "FEDTORCH_GATE"
"""Environment variable with the number of the open socket, in processes of a side that has a gate."""
_MOST_BYTES = 1 << 17
_CHANGED = ("window", "noise", "finish", "leaves")
"""Questions with which something goes that comes back changed."""
_KINDS: Mapping[str, type[FedtorchError]] = {
    "policy": PolicyError,
    "config": ConfigError,
    "preflight": PreflightError,
    "checkpoint": CheckpointError,
    "protocol": BrokenProtocolError,
    "parties": TooFewPartiesError,
}
Answer = Callable[[dict[str, Any], memoryview], dict[str, Any]]
"""(question, what goes with it) -> answer."""


@dataclass
class GateKey:
    """Signs for a party in place of its key, which the gate has. Threads may share it, and processes in turn."""

    socket: socket.socket
    """To the gate."""
    path: Path
    """File with the key, for messages."""
    public: bytes
    """The public key, 32 bytes."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """is held from a question to its answer"""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> GateKey | None:
        """The gate that this process's environment names; None: it has none.

        Raises:
            TrustError: the gate has ended.
        """
        if not (number := environ.get(VARIABLE, "")):
            return None
        try:
            connection = socket.socket(fileno=os.dup(int(number)))
        except (OSError, ValueError) as error:
            raise TrustError(f"{VARIABLE} is {number!r}, which leads to no gate ({error})") from error
        about = ask(connection, {"ask": "who"})
        return cls(connection, Path(about["path"]), bytes.fromhex(about["public"]))

    def sign(self, text: bytes, beside: bytes = b"") -> bytes:
        """The signature of a note that the gate knows, and of what goes with it.

        Raises:
            PolicyError: the policy does not allow it.
            TrustError: the gate has ended.
        """
        with self._lock:  # both in the file, the length of the first in the question
            answer = ask(self.socket, {"ask": "sign", "length": len(text)}, text + beside)
        return bytes.fromhex(answer["signature"])

    def begin_part(
        self, way: str, round: int, terms: Sequence[tuple[str, float]], exponent: int, exchange: str = ""
    ) -> None:
        """Tell which part is about to leave; see `Gate.begin_part`."""
        told = [[client, weight.hex()] for client, weight in terms]
        about = {"way": way, "round": round, "terms": told, "exponent": exponent, "exchange": exchange}
        self._ask({"ask": "part", **about})

    def leave(self, window: npt.NDArray[Any], place: int = 0) -> None:
        """Have the gate take the next numbers of the part into its receipt, which it makes itself.

        Under masks they are written into `window`, int64; else it has them already, and only its length counts. place:
        of the update, where several leave as they are.

        Raises:
            PolicyError: they may not leave.
        """
        is_masked = window.dtype == np.int64
        self._ask({"ask": "window", "count": len(window), "place": place}, window if is_masked else None)

    def finish_part(self, leaves: int = 0) -> tuple[str, bytes, Words]:
        """(salted digest of what has left, the salt, the tags of so many leaves as they are sent)."""
        tags = np.zeros(leaves, np.uint64)
        answer = self._ask({"ask": "finish"}, tags if leaves else None)
        return str(answer["sent"]), bytes.fromhex(answer["salt"]), tags

    def meet(self) -> RemoteMeeting:
        """Begin to agree with the other silos on a key of tags, which stays in the gate."""
        return RemoteMeeting(self, str(self._ask({"ask": "meet"})["word"]))

    def add_noise(self, step: Step, total: npt.NDArray[np.float64], blocks: Sequence[Block]) -> str:
        """Have the gate add the noise of a part, in place; see `Gate.add_noise`.

        Raises:
            PolicyError: it is no sum that noise is added to.
        """
        return str(self._ask({"ask": "noise", "step": asdict(step), "blocks": [*blocks]}, total)["digest"])

    def party(self, terms: SumTerms) -> GateParty:
        """This side of a secure sum, whose secrets stay in the gate.

        Raises:
            PolicyError: it is opened with fewer silos than the policy asks for.
        """
        self._ask({"ask": "masks", "terms": asdict(terms)})
        return GateParty(self, terms)

    def _ask(
        self, question: Mapping[str, Any], into: npt.NDArray[Any] | None = None, beside: bytes = b""
    ) -> dict[str, Any]:
        with self._lock:
            return ask(self.socket, question, beside, into=into)

    def pass_update(self, client: str, round: int, vector: npt.NDArray[np.floating]) -> str:
        """Root of a client's update, which may leave, hexadecimal. vector: flat, of float32 or float64.

        Raises:
            PolicyError: it may not.
            TrustError: the gate has ended.
        """
        question = {"ask": "update", "client": client, "round": round, "dtype": vector.dtype.name}
        with self._lock:
            answer = ask(self.socket, question, np.ascontiguousarray(vector).view(np.uint8).data)
        return str(answer["root"])


@dataclass(frozen=True)
class GateParty:
    """A party of a secure sum that is in the gate; see `privacy.secure_sum.texts.TextParty`."""

    gate: GateKey
    """Has it."""
    terms: SumTerms
    """Terms of the sum."""

    def keys(self) -> str:
        """Text of its note with its public keys."""
        return self._do("keys")

    def share(self, keys: Mapping[int, PublicKeys], signed: Mapping[int, str]) -> str:
        """Text of its note with its sealed shares; the gate takes keys of the signed notes alone."""
        return self._do("share", {str(rank): text for rank, text in signed.items()})

    def open_shares(self, boxes: Mapping[int, bytes]) -> None:
        """Take the others' shares."""
        self._do("open", {str(rank): box.hex() for rank, box in boxes.items()})

    def mask(self, window: npt.NDArray[np.uint64]) -> None:
        """Write the next window of the part, as it leaves, in place of what the window holds."""
        self.gate.leave(window.view(np.int64))

    def mask_tags(self, tags: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """The tags of the part, which the gate has hidden already."""
        return tags

    def reveal(self, arrived: Collection[int]) -> str:
        """Text of its note with the shares that remove the masks of the sum of `arrived`."""
        return self._do("reveal", [*arrived])

    def _do(self, step: str, about: object = None) -> str:
        return str(self.gate._ask({"ask": "step", "step": step, "about": about}).get("text", ""))


@dataclass(frozen=True)
class RemoteMeeting:
    """A silo's side of the meeting for a key of tags, in the gate; see `trust.silo_tags.KeyMeeting`."""

    gate: GateKey
    """Has it."""
    word: str
    """The public key by which others seal something for this silo, hexadecimal."""

    def agree(self, text: str, scope: str, signed: Mapping[int, str]) -> None:
        """Take the words of all parties that are there."""
        about = {"scope": scope, "signed": {str(rank): note for rank, note in signed.items()}}
        self.gate._ask({"ask": "agree", **about}, beside=text.encode())

    def draw(self) -> dict[int, str]:
        """Draw the key; rank -> box with it for each other silo."""
        return {int(rank): box for rank, box in self.gate._ask({"ask": "draw"})["boxes"].items()}

    def open(self, first: int, box: str) -> None:
        """Take the key that another silo has drawn."""
        self.gate._ask({"ask": "open", "first": first, "box": box})

    @property
    def tags(self) -> RemoteTags:
        """The key, in the gate."""
        return RemoteTags(self.gate)


@dataclass(frozen=True)
class RemoteTags:
    """A key of tags that is in the gate; see `trust.silo_tags.SiloTags`."""

    gate: GateKey
    """Has it."""

    def wrong(
        self,
        exchange: str,
        parties: Sequence[str],
        leaves: int,
        numbers: npt.NDArray[np.int64],
        tags: Words,
        places: Sequence[int] | None,
    ) -> tuple[int, int]:
        """(how many of these leaves are not the sum of the parties' parts, the place of the first of them)."""
        about = {"exchange": exchange, "parties": list(parties), "leaves": leaves, "count": len(numbers)}
        told = {**about, "places": None if places is None else list(places)}
        found = self.gate._ask({"ask": "check", **told}, beside=numbers.tobytes() + tags.tobytes())
        return int(found["count"]), int(found["first"])

    def drawn(self, record: Signed, leaves: int, share: float) -> list[int]:
        """Which of so many leaves are looked at once there is that record, ascending."""
        found = np.zeros(leaves, np.uint8)
        about = {"text": record.text, "signature": record.signature, "share": float(share).hex()}
        self.gate._ask({"ask": "leaves", **about}, found)
        places: list[int] = np.flatnonzero(found).tolist()
        return places

    def keep(self, files: KeptFiles) -> None:
        """Have the gate keep the key in the party's folder, for `fedtorch verify`."""
        self.gate._ask({"ask": "keep"})


def ask(
    connection: socket.socket,
    question: Mapping[str, Any],
    beside: bytes | memoryview = b"",
    *,
    into: npt.NDArray[Any] | None = None,
) -> dict[str, Any]:
    """The gate's answer. into: goes with the question, and is overwritten by what comes back in its place.

    Raises:
        FedtorchError: as the gate has raised it.
        TrustError: the gate has ended.
    """
    name = secrets.token_hex(8)
    files = [_filled(beside if into is None else into.view(np.uint8).data)] if len(beside) or into is not None else []
    try:
        socket.send_fds(connection, [json.dumps({**question, "name": name}).encode()], files)
        while True:
            answer = connection.recv(_MOST_BYTES)
            if not answer:
                raise EOFError("it has closed")
            found: dict[str, Any] = json.loads(answer)
            if found["name"] == name:
                break
        if into is not None and "error" not in found:
            into.view(np.uint8)[:] = np.frombuffer(_read(files), np.uint8)
    except (OSError, EOFError) as error:
        raise TrustError(
            f"this side's gate has ended ({error}); without it nothing leaves, and nobody signs"
        ) from error
    finally:
        for file in files:
            os.close(file)
    if "error" in found:
        raise _KINDS.get(found["kind"], TrustError)(found["error"])
    return found


def serve(connection: socket.socket, answer: Answer) -> None:
    """In the gate: answer one question after the other, until nobody has the other end."""
    while True:
        data, files, flags, _ = socket.recv_fds(connection, _MOST_BYTES, 4)
        try:
            if not data and not files:
                return
            told = _answered(data if not flags & socket.MSG_TRUNC else b"", files, answer)
        finally:
            for file in files:
                os.close(file)
        try:
            connection.send(json.dumps(told).encode())
        except OSError:
            return


def _answered(data: bytes, files: list[int], answer: Answer) -> dict[str, Any]:
    """The answer to what came, whatever it is."""
    question: dict[str, Any] = {}
    try:
        found = json.loads(data)
        question = found if isinstance(found, dict) else {}
        content = _read(files)
        found = {**answer(question, content), "name": question.get("name")}
        if files and question.get("ask") in _CHANGED:
            _write(files[0], content)
        return found
    except FedtorchError as error:
        kind = next((kind for kind, cls in _KINDS.items() if isinstance(error, cls)), "")
        return {"error": str(error), "kind": kind, "name": question.get("name")}
    except Exception as error:  # whatever a rank sends must not end the gate
        return {
            "error": f"the gate cannot read that ({type(error).__name__})",
            "kind": "",
            "name": question.get("name"),
        }


def _filled(content: bytes | memoryview) -> int:
    """An anonymous file with the content, as it is sent."""
    file = os.memfd_create("fedtorch-gate") if hasattr(os, "memfd_create") else _unlinked()
    os.truncate(file, len(content))
    with mmap.mmap(file, len(content)) as memory:
        memory[:] = bytes(content) if isinstance(content, bytes) else content
    return file


def _unlinked() -> int:
    import tempfile

    file, name = tempfile.mkstemp()
    os.unlink(name)
    return file


def _write(file: int, content: memoryview) -> None:
    """Put what was made of what came with a question in its place."""
    if len(content):
        with mmap.mmap(file, len(content)) as memory:
            memory[:] = content


def _read(files: list[int]) -> memoryview:
    """Copy what came with a question: what was measured is what is signed, whatever the rank writes then."""
    if not files or not (size := os.fstat(files[0]).st_size):
        return memoryview(b"")
    with mmap.mmap(files[0], size, access=mmap.ACCESS_READ) as memory:
        return memoryview(bytearray(memory))
