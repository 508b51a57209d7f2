"""Whether a client's report can be true, by what the server knows, and its update has only what travels."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from fedtorch.core.client import Client
from fedtorch.core.errors import PreflightError, UpdateError
from fedtorch.core.places import Places
from fedtorch.core.update import Report
from fedtorch.train.outgoing import Outgoing

log = logging.getLogger(__name__)

SLACK = 1e-6  # relative, for numbers that were rounded on their way through a mean or a root


def of_cohort(reports: Sequence[Report], cohort: Sequence[tuple[Client, int]]) -> list[Report]:
    """The reports of clients that were drawn, each with how often; of others there is a warning and nothing else."""
    draws = {client.name: count for client, count in cohort}
    if strangers := [report.client for report in reports if report.client not in draws]:
        log.warning("reports of clients that were not drawn for the round are ignored: %s", ", ".join(strangers))
    return [replace(report, draws=draws[report.client]) for report in reports if report.client in draws]


def check_complete(reports: Sequence[Report], cohort: Sequence[tuple[Client, int]], lost: Collection[str] = ()) -> None:
    """Every client that was drawn here was trained once: there is one report of it, or its worker is lost.

    Raises:
        PreflightError: another rank has drawn other clients.
    """
    found = Counter(report.client for report in reports)
    missing = [client.name for client, _ in cohort if client.name not in found and client.name not in lost]
    twice = [name for name, count in found.items() if count > 1]
    if missing or twice:
        raise PreflightError(
            f"the ranks drew different clients for a round: {len(missing)} of the {len(cohort)} that the server drew "
            f"were trained nowhere, {len(twice)} more than once ({', '.join([*missing, *twice][:10])}); a sampler "
            "(clients.sampling) may depend on its arguments and fields alone"
        )


def impossible(report: Report, client: Client, size: int, largest: float) -> str:
    """Why the numbers of a report that is `ok` cannot be true; empty if they can.

    size: elements of an update. largest: what a client of so many examples can weigh by.
    """
    held = client.sizes.get("train", 0)
    if not 0 <= report.examples <= held:
        return f"it reports {report.examples} training examples, the manifest counts {held}"
    if not 0 <= report.size <= largest:
        return f"it reports a size of {report.size:g}, but {report.examples} examples come to {largest:g} at most"
    if report.steps < 0:
        return f"it reports {report.steps} steps"
    least, most = report.max_abs, math.sqrt(size) * report.max_abs  # of one such element, and of `size`
    if size and not 0 <= least * (1 - SLACK) <= report.norm <= most * (1 + SLACK):
        return f"no update of {size} numbers has the norm {report.norm:.6g} and the largest one {report.max_abs:.6g}"
    fall = report.loss_max - report.loss_min
    reduction = report.extra.get("loss_reduction", 0.0)
    if reduction > fall + SLACK * max(abs(report.loss_max), abs(report.loss_min)):
        losses = f"{report.loss_min:.6g} to {report.loss_max:.6g}"
        return f"it reports a loss reduction of {reduction:.6g}, but losses from {losses}"
    return ""


def check_places(sent: Outgoing, places: Places | None) -> None:
    """Look whether all that does not travel is 0. places: what travels of the client's update; None: all of it.

    Raises:
        UpdateError: it is not.
    """
    if places is not None and not places.holds_all_of(sent.flat):
        raise UpdateError(
            f"{sent.algorithm} sent more than its `places` names: only {len(places)} of {places.size} numbers travel "
            "for this client and round, and the others are not 0"
        )
