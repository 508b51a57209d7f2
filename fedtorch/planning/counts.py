"""Tell what a counting run with noise promises, and from how many units on it finds a name, for `--dry-run`."""

from __future__ import annotations

from fedtorch.algorithms.counts import Counts
from fedtorch.setup.counting import terms_of
from fedtorch.setup.plan import Plan
from fedtorch.stats.prefixes import CHANCE, threshold
from fedtorch.stats.questions import BRANCHES


def describe_counts(plan: Plan) -> str:
    """ε of all tables together, the noise on each, and how frequent a name must be to be found."""
    assert isinstance(plan.algorithm, Counts)
    rule = plan.algorithm.rule
    terms, silos, config = terms_of(plan.config, rule), len(rule.plan.silos), plan.config.stats.privacy
    assert config is not None
    where = "each silo's own" if terms.honest is None else f"shares of all silos, of which {terms.honest} are enough"
    lines = [
        f"privacy: of each {terms.unit}, {sum(terms.releases)} tables in {rule.plan.rounds} rounds, noise multiplier "
        f"{terms.noise_multiplier:.4f} ({where}): epsilon {terms.epsilon(sum(terms.releases)):.4f} at delta "
        f"{terms.delta:g} for all together"
    ]
    for question in rule.plan.questions:
        deviation = rule.noise.pooled(question.most, silos)
        most = f"a unit is in {question.most} of its cells at most"
        said = f"{question.name}: noise of ± {deviation:.1f} on each number of all silos together, {most}"
        if (found := question.found) is not None:
            few, many = (threshold(deviation, BRANCHES * width) for width in (1, found.width))
            said += (
                f"; a name is found if {few:.0f} units have it, {many:.0f} where {found.width} beginnings are "
                f"followed, of at most {found.longest} bytes ({CHANCE:g} names a byte that nobody has are shown)"
            )
        lines.append(said)
    return "\n  ".join(lines)
