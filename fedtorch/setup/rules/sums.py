"""Rules about sums whose scale is public, as a secure sum's is, or that of the round before."""

from __future__ import annotations

from fedtorch.algorithms.message import MessageAlgorithm
from fedtorch.algorithms.sums import why_not_ahead, why_not_private
from fedtorch.core.errors import ConfigError
from fedtorch.core.extras import require
from fedtorch.privacy.secure_sum.terms import LEAST_PARTIES
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject

WHY = "system.sum_scale is previous but "
INSTEAD = "set system.sum_scale to reports"


def a_clip_has_a_use(plan: Plan) -> None:
    """Refuse a clip that nobody uses."""
    if plan.config.privacy.kind == "none" and plan.config.privacy.clip is not None and not is_public(plan):
        raise ConfigError(
            "privacy.clip is set but privacy.kind is none, privacy.secure_sum is not set and system.sum_scale is "
            "reports; remove privacy.clip, or set one of them"
        )


def colluders_have_a_use(plan: Plan) -> None:
    """Refuse a number of colluders that nobody counts with."""
    config = plan.config
    if config.privacy.kind == "none" and config.trust.members is None and config.privacy.colluders != 1:
        raise ConfigError(
            "privacy.colluders is set but privacy.kind is none and trust.members is not set; remove privacy.colluders, "
            "or set one of them"
        )


def the_scale_has_a_bound(plan: Plan) -> None:
    """Refuse a public scale without a clip, which it follows from, or without a server."""
    if plan.config.privacy.clip is None:
        raise ConfigError("system.sum_scale is public but privacy.clip, which it follows from, is not set; set it")
    if not plan.config.adds_up:
        raise ConfigError(
            f"{_why(plan)}paradigm is {plan.config.paradigm}, where no server adds up what clients send; set paradigm "
            "to federated"
        )


def the_round_is_one_sum(plan: Plan) -> None:
    """Refuse algorithms whose server needs more than the sum, and draws that repeat."""
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
    """Refuse limits on norms: reports carry no norm."""
    for key in ("max_update_norm", "max_norm_to_median"):
        if getattr(plan.config.clients, key) is not None:
            raise ConfigError(
                f"{_why(plan)}clients.{key} is set: clients clip themselves to privacy.clip and report no norm; remove "
                f"clients.{key}"
            )


def the_cipher_is_installed(plan: Plan) -> None:
    """Refuse a secure sum without the cipher, an extra of the package."""
    if _is_secure(plan):
        require("privacy.secure_sum", "cryptography", extra="privacy", instead="remove privacy.secure_sum")


def there_are_parties(plan: Plan) -> None:
    """Refuse fewer than three workers, and a server that is one of them."""
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
    """Refuse transports in which others see updates, or sums of some."""
    if _is_secure(plan) and plan.config.system.exchange != "auto":
        raise ConfigError(
            f"{_why(plan)}system.exchange is {plan.config.system.exchange}, in which others see updates or sums of "
            "some; set it to auto"
        )


def the_scale_is_not_public(plan: Plan) -> None:
    """Refuse a scale that follows from updates where the server must not know of them."""
    if plan.config.privacy.kind != "none":
        raise ConfigError(
            f"{WHY}privacy.kind is {plan.config.privacy.kind}, whose scale follows from privacy.clip; {INSTEAD}, which "
            "is what it begins with"
        )
    if plan.config.privacy.secure_sum is not None:
        raise ConfigError(f"{WHY}privacy.secure_sum is set, whose scale is public; set system.sum_scale to public")


def there_is_a_sum(plan: Plan) -> None:
    """Refuse the scale of the round before where no server adds up updates."""
    if plan.config.paradigm != "federated":
        raise ConfigError(f"{WHY}paradigm is {plan.config.paradigm}, where no server adds up updates; {INSTEAD}")


def weights_are_known_of_each_client(plan: Plan) -> None:
    """Refuse algorithms in which a client's weight waits for other clients' reports, or is one of messages."""
    name, algorithm = plan.config.algorithm_name or type(plan.algorithm).__name__, plan.algorithm
    if isinstance(algorithm, MessageAlgorithm):
        raise ConfigError(f"{WHY}algorithm.name is {name}, whose clients send compressed messages; {INSTEAD}")
    if reason := why_not_ahead(algorithm):
        raise ConfigError(f"{WHY}algorithm.name is {name}, which {reason}; {INSTEAD}")


def _is_secure(plan: Plan) -> bool:
    """Is the sum a secure one?"""
    return plan.config.privacy.secure_sum is not None


def is_public(plan: Plan) -> bool:
    """Does the scale of sums follow from the clip alone, for a secure sum or by `system.sum_scale`?"""
    return _is_secure(plan) or plan.config.system.sum_scale == "public"


def _why(plan: Plan) -> str:
    return "privacy.secure_sum is set but " if _is_secure(plan) else "system.sum_scale is public but "


CLIP = Subject("A clip", of_plan=(a_clip_has_a_use, colluders_have_a_use))
PUBLIC = Subject(
    "Secure sum and public scale",
    applies=is_public,
    of_plan=(
        the_scale_has_a_bound,
        the_round_is_one_sum,
        nobody_is_counted_out_by_a_norm,
        the_cipher_is_installed,
        there_are_parties,
        updates_do_not_travel,
    ),
)
PREVIOUS = Subject(
    "Scale of the round before",
    applies=lambda plan: plan.config.system.sum_scale == "previous",
    of_plan=(
        the_scale_is_not_public,
        there_is_a_sum,
        weights_are_known_of_each_client,
    ),
)
