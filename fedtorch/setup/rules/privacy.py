"""Rules of `privacy.kind: client`, and of all kinds of privacy: what cannot keep the promise."""

from __future__ import annotations

from fedtorch.core.errors import ConfigError
from fedtorch.core.extras import require
from fedtorch.core.sampling import Poisson
from fedtorch.privacy.adaptive import bit_noise, update_noise
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.subject import Subject
from fedtorch.setup.rules.sums import the_sum_is_enough

WHY = "privacy.kind is client but "


def why(plan: Plan) -> str:
    """How the errors of rules begin that several kinds of privacy share."""
    return f"privacy.kind is {plan.config.privacy.kind} but "


def what_it_needs_is_installed(plan: Plan) -> None:
    """Refuse privacy without the accountant and the cipher, an extra of the package."""
    kind = plan.config.privacy.kind
    require(
        f"privacy.kind: {kind}", "dp_accounting", "cryptography", extra="privacy", instead="set privacy.kind to none"
    )


def something_is_released(plan: Plan) -> None:
    """Refuse privacy of clients where no server adds up what several clients send."""
    if plan.config.paradigm != "federated":
        raise ConfigError(
            f"{WHY}paradigm is {plan.config.paradigm}, where no server adds up what clients send; set paradigm to "
            "federated, or privacy.kind to none"
        )


def clients_are_drawn_by_themselves(plan: Plan) -> None:
    """Refuse cohorts of a fixed size: the account is that of independent draws."""
    if not isinstance(plan.sampler, Poisson):
        raise ConfigError(
            f"{WHY}clients.sampling is {type(plan.sampler).__name__}; its account holds only where every client is "
            "drawn by itself (with cohorts of a fixed size one client's change is felt twice); set clients.sampling to "
            "poisson, clients.rate, and clients.per_round to all"
        )


def no_round_depends_on_who_came(plan: Plan) -> None:
    """Refuse quorums, limits on norms and ends of the run that would tell who took part."""
    clients, defaults = plan.config.clients, type(plan.config.clients)()
    reasons = {
        "min": "a round in which the server takes no step would tell how many took part",
        "on_failure": "the end of the run would tell that a client took part and failed",
        "on_repeated_loss": "who is left out would depend on its data",
        "max_update_norm": "who is counted out depends on clients' data; privacy.clip bounds every update",
        "max_norm_to_median": "who is counted out depends on other clients' data; privacy.clip bounds every update",
    }
    for key, reason in reasons.items():
        if getattr(clients, key) != getattr(defaults, key):
            raise ConfigError(f"{WHY}clients.{key} is {getattr(clients, key)}: {reason}; remove clients.{key}")


def the_round_is_one_clipped_sum(plan: Plan) -> None:
    """Refuse algorithms whose server needs more than the sum, or whose weights depend on data."""
    the_sum_is_enough(plan, WHY, ": which numbers they choose depends on their data")


def sums_go_to_the_server_alone(plan: Plan) -> None:
    """Refuse `reduce`: ranks of a ring see what others add, without noise."""
    if plan.config.system.exchange == "reduce":
        raise ConfigError(
            f"{WHY}system.exchange is reduce, in which workers see sums of other clients without noise; set it to auto"
        )


def fixed_factors_are_nobodys(plan: Plan) -> None:
    """Refuse a base that is fitted to clients' data: it is released without noise."""
    adapter = getattr(getattr(plan.task, "source_model", None), "adapter", None)
    public = None if adapter is None else adapter.public_rows
    if public is not None and plan.task.data.reads(public):  # type: ignore[attr-defined]  # of one's own
        raise ConfigError(
            f"{why(plan)}task.model.adapter.public_rows is {public!r}, which is among the clients' own rows: factors "
            "that are fitted to them would be released without noise; name rows that are nobody's secret, or remove "
            "the key"
        )


def delta_is_less_than_one_client(plan: Plan) -> None:
    """Refuse δ above 1/N: to publish one client's data would keep the promise."""
    delta, number = plan.config.privacy.delta, len(plan.clients)
    if delta is not None and delta > 1 / number:
        raise ConfigError(
            f"privacy.delta is {delta:g} but there are {number} clients; above 1/{number} a mechanism that publishes "
            "one client's data would keep the promise; set privacy.delta well below that"
        )


def nobody_is_evaluated(plan: Plan) -> None:
    """Refuse scores of clients that train, and choices by them: they are data of theirs."""
    config = plan.config.eval
    if "scores" in plan.config.privacy.reveal:
        return
    shows = "which shows how clients' own data fit the model; remove it, or add scores to privacy.reveal"
    for key, value, plain in (
        ("point", config.point, "received"),
        ("best", config.best, "together"),
        ("per_example", config.per_example, False),
    ):
        if value != plain:
            raise ConfigError(f"{why(plan)}eval.{key} is {str(value).lower()}, {shows}")
    if config.patience is not None and not any(
        sizes.get(config.split) and (not sizes.get("train") or plan.config.privacy.eval is not None)
        for sizes in plan.task.manifest().values()
    ):
        raise ConfigError(
            f"{why(plan)}eval.patience is {config.patience}: the run would end by scores of clients that train, as "
            f"there are no rows of `{config.split}` without an owner; set it to null, or add scores to privacy.reveal"
        )


def a_moving_clip_has_enough_noise(plan: Plan) -> None:
    """Refuse a count of unclipped clients whose noise would use up that of the updates."""
    config = plan.config.privacy
    if config.adaptive is not None and config.noise_multiplier is not None:
        assert isinstance(plan.sampler, Poisson)
        update_noise(config.noise_multiplier, bit_noise(config.adaptive, plan.sampler.rate * len(plan.clients)))


SHARED = Subject(
    "Privacy of clients, rows and persons",
    applies=lambda plan: plan.config.privacy.kind != "none",
    of_plan=(what_it_needs_is_installed, fixed_factors_are_nobodys, nobody_is_evaluated),
)
SUBJECT = Subject(
    "Privacy of clients",
    applies=lambda plan: plan.config.privacy.kind == "client",
    of_plan=(
        something_is_released,
        clients_are_drawn_by_themselves,
        no_round_depends_on_who_came,
        the_round_is_one_clipped_sum,
        sums_go_to_the_server_alone,
        delta_is_less_than_one_client,
        a_moving_clip_has_enough_noise,
    ),
)
