"""`privacy.kind: client`: what cannot keep the promise is refused before the ranks meet, the rest is made here.

One function per rule, in the order of `RULES`; each message says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

from fedtorch.config.schema import Config
from fedtorch.core.errors import CheckpointError, ConfigError
from fedtorch.core.extras import require
from fedtorch.core.mechanism import Mechanism
from fedtorch.core.sampling import Poisson
from fedtorch.privacy.accounting import Accountant, least_noise
from fedtorch.privacy.adaptive import bit_noise, update_noise
from fedtorch.privacy.client_level import ClientLevel, PrivacyTerms
from fedtorch.privacy.data_ledger import epsilon_of
from fedtorch.privacy.ledger import FOLDER, LEDGER, Ledger, read_releases
from fedtorch.setup.data_ledger import data_ledger
from fedtorch.setup.plan import Plan
from fedtorch.setup.secure import check_public_sum, make_masking, make_plain, the_sum_is_enough

WHY = "privacy.kind is client but "
_POINTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
"""Releases of which the dry run shows ε, and the last one."""


def check_private(plan: Plan) -> None:
    """Apply every rule, where there is a promise to keep, and those of `secure`.

    Raises:
        ConfigError: of the first rule that is broken.
    """
    if plan.config.privacy.kind != "none":
        for rule in RULES:
            rule(plan)
    check_public_sum(plan)


def what_it_needs_is_installed(plan: Plan) -> None:
    """The accountant and the cipher are an extra of the package."""
    require(
        "privacy.kind: client", "dp_accounting", "cryptography", extra="privacy", instead="set privacy.kind to none"
    )


def something_is_released(plan: Plan) -> None:
    """A server adds up what several clients send."""
    if plan.config.paradigm != "federated":
        raise ConfigError(
            f"{WHY}paradigm is {plan.config.paradigm}, where no server adds up what clients send; set paradigm to "
            "federated, or privacy.kind to none"
        )


def clients_are_drawn_by_themselves(plan: Plan) -> None:
    """The account is that of independent draws and a fixed denominator."""
    if not isinstance(plan.sampler, Poisson):
        raise ConfigError(
            f"{WHY}clients.sampling is {type(plan.sampler).__name__}; its account holds only where every client is "
            "drawn by itself (with cohorts of a fixed size one client's change is felt twice); set clients.sampling to "
            "poisson, clients.rate, and clients.per_round to all"
        )


def no_round_depends_on_who_came(plan: Plan) -> None:
    """Neither a quorum, nor a limit that counts clients out, nor an end of the run by one of them."""
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
    """The algorithm's server needs the sum alone, and its weights are public."""
    the_sum_is_enough(plan, WHY, ": which numbers they choose depends on their data")


def sums_go_to_the_server_alone(plan: Plan) -> None:
    """Ranks in a ring see what others add, without noise."""
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
            f"{WHY}task.model.adapter.public_rows is {public!r}, which is among the clients' own rows: factors that "
            "are fitted to them would be released without noise; name rows that are nobody's secret, or remove the key"
        )


def delta_is_less_than_one_client(plan: Plan) -> None:
    """With δ = 1/N it would be within the promise to publish one client's data."""
    delta, number = plan.config.privacy.delta, len(plan.clients)
    if delta is not None and delta > 1 / number:
        raise ConfigError(
            f"privacy.delta is {delta:g} but there are {number} clients; above 1/{number} a mechanism that publishes "
            "one client's data would keep the promise; set privacy.delta well below that"
        )


def nobody_is_evaluated(plan: Plan) -> None:
    """Scores of clients that train, and what is chosen by them, are data of theirs."""
    config = plan.config.eval
    if "scores" in plan.config.privacy.reveal:
        return
    why = "which shows how clients' own data fit the model; remove it, or add scores to privacy.reveal"
    for key, value, plain in (
        ("point", config.point, "received"),
        ("best", config.best, "together"),
        ("per_example", config.per_example, False),
    ):
        if value != plain:
            raise ConfigError(f"{WHY}eval.{key} is {str(value).lower()}, {why}")
    if config.patience is not None and not any(
        sizes.get(config.split) and not sizes.get("train") for sizes in plan.task.manifest().values()
    ):
        raise ConfigError(
            f"{WHY}eval.patience is {config.patience}: the run would end by scores of clients that train, as there are "
            f"no rows of `{config.split}` without an owner; set it to null, or add scores to privacy.reveal"
        )


def a_moving_clip_has_enough_noise(plan: Plan) -> None:
    """The count of unclipped clients must not use up what the updates need."""
    config = plan.config.privacy
    if config.adaptive is not None and config.noise_multiplier is not None:
        update_noise(config.noise_multiplier, bit_noise(config.adaptive, _rate(plan) * len(plan.clients)))


RULES: tuple[Callable[[Plan], None], ...] = (
    what_it_needs_is_installed,
    something_is_released,
    clients_are_drawn_by_themselves,
    no_round_depends_on_who_came,
    the_round_is_one_clipped_sum,
    sums_go_to_the_server_alone,
    fixed_factors_are_nobodys,
    delta_is_less_than_one_client,
    nobody_is_evaluated,
    a_moving_clip_has_enough_noise,
)


