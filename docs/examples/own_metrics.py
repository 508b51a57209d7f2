"""Metrics of one's own: `eval.metrics: [macro_f1, "own_metrics:short_answers", "own_metrics:FoundMalignant"]`."""

from __future__ import annotations

from collections.abc import Sequence


def short_answers(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Share of a client's answers that are not longer than what was expected."""
    pairs = zip(predictions, references, strict=True)
    return sum(len(found) <= len(true) for found, true in pairs) / len(references)


class FoundMalignant:
    """Recall of one label: of the malignant notes of all clients together, the share that was found."""

    def sums(self, predictions: Sequence[str], references: Sequence[str]) -> list[float]:
        """(malignant and found so, malignant) of one client's rows."""
        hits = sum(found == true == "malignant" for found, true in zip(predictions, references, strict=True))
        return [hits, sum(true == "malignant" for true in references)]

    def score(self, sums: Sequence[float]) -> float:
        """NaN: no row is malignant, so this client, or all of them, have no figure."""
        hits, malignant = sums
        return hits / malignant if malignant else float("nan")
