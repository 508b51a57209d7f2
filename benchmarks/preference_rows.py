"""Made answers that five clinics prefer: partly by a taste that all share, partly by their own, with noise."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path

SIZES = {"north": 320, "east": 160, "south": 80, "west": 40, "island": 20}
"""client -> its rows to train on"""
TESTED = 200
"""rows of each client that are asked"""
PUBLIC = 3000
"""texts from which the model learns what an answer looks like"""
COMMON, OWN = 2.5, 1.3
"""standard deviation of what a treatment is worth to all, and of what an opening, or an ending, is worth to a client"""
PARTS = ("knee", "back", "neck", "hand", "foot", "ear", "throat", "head", "hip", "elbow", "ankle", "shoulder")
COMPLAINTS = ("hurts", "is stiff", "is hot", "itches", "is swollen", "feels weak")
TREATMENTS = (
    "ice", "rest", "honey", "a bandage", "warm water", "ginger tea", "long walks", "salt", "a soft pillow",
    "stretching", "mint oil", "a cold bath", "clay", "massage", "sunlight", "garlic", "an old remedy", "a brace",
    "aloe", "swimming", "red wine", "prayer", "black coffee", "a new chair", "gloves", "soup", "steam",
    "a tight belt", "yoga", "vinegar", "cabbage leaves", "fresh air", "more sleep", "a hot stone", "less sugar",
    "dancing",
)  # fmt: skip
OPENINGS = ("", "please", "you should", "i would", "dear patient ,", "well ,")
ENDINGS = ("", "and come back", "for a week", "or call us", "and take care", "if you like")


@dataclass(frozen=True)
class Answer:
    """Three parts, which are drawn independently."""

    opening: str
    treatment: str
    ending: str

    @property
    def text(self) -> str:
        """As the model reads it, after the prompt."""
        return " " + " ".join(part for part in (self.opening, "try", self.treatment, self.ending) if part)


@dataclass(frozen=True)
class Taste:
    """The worth of each part of an answer at a client."""

    common: Mapping[str, float]
    """by treatment, the same for all"""
    own: Mapping[str, float]
    """by opening and by ending; both may be empty, so with `<` before an opening and `>` behind an ending"""

    def shared(self, answer: Answer) -> float:
        """The part that all clients agree on."""
        return self.common[answer.treatment]

    def worth(self, answer: Answer) -> float:
        """All of it."""
        return self.shared(answer) + self.own[f"<{answer.opening}"] + self.own[f"{answer.ending}>"]


@dataclass(frozen=True)
class Known:
    """How many of some test rows are right by what made them; nobody can learn more than `all` from rows."""

    common: int
    """by the common part of the taste alone"""
    all: int
    """by the client's whole taste: the others are noise"""


def prompt(draw: random.Random) -> str:
    """A complaint."""
    return f"my {draw.choice(PARTS)} {draw.choice(COMPLAINTS)} , what helps ?"


def answer(draw: random.Random) -> Answer:
    """Any."""
    return Answer(draw.choice(OPENINGS), draw.choice(TREATMENTS), draw.choice(ENDINGS))


def tastes(seed: int) -> dict[str, Taste]:
    """One for each client."""
    draw = random.Random(f"tastes {seed}")
    common = {treatment: draw.gauss(0, COMMON) for treatment in TREATMENTS}
    parts = [*(f"<{opening}" for opening in OPENINGS), *(f"{ending}>" for ending in ENDINGS)]
    return {name: Taste(common, {part: draw.gauss(0, OWN) for part in parts}) for name in SIZES}


def pairs(taste: Taste, number: int, draw: random.Random) -> Iterator[tuple[str, Answer, Answer]]:
    """(prompt, chosen, rejected): the better one is chosen with probability 1 / (1 + exp(-lead)) (Bradley-Terry)."""
    for _ in range(number):
        asked, one, other = prompt(draw), answer(draw), answer(draw)
        while one.treatment == other.treatment:
            other = answer(draw)
        lead = taste.worth(one) - taste.worth(other)
        yield (asked, one, other) if draw.random() < 1 / (1 + exp(-lead)) else (asked, other, one)


def write_rows(seed: int, path: Path) -> dict[str, Known]:
    """A file with all clients' rows; what can be known of their test rows."""
    rows, known = list[dict[str, str]](), dict[str, Known]()
    for name, taste in tastes(seed).items():
        draw = random.Random(f"rows {seed} {name}")
        for part, number in (("train", SIZES[name]), ("test", TESTED)):
            made = list(pairs(taste, number, draw))
            rows += [
                {"prompt": asked, "chosen": good.text, "rejected": bad.text, "clinic": name, "part": part}
                for asked, good, bad in made
            ]
        known[name] = Known(
            sum(taste.shared(good) > taste.shared(bad) for _, good, bad in made),
            sum(taste.worth(good) > taste.worth(bad) for _, good, bad in made),
        )
    _write(path, rows)
    return known


def write_public(path: Path) -> None:
    """Complaints with any answers, which nobody prefers."""
    draw = random.Random("public")
    _write(path, [{"prompt": prompt(draw), "completion": answer(draw).text} for _ in range(PUBLIC)])


def _write(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
