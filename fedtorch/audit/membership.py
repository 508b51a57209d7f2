"""Membership: rows with a low loss are taken for training rows (Yeom et al. 2018)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import torch

from fedtorch.audit.finding import LITTLE, Finding
from fedtorch.audit.pictures import curve
from fedtorch.audit.subject import Subject
from fedtorch.rounds.private_weights import private_weights

NAME = "membership"
ABOUT = "whether a row was trained on, by its loss under the run's model"
NEEDS = "the model after its last round, and the rows to be asked about"
FALSE_RATE = 0.01
"""At which the share of true finds is told: an attacker who seldom accuses wrongly (Carlini et al. 2022)."""
MOST_ROWS = 200
"""Of each client and split."""
LEAST_ROWS = 5


def why_not(subject: Subject) -> str:
    """Why the attack does not apply; empty if it does."""
    task = subject.context.components.task
    if not subject.rounds:
        return "nothing is trained yet; name the folder of a run"
    if not task.has_labelled_clients:
        return "clients have no loss of their own"
    return "" if _clients(subject) else f"no client has {LEAST_ROWS} rows of train and of {_split(subject)}"


def attack(subject: Subject) -> Finding:
    """AUC and true finds at 1 % false ones: of each client, train against held-out rows, and of all together."""
    members, others, figures = list[float](), list[float](), []
    for client in _clients(subject):
        inside, outside = (losses(subject, client, split) for split in ("train", _split(subject)))
        figures.append(_row(client, inside, outside))
        members += inside
        others += outside
    whole = _row(f"{len(figures)} clients", members, others)
    figures.insert(0, whole)
    auc = whole["auc"]
    assert isinstance(auc, float)
    rows = f"{100 * float(whole['found']):.0f} % of the training rows with 1 % false"
    said = f"{LITTLE} {rows}, AUC {auc:.2f} (0.5: chance)"
    if auc < 0.55:
        said += "; the best known attack, LiRA (2112.03570), compares with models trained without the row"
    return Finding(NAME, ABOUT, NEEDS, said, figures, curve(roc(members, others), "held-out rows", "training rows"))


@torch.no_grad()
def losses(subject: Subject, client: str, split: str) -> list[float]:
    """Mean loss of each row, with the weights received last and the client's private ones."""
    context, components = subject.context, subject.context.components
    task, engine = components.task, components.engine
    rows = subject.referred(task, client, split, list(task.load(client, split))[:MOST_ROWS])
    engine.load(context.vectors.weights, private_weights(components, client, context.store.get(client)))
    engine.module.eval()
    found = []
    for example in rows:
        loss, terms = task.loss(engine.module, task.collate([example], False))
        found.append(float(loss) / max(1, int(terms)))
    return found


def roc(members: Sequence[float], others: Sequence[float]) -> list[tuple[float, float]]:
    """(share of `others`, share of `members`) at or below each threshold, rising from (0, 0) to (1, 1)."""
    inside, outside = sorted(members), sorted(others)
    points = [(0.0, 0.0)]
    for threshold in sorted({*inside, *outside}):
        points.append((bisect_right(outside, threshold) / len(outside), bisect_right(inside, threshold) / len(inside)))
    return points


def auc(members: Sequence[float], others: Sequence[float]) -> float:
    """That a member's loss is below that of another row; equal ones count half."""
    outside = sorted(others)
    wins = sum(2 * len(outside) - bisect_left(outside, one) - bisect_right(outside, one) for one in members)
    return wins / (2 * len(members) * len(outside))


def found_at(members: Sequence[float], others: Sequence[float], rate: float) -> float:
    """The largest share of members below a threshold that at most `rate` of the others are below."""
    return max(right for wrong, right in roc(members, others) if wrong <= rate)


def _row(client: str, inside: Sequence[float], outside: Sequence[float]) -> dict[str, str | int | float]:
    return {
        "channel": "model",
        "client": client,
        "train": len(inside),
        "held_out": len(outside),
        "auc": auc(inside, outside),
        "found": found_at(inside, outside, FALSE_RATE),
    }


def _split(subject: Subject) -> str:
    return subject.context.config.eval.final_split


def _clients(subject: Subject) -> list[str]:
    sizes, split = subject.context.components.task.manifest(), _split(subject)
    return [name for name, own in sizes.items() if min(own.get("train", 0), own.get(split, 0)) >= LEAST_ROWS]
