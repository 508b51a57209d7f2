"""Sums up what the reports of a round say together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fedtorch.core.update import Report
from fedtorch.tracking.records import Record


def cohort_record(reports: Sequence[Report]) -> Record:
    """Loss, examples and clients."""
    ok = [report for report in reports if report.is_ok]
    examples = sum(report.examples for report in ok)
    return {
        "loss": math.fsum(report.examples * report.loss_mean for report in ok) / examples if examples else None,
        "examples": examples,
        "clients_ok": len(ok),
        "clients_failed": len(reports) - len(ok),
    }


def norms_record(reports: Sequence[Report]) -> Record:
    """Record of the updates' norms."""
    norms = [report.norm for report in reports if report.is_ok]
    return {"update_norm_median": median(norms) if norms else None, "update_norm_max": max(norms, default=None)}


def attackers(config: Mapping[str, Any]) -> dict[str, str]:
    """Client -> how it cheats, on purpose; by a config as nested mappings."""
    attack = config.get("attack") or {}
    return dict.fromkeys(attack.get("clients", ()), attack.get("kind", ""))


def attack_record(reports: Sequence[Report], attackers: Mapping[str, str]) -> Record:
    """`attack`: which of them cheat on purpose, and how; nothing where nobody does."""
    found = {report.client: attackers[report.client] for report in reports if report.client in attackers}
    return {"attack": found} if found else {}
