"""The page of an audit: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedtorch.audit.finding import Finding
from fedtorch.report.html_page import POLICY
from fedtorch.report.html_style import SORT, STYLE
from fedtorch.report.html_table import table

WARNING = (
    "That an attack found little says what this attack, in this form, found on this run. It is no proof that nothing "
    "can be read: newer attacks go further, and an attacker may know more than these do."
)


def page(title: str, about: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """about: facts of the run, a line each."""
    ran = [finding for finding in findings if not finding.skipped]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1><p class='note'>{escape(WARNING)}</p>",
        f"<p>{escape('; '.join(f'{key} {value}' for key, value in about.items()))}</p>",
        table(
            ["attack", "result"],
            [[(f.attack, f.attack), (f.said or f"not run: {f.skipped}", None)] for f in findings],
        ),
        *map(_section, ran),
        f"<script>{SORT}</script></body></html>\n",
    ]
    return "".join(parts)


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
