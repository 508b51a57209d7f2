"""Five small question answering clients made by the package itself, to try FedMatch out without any download.

A question asks for one aspect (price, age, ...) of one subject of the client's topic. A right answer names the subject
and the aspect in other words; the wrong ones name another aspect of the subject, or the aspect of another subject. So
a model must learn which answer words belong to which question words (the same for all clients, which is what they
gain from each other) and look for the subject.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from fedtorch.core.seeds import generator_for
from fedtorch.data.qa_folder import QARow, write_qa
from fedtorch.data.recipe import prepare_once

VOCAB_SIZE = 700
_DEV, _TEST = 20, 40
_SAME_SUBJECT, _SAME_ASPECT = 3, 2


class Topic(NamedTuple):
    """Subject that a client asks about, in its own words."""

    train: int
    """number of training questions"""
    subjects: tuple[str, ...]
    """nouns that its questions are about"""
    tail: str
    """closes each of its answers"""


TOPICS: dict[str, Topic] = {
    "kitchen": Topic(130, ("oven", "kettle", "pan", "mixer", "fridge", "grill", "toaster", "knife"), "in kitchens"),
    "garden": Topic(110, ("mower", "hedge", "spade", "fountain", "shed", "rake", "pond", "bench"), "in any season"),
    "garage": Topic(90, ("engine", "brake", "wheel", "clutch", "mirror", "battery", "wiper", "trailer"), "on the road"),
    "music": Topic(60, ("violin", "drum", "flute", "piano", "guitar", "trumpet", "harp", "organ"), "on the stage"),
    "office": Topic(40, ("printer", "desk", "stapler", "lamp", "phone", "folder", "scanner", "chair"), "at work"),
}
_PUBLIC_SUBJECTS = ("bridge", "tunnel", "harbour", "museum", "castle", "market", "tower", "stadium", "library")

# aspect -> ways to ask, ways to answer; no content word occurs on both sides
ASPECTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "price": (("what does the {} cost", "how dear is the {}", "what to pay for the {}"), ("forty dollars", "cheap")),
    "age": (("how old is the {}", "since when is there the {}", "was the {} new"), ("ten years", "last century")),
    "weight": (
        ("how heavy is the {}", "what does the {} weigh", "can we lift the {}"),
        ("nine pounds", "very light"),
    ),
    "colour": (("what colour has the {}", "how is the {} painted", "is the {} bright"), ("mostly red", "plain green")),
    "maker": (("who builds the {}", "where does the {} come from", "who makes the {}"), ("a local firm", "by hand")),
    "care": (("how to clean the {}", "how to mind the {}", "what keeps the {} good"), ("warm water", "some oil")),
    "place": (
        ("where to put the {}", "where is the {} kept", "which spot for the {}"),
        ("near a wall", "under roof"),
    ),
    "danger": (("is the {} safe", "can the {} hurt people", "is the {} risky"), ("no harm", "keep children away")),
}


class Fact(NamedTuple):
    """Subject of an answer."""

    subject: str
    """one of the topic's nouns"""
    aspect: str
    """a key of ASPECTS: what is asked of it"""


def generate(*, seed: int = 0) -> dict[str, dict[str, list[QARow]]]:
    """Client -> split -> rows; the same on every machine for the same seed. No question occurs twice in a client."""
    return {client: _client(client, topic, seed) for client, topic in TOPICS.items()}


def public_questions() -> list[str]:
    """Questions about subjects that no client has."""
    return [form.format(subject) for forms, _ in ASPECTS.values() for form in forms for subject in _PUBLIC_SUBJECTS]


def prepare(out: Path, *, seed: int = 0) -> None:
    """Write the clients as a prepared folder; keep one made with this seed. Several processes may call it at once.

    Raises:
        DataError: `out` was prepared differently.
    """
    options = {"seed": seed, "vocab_size": VOCAB_SIZE}

    def write(folder: Path) -> None:
        write_qa(
            folder,
            "synthetic-qa",
            generate(seed=seed),
            pool=public_questions(),
            vocab_size=VOCAB_SIZE,
            record={"options": options},
            min_frequency=1,
        )

    prepare_once(out, options, write)


def _client(client: str, topic: Topic, seed: int) -> dict[str, list[QARow]]:
    generator = generator_for(seed, "synthetic questions and answers", client)
    facts = [Fact(subject, aspect) for subject in topic.subjects for aspect in ASPECTS]
    # Shuffled before they are numbered, so that a docid, which settles ties, says nothing about relevance.
    answers = [(fact, answer) for fact in facts for answer in ASPECTS[fact.aspect][1]]
    texts = [(fact, f"the {fact.subject} : {answer} {topic.tail}") for fact, answer in answers]
    documents = {f"{number:04d}": texts[i] for number, i in enumerate(_shuffled(len(texts), generator))}
    asked = [(fact, form.format(fact.subject)) for fact in facts for form in ASPECTS[fact.aspect][0]]
    order = [asked[i] for i in _shuffled(len(asked), generator)]
    train = topic.train
    parts = {
        "train": order[:train],
        "dev": order[train : train + _DEV],
        "test": order[train + _DEV : train + _DEV + _TEST],
    }
    return {
        split: [_row(fact, question, documents, generator, training=split == "train") for fact, question in questions]
        for split, questions in parts.items()
    }


def _row(
    fact: Fact, question: str, documents: dict[str, tuple[Fact, str]], generator: torch.Generator, *, training: bool
) -> QARow:
    right = [docid for docid, (other, _) in documents.items() if other == fact]
    if _shuffled(2, generator)[0]:
        right = right[:1]  # half of the questions have one answer, half two
    subject = [docid for docid, (other, _) in documents.items() if other.subject == fact.subject and other != fact]
    aspect = [docid for docid, (other, _) in documents.items() if other.aspect == fact.aspect and other != fact]
    wrong = [subject[i] for i in _shuffled(len(subject), generator)[:_SAME_SUBJECT]]
    wrong += [aspect[i] for i in _shuffled(len(aspect), generator)[:_SAME_ASPECT]]
    labels = dict.fromkeys(right, 1) | dict.fromkeys(wrong, 0)
    order = list(labels) if training else sorted(labels)
    return QARow(question, [documents[docid][1] for docid in order], [labels[docid] for docid in order], order)


def _shuffled(count: int, generator: torch.Generator) -> list[int]:
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    return order
