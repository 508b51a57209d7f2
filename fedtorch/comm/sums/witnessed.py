"""Both sides of what parties sign: a receipt goes with all that a silo sends, and the server compares both.

The receipt says what the silo had received and what it sends, so that bytes of a stranger are refused. Where silos
check sums, a silo sends its part as one sum of whole numbers, as the only update of it, or masked; the tags of its
leaves go with it, and the receipt has the numbers that its clients are weighed by. The server then keeps the sum as
whole numbers; what silos do with it is in `rounds.checked_steps`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtorch.comm.job.witness import Terms, Witness
from fedtorch.comm.sums.reproducible import PIECE, add_all
from fedtorch.comm.transport.group import Group
from fedtorch.core.errors import PreflightError, TrustError
from fedtorch.core.kernels import Fold
from fedtorch.core.prime import Words, added
from fedtorch.trust.merkle import leaves, leaves_in
from fedtorch.trust.policy.parts import SALT_BYTES, factors_of, salted
from fedtorch.trust.receipts import Signed
from fedtorch.trust.silo_tags import OwnTags

_MOST_BYTES = 1 << 20  # of a receipt


class SilosPart:
    """This silo's part of a sum, window by window."""

    def __init__(
        self, witness: Witness, group: Group, round: int, scale: int, terms: Terms, own: Terms, way: str
    ) -> None:
        """own: terms of this silo's clients. way: how it leaves, of `trust.policy.parts.WAYS`."""
        self._witness, self._group = witness, group
        self._exchanged = witness.begin(f"{group.generation}.{group.sequence}", round, scale)
        self._exchanged.terms = terms
        self._tags, self._hashes, self._leaves = list[Words](), list[bytes](), 0
        self._way, exchange = way, witness.name_of(self._exchanged) if witness.has_tags else ""
        self._weights = [weight for _, weight in own]
        found = witness.tags
        self._key = found.of(exchange) if exchange and isinstance(found, OwnTags) else None
        if witness.gate is not None:
            witness.gate.begin_part(way, round, own, scale, exchange)

    def see(self, numbers: npt.NDArray[Any]) -> None:
        """The next window before it is masked: whole numbers, flat, int64 or float64.

        Raises:
            TrustError: one of them is too large.
        """
        first, self._leaves = self._leaves, self._leaves + leaves_in(len(numbers))
        if self._key is None:
            return
        whole = numbers
        if numbers.dtype != np.int64:
            whole = self._witness.lend(len(numbers))
            np.copyto(whole, numbers, casting="unsafe")
        try:
            self._tags.append(self._key.tags(whole, first=first))
        except ValueError as error:
            raise TrustError(f"this party's part cannot be sent: {error}") from None

    def see_sum(self, window: npt.NDArray[Any]) -> None:
        """Take the next window of a sum, which leaves as it is."""
        self.see(window)
        self.see_sent(window)

    def see_update(self, window: npt.NDArray[Any], place: int = 0) -> None:
        """Take the next window of an update that leaves as it is; of a checked sum it is the only one of this silo."""
        if self._key is None:
            self.see(window)
        else:
            whole, factors = self._witness.lend(min(len(window), PIECE)).view(np.float64), self._factors
            for start in range(0, len(window), PIECE):  # stays in the cache until it has its tags
                piece = window[start : start + PIECE]
                add_all(Fold([piece], factors, whole[: len(piece)], fresh=True), len(piece))
                self.see(whole[: len(piece)])
        self.see_sent(window, place)

    def see_sent(self, window: npt.NDArray[Any], place: int = 0) -> None:
        """Take the same window as it leaves; a gate has it already. place: of an update that leaves as it is."""
        gate = self._witness.gate
        if gate is None:
            self._hashes.extend(leaves(window))
        elif self._way != "masked":  # then it was made there, when it was masked
            gate.leave(window, place)

    @property
    def _factors(self) -> list[float]:
        try:
            return factors_of(self._weights, self._exchanged.scale)
        except ValueError as error:
            raise TrustError(f"the server asks for a part with {error}") from None

    def send(self, mask: Callable[[Words], Words] | None = None) -> None:
        """After all windows: the tags and the receipt, to the server. mask: hides the tags, where parts are hidden."""
        witness, exchanged = self._witness, self._exchanged
        sent, salt, tags = self._sent(mask)
        names = {client for client, _ in exchanged.terms}
        about = {
            "attempt": exchanged.attempt,
            "own": {client: list(numbers) for client, numbers in witness.own.items() if client in names},
            "round": exchanged.round,
            "sent": sent,
            "weights": witness.weights,
        }
        receipt = witness.sign("receipt", about)
        exchanged.receipts[witness.rank] = Signed(
            receipt.kind, receipt.party, receipt.text, receipt.signature, {"salt": salt.hex()}
        )
        data = salt + bytes.fromhex(receipt.signature) + receipt.text.encode()
        self._group.send_numbers([*tags.view(np.int64).tolist(), len(data)])
        self._group.say(torch.frombuffer(bytearray(data), dtype=torch.uint8), 0)

    def _sent(self, mask: Callable[[Words], Words] | None) -> tuple[str, bytes, Words]:
        """(digest of what has left, salted, the salt, the tags as they are sent)."""
        if self._witness.gate is not None:
            return self._witness.gate.finish_part(self._leaves if self._witness.has_tags else 0)
        salt = secrets.token_bytes(SALT_BYTES)
        sent = salted(salt, self._hashes)
        if self._key is None:
            return sent, salt, np.empty(0, np.uint64)
        tags = self._key.padded(self._tags, self._witness.party)
        return sent, salt, tags if mask is None else mask(tags)


