"""The exchange of a round: which updates count, and what they come to together. Called by all ranks alike."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from torch import Tensor

from fedtorch.algorithms.base import Algorithm, Updates
from fedtorch.algorithms.weighting import NothingToWeighError
from fedtorch.comm.sparse.allreduce import Reduced
from fedtorch.comm.sparse.messages import Received
from fedtorch.comm.sparse.packed_updates import PackedUpdates
from fedtorch.comm.wire import Packet
from fedtorch.core.client import Client
from fedtorch.core.errors import BudgetError, NonFiniteError, QuorumError, RefusedUpdatesError
from fedtorch.core.server import ServerState
from fedtorch.core.state_keys import VOID_ROUNDS
from fedtorch.core.update import LOST, RESTS, Report
from fedtorch.rounds import replicas, slices
from fedtorch.rounds.buffer import LATE
from fedtorch.rounds.cohort import tell
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.report_checks import impossible, of_cohort
from fedtorch.rounds.weighing import Weighing

log = logging.getLogger(__name__)

# Rounds in a row without `clients.min` usable updates after which a run is given up: what failed will fail again.
QUORUM_PATIENCE = 3
UNOPENED = "it is not in the sum of the round, which was opened once"
NOTHING: Mapping[str, str] = {}
_CLAIMS = ("norm", "max_abs", "seconds")
LEAST_FOR_MEDIAN = 3  # of two, the median is their mean, which the larger one decides


@dataclass
class Decision:
    """The server's decision; elsewhere only `verdict`, the names in `accepted` and `word` are set."""

    verdict: str = "ok"
    """`ok`, or the name of the error that ends the run"""
    reports: list[Report] = field(default_factory=list)
    """of the whole cohort, those of lost clients too"""
    accepted: list[Report] = field(default_factory=list)
    """those whose updates count; none where they are too few"""
    refused: list[tuple[Report, str]] = field(default_factory=list)
    """the others, each with the reason"""
    usable: int = 0
    """accepted updates, as often as their clients were drawn"""
    void_rounds: int = 0
    """rounds in a row with too few of them, this one included"""
    weights: dict[str, float] = field(default_factory=dict)
    """client -> weight"""
    combined: Tensor | None = None
    """the pseudo-gradient, on the server"""
    figures: dict[str, float] = field(default_factory=dict)
    """what the algorithm measured of the combination, on the server"""
    kept: dict[str, float] = field(default_factory=dict)
    """client -> the share of its weight that counts, where the algorithm says so"""
    messages: list[Received] = field(default_factory=list)
    """where clients send messages: the accepted ones, on the ranks that combine them"""
    reduced: Reduced | None = None
    """where every rank sums a slice of the messages: what was kept of the sum, on all ranks"""
    word: Mapping[str, float] = field(default_factory=dict)
    """what the server says of saving the round, on all ranks; see `SaveSchedule`"""


def gather(
    context: RoundContext, own: Sequence[Report], cohort: Sequence[tuple[Client, int]], oath: str = ""
) -> tuple[list[Report], list[Decision]]:
    """Meet with this rank's reports: on the server all of the cohort's, and the decision that it answered with.

    No decision: it is still to be told, as clients were lost, or as ranks are to hear of their own clients alone.

    Raises:
        Stopped: see `Membership.meet`.
    """
    comm, lost = context.comm, len(context.members.lost)
    reports: list[Report] = []
    decided: list[Decision] = []

    def answer(gathered: list[Report]) -> Sequence[Packet]:
        reports.extend(of_cohort(gathered, cohort))
        every = with_lost(context, reports, cohort)
        if context.mechanism.hides_clients or len(every) < len(cohort):
            return ()
        decided.append(_decide(context, every, _known(context, every, cohort)))
        return _words(context, decided[0])

    context.members.meet("gather", partial(comm.gather_reports, own, oath=oath, answer=answer))
    if comm.told and not comm.is_server:
        decided.append(_heard(context, comm.told))
    return reports, decided if len(context.members.lost) == lost else []


