"""The model card: what it says, and that it names no client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from fedtorch.tracking.card import CardFacts, card_text, write_card

FACTS = CardFacts(
    name="notes",
    task="text_classification",
    pipeline="text-classification",
    code="print(1)",
    start="random weights",
    algorithm="fedavg",
    rounds=5,
    best_round=3,
    clients=4,
    rows=224,
    digest="ab12",
    scores={"accuracy": (0.96428, 28)},
    versions={"torch": "2"},
)


def test_a_card_says_what_a_model_is_and_how_good(tmp_path: Path) -> None:
    write_card(tmp_path, FACTS)
    text = (tmp_path / "README.md").read_text()
    for part in ("5 rounds, the weights of round 3", "224 rows of 4 clients", "| accuracy | 0.9643 | 28 |", "`ab12`"):
        assert part in text
    assert "no differential privacy" in text and "\n```python\nprint(1)\n```\n" in text


def test_names_on_a_card_are_no_markup() -> None:
    odd = "<img src=x>|[y](z)"
    text = card_text(replace(FACTS, name=odd, start=odd, scores={odd: (0.5, 2)}, versions={"torch": odd}))
    assert "<img" not in text and "[y](z)" not in text.replace(r"\[y](z)", "")
    assert r"| began with | &lt;img src=x>\|\[y](z) |" in text


def test_the_front_matter_is_yaml() -> None:
    _, front, _ = card_text(FACTS).split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["federated-learning", "fedtorch"],
    }
    assert "pipeline_tag" not in card_text(replace(FACTS, pipeline=""))


def test_a_model_without_scores_or_a_best_round_has_a_card() -> None:
    text = card_text(replace(FACTS, scores={}, best_round=None, is_one_clients=True))
    assert "## Scores" not in text and "the last round's weights" in text and "one client's model of" in text