def make_mechanism(plan: Plan, *, is_server: bool, start: int | None = None, resume: str = "auto") -> Mechanism:
    """Make the mechanism that the config promises; on the server with its key and ledger.

    start: rounds in the checkpoint that the run goes on from; None: it begins. resume: as on the command line.

    Raises:
        CheckpointError: on the server, if key or ledger are missing, unsafe, or of another promise.
    """
    is_new = start is None and resume == "never"
    if plan.config.privacy.kind == "none":
        return make_plain(plan, is_server=is_server, is_new=is_new)
    if not is_server:
        return ClientLevel(terms_of(plan, 0.0), None, make_masking(plan, is_server=False))
    folder, settings = plan.config.folder / FOLDER, plan.config.privacy
    if settings.simulate:
        terms = terms_of(plan, noise_of(plan))
        key = sha256(f"fedtorch simulated privacy {settings.seed}".encode()).digest()
        return ClientLevel(terms, Ledger(key, {}, None, []), make_masking(plan, is_server=True, is_new=is_new, key=key))
    data = data_ledger(plan)
    where = {} if data is None else {"data_ledger": str(data.path.resolve())}
    branch = None if resume in ("auto", "never", "force") else Path(resume)
    if branch is not None and start is not None and not _is_inside(branch, plan.config.folder):
        other = Ledger.open(branch.resolve().parent.parent / FOLDER)
        terms = _agreed(plan, other.terms, branch)
        kept = [release for release in other.releases if release.round < start]
        ledger = Ledger.begin(folder, {**terms.record(plan.config.rounds), "since": start, **where}, kept)
        is_new = True
    elif is_new or (start is None and not folder.exists()):
        terms = terms_of(plan, noise_of(plan))
        ledger = Ledger.begin(folder, {**terms.record(plan.config.rounds), **where})
        is_new = True
    else:
        ledger = Ledger.open(folder)
        terms = _agreed(plan, ledger.terms, folder)
    ledger.attach(data, plan.config.folder, anew=resume == "force")
    return ClientLevel(terms, ledger, make_masking(plan, is_server=True, is_new=is_new, key=ledger.key))


def describe_private(plan: Plan) -> str:
    """ε by the number of releases, for `--dry-run`; empty where nothing is promised."""
    config = plan.config.privacy
    if config.kind == "none":
        return ""
    terms = terms_of(plan, noise_of(plan))
    said = (
        f"privacy: with one client or without it (zero-out), Poisson sampling with rate {terms.rate:g} of "
        f"{terms.clients} clients, noise multiplier {terms.noise_multiplier:g}, delta {config.delta:g}"
    )
    if config.simulate:
        return f"{said}\n  simulated: its noise can be computed by everybody, so nothing is promised"
    assert config.delta is not None
    account, rounds = Accountant(terms.rate, terms.noise_multiplier, config.delta), max(1, plan.config.rounds)
    counts = sorted({count for count in _POINTS if count < rounds} | {rounds})
    lines = [said, "  round    epsilon", *(f"  {count:>5} {account.epsilon(count):>10.4f}" for count in counts)]
    if (fits := releases_of(account, plan.config)) < rounds:
        lines.append(
            f"  privacy.max_epsilon {config.max_epsilon:g} is enough for {fits} of {rounds} rounds; then code 10"
        )
    if (ledger := data_ledger(plan)) is not None and (known := ledger.runs()):
        left = releases_of(account, plan.config, left=True)
        total = epsilon_of(known.values(), [(terms.rate, terms.noise_multiplier, left)], config.delta)
        lines.append(
            f"  {ledger.path} has {sum(len(run.releases) for run in known.values())} releases of {len(known)} runs on "
            f"these data; with all rounds of this one they come to epsilon {total:.4f}"
        )
    lines += [f"  outside the guarantee: {what}" for what in ClientLevel(terms, None).outside]
    return "\n".join(lines)


def releases_of(account: Accountant, config: Config, *, left: bool = False) -> int:
    """Rounds that `privacy.max_epsilon` allows, all by default; left: without those that the run has released."""
    rounds, limit, folder = max(1, config.rounds), config.privacy.max_epsilon, config.folder / FOLDER
    fits = rounds if limit is None else account.releases_within(limit, rounds)
    done = len(read_releases(folder)[1]) if left and (folder / LEDGER).is_file() else 0
    return max(0, fits - done)


def terms_of(plan: Plan, noise_multiplier: float) -> PrivacyTerms:
    """The public numbers of the promise."""
    return PrivacyTerms(_rate(plan), len(plan.clients), noise_multiplier, plan.config.privacy)


def _rate(plan: Plan) -> float:
    assert isinstance(plan.sampler, Poisson)
    return plan.sampler.rate


def noise_of(plan: Plan) -> float:
    """z: as given, or the least for `epsilon`."""
    config = plan.config.privacy
    if config.noise_multiplier is not None:
        return config.noise_multiplier
    assert config.epsilon is not None and config.delta is not None
    return least_noise(config.epsilon, _rate(plan), max(1, plan.config.rounds), config.delta)


def _agreed(plan: Plan, recorded: Mapping[str, object], where: Path) -> PrivacyTerms:
    """The terms of a run that goes on, which are those it began with.

    Raises:
        CheckpointError: a number that the account rests on is another one now, which `--resume force` cannot mend.
    """
    z = recorded.get("noise_multiplier")
    by_epsilon = plan.config.privacy.epsilon is not None
    terms = terms_of(plan, float(z) if by_epsilon and isinstance(z, float) else noise_of(plan))
    now = terms.record(plan.config.rounds)
    changed = [
        f"{key} was {recorded.get(key)} and is now {value}" for key, value in now.items() if value != recorded.get(key)
    ]
    if changed:
        raise CheckpointError(
            f"{where} is of a run with another promise: {'; '.join(changed)}; what was released so far was accounted "
            "with the former, so set it back, or begin anew with `--resume never`"
        )
    return terms


def _is_inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())