def exchange(
    context: RoundContext,
    reports: Sequence[Report],
    cohort: Sequence[tuple[Client, int]],
    decided: list[Decision],
) -> Decision:
    """Decide and combine; changes nothing, for it is done again when a worker is lost in it.

    reports: on the server, all that were gathered. cohort: of the round. decided: what all ranks know already, which
    counts the first time alone and is taken out.
    """
    refused: dict[str, str] = {}
    if any(context.client_of(report.client) in context.members.lost for each in decided for report in each.accepted):
        decided.clear()  # its worker was lost since
    if context.comm.is_server:
        reports = with_lost(context, reports, cohort)
        refused = _known(context, reports, cohort)
    while True:
        if decided:
            decision = decided.pop()
        else:
            decision = _share(context, _decide(context, reports, refused) if context.comm.is_server else Decision())
        if decision.verdict != "ok" or not steps(context, decision):
            return decision
        try:
            _combine(context, decision)
        except RefusedUpdatesError as found:  # on all ranks; every time there is a client less
            refused.update(found.reasons)
        else:
            return decision


def steps(context: RoundContext, decision: Decision) -> bool:
    """Does the server take a step? The same on all ranks, also where none but the server knows whether clients came."""
    return bool(context.algorithm.travels.vectors and (decision.accepted or context.mechanism.hides_clients))


def _combine(context: RoundContext, decision: Decision) -> None:
    """Add what the accepted updates come to.

    Raises:
        RefusedUpdatesError: on all ranks, if an update is not what its client reported.
    """
    if context.has_messages and context.message_algorithm.combines_in_slices:
        decision.reduced = slices.reduce(context, decision.accepted)
        return
    if context.has_messages:
        decision.messages = replicas.collect(context, decision.accepted)
        return
    hides = context.mechanism.hides_clients
    with context.comm.open_updates(context.updates, decision.accepted, round=context.round, secret=hides) as updates:
        if updates is not None:
            if context.scale is not None:
                context.scale.fix(updates)
            opened: Updates = updates
            if (packing := context.packing) is not None:
                opened = PackedUpdates(updates, context.updates, packing.unpack, packing.layout)
            rules = context.algorithm, context.weighing, context.server
            looks = context.config.trust.verify is None  # else there are no single updates to measure anything of
            decision.combined = context.mechanism.combine(
                opened, lambda updates: _combined(*rules, updates, decision, looks=looks)
            )


def _combined(
    algorithm: Algorithm,
    weighing: Weighing,
    server: ServerState,
    updates: Updates,
    decision: Decision,
    *,
    looks: bool,
) -> Tensor:
    """The updates in the algorithm's own way; `decision` is told weights, figures and what was kept of each client.

    looks: may the algorithm look at single updates, to measure something?

    Raises:
        RefusedUpdatesError: there are clients without whom it has to be done again.
    """
    try:
        weights = weighing.weigh(updates.reports)
    except NothingToWeighError as error:
        raise RefusedUpdatesError({report.client: str(error) for report in updates.reports}) from error
    decision.weights = {r.client: w for r, w in zip(updates.reports, weights, strict=True)}
    if endless := {name: weight for name, weight in decision.weights.items() if not math.isfinite(weight)}:
        raise RefusedUpdatesError({name: f"what it reports weighs {weight}" for name, weight in endless.items()})
    combined = weighing.along(algorithm.aggregate(updates, weights), server, updates.reports, weights)
    if not updates.is_finite(combined):
        why = "it is one of those that came to NaN or infinity together"
        raise RefusedUpdatesError({report.client: why for report in updates.reports})
    decision.figures = dict(algorithm.measure(server, updates, weights)) if looks else {}
    decision.kept = dict(updates.kept)
    return combined