class ServersPart:
    """The server's side of the same sum."""

    def __init__(self, witness: Witness, group: Group, round: int, scale: int, size: int) -> None:
        self._witness, self._group = witness, group
        self._exchanged = witness.begin(f"{group.generation}.{group.sequence}", round, scale)
        self._hashes: dict[int, list[bytes]] = {}
        self._room = witness.lend(size + leaves_in(size))
        self._total = self._room[:size]

    def see_part(self, rank: int, window: npt.NDArray[Any]) -> None:
        """The next window of a rank's part, as it came."""
        self._hashes.setdefault(rank, []).extend(leaves(window))

    def watching(self, arriving: Iterator[Tensor], ranks: Sequence[int]) -> Iterator[Tensor]:
        """Pass the windows on, and look at each. ranks: whose they are, in turn."""
        for rank, window in zip(cycle(ranks), arriving, strict=False):
            self.see_part(rank, window.numpy())
            yield window

    def see_sum(self, start: int, window: npt.NDArray[Any]) -> None:
        """Take the sum of all parts, whole numbers, from `start` on; windows in order."""
        self._total[start : start + len(window)] = window
        if self._witness.has_tags:  # while further windows are on their way
            self._exchanged.hashes += leaves(self._total[start : start + len(window)])

    def finish(self, ranks: Sequence[int]) -> None:
        """After all windows: take the tags and receipts of the ranks that sent a part.

        Raises:
            TrustError: a receipt is not about what came, and about this exchange.
            PreflightError: it is none.
        """
        count = leaves_in(len(self._total)) if self._witness.has_tags else 0
        tags = []
        for rank in ranks:
            *numbers, length = self._group.receive_numbers(count + 1, rank)
            if not 0 < length <= _MOST_BYTES:
                raise PreflightError(f"rank {rank} announces a receipt of {length} bytes")
            data = self._group.hear(torch.zeros(length, dtype=torch.uint8), rank).numpy().tobytes()
            tags.append(np.array(numbers, np.int64).view(np.uint64))
            self._exchanged.receipts[rank] = self._checked(rank, data)
        self._exchanged.tags = added(tags, count) if self._witness.has_tags else None
        self._exchanged.total, self._exchanged.room = self._total, self._room

    def unmask(self, remove: Callable[[Words], Words]) -> None:
        """Once masks are known: take them from the sum of the tags."""
        if self._exchanged.tags is not None:
            self._exchanged.tags = remove(self._exchanged.tags)

    def _checked(self, rank: int, data: bytes) -> Signed:
        salt, signature, text = data[:SALT_BYTES], data[SALT_BYTES : SALT_BYTES + 64], data[SALT_BYTES + 64 :]
        party = self._witness.identity.parties.get(rank, "")
        receipt = Signed("receipt", party, text.decode("ascii", "replace"), signature.hex())
        receipt.check(self._witness.identity.members)
        said = receipt.about
        expected = {
            "attempt": self._exchanged.attempt,
            "meeting": self._witness.meeting,
            "round": self._exchanged.round,
            "run": self._witness.run,
            "sent": salted(salt, self._hashes.get(rank, ())),
            "weights": self._witness.weights,
        }
        if wrong := [name for name, value in expected.items() if said.get(name) != value]:
            raise TrustError(
                f"the receipt of `{party}` has another `{wrong[0]}` than what came here: somebody has changed its part "
                "on the way, or it signs something else than it sends"
            )
        own = said.get("own")
        known = {client: list(numbers) for client, numbers in self._witness.own.items()}
        if not isinstance(own, dict) or any(known.get(client) != numbers for client, numbers in own.items()):
            raise TrustError(f"the receipt of `{party}` has other numbers of its clients than their reports")
        return receipt
