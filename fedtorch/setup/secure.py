"""`privacy.secure_sum` and `system.sum_scale: public`: what does not fit is refused, and what they mean is said.

One function per rule, in the order of `RULES`; each message says why.
"""

from __future__ import annotations

from collections.abc import Callable

from fedtorch.algorithms.message import MessageAlgorithm
from fedtorch.algorithms.sums import why_not_private
from fedtorch.core.errors import ConfigError
from fedtorch.core.extras import require
from fedtorch.core.mechanism import Mechanism
from fedtorch.privacy.ledger import FOLDER
from fedtorch.privacy.public_sum import Masking, PublicSum
from fedtorch.privacy.secure_sum.openings import Openings
from fedtorch.privacy.secure_sum.terms import LEAST_PARTIES, threshold_of
from fedtorch.privacy.stream import derived
from fedtorch.setup.plan import Plan

OPENINGS = "openings.jsonl"


def check_public_sum(plan: Plan) -> None:
    """Apply every rule, where the scale of sums is public.

    Raises:
        ConfigError: of the first rule that is broken.
    """
    for rule in RULES if _is_public(plan) else (a_clip_has_a_use,):
        rule(plan)


def a_clip_has_a_use(plan: Plan) -> None:
    """Without privacy nobody is clipped."""
    if plan.config.privacy.kind == "none" and plan.config.privacy.clip is not None:
        raise ConfigError(
            "privacy.clip is set but privacy.kind is none, privacy.secure_sum is not set and system.sum_scale is "
            "reports; remove privacy.clip, or set one of them"
        )


def the_scale_has_a_bound(plan: Plan) -> None:
    """A public scale follows from the clip."""
    if plan.config.privacy.clip is None:
        raise ConfigError("system.sum_scale is public but privacy.clip, which it follows from, is not set; set it")
    if plan.config.paradigm != "federated":
        raise ConfigError(
            f"{_why(plan)}paradigm is {plan.config.paradigm}, where no server adds up what clients send; set paradigm "
            "to federated"
        )


def the_round_is_one_sum(plan: Plan) -> None:
    """The algorithm's server needs the sum alone, and its weights are public and not normalised."""
    the_sum_is_enough(plan, _why(plan), ", which are no sum of whole vectors")
    if plan.sampler.with_replacement:
        raise ConfigError(
            f"{_why(plan)}clients.sampling is {type(plan.sampler).__name__}, which draws clients more than once; every "
            "update counts once; set clients.sampling to uniform"
        )


def the_sum_is_enough(plan: Plan, why: str, of_messages: str) -> None:
    """No server that looks at single updates, nor at messages; why, of_messages: for the errors.

    Raises:
        ConfigError: the algorithm's does.
    """
    name, algorithm = plan.config.algorithm_name or type(plan.algorithm).__name__, plan.algorithm
    if isinstance(algorithm, MessageAlgorithm):
        raise ConfigError(
            f"{why}algorithm.name is {name}, whose clients send compressed messages{of_messages}; choose another "
            "algorithm"
        )
    if reason := why_not_private(algorithm):
        raise ConfigError(f"{why}algorithm.name is {name}, which {reason}")


def nobody_is_counted_out_by_a_norm(plan: Plan) -> None:
    """Reports carry no norm."""
    for key in ("max_update_norm", "max_norm_to_median"):
        if getattr(plan.config.clients, key) is not None:
            raise ConfigError(
                f"{_why(plan)}clients.{key} is set: clients clip themselves to privacy.clip and report no norm; remove "
                f"clients.{key}"
            )


def what_it_needs_is_installed(plan: Plan) -> None:
    """The cipher is an extra of the package."""
    if _is_secure(plan):
        require("privacy.secure_sum", "cryptography", extra="privacy", instead="remove privacy.secure_sum")


