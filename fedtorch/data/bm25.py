"""BM25 as Lucene and Elasticsearch compute it, over one client's answers; hard negatives for training."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray

from fedtorch.core.extras import require

if TYPE_CHECKING:
    import bm25s

# Close to Elasticsearch's standard analyser: letters, digits and `_`, also with an apostrophe or a full stop between
# them (`don't`, `3.5`, `example.com` are one word each). No stop words, no stemming.
_WORD = re.compile(r"\w+(?:['’.]\w+)*")


def words(text: str) -> list[str]:
    """Lower-cased word tokens; punctuation, blanks and symbols separate them and are dropped."""
    return _WORD.findall(text.lower())


def _bm25s() -> ModuleType:
    """The package bm25s, which imports JAX where it is installed: at that JAX takes three quarters of the GPU."""
    present = sys.modules.setdefault("jax", cast("ModuleType", None))  # None: an import of it fails
    try:
        import bm25s
    finally:
        if present is None:
            del sys.modules["jax"]
    return bm25s


class BM25:
    """An index over texts, in their order, with Elasticsearch's defaults k1 = 1.2 and b = 0.75.

    The score of text d for a query is Σ ln(1 + (N − df + 0.5)/(df + 0.5)) · tf/(tf + k1(1 − b + b·|d|/avgdl)) over the
    query's tokens (a token that occurs twice counts twice), in double precision.

    Raises:
        ConfigError: bm25s is not installed.
        ValueError: no texts.
    """

    def __init__(self, texts: Sequence[str], *, tokenise: Callable[[str], list[str]] = words) -> None:
        require("BM25", "bm25s", extra="fedmatch")
        if not texts:
            raise ValueError("no texts to index; expected at least one")
        self.texts = list(texts)
        self._tokenise = tokenise
        self._positions: dict[str, list[int]] = {}
        for position, text in enumerate(self.texts):
            self._positions.setdefault(text, []).append(position)
        tokens = [tokenise(text) for text in self.texts]
        self._index: bm25s.BM25 | None = None
        if any(tokens):
            bm25s = _bm25s()
            logging.getLogger("bm25s").setLevel(logging.WARNING)  # bm25s 0.3 sets DEBUG at import
            self._index = bm25s.BM25(k1=1.2, b=0.75, method="lucene", dtype="float64")
            self._index.index(tokens, show_progress=False)

    def scores(self, query: str) -> NDArray[np.float64]:
        """The score of every text, float64 of shape (number of texts); 0 where no token of the query occurs."""
        known = [] if self._index is None else self._index.get_tokens_ids(self._tokenise(query))
        if self._index is None or not known:
            return np.zeros(len(self.texts))
        return np.asarray(self._index.get_scores_from_ids(known), dtype=np.float64)

    def top(self, query: str, count: int) -> list[int]:
        """Positions of the best texts, at most `count`; ties by position. A text that scores 0 is no hit."""
        scores = self.scores(query)
        hits = np.flatnonzero(scores > 0)
        if hits.size > count > 0:  # sort only what can be among the best
            hits = hits[scores[hits] >= np.partition(scores[hits], -count)[-count]]
        best = hits[np.argsort(-scores[hits], kind="stable")]
        return [int(position) for position in best[:count]]

    def negatives(
        self, query: str, positives: Sequence[str], *, count: int = 5, generator: torch.Generator
    ) -> list[int]:
        """Positions of `count` texts that are no positives: the best hits, then random others.

        FedMatch, 4.1: of the best (count + number of positives) hits those that are not positive, the first `count`.
        Fewer come back only when there are not that many other texts.

        Args:
            positives: texts of the right answers; every text equal to one of them is a positive too.
            generator: for the places that hits do not fill; not touched when there are none.
        """
        taken = {position for text in positives for position in self._positions.get(text, ())}
        chosen = [position for position in self.top(query, count + len(taken)) if position not in taken][:count]
        taken.update(chosen)
        if len(chosen) < count:
            others = [position for position in range(len(self.texts)) if position not in taken]
            order = torch.randperm(len(others), generator=generator)[: count - len(chosen)]
            chosen += [others[i] for i in order.tolist()]
        return chosen
