"""The span check as an attack on a run: which tokens stand at which place of a client's texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedtorch.audit.channels import channels
from fedtorch.audit.finding import LITTLE, Finding, percent, share
from fedtorch.audit.layers import FirstLayers
from fedtorch.audit.pictures import bars
from fedtorch.audit.span import check
from fedtorch.audit.subject import Subject

NAME = "span"
ABOUT = "tokens with their places, by the space that the update of the first matrix spans (DAGER, 2405.15586)"
BEST_KNOWN = "the best known attack on whole texts is DAGER (2405.15586), which reads further layers too"
NEEDS = "the update and the weights that the client started from, which every client has"

TELLING = 0.5
"""Where fewer of the finds are right the attacker cannot tell them from strangers."""


WAYS = {
    "span": "the space alone",
    "pursuit": "simultaneous matching pursuit",
    "energy": "the energy in the leading singular directions",
}
"""How tokens were found -> in words."""


def why_not(subject: Subject) -> str:
    """Why the attack does not apply; empty if it does."""
    if why := subject.why_no_first_layers:
        return why
    assert isinstance(subject.layers, FirstLayers)
    if not subject.layers.first_weight:
        return "no matrix that embedded tokens are multiplied by is sent"
    try:
        subject.layers.inputs(subject.context.vectors.weights.new_zeros(1, 2).long())
    except Exception as error:  # whatever a model says that wants more than tokens
        return f"the model cannot be asked about single tokens ({type(error).__name__})"
    return ""


def attack(subject: Subject) -> Finding:
    """Share of the (token, place) pairs that are found, and false ones, in every channel."""
    layers, figures = subject.layers, list[dict[str, Any]]()
    shown: dict[str, Any] = {}
    assert isinstance(layers, FirstLayers)
    weight = subject.weights[layers.first_weight]
    subject.load_server()
    width = layers.inputs(weight.new_zeros(1, 1).long()).shape[-1]
    for seen in channels(subject):
        texts = [text for client in seen.clients for text in subject.texts(client)]
        places = min(subject.options.places, max(map(len, texts)))
        truth = {(token, place) for text in texts for place, token in enumerate(text[:places])}
        update = subject.named(seen.flat)[layers.first_weight]
        found = check(update, weight, inputs=layers.inputs, vocabulary=layers.vocabulary, places=places, width=width)
        if not found.has_places:
            truth = {(token, 0) for token, _ in truth}
        right = len(found.pairs & truth)
        figures.append(
            {
                "channel": seen.channel,
                "client": seen.whose,
                "pairs": len(truth),
                "found": len(found.pairs),
                "recovered": share(right, len(truth)),
                "right": share(right, len(found.pairs)),
                "how": found.how,
                "rank": found.rank,
                "width": width,
            }
        )
        if subject.options.show and seen.channel == "update":
            shown[seen.whose] = sorted(found.pairs & truth)
    return Finding(NAME, ABOUT, NEEDS, _said(figures), figures, bars(figures, "recovered"), shown=shown)


def _said(figures: Sequence[Mapping[str, Any]]) -> str:
    told = [row for row in figures if row["channel"] == "update"]
    best = max(told, key=lambda row: row["recovered"] or 0.0, default=None)
    if best is None or not best["recovered"]:
        return f"{LITTLE} no token of any client; {BEST_KNOWN}"
    found = f"up to {percent(best['recovered'])} of a client's tokens with their places"
    right = f"{percent(best['right'])} of the finds are right (by {WAYS[best['how']]})"
    is_telling = (best["right"] or 0.0) >= TELLING
    return f"{LITTLE} {found}, {right}" + ("" if is_telling else f"; {BEST_KNOWN}")