def _known(context: RoundContext, reports: Sequence[Report], cohort: Sequence[tuple[Client, int]]) -> dict[str, str]:
    """Client -> why it is refused, whatever was sent: its report cannot be true, or the opened sum is without it."""
    clients = {client.name: client for client, _ in cohort}
    whole = context.update_numbers
    sizes = {name: context.updates.length(name) if whole is None else whole for name in clients}
    most = context.components.training.largest_size
    problems = {
        r.client: impossible(r, clients[r.client], sizes[r.client], most(r.examples)) for r in reports if r.is_ok
    }
    found = {name: problem for name, problem in problems.items() if problem}
    if (settled := context.mechanism.settled(context.round)) is not None:
        found |= {r.client: UNOPENED for r in reports if r.client not in settled}
    return found


def apply_verdict(context: RoundContext, decision: Decision) -> None:
    """Note what was decided.

    Raises:
        NonFiniteError, BudgetError, QuorumError: on all ranks, when the server decided that the run must end.
    """
    context.schedule.hear(decision.word)
    clients = context.config.clients
    least = f"{context.mechanism.least(clients.min)}" + (f" of {clients.min_silos} silos" if clients.min_silos else "")
    if context.comm.is_server:
        # where clients are hidden how many fail tells something of them; the worker's log has a line
        for report, reason in () if context.mechanism.hides_clients else decision.refused:
            client = context.client_of(report.client)
            log.warning("round %d: client %s is left out: %s", context.round + 1, client, reason)
        if decision.verdict == "ok":  # else this round is done again
            context.server.numbers[VOID_ROUNDS] = decision.void_rounds
        if decision.void_rounds:
            log.warning(
                "round %d: %d usable updates, clients.min is %s: the server takes no step",
                context.round + 1,
                decision.usable,
                least,
            )
    if decision.verdict == "NonFiniteError":
        raise NonFiniteError(
            f"round {context.round + 1}: a client failed, sent NaN or infinity, an update above a limit of `clients` "
            "or numbers that cannot be true, and clients.on_failure is stop; the log names it"
        )
    if decision.verdict == "BudgetError":
        raise BudgetError(
            f"round {context.round + 1}: clients rest, as another round would pass their privacy.max_epsilon, and "
            f"fewer than clients.min = {least} usable updates are left. All rounds before it are saved; start the run "
            "again with a larger privacy.max_epsilon to go on"
        )
    if decision.verdict == "QuorumError":
        raise QuorumError(
            f"round {context.round + 1}: fewer than clients.min = {least} usable updates in {_patience(context)} "
            "rounds in a row; the log names each client's reason"
        )


def with_lost(context: RoundContext, reports: Sequence[Report], cohort: Sequence[tuple[Client, int]]) -> list[Report]:
    """The reports, those of lost clients replaced by one that says so; in manifest order."""
    gone = context.members.lost.keys() - (context.mechanism.settled(context.round) or ())
    if not gone:
        return list(reports)
    lost = [Report(client.name, LOST) for client, _ in cohort if context.client_of(client.name) in gone]
    found = {report.client: report for report in (*reports, *lost)}
    return sorted(found.values(), key=lambda report: context.comm.names.place(report.client))


def filter_reports(
    reports: Sequence[Report],
    max_norm: float | None,
    max_ratio: float | None = None,
    known: Mapping[str, str] = NOTHING,
) -> tuple[list[Report], list[tuple[Report, str]]]:
    """(accepted reports, refused ones with the reason), each in the given order.

    max_ratio: of a norm to the median of all that count and are not zero, if they are `LEAST_FOR_MEDIAN`.
    known: client -> why it is refused already.
    """
    accepted: list[Report] = []
    refused: list[tuple[Report, str]] = []
    norms = [report.norm for report in reports if report.is_ok and report.norm > 0 and report.client not in known]
    middle = median(norms) if max_ratio is not None and len(norms) >= LEAST_FOR_MEDIAN else None
    for report in reports:
        if report.status != "ok":
            refused.append((report, report.status))
        elif not report.is_ok:
            refused.append((report, "its update or its loss is not finite"))
        elif report.client in known:
            refused.append((report, known[report.client]))
        elif max_norm is not None and report.norm > max_norm:
            refused.append((report, f"its update's norm {report.norm:.3g} is above clients.max_update_norm {max_norm}"))
        elif middle is not None and max_ratio is not None and report.norm > max_ratio * middle:
            limit = f"clients.max_norm_to_median {max_ratio:g} times the round's median {middle:.3g}"
            refused.append((report, f"its update's norm {report.norm:.3g} is above {limit}"))
        else:
            accepted.append(report)
    return accepted, refused


