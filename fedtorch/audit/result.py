"""Outcome of an audit: facts about the run, findings, and how both are written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fedtorch.audit.finding import Finding
from fedtorch.core.errors import CheckpointError
from fedtorch.core.files import replace_file
from fedtorch.report.html_style import document
from fedtorch.report.html_table import table

WARNING = (
    "That an attack found little says what this attack, in this form, found on this run. It is no proof that nothing "
    "can be read: newer attacks go further, and an attacker may know more than these do."
)


@dataclass(frozen=True)
class AuditResult:
    """Findings of the attacks on one run, and which did not apply; printed it is what the command prints."""

    title: str
    """what was attacked"""
    facts: Mapping[str, Any]
    """task, algorithm, rounds done, numbers that are sent, optimizer, batch, clients, and what the server sees"""
    findings: Mapping[str, Finding]
    """attack -> what it came to, in the order in which they were run"""
    warning: str = WARNING
    """what an attack that found little does not mean"""

    @property
    def record(self) -> dict[str, Any]:
        """Content of `audit.json`."""
        findings = [finding.record() for finding in self.findings.values()]
        return {"about": dict(self.facts), "warning": self.warning, "findings": findings}

    def write(self, folder: Path | str) -> list[Path]:
        """`audit.json` and `audit.html` in a folder, which is made if it is missing.

        Raises:
            CheckpointError: they cannot be written.
        """
        out = Path(folder)
        paths = [out / "audit.json", out / "audit.html"]
        try:
            out.mkdir(parents=True, exist_ok=True)
            replace_file(paths[0], json.dumps(self.record, indent=1, allow_nan=False, default=str) + "\n")
            replace_file(paths[1], page(self.title, self.facts, list(self.findings.values())))
        except OSError as error:
            raise CheckpointError(f"{out} could not be written ({error}); make room, or name another folder") from error
        return paths

    def __str__(self) -> str:
        lines = [self.title, "; ".join(f"{key} {value}" for key, value in self.facts.items()), ""]
        lines += [f"{f.attack:11} {f.said or f'not run: {f.skipped}'}" for f in self.findings.values()]
        return "\n".join([*lines, "", self.warning])


def page(title: str, about: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """about: facts of the run, a line each."""
    ran = [finding for finding in findings if not finding.skipped]
    return document(
        title,
        f"<p class='note'>{escape(WARNING)}</p>",
        f"<p>{escape('; '.join(f'{key} {value}' for key, value in about.items()))}</p>",
        table(
            ["attack", "result"],
            [[(f.attack, f.attack), (f.said or f"not run: {f.skipped}", None)] for f in findings],
        ),
        *map(_section, ran),
    )


def _section(finding: Finding) -> str:
    heads = list(finding.figures[0]) if finding.figures else []
    rows = [[cell(row[head]) for head in heads] for row in finding.figures]
    body = f"{table(heads, rows)}{finding.picture}"
    return (
        f"<section><h2>{escape(finding.attack)}: {escape(finding.about)}</h2><p>{escape(finding.said)}.</p>"
        f"<p class='note'>What an attacker needs: {escape(finding.needs)}.</p>{body}</section>"
    )


def cell(value: Any) -> tuple[str, str | float | None]:
    """As the page shows it, and as a column is sorted by it."""
    if value is None:
        return "-", None
    if isinstance(value, float):
        return f"{value:.3g}", value
    return str(value), value
