"""Canary clients as an attack: what real rounds of the promised mechanism say of the epsilon that is claimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from fedtorch.audit.canaries import Canaries, judged
from fedtorch.audit.canary_rounds import canary_rounds
from fedtorch.audit.canary_units import canary_units
from fedtorch.audit.finding import LITTLE, Finding
from fedtorch.audit.pictures import bars
from fedtorch.audit.subject import AuditOptions, Subject
from fedtorch.privacy.accounting import Accountant
from fedtorch.privacy.adaptive import bit_noise
from fedtorch.privacy.record.terms import SiloTerms, epsilon_of
from fedtorch.privacy.settings import PrivacyConfig

NAME = "canaries"
ABOUT = "epsilon of some rounds, from clients with known updates of which half are left out (2305.08846)"
NEEDS = "to send updates as some of the clients, and what every round releases; no row of a client is trained on"
MOST_STEPS = 20
"""That are taken where units are canaries; what is claimed is epsilon of these."""
MOST_ROUNDS = 5
"""That are run; what is claimed is epsilon of these."""


def why_not(subject: Subject) -> str:
    """Why the attack does not apply; empty if it does."""
    options = subject.options
    if options.clip is None or options.noise is None:
        return "there is no noise to be estimated; give --clip and --noise"
    if missing := [name for name in ("dp_accounting", "cryptography") if find_spec(name) is None]:
        return f"{missing[0]} is not installed; pip install 'fedtorch-nlp[privacy]'"
    if options.silo is not None:
        return ""
    promise, expected = _promise(options), _rate(subject) * options.canaries
    if promise.adaptive is not None and 2 * bit_noise(promise.adaptive, expected) <= options.noise:
        return (
            f"the clip moves, and with {options.canaries} canaries there is too little noise on how many are not "
            "clipped (privacy.clip.adaptive.bit_noise); give more --canaries"
        )
    return ""


def attack(subject: Subject) -> Finding:
    """The three figures of the run's mechanism, at its own rate, clip, noise and kind of noise.

    The rounds are real ones, under a simulated key: draw, clip, exact sum, noise and step, with a secure sum and a clip
    that moves where the run has them.
    """
    options = subject.options
    assert options.noise is not None
    if options.silo is not None:
        return _of_units(options, options.silo)
    rounds, rate = max(2, min(MOST_ROUNDS, subject.context.config.rounds)), _rate(subject)
    seen = canary_rounds(canaries=options.canaries, rounds=rounds, rate=rate, promise=_promise(options))
    claimed = Accountant(rate, options.noise, options.delta).epsilon(rounds)
    found = judged(seen.presence, seen.is_in, rate, seen.noise, claimed, options.delta)
    figures = _figures(found, rounds, options.canaries)
    return Finding(NAME, ABOUT, NEEDS, _said(found, rounds, options.delta), figures, bars(figures, "found"))


def _of_units(options: AuditOptions, silo: SiloTerms) -> Finding:
    """Units in place of clients: noised steps of the silo that pays most, or rounds of shared noise."""
    assert options.promised is not None
    steps = max(2, min(MOST_STEPS, silo.steps_in(silo.rounds)))
    promise = replace(options.promised, noise_multiplier=options.noise, epsilon=None)
    seen = canary_units(canaries=options.canaries, steps=steps, rate=silo.rate, promise=promise)
    claimed = epsilon_of([(seen.rate, silo.noise_multiplier, steps)], options.delta)
    found = judged(seen.presence, seen.is_in, seen.rate, seen.noise, claimed, options.delta)
    figures = _figures(found, steps, options.canaries)
    said = (
        f"the unit is a {'row' if options.promised.unit == 'row' else 'person'}; {_said(found, steps, options.delta)}"
    )
    return Finding(NAME, ABOUT, NEEDS, said, figures, bars(figures, "found"))


def _promise(options: AuditOptions) -> PrivacyConfig:
    """The privacy settings of the run, with the clip and noise that are asked for."""
    usual = PrivacyConfig() if options.promised is None else options.promised
    clip = usual.clip if usual.adaptive is not None and options.clip == usual.first_clip else options.clip
    return replace(usual, kind="client", clip=clip, noise_multiplier=options.noise, epsilon=None, delta=options.delta)


def _rate(subject: Subject) -> float:
    """With which the run draws its clients, or comes nearest to."""
    options, per_round = subject.options, subject.context.config.clients.per_round
    if options.rate is not None:
        return options.rate
    return 1.0 if per_round == "all" else min(1.0, per_round / len(subject.context.components.clients))


def _figures(found: Canaries, rounds: int, canaries: int) -> Sequence[Mapping[str, Any]]:
    """A row for each figure, with its interval and what it can show."""
    estimate, low, high = found.fit
    rows = [
        ("bound", found.bound, found.bound, None, "at least this, with 95 %, whatever the mechanism; it sees little"),
        ("fit", estimate, low, high, "an estimate with a 95 % interval, if scores are normal; it sees a missing clip"),
    ]
    told = [
        {"channel": "rounds", "client": name, "claimed": found.claimed, "found": value, "low": least, "high": most}
        | {"rounds": rounds, "canaries": canaries, "flagged": name in found.flags, "shows": shows}
        for name, value, least, most, shows in rows
    ]
    shows = f"the least share of the promised variance; chance of one so small {found.chance:.2g}; sees the noise alone"
    last = {"channel": "rounds", "client": "spread", "claimed": 1.0, "found": found.spread, "low": None, "high": None}
    last |= {"rounds": rounds, "canaries": canaries, "flagged": "spread" in found.flags, "shows": shows}
    return [*told, last]


def _said(found: Canaries, rounds: int, delta: float) -> str:
    estimate, low, high = found.fit
    verdict = f"{' and '.join(found.flags)} contradict the claim" if found.flags else "nothing that contradicts it"
    return (
        f"of epsilon {found.claimed:.2f} claimed for {rounds} rounds (delta {delta:g}) {LITTLE} {verdict}: bound at "
        f"least {found.bound:.2f}; fit {estimate:.2f} (95 %: {low:.2f} to {high:.2f}); spread {found.spread:.3f} of "
        "the promised variance"
    )