def reports_for_log(decision: Decision) -> list[Report]:
    """The reports for the records: one that was refused is not ok; what a rule kept of one is in it as `kept`."""
    refused = {report.client for report, _ in decision.refused if report.status == "ok"}
    kept = {client: {"kept": share} for client, share in decision.kept.items()}
    return [
        replace(r, status="refused") if r.client in refused else replace(r, extra={**r.extra, **kept.get(r.client, {})})
        for r in decision.reports
    ]


def _decide(context: RoundContext, reports: Sequence[Report], known: Mapping[str, str]) -> Decision:
    """Decide on the reports. known: client -> why it is refused already."""
    config = context.config.clients
    accepted, refused = filter_reports(reports, config.max_update_norm, config.max_norm_to_median, known)
    usable = sum(report.draws for report in accepted)
    are_enough = context.mechanism.hides_clients or context.config.has_silos(report.client for report in accepted)
    enough = usable >= context.mechanism.least(config.min) and are_enough
    void_rounds = 0 if enough else int(context.server.numbers.get(VOID_ROUNDS, 0)) + 1
    has_failed = any(report.status not in (LOST, LATE, RESTS) for report, _ in refused)
    if has_failed and config.on_failure == "stop":
        verdict = "NonFiniteError"
    elif not enough and any(report.status == RESTS for report, _ in refused):
        verdict = "BudgetError"
    elif void_rounds >= _patience(context):
        verdict = "QuorumError"
    else:
        verdict = "ok"
    taken = [] if void_rounds else accepted
    return Decision(verdict, [*reports], taken, refused, usable, void_rounds, word=context.schedule.word())


def _patience(context: RoundContext) -> int:
    """Rounds in a row; as many arrivals in buffers that are smaller than what trains at a time."""
    return QUORUM_PATIENCE * (1 if context.jobs is None else context.jobs.patience)


def _share(context: RoundContext, decision: Decision) -> Decision:
    told = tell(context, lambda: _words(context, decision))
    return decision if context.comm.is_server else _heard(context, told)


def _words(context: RoundContext, decision: Decision) -> list[Packet]:
    """On the server: what the others have to know of a decision."""
    return [
        context.message("decision", status=decision.verdict, numbers=decision.word),
        *(context.message("decision", r.client, numbers=_claims(context, r)) for r in decision.accepted),
    ]


def _heard(context: RoundContext, told: Sequence[Packet]) -> Decision:
    """Elsewhere: the decision that the server told."""
    verdict, *names = told
    accepted = []
    for about in names:
        norm, max_abs, seconds = (float(about.numbers.get(claim, 0.0)) for claim in _CLAIMS)
        accepted.append(Report(context.name(about), norm=norm, max_abs=max_abs, seconds=seconds))
    return Decision(verdict.status, accepted=accepted, word=verdict.numbers)


def _claims(context: RoundContext, report: Report) -> dict[str, float]:
    """Numbers of a report that every rank must know: to place the client, and to combine the updates itself."""
    claims = {"seconds": report.seconds} if context.places_anew else {}
    if context.has_messages:
        algorithm = context.message_algorithm
        if algorithm.combines_everywhere or algorithm.combines_in_slices:
            claims |= {"norm": report.norm, "max_abs": report.max_abs}
    return claims