def there_are_parties(plan: Plan) -> None:
    """A party is a worker, and none of them is the server."""
    if not _is_secure(plan):
        return
    workers = plan.topology.workers
    if any(0 in ranks for ranks in workers) and plan.topology.num_ranks > 1:
        raise ConfigError(
            f"{_why(plan)}system.server_works is true: the server would be a party itself; set it to false"
        )
    if len(workers) < LEAST_PARTIES or plan.topology.num_ranks == 1:
        count = 0 if plan.topology.num_ranks == 1 else len(workers)
        raise ConfigError(
            f"{_why(plan)}there are {count} workers beside the server; of the sum of two each knows the other's part, "
            f"so at least {LEAST_PARTIES} are needed; start {LEAST_PARTIES + 1} ranks or more"
        )


def updates_do_not_travel(plan: Plan) -> None:
    """No transport but that of masked parts."""
    if _is_secure(plan) and plan.config.system.exchange != "auto":
        raise ConfigError(
            f"{_why(plan)}system.exchange is {plan.config.system.exchange}, in which others see updates or sums of "
            "some; set it to auto"
        )


RULES: tuple[Callable[[Plan], None], ...] = (
    the_scale_has_a_bound,
    the_round_is_one_sum,
    nobody_is_counted_out_by_a_norm,
    what_it_needs_is_installed,
    there_are_parties,
    updates_do_not_travel,
)


def make_masking(plan: Plan, *, is_server: bool, is_new: bool = False, key: bytes = b"") -> Masking | None:
    """Make the masking of a run with a secure sum. is_new: what stood in the folder is of another run.

    key: of the run's noise, where nobody may know who took part in a round.
    """
    settings = plan.config.privacy.secure_sum
    if settings is None:
        return None
    path = plan.config.folder / FOLDER / OPENINGS
    if is_server and is_new:
        path.unlink(missing_ok=True)
    hides = plan.config.privacy.kind != "none"  # then a round's parties must not show who was drawn
    leaders = tuple(ranks[0] for ranks in plan.topology.workers) if hides else None
    return Masking(
        settings.threshold, Openings(path if is_server else None, derived(key, "openings") if key else b""), leaders
    )


def make_plain(plan: Plan, *, is_server: bool, is_new: bool) -> Mechanism:
    """Make the mechanism of a run without noise."""
    if not _is_public(plan):
        return Mechanism()
    masking = make_masking(plan, is_server=is_server, is_new=is_new)
    return PublicSum(plan.config.privacy.first_clip, len(plan.clients), masking)


def describe_public_sum(plan: Plan) -> str:
    """Say what the sum becomes, for `--dry-run`; empty where sums are as always."""
    if not _is_public(plan):
        return ""
    config = plan.config.privacy
    scale = f"sums of updates clipped to {config.first_clip:g}, at a scale that follows from it alone, equal weights"
    if not _is_secure(plan):
        return f"public scale: {scale}; the server sees every update"
    assert config.secure_sum is not None
    count = len(plan.topology.workers)
    needed = threshold_of(config.secure_sum.threshold, count)
    lines = [
        f"secure sum: of {count} workers, which are the parties; {needed} must be there to the end of a round that all "
        f"take part in; {scale}",
        "  the server sees the sum of a round, who took part, and of each its rows, steps and seconds",
        "  kept by the worker: updates, their norms and largest elements, losses and curves; no record has them",
        "  still sent to the server: scores of clients' evaluation (eval.every: 0 keeps them), states in checkpoints "
        "where clients keep any and disks are shared",
        "  refused with it: robust rules, weights by size or loss (Lorar), SCAFFOLD and other rules that look at one "
        "update, compressed messages, limits on norms, a server that trains clients, single updates on their way",
        "  against a server that follows the protocol and fewer than "
        f"{needed} workers with it; not against one that does not, nor differences between rounds",
    ]
    return "\n".join(lines)


def _is_secure(plan: Plan) -> bool:
    return plan.config.privacy.secure_sum is not None


def _is_public(plan: Plan) -> bool:
    return _is_secure(plan) or plan.config.system.sum_scale == "public"


def _why(plan: Plan) -> str:
    return "privacy.secure_sum is set but " if _is_secure(plan) else "system.sum_scale is public but "
