"""Keys and values of a dialog: the words of a turn by the nearest neighbours of what its speaker's first layer makes.

What crosses between the two sides of a dialog is no update: neither a clip nor noise on sums touches it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedtorch.audit.finding import LITTLE, Finding, percent, share
from fedtorch.audit.pictures import bars
from fedtorch.audit.subject import Subject
from fedtorch.core.seeds import seed_torch
from fedtorch.models.link import Increment, Link
from fedtorch.models.two_side import ASSISTANT, USER, TwoSide
from fedtorch.rounds.private_weights import private_weights

NAME = "kv"
ABOUT = "the words of a turn, by nearest neighbours of the keys and values of layer 0 that its speaker's side sends"
NEEDS = "to be the other side of a dialog, or between both, with a model that began with the same weights"
MOST_DIALOGS = 4
"""Of each client."""
TELLING = 0.05
"""Where fewer words are found it may be chance: single frequent words are guessed."""
SIDES = {USER: "user", ASSISTANT: "assistant"}


@dataclass
class Tap:
    """One end of a link, which keeps what is sent."""

    link: Link
    """the end itself, through which everything goes"""
    side: int
    """USER or ASSISTANT, whose end it is"""
    sent: list[tuple[int, Increment]]
    """(who sent it, what)"""

    def send(self, increment: Increment) -> None:
        """Record the tensor, and send it."""
        self.sent.append((self.side, increment))
        self.link.send(increment)

    def receive(self) -> Increment:
        """Receive as the tapped link does."""
        return self.link.receive()


@dataclass
class Words:
    """Vectors that one side sent of one client's dialogs: one for each word, with the word and its place."""

    vectors: list[Tensor] = field(default_factory=list)
    """keys and values of layer 0 end to end, shape (words, 2 width)"""
    places: list[int] = field(default_factory=list)
    """position of each word in its dialog, from 0"""
    tokens: list[int] = field(default_factory=list)
    """id of each word: what the attack has to find"""


def why_not(subject: Subject) -> str:
    """Why the attack does not apply; empty if it does."""
    module = subject.context.components.engine.module
    if not isinstance(module, TwoSide):
        return "the model has no two sides that exchange keys and values"
    first = module.user
    known = hasattr(first, "transformer") and hasattr(first.transformer, "h") and hasattr(first.transformer, "wpe")
    return "" if known else f"the first layer of {type(first).__name__} is not known to this attack"


def attack(subject: Subject) -> Finding:
    """Share of the words sent that are found, with the attacker's own model and with the speaker's."""
    module, figures = subject.context.components.engine.module, list[dict[str, Any]]()
    assert isinstance(module, TwoSide)
    shown: dict[str, Any] = {}
    for client in [client.name for client in subject.context.components.clients][: subject.options.clients]:
        for side, words in overheard(subject, client).items():
            for own in (True, False):
                guesser = (module.user, module.assistant)[1 - side if own else side]
                guessed = nearest(guesser, words)
                right = sum(one == other for one, other in zip(guessed, words.tokens, strict=True))
                figures.append(
                    {
                        "channel": f"keys and values, {'own' if own else 'the same'} weights",
                        "client": f"{client}, {SIDES[side]}",
                        "words": len(words.tokens),
                        "recovered": share(right, len(words.tokens)),
                    }
                )
                if subject.options.show and own:
                    shown[f"{client}, {SIDES[side]}"] = guessed
    return Finding(NAME, ABOUT, NEEDS, _said(figures), figures, bars(figures, "recovered"), shown=shown)


@torch.no_grad()
def overheard(subject: Subject, client: str) -> Mapping[int, Words]:
    """Speaker's side -> what it sent in a training step over a client's first dialogs, dropout included."""
    context, components = subject.context, subject.context.components
    module, found = components.engine.module, {USER: Words(), ASSISTANT: Words()}
    assert isinstance(module, TwoSide)
    components.engine.load(context.vectors.weights, private_weights(components, client, context.store.get(client)))
    for example in list(subject.examples(client))[:MOST_DIALOGS]:
        batch = components.training.collate([example], True)
        module.train()
        with torch.random.fork_rng(), tapped(module) as sent:
            seed_torch(0, components.engine.device)
            components.training.loss(module, batch)
        (group,) = batch["groups"]
        inputs = [segment["inputs"][0] for segment in group["segments"]]
        starts = [sum(map(len, inputs[:turn])) for turn in range(len(inputs))]
        for side, increment in sent:
            turn, words = increment.turn, found[side]
            words.vectors.append(_first_layer(increment, len(inputs[turn])))
            words.places += range(starts[turn], starts[turn] + len(inputs[turn]))
            words.tokens += inputs[turn].tolist()
    module.eval()
    return {side: words for side, words in found.items() if words.tokens}


@contextmanager
def tapped(module: TwoSide) -> Iterator[list[tuple[int, Increment]]]:
    """Record what both sides send while the model runs."""
    sent: list[tuple[int, Increment]] = []
    links = module.links

    def instead() -> dict[int, Link]:
        return {side: Tap(link, side, sent) for side, link in links().items()}

    module.links = instead  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        del module.links  # the class's own again


def nearest(model: Any, words: Words) -> list[int]:
    """The token, at the place of each word, whose keys and values in the model's first layer are next to those sent."""
    vectors, guessed = torch.cat(words.vectors), [0] * len(words.tokens)
    transformer = model.transformer
    by_place: dict[int, list[int]] = {}
    for number, place in enumerate(words.places):
        by_place.setdefault(place, []).append(number)
    with torch.no_grad():
        for place, numbers in by_place.items():
            table = _keys_values(transformer.h[0], transformer.wte.weight + transformer.wpe.weight[place])
            near = torch.cdist(vectors[numbers], table.float()).argmin(1).tolist()
            for number, token in zip(numbers, near, strict=True):
                guessed[number] = token
    return guessed


def _keys_values(layer: Any, inputs: Tensor) -> Tensor:
    """Keys and values of each input, shape (inputs, 2 width)."""
    made: Tensor = layer.attn.c_attn(layer.ln_1(inputs.unsqueeze(0)))[0]
    return made[:, made.shape[1] // 3 :]


def _first_layer(increment: Increment, tokens: int) -> Tensor:
    """Keys and values of the newest tokens of one dialog's increment: shape (tokens, 2 width)."""
    layer = increment.data[0][:, 0, :, -tokens:]  # (2, heads, tokens, head_dim)
    return layer.permute(2, 0, 1, 3).flatten(1).float()


def _said(figures: Sequence[Mapping[str, Any]]) -> str:
    own = [row for row in figures if "own" in row["channel"]]
    best = max((row["recovered"] or 0.0 for row in own), default=0.0)
    exact = max((row["recovered"] or 0.0 for row in figures), default=0.0)
    said = (
        f"{LITTLE} up to {percent(best)} of a side's words from the other side, {percent(exact)} with the same weights"
    )
    return said if best >= TELLING else f"{said}; so few may be chance"
