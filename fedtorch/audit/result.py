"""Outcome of an audit: facts about the run, findings, and how both are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtorch.audit.finding import Finding
from fedtorch.audit.page import WARNING, page
from fedtorch.core.errors import CheckpointError
from fedtorch.core.files import replace_file


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
