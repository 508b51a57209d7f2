"""The user's side of a chat: turns what is typed into keys and values, and answers into text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from fedtorch.core.shown import plain
from fedtorch.models.side import Passing, Side
from fedtorch.models.socket_link import Crossing, SocketLink

_NEW = "/new"


@dataclass
class Wire:
    """Prints what crosses, if it is to be shown, and sums it up."""

    out: TextIO
    """where the lines go"""
    is_shown: bool
    """are they printed? The totals are kept in either case"""
    totals: Counter[str] = field(default_factory=Counter)
    """direction -> bytes"""

    def __call__(self, crossing: Crossing) -> None:
        """Count a crossing, and print it where that is wanted; for `SocketLink.watch`."""
        way = _way(crossing.is_sent)
        self.totals[way] += crossing.num_bytes
        if self.is_shown:
            dtype = str(crossing.dtype).removeprefix("torch.")
            shape = "x".join(map(str, crossing.shape))
            text = f"{crossing.what}, turn {crossing.turn}, {dtype} {shape}, {crossing.num_bytes} bytes"
            print(f"wire: {way}: {text}", file=self.out, flush=True)

    def sum_up(self) -> None:
        """Print the totals of both ways."""
        if self.is_shown:
            sums = [f"{_way(is_sent)} {self.totals[_way(is_sent)]} bytes" for is_sent in (True, False)]
            print(f"wire: in all {', '.join(sums)}", file=self.out, flush=True)


@dataclass
class UserSide:
    """The user's end of a dialog."""

    model: Any
    """the client's own model of the user's side"""
    vocabulary: PreTrainedTokenizerBase
    """its tokenizer; every turn begins with the end token"""
    link: SocketLink
    """to the assistant's process"""
    passing: Passing
    """how keys and values are passed, as the run did"""
    receives_keys: bool = False
    """do the keys and values of answers come too, beside their words?"""
    side: Side = field(init=False)
    """holds the keys and values of the dialog so far"""
    turn: int = 0
    """the user's next one"""

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a new dialog."""
        self.side, self.turn = Side(self.model, self.link, self.passing), 0

    def room(self, num_tokens: int) -> bool:
        """Is there a position left for so many tokens and an answer of one?"""
        context = self.side.context(1)
        used = 0 if context is None else context[1].shape[1]
        return bool(used + num_tokens + 1 < self.model.config.n_positions - 1)

    @torch.no_grad()
    def say(self, ids: Sequence[int]) -> list[int]:
        """Speak a turn; the words of the answer. Waits for the other side.

        Raises:
            LinkClosed: it has ended.
        """
        self.side.speak(self.turn, self._segment(ids), 1, is_last=False)
        if self.receives_keys:
            self.side.hear(self.turn + 1, 1)
        answer = self.link.receive_tokens(self.turn + 1)
        if not self.receives_keys:
            self.side.read(self._segment(answer))
        self.turn += 2
        return answer

    @property
    def positions(self) -> int:
        """Positions of the model."""
        return int(self.model.config.n_positions)

    def size(self, text: str) -> int:
        """Tokens of what is typed."""
        return len(self.vocabulary(text).input_ids)

    def fits(self, text: str) -> bool:
        """Is there room for what is typed, and for an answer?"""
        return self.room(self.size(text))

    def reply(self, text: str) -> str:
        """Answer what is typed."""
        return str(self.vocabulary.decode(self.say(self.vocabulary(text).input_ids)))

    def _segment(self, ids: Sequence[int]) -> dict[str, Tensor]:
        inputs = torch.tensor([[int(self.vocabulary.eos_token_id), *ids]], device=self.model.device)
        lengths = torch.tensor([len(ids) + 1], device=inputs.device)
        return {"inputs": inputs, "targets": torch.full_like(inputs, -100), "lengths": lengths}


class Partner(Protocol):
    """A model that one talks to."""

    @property
    def positions(self) -> int:
        """Most tokens of a dialog."""
        ...

    def begin(self) -> None:
        """Begin a new dialog."""
        ...

    def size(self, text: str) -> int:
        """Tokens of what is typed, if it is typed first; 0: nothing."""
        ...

    def fits(self, text: str) -> bool:
        """Is there room for what is typed, and for an answer?"""
        ...

    def reply(self, text: str) -> str:
        """Answer what is typed."""
        ...


def talk(partner: Partner, lines: Iterable[str], out: TextIO) -> None:
    """Answer every line; a dialog that has no position left is followed by a new one."""
    for line in lines:
        text = line.strip()
        if text == _NEW:
            partner.begin()
            continue
        size = partner.size(text) if text else 0
        if not size:
            continue
        if not partner.fits(text):
            partner.begin()
            if not partner.fits(text):
                limit = partner.positions
                print(f"(too long: {size} tokens, the model has {limit} positions)", file=out, flush=True)
                continue
            print("(no position is left; a new dialog begins)", file=out, flush=True)
        print(f"assistant: {plain(partner.reply(text).strip())}", file=out, flush=True)


def _way(is_sent: bool) -> str:
    return "user -> assistant" if is_sent else "assistant -> user"
