"""Canary clients as an attack: what epsilon the noise of `--clip` and `--noise` comes to, claimed and estimated.

It is the textbook mechanism that is run here; `canaries.estimate` takes any other one.
"""

from __future__ import annotations

from fedtorch.audit.canaries import estimate, gaussian
from fedtorch.audit.finding import Finding
from fedtorch.audit.gaussians import gaussian_epsilon
from fedtorch.audit.pictures import histogram
from fedtorch.audit.subject import Subject

NAME = "canaries"
ABOUT = "epsilon of one release, estimated from clients with random updates that join it (2302.03098)"
NEEDS = "to send updates as some of the clients, and the release; nothing is trained"
MOST_NUMBERS = 100_000
"""Of the release that is made; with more of them the estimate is hardly better, only slower."""


def why_not(subject: Subject) -> str:
    """Why the attack does not apply; empty if it does."""
    options = subject.options
    if options.clip is None or options.noise is None:
        return "there is no noise to be estimated; give --clip and --noise"
    if subject.context.components.engine.shared.size < 10 * options.canaries:
        return f"{options.canaries} canaries hide each other in so few numbers; give fewer (--canaries)"
    return ""


def attack(subject: Subject) -> Finding:
    """Estimated epsilon against that of the Gaussian mechanism; of one release that all clients take part in."""
    options = subject.options
    assert options.clip is not None and options.noise is not None
    numbers = min(MOST_NUMBERS, subject.context.components.engine.shared.size)
    claimed = gaussian_epsilon(options.noise, options.delta)
    found = estimate(
        gaussian(options.clip, options.noise, seed=1),
        numbers=numbers,
        clip=options.clip,
        delta=options.delta,
        canaries=options.canaries,
    )
    figures = [
        {
            "channel": "sum, clipped, noised",
            "client": f"{options.canaries} canaries",
            "claimed": claimed,
            "estimated": found.epsilon,
            "delta": options.delta,
            "numbers": numbers,
        }
    ]
    said = (
        f"epsilon {found.epsilon:.2f} is estimated where {claimed:.2f} is claimed (delta {options.delta:g}; one "
        "release of the Gaussian mechanism with this clip and noise, everybody takes part); it scatters and is no bound"
    )
    picture = histogram(found.cosines, {"no canary": 0.0, "mean": found.mean}, "cosine of a canary with the release")
    return Finding(NAME, ABOUT, NEEDS, said, figures, picture)
