"""Cover queries: made-up training triples that hide a client's own ones (FedMatch's baseline CoverQuery, our reading).

The paper gives one sentence. Here each genuine triple travels with a few others whose question is on another topic of
a public pool, with the "clicked" answer that a search in the client's own answers would bring up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from fedtorch.core.errors import DataError
from fedtorch.core.extras import require
from fedtorch.core.seeds import generator_for, seed_for
from fedtorch.data.bm25 import BM25


class Triple(NamedTuple):
    """A training triple of texts."""

    question: str
    """cover question, from the public pool"""
    positive: str
    """answer of the client that is passed off as relevant to it"""
    negative: str
    """another answer of the client"""


def cover_triples(
    questions: Sequence[str],
    pool: Sequence[str],
    answers: Sequence[str],
    *,
    per_triple: int = 2,
    clusters: int = 20,
    seed: int,
) -> list[Triple]:
    """`per_triple` cover triples for every entry of `questions`, in that order.

    A cover question is drawn from those pool questions that lie in another topic cluster than the genuine one; its
    positive is the client's best BM25 answer (a random one if no word matches), its negative a random other answer.

    Args:
        questions: the question of each genuine training triple; the same one may occur many times.
        pool: public questions; repetitions and the client's own questions are not drawn.
        answers: the client's own answers.
        seed: of the clusters and all draws; the same arguments give the same triples.

    Raises:
        DataError: fewer than two different answers, or no pool question in another cluster.
        ValueError: a negative number of covers, or less than two clusters.
    """
    if per_triple < 0 or clusters < 2:
        raise ValueError(f"per_triple is {per_triple} and clusters {clusters}; expected at least 0 and 2")
    answers = list(dict.fromkeys(answers))
    if len(answers) < 2:
        raise DataError(f"cover queries need at least 2 different answers, the client has {len(answers)}")
    genuine = list(dict.fromkeys(questions))
    public = [text for text in dict.fromkeys(pool) if text not in set(genuine)]
    if not questions or not per_triple:
        return []
    public_topics, own_topics = topics(public, genuine, clusters=clusters, seed=seed)
    topic_of = dict(zip(genuine, own_topics, strict=True))
    others = {topic: [i for i, other in enumerate(public_topics) if other != topic] for topic in set(own_topics)}
    if not all(others.values()):
        raise DataError(f"all {len(public)} public questions are on one topic; cover queries need a larger pool")
    index = BM25(answers)
    best: dict[int, int | None] = {}
    generator = generator_for(seed, "cover queries")
    triples = []
    for question in questions:
        choices = others[topic_of[question]]
        for _ in range(per_triple):
            cover = choices[_draw(len(choices), generator)]
            if cover not in best:
                best[cover] = next(iter(index.top(public[cover], 1)), None)
            clicked = best[cover]
            positive = _draw(len(answers), generator) if clicked is None else clicked
            negative = (positive + 1 + _draw(len(answers) - 1, generator)) % len(answers)
            triples.append(Triple(public[cover], answers[positive], answers[negative]))
    return triples


def require_packages(what: str) -> None:
    """Refuse `what`, which takes cover queries, where they cannot be made.

    Raises:
        ConfigError: bm25s or scikit-learn is not installed.
    """
    require(what, "bm25s", "sklearn", extra="fedmatch")


def topics(pool: Sequence[str], questions: Sequence[str], *, clusters: int, seed: int) -> tuple[list[int], list[int]]:
    """Topic of each pool question and of each of the others: k-means over the pool's TF-IDF vectors.

    At most as many clusters as there are pool questions.

    Raises:
        DataError: the pool has fewer than two questions, or no words.
    """
    from sklearn.cluster import KMeans
    from sklearn.feature_extraction.text import TfidfVectorizer

    if len(pool) < 2:
        raise DataError(f"the public pool has {len(pool)} questions that the client does not own; expected at least 2")
    vectoriser = TfidfVectorizer()
    try:
        vectors = vectoriser.fit_transform(pool)
    except ValueError:
        raise DataError("the public pool has no words; expected questions in words") from None
    state = seed_for(seed, "cover topics") % 2**32  # the widest seed that NumPy takes
    means = KMeans(n_clusters=min(clusters, vectors.shape[0]), n_init=1, random_state=state).fit(vectors)
    return means.labels_.tolist(), means.predict(vectoriser.transform(questions)).tolist()


def _draw(count: int, generator: torch.Generator) -> int:
    return int(torch.randint(count, (1,), generator=generator))
