from __future__ import annotations

import pytest

from fedtorch.core.errors import DataError
from fedtorch.data.cover_queries import cover_triples, topics

THEMES = {
    "money": ["loan", "bank", "credit", "interest"],
    "plants": ["rose", "soil", "seed", "water"],
    "cars": ["engine", "tyre", "brake", "fuel"],
}
POOL = [f"{a} {b} {c}" for words in THEMES.values() for a in words for b in words for c in words if a < b < c]
QUESTIONS = ["loan bank interest credit", "seed soil water rose"]
ANSWERS = ["the bank gives a loan", "roses need soil and water", "a brake stops the engine", "nothing at all"]


def theme(text: str) -> str:
    return next(name for name, words in THEMES.items() if set(words) & set(text.split()))


def test_every_genuine_triple_gets_covers_of_another_topic() -> None:
    genuine = QUESTIONS * 10
    covers = cover_triples(genuine, POOL, ANSWERS, per_triple=3, clusters=3, seed=1)
    assert len(covers) == 60
    for i, cover in enumerate(covers):
        assert theme(cover.question) != theme(genuine[i // 3])
        assert cover.question in POOL and cover.positive != cover.negative
        assert {cover.positive, cover.negative} <= set(ANSWERS)


def test_the_clicked_answer_is_the_best_hit_in_the_clients_own_answers() -> None:
    covers = cover_triples([QUESTIONS[1]] * 40, POOL, ANSWERS, clusters=3, seed=0)
    assert covers and {theme(cover.question) for cover in covers} == {"money", "cars"}
    for cover in covers:
        if {"bank", "loan"} & set(cover.question.split()):
            assert cover.positive == ANSWERS[0]
        if {"brake", "engine"} & set(cover.question.split()):
            assert cover.positive == ANSWERS[2]
    unmatched = [c for c in covers if not {"bank", "loan", "brake", "engine"} & set(c.question.split())]
    assert not unmatched or all(cover.positive in ANSWERS for cover in unmatched)
    assert len({cover.negative for cover in covers}) > 1


def test_the_same_seed_gives_the_same_triples_and_another_one_others() -> None:
    def drawn(seed: int) -> list[tuple[str, str, str]]:
        return list(cover_triples(QUESTIONS * 5, POOL, ANSWERS, clusters=3, seed=seed))

    assert drawn(1) == drawn(1) != drawn(2)


def test_topics_follow_the_words() -> None:
    pool, own = topics(POOL, QUESTIONS, clusters=3, seed=1)
    assert len({(theme(text), topic) for text, topic in zip(POOL, pool)}) == 3
    assert own == [pool[POOL.index("bank credit interest")], pool[POOL.index("rose seed soil")]]


def test_the_clients_own_questions_are_not_drawn() -> None:
    covers = cover_triples(POOL[:8], POOL, ANSWERS, clusters=3, seed=1)
    assert not {cover.question for cover in covers} & set(POOL[:8])


def test_edge_cases() -> None:
    assert cover_triples([], POOL, ANSWERS, seed=0) == []
    assert cover_triples(QUESTIONS, POOL, ANSWERS, per_triple=0, seed=0) == []
    with pytest.raises(DataError, match="at least 2 different answers, the client has 1"):
        cover_triples(QUESTIONS, POOL, ["same", "same"], seed=0)
    with pytest.raises(DataError, match="has 1 questions"):
        cover_triples(QUESTIONS, POOL[:1] * 3, ANSWERS, seed=0)
    with pytest.raises(DataError, match="no words"):
        cover_triples(QUESTIONS, ["?", "!"], ANSWERS, seed=0)
    with pytest.raises(ValueError, match="expected at least 0 and 2"):
        cover_triples(QUESTIONS, POOL, ANSWERS, clusters=1, seed=0)
