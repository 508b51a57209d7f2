"""Six small clients with made-up two-side dialogs: the dialog task's smoke runs and tests need no download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedtorch.core.seeds import generator_for
from fedtorch.data.dialog_folder import write_dialogs
from fedtorch.data.dialogs import ASSISTANT, USER, Turns
from fedtorch.data.recipe import prepare_once

VOCAB_SIZE = 512
SIZES = {"train": 48, "dev": 8, "test": 8}


@dataclass(frozen=True)
class Domain:
    """The words that a client's dialogs are filled with."""

    thing: str
    """what is ordered"""
    kinds: tuple[str, ...]
    """of the thing; each dialog picks one"""
    sizes: tuple[str, ...]
    """of the thing, which the assistant asks for if the user did not say"""
    times: tuple[str, ...]
    """for when"""


DOMAINS = {
    "repair": Domain("repair", ("brake", "oil", "tyre", "engine"), ("small", "large"), ("monday", "tuesday", "friday")),
    "coffee": Domain("coffee", ("latte", "mocha", "espresso"), ("small", "medium", "large"), ("now", "in ten minutes")),
    "movie": Domain("ticket", ("comedy", "drama", "horror"), ("single", "double"), ("at six", "at eight", "at ten")),
    "restaurant": Domain("table", ("thai", "greek", "korean"), ("two seat", "four seat"), ("at seven", "at nine")),
    "pizza": Domain("pizza", ("cheese", "mushroom", "olive"), ("small", "medium", "large"), ("now", "at noon")),
    "ride": Domain("ride", ("airport", "station", "stadium"), ("shared", "private"), ("now", "at dawn", "at midnight")),
}


def dialog(domain: Domain, generator: torch.Generator) -> Turns:
    """One made-up dialog of two to eight turns; in a quarter of them the assistant begins."""

    def pick(choices: Sequence[str]) -> str:
        return choices[int(torch.randint(len(choices), (1,), generator=generator))]

    kind, size, time, thing = pick(domain.kinds), pick(domain.sizes), pick(domain.times), domain.thing
    turns = [[ASSISTANT, "hello , what can i do for you ?"]] if pick("abcd") == "a" else []
    if pick("ab") == "a":
        turns += [[USER, f"i want a {size} {kind} {thing} ."]]
    else:
        turns += [[USER, f"i want a {kind} {thing} ."], [ASSISTANT, f"which size , {' or '.join(domain.sizes)} ?"]]
        turns += [[USER, f"a {size} one ."]]
    if pick("ab") == "a":
        turns += [[ASSISTANT, "when do you want it ?"], [USER, f"{time} please ."]]
        turns += [[ASSISTANT, f"a {size} {kind} {thing} {time} , is that right ?"], [USER, pick(("yes .", "right ."))]]
    return [*turns, [ASSISTANT, f"your {size} {kind} {thing} is booked ."]]


def generate(*, seed: int = 0) -> dict[str, dict[str, list[Turns]]]:
    """Client -> split -> dialogs; the same on every machine for the same seed."""
    return {
        client: {
            split: [dialog(domain, generator_for(seed, "synthetic dialog", client, split, i)) for i in range(size)]
            for split, size in SIZES.items()
        }
        for client, domain in DOMAINS.items()
    }


def prepare(out: Path, *, seed: int = 0) -> None:
    """Write the clients and a vocabulary of their training texts as a prepared folder; keep one made with this seed.

    Several processes may call it at once.

    Raises:
        DataError: `out` was prepared differently.
    """
    options = {"seed": seed, "vocab_size": VOCAB_SIZE}

    def write(folder: Path) -> None:
        write_dialogs(folder, generate(seed=seed), {"options": options}, vocab_size=VOCAB_SIZE)

    prepare_once(out, options, write)
