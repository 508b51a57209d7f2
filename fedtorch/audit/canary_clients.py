"""Canary clients as an attack: what epsilon the noise of `--clip` and `--noise` comes to, claimed and estimated.

Of a run with privacy it is the package's own mechanism that is run, else the textbook's; `canaries.estimate` takes any
other one.
"""

from __future__ import annotations

from hashlib import sha256

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
    options = subject.options
    assert options.noise is not None
    estimates = {times: estimated(subject, times * options.noise) for times in (1.0, 2.0, 0.5)}
    figures = [
        {
            "channel": "sum, clipped, noised",
            "client": "as promised" if times == 1 else f"noise x {times:g}",
            "claimed": gaussian_epsilon(times * options.noise, options.delta),
            "estimated": one.epsilon,
            "delta": options.delta,
            "canaries": options.canaries,
            "numbers": one.numbers,
        }
        for times, one in estimates.items()
    ]
    found, claimed = estimates[1.0], gaussian_epsilon(options.noise, options.delta)
    whose = "the run's own clip, noise and key stream" if options.promised else "the Gaussian mechanism"
    said = (
        f"epsilon {found.epsilon:.2f} is estimated where {claimed:.2f} is claimed (delta {options.delta:g}; one "
        f"release of {whose}, everybody takes part); it scatters and is no bound"
    )
    picture = bars(figures, "claimed", "estimated")
    picture += histogram(found.cosines, {"no canary": 0.0, "mean": found.mean}, "cosine of a canary with the release")
    return Finding(NAME, ABOUT, NEEDS, said, figures, picture)


def estimated(subject: Subject, noise: float) -> CanaryEstimate:
    """What canaries say of this noise multiplier: of the package's own code in a run with privacy."""
    options = subject.options
    assert options.clip is not None
    outgoing: Outgoing | None = None
    release = gaussian(options.clip, noise, seed=1)
    if options.promised is not None:
        key = sha256(b"fedtorch audit").digest()  # nothing is released, so it need not be secret
        outgoing, release = of_the_package(options.clip, noise, options.canaries, key, options.promised.noise)
    return estimate(
        release,
        numbers=min(MOST_NUMBERS, subject.context.components.engine.shared.size),
        clip=options.clip,
        delta=options.delta,
        canaries=options.canaries,
        outgoing=outgoing,
    )
