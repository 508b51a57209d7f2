"""Reports what robust rules did with the clients' updates: how often each was left out or shrunk."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from fedtorch.core.errors import ConfigError
from fedtorch.core.shown import markdown_row
from fedtorch.report.find_runs import NamedRun

_HEADS = ("run", "rule", "client", "examples", "rounds", "left out", "shrunk", "kept", "attack")
WHOLE = 1 - 1e-9


def robust_markdown(runs: Sequence[NamedRun]) -> str:
    """The table, a row for each run and client, of the rounds in which its update was accepted.

    left out: it kept nothing of its weight; shrunk: less than all; kept: the mean share; attack: how the client
    cheated, on purpose.

    Raises:
        ConfigError: a run has no rule, or no finished round of one.
    """
    lines = ["| " + " | ".join(_HEADS) + " |", "|---|---|---|" + "---:|" * (len(_HEADS) - 4) + "---|"]
    for name, run in runs:
        shares: dict[str, list[float]] = {}
        examples: dict[str, int] = {}
        attacks: dict[str, str] = {}
        for record in run.of_kind("client"):
            share = record.get("kept")
            if share is not None:
                shares.setdefault(record["client"], []).append(share)
                examples[record["client"]] = record.get("examples", 0)
                attacks |= record.get("attack", {})
        if not shares:
            raise ConfigError(f"{run.folder} has no client's `kept`; name runs with algorithm.robust")
        for client, found in shares.items():
            columns = [
                name,
                _rule(run.setting("algorithm.robust")),
                client,
                str(examples[client]),
                str(len(found)),
                str(sum(share == 0 for share in found)),
                str(sum(0 < share < WHOLE for share in found)),
                f"{fmean(found):.3f}",
                attacks.get(client, ""),
            ]
            lines.append(markdown_row(columns))
    return "\n".join(lines) + "\n"


def _rule(value: object) -> str:
    """The rule's name and what is set beside it."""
    if not isinstance(value, dict):
        return str(value)
    return ", ".join([str(value["name"]), *(f"{key} {item}" for key, item in value.items() if key != "name")])
