"""Makes the mechanism that a config promises: noise and its ledger, a secure sum, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from fedtorch.algorithms.counts import Counts
from fedtorch.config.schema import Config
from fedtorch.core.errors import CheckpointError
from fedtorch.core.mechanism import Mechanism
from fedtorch.core.sampling import Poisson
from fedtorch.privacy.accounting import Accountant, least_noise
from fedtorch.privacy.client_level import ClientLevel, PrivacyTerms
from fedtorch.privacy.ledger import FOLDER, LEDGER, Ledger, read_releases
from fedtorch.privacy.public_sum import Masking, PublicSum
from fedtorch.privacy.secure_sum.openings import Openings
from fedtorch.privacy.stream import derived
from fedtorch.setup.counting import make_counts_level
from fedtorch.setup.data_ledger import data_ledger
from fedtorch.setup.plan import Plan
from fedtorch.setup.record import make_record_level
from fedtorch.setup.rules.sums import is_public
from fedtorch.tasks.counted import Counted

OPENINGS = "openings.jsonl"


def make_mechanism(plan: Plan, *, is_server: bool, start: int | None = None, resume: str = "auto") -> Mechanism:
    """Make the mechanism that the config promises; on the server with its key and ledger.

    start: rounds in the checkpoint that the run goes on from; None: it begins. resume: as on the command line.

    Raises:
        CheckpointError: on the server, if key or ledger are missing, unsafe, or of another promise.
    """
    is_new = start is None and resume == "never"
    if isinstance(plan.algorithm, Counts) and isinstance(plan.task, Counted):
        masking = make_masking(plan, is_server=is_server, is_new=is_new)
        return make_counts_level(plan.config, plan.algorithm.rule, plan.task, masking)
    if plan.config.privacy.kind == "none":
        return make_plain(plan, is_server=is_server, is_new=is_new)
    if plan.config.privacy.kind == "record":
        return make_record_level(plan, make_masking(plan, is_server=is_server, is_new=is_new))
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


def make_plain(plan: Plan, *, is_server: bool, is_new: bool) -> Mechanism:
    """Make the mechanism of a run without noise."""
    if not is_public(plan):
        return Mechanism()
    masking = make_masking(plan, is_server=is_server, is_new=is_new)
    is_mean = plan.config.asynchrony is None  # else an update weighs by its age
    return PublicSum(plan.config.privacy.first_clip, len(plan.clients), masking, is_mean=is_mean)


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
    hides = plan.config.privacy.kind == "client"  # then a round's parties must not show who was drawn
    leaders = tuple(ranks[0] for ranks in plan.topology.workers) if hides else None
    return Masking(
        settings.threshold, Openings(path if is_server else None, derived(key, "openings") if key else b""), leaders
    )


def releases_of(account: Accountant, config: Config, *, left: bool = False) -> int:
    """Rounds that `privacy.max_epsilon` allows, all by default; left: without those that the run has released."""
    rounds, limit, folder = max(1, config.rounds), config.privacy.max_epsilon, config.folder / FOLDER
    fits = rounds if limit is None else account.releases_within(limit, rounds)
    done = len(read_releases(folder)[1]) if left and (folder / LEDGER).is_file() else 0
    return max(0, fits - done)


def terms_of(plan: Plan, noise_multiplier: float) -> PrivacyTerms:
    """The public numbers of the promise."""
    return PrivacyTerms(_rate(plan), len(plan.clients), noise_multiplier, plan.config.privacy)


def noise_of(plan: Plan) -> float:
    """z: as given, or the least for `epsilon`."""
    config = plan.config.privacy
    if config.noise_multiplier is not None:
        return config.noise_multiplier
    assert config.epsilon is not None and config.delta is not None
    return least_noise(config.epsilon, _rate(plan), max(1, plan.config.rounds), config.delta)


def _rate(plan: Plan) -> float:
    assert isinstance(plan.sampler, Poisson)
    return plan.sampler.rate


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
