"""Canary clients as an attack: what epsilon the noise of `--clip` and `--noise` comes to, claimed and estimated.

Of a run with privacy it is the package's own mechanism that is run, else the textbook's; `canaries.estimate` takes any
other one.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from fedtorch.audit.canaries import CanaryEstimate, Outgoing, estimate, gaussian, of_the_package
from fedtorch.audit.finding import Finding
from fedtorch.audit.gaussians import gaussian_epsilon
from fedtorch.audit.pictures import bars, histogram
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
    """Estimated epsilon against that of the Gaussian mechanism, of one release that all clients take part in.

    With the noise that is promised, and for comparison with twice and with half of it: an estimate that stays where it
    is says nothing.
    """
    options, figures, promised = subject.options, list[dict[str, Any]](), list[CanaryEstimate]()
    outgoing: Outgoing | None = None
    assert options.clip is not None and options.noise is not None
    numbers = min(MOST_NUMBERS, subject.context.components.engine.shared.size)
    claimed = gaussian_epsilon(options.noise, options.delta)
    for times in (1.0, 2.0, 0.5):
        noise, clip = times * options.noise, options.clip
        release = gaussian(clip, noise, seed=1)
        if options.promised is not None:
            key = sha256(b"fedtorch audit").digest()  # nothing is released, so it need not be secret
            outgoing, release = of_the_package(clip, noise, options.canaries, key, options.promised.noise)
        found = estimate(
            release,
            numbers=numbers,
            clip=clip,
            delta=options.delta,
            canaries=options.canaries,
            outgoing=outgoing,
        )
        promised.append(found)
        figures.append(
            {
                "channel": "sum, clipped, noised",
                "client": "as promised" if times == 1 else f"noise x {times:g}",
                "claimed": gaussian_epsilon(noise, options.delta),
                "estimated": found.epsilon,
                "delta": options.delta,
                "canaries": options.canaries,
                "numbers": numbers,
            }
        )
    found = promised[0]
    whose = "the run's own clip, noise and key stream" if options.promised else "the Gaussian mechanism"
    said = (
        f"epsilon {found.epsilon:.2f} is estimated where {claimed:.2f} is claimed (delta {options.delta:g}; one "
        f"release of {whose}, everybody takes part); it scatters and is no bound"
    )
    picture = bars(figures, "claimed", "estimated")
    picture += histogram(found.cosines, {"no canary": 0.0, "mean": found.mean}, "cosine of a canary with the release")
    return Finding(NAME, ABOUT, NEEDS, said, figures, picture)
