"""Perplexity from sums of log-likelihoods, and FedAssistant's table of it (docs/fedassistant.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

# Scores of log-likelihoods (natural, so negative) and their tokens, per client: of its own test dialogs, and of those
# of every domain by the domain's place in the manifest. `_assistant`: tokens of the assistant's turns only.
OWN, OWN_ASSISTANT = "log_likelihood", "log_likelihood_assistant"
Scores = Mapping[str, tuple[float, int]]


def perplexity(log_likelihood: float, tokens: int) -> float:
    """exp(−Σ log p / Σ tokens).

    Raises:
        ValueError: there is no token.
    """
    if tokens < 1:
        raise ValueError(f"the perplexity of {tokens} tokens is not defined; give test dialogs")
    return math.exp(-log_likelihood / tokens)


def of_domain(metric: str, place: int) -> str:
    """The metric of one domain's dialogs, such as `log_likelihood/3`."""
    return f"{metric}/{place}"


def table(scores: Mapping[str, Scores], domains: Sequence[str]) -> dict[str, dict[str, float]]:
    """Rows `perplexity` and `perplexity_assistant` (the paper's `_A`), with a column per domain and the column `All`.

    scores: per client. domains: the clients' names in the manifest's order.
    A domain's column is that client's model on its own test dialogs. `All`: per client the mean of the perplexities of
    its model on every domain, then the mean over clients. `union`: per client the perplexity over the union of all
    test dialogs, then the mean over clients. A domain without test dialogs has no column and counts nowhere; without
    scores on other domains there is neither `All` nor `union`.
    """
    rows: dict[str, dict[str, float]] = {}
    for row, metric in (("perplexity", OWN), ("perplexity_assistant", OWN_ASSISTANT)):
        columns = {name: perplexity(*scores[name][metric]) for name in domains if _counts(scores.get(name, {}), metric)}
        every: list[float] = []
        union: list[float] = []
        for pairs in scores.values():
            names = [of_domain(metric, place) for place in range(len(domains))]
            found = [pairs[name] for name in names if _counts(pairs, name)]
            if found:
                every.append(sum(perplexity(*pair) for pair in found) / len(found))
                union.append(perplexity(sum(total for total, _ in found), sum(tokens for _, tokens in found)))
        if every:
            columns |= {"All": sum(every) / len(every), "union": sum(union) / len(union)}
        rows[row] = columns
    return rows


def _counts(scores: Scores, metric: str) -> bool:
    return scores.get(metric, (0.0, 0))[1] > 0
