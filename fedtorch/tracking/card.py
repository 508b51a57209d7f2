"""The model card that lies beside an exported model: what it is, from how many rows, how good, and how to load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedtorch.core.files import replace_file
from fedtorch.core.shown import for_markdown, markdown_row
from fedtorch.tracking.privacy_statement import NOTHING

NAME = "README.md"


@dataclass(frozen=True)
class CardFacts:
    """Facts of a model card. Counts only: it may be given away, so it names no client and quotes no text."""

    name: str
    """of the run"""
    task: str
    """`task.name`"""
    pipeline: str
    """the task's name among transformers' pipelines"""
    code: str
    """the Python lines that load the model; `FOLDER` stands for its folder"""
    start: str
    """the weights that training began with"""
    algorithm: str
    """`algorithm.name`"""
    rounds: int
    """done"""
    best_round: int | None
    """the round whose weights these are; None: the last"""
    clients: int
    """that trained"""
    rows: int | None
    """that they trained on; None: that is not told"""
    digest: str
    """of the config's keys that can change results"""
    split: str = "test"
    """what the scores are of"""
    scores: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """metric -> (figure over all rows, rows)"""
    privacy: str = NOTHING
    """what protected clients"""
    checked: str = ""
    """what parties have checked of the server's work; empty: nothing"""
    rounded: str = ""
    """in how many bits updates travelled, where they were rounded: what follows the algorithm's name"""
    attack: str = ""
    """how some of them cheated, on purpose: the end of a sentence"""
    versions: Mapping[str, str] = field(default_factory=dict)
    """of the packages"""
    is_one_clients: bool = False
    """is it the model of one client, with that client's scores?"""


def write_card(folder: Path, facts: CardFacts) -> None:
    """Write `README.md` into a model's folder, in one step.

    Raises:
        OSError: the disk refuses.
    """
    replace_file(folder / NAME, card_text(facts))


def card_text(facts: CardFacts) -> str:
    """The card: front matter as model hubs read it, and a page."""
    whose = "one client's model of" if facts.is_one_clients else "the model of"
    scores = [markdown_row([name, f"{value:.4f}", count]) for name, (value, count) in facts.scores.items()]
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            *([f"pipeline_tag: {facts.pipeline}"] if facts.pipeline else []),
            "tags: [federated-learning, fedtorch]",
            "---",
            "",
            f"# {for_markdown(facts.name)}",
            "",
            f"This is {whose} a federated run: clients trained it on rows that stayed with them.",
            "",
            "| | |",
            "|---|---|",
            *(markdown_row(pair) for pair in _table(facts)),
            "",
            "## Load it",
            "",
            "```python",
            facts.code,
            "```",
            "",
            *([f"## Scores on `{facts.split}`", "", "| | | of |", "|---|---|---|", *scores, ""] if scores else []),
            "Weights can reveal what they were trained on; treat them as you would treat the rows.",
            "",
        ]
    )


def _table(facts: CardFacts) -> list[tuple[str, str]]:
    """The card's facts, each with its name."""
    best = "the last round's weights" if facts.best_round is None else f"the weights of round {facts.best_round}"
    rows = "rows" if facts.rows is None else f"{facts.rows} rows"
    return [
        ("task", f"`{facts.task}`"),
        ("began with", facts.start),
        ("trained by", f"`{facts.algorithm}`{facts.rounded}, {facts.rounds} rounds, {best}"),
        ("trained on", f"{rows} of {facts.clients} clients{facts.attack}"),
        ("protection", facts.privacy),
        *([("checked", facts.checked)] if facts.checked else []),
        ("versions", ", ".join(f"{name} {version}" for name, version in facts.versions.items())),
        ("config", f"sha256 `{facts.digest}`"),
    ]
