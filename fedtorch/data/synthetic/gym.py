"""A small gym of eight made-up few-shot tasks, in CrossFit's layout, so that the few-shot job needs no download."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from fedtorch.core.seeds import seed_for
from fedtorch.data.crossfit import SEEDS, SPLITS
from fedtorch.data.prepare_crossfit import prepare_crossfit

K = 8
TEST_ROWS = 16

_NAMES = "anna ben clara david emma felix greta henry ida jonas".split()
_ANIMALS, _PLANTS, _TOOLS = (
    "cat dog horse sheep".split(),
    "oak rose fern pine".split(),
    "saw drill spade hammer".split(),
)
_COLOURS = "red blue green black white yellow".split()
_PLACES = "garden kitchen library station harbour market".split()
_SIZES = "old new small large quiet".split()
_GOOD, _BAD = "great lovely superb warm".split(), "dull weak awful cold".split()
_STARS = {"1": "awful", "2": "poor", "3": "fair", "4": "good", "5": "superb"}

Draw = Callable[[random.Random], tuple[str, ...]]


class Made(NamedTuple):
    """A task."""

    metric: str
    """CrossFit's name of it"""
    client: int
    """which one holds the task, from 1"""
    draw: Draw
    """draws an example: input and answers"""


def _thing(r: random.Random) -> str:
    return r.choice(_ANIMALS + _PLANTS + _TOOLS)


def _mood(r: random.Random) -> tuple[str, ...]:
    label = r.choice(("positive", "negative"))
    return f"the {_thing(r)} of {r.choice(_NAMES)} was {r.choice(_GOOD if label == 'positive' else _BAD)}", label


def _colour(r: random.Random) -> tuple[str, ...]:
    thing, colour = f"{r.choice(_SIZES)} {_thing(r)}", r.choice(_COLOURS)
    return f"which colour has the {thing} ? [SEP] the {thing} is {colour}", colour


def _where(r: random.Random) -> tuple[str, ...]:
    name, place = r.choice(_NAMES), f"{r.choice(_SIZES)} {r.choice(_PLACES)}"
    return f"where is {name} ? [SEP] {name} is in the {place}", f"the {place}", place


def _headline(r: random.Random) -> tuple[str, ...]:
    name, thing, place = r.choice(_NAMES), _thing(r), r.choice(_PLACES)
    return f"summarize: on that day {name} found a {thing} in the {place}", f"{name} found a {thing}"


def _stars(r: random.Random) -> tuple[str, ...]:
    label = r.choice(tuple(_STARS))
    return f"{r.choice(_NAMES)} says the {r.choice(_SIZES)} {r.choice(_PLACES)} was {_STARS[label]}", label


def _same(r: random.Random) -> tuple[str, ...]:
    one = _thing(r)
    other = one if r.random() < 0.5 else _thing(r)
    return f"{r.choice(_NAMES)} has a {one} [SEP] {r.choice(_NAMES)} has a {other}", "yes" if one == other else "no"


def _number(r: random.Random) -> tuple[str, ...]:
    label = r.choice(("one", "many"))
    return f"the {_thing(r)}{'s' if label == 'many' else ''} of {r.choice(_NAMES)} in the {r.choice(_PLACES)}", label


def _kind(r: random.Random) -> tuple[str, ...]:
    label, things = r.choice((("animal", _ANIMALS), ("plant", _PLANTS), ("tool", _TOOLS)))
    return f"the {r.choice(_COLOURS)} {r.choice(things)} of {r.choice(_NAMES)}", label


TASKS = {
    "made-colour": Made("EM", 1, _colour),
    "made-headline": Made("Rouge-L", 4, _headline),
    "made-kind": Made("Classification-F1", 2, _kind),
    "made-mood": Made("Classification-F1", 1, _mood),
    "made-number": Made("ACC", 4, _number),
    "made-same": Made("ACC", 3, _same),
    "made-stars": Made("Pearson-Correlation", 3, _stars),
    "made-where": Made("QA-F1", 2, _where),
}


def write_gym(folder: Path, seed: int = 0) -> Path:
    """Writes the tasks and `tasks.json` below `folder`; returns the path of the latter. Same seed, same bytes."""
    for name, made in TASKS.items():
        (folder / name).mkdir(parents=True)
        for shot in SEEDS:
            for split in SPLITS:
                source = random.Random(seed_for(seed, "gym", name, split, shot))
                rows = [made.draw(source) for _ in range(TEST_ROWS if split == "test" else 2 * K)]
                text = "".join("\t".join(row) + "\n" for row in rows)
                (folder / name / f"{name}_{K}_{shot}_{split}.tsv").write_text(text, encoding="utf-8")
    entries: Sequence[dict[str, object]] = [
        {"task": name, "metric": made.metric, "paper_clients": [made.client], "group": "made up"}
        for name, made in TASKS.items()
    ]
    tasks = folder / "tasks.json"
    tasks.write_text(json.dumps({"tasks": entries}, indent=1) + "\n", encoding="utf-8")
    return tasks


def prepare(out: Path, *, seed: int = 0, vocab_size: int = 300) -> None:
    """Writes the gym to a temporary folder and prepares it as `out`, four clients with two tasks each."""
    with TemporaryDirectory() as folder:
        tasks = write_gym(Path(folder) / "gym", seed)
        prepare_crossfit(tasks.parent, out, tasks=tasks, vocab_size=vocab_size)
