"""Defaults of the `stats` section, and what follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedtorch.config import load as yaml_config
from fedtorch.core.errors import ConfigError
from fedtorch.stats.questions import TaskFacts, questions_of
from fedtorch.stats.settings import CAPPED, Found, Recur, StatsConfig, StatsPrivacy, Words
from fedtorch.tasks.counted import plan_of

NOISED = StatsPrivacy(epsilon=1.0)


def test_the_defaults_are_those_of_the_page() -> None:
    plain = StatsConfig()
    assert (plain.labels, plain.words, plain.by_silo, plain.min_count) == (Found(32, 64), None, "auto", 5)
    assert (Found().longest, Found().width, Words().n, Words().per_unit) == (24, 256, 1, None)
    assert (NOISED.unit, NOISED.delta, NOISED.noise_at, NOISED.noise) == ("row", 1e-5, "local", "normal")
    assert Recur("key").rows == 10_000 and len(CAPPED) == 9


def test_with_privacy_a_unit_gives_eight_words_and_without_it_all() -> None:
    assert StatsConfig(words=Words()).counts_occurrences
    noised = StatsConfig(words=Words(n=2), privacy=NOISED)
    assert noised.words == Words(n=2, per_unit=8) and not noised.counts_occurrences
    own = StatsConfig(words=Words(per_unit=3), privacy=NOISED).words
    assert own is not None and own.per_unit == 3
    assert StatsConfig(words=Words(per_unit=3)).words == Words(per_unit=3) and not StatsConfig().counts_occurrences


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"most_cells": {"words": 2}, "privacy": NOISED},
            "stats.most_cells names 'words'; its tables are rows, labels",
        ),
        ({"most_cells": {"labels": 2}}, "stats.most_cells is set but stats.privacy is not"),
        ({"recur": Recur("key"), "privacy": NOISED}, "stats.recur is set but stats.privacy is too"),
    ],
)
def test_keys_that_cannot_be_together_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        StatsConfig(**changes)


def test_a_budget_is_one_number() -> None:
    for both, what in (({}, "give one"), ({"epsilon": 1.0, "noise_multiplier": 1.0}, "remove one")):
        with pytest.raises(ConfigError, match=f"needs one of epsilon and noise_multiplier; {what}"):
            StatsPrivacy(**both)
    assert StatsPrivacy(noise_multiplier=1.0).epsilon is None
    assert StatsPrivacy(epsilon=2.0, max_epsilon=2.0).max_epsilon == 2.0
    with pytest.raises(ConfigError, match="max_epsilon is 1.9 but stats.privacy.epsilon is 2.0"):
        StatsPrivacy(epsilon=2.0, max_epsilon=1.9)


def test_of_a_task_without_labels_and_tokens_rows_and_characters_are_counted() -> None:
    names = [question.name for question in questions_of(StatsConfig(), TaskFacts())]
    assert names == ["rows", "units", "empty", "twice", "characters"]
    more = questions_of(StatsConfig(words=Words()), TaskFacts(("labels", "labels"), tokens=True, max_lengths=(8,)))
    assert [question.name for question in more[4:]] == ["found_labels", "labels", "characters", "tokens", "words"]
    assert 9.0 in more[7].edges and more[8].found == Words()


@pytest.mark.parametrize(("clients", "hides", "by_silo"), [(64, False, True), (65, False, False), (2, True, False)])
def test_up_to_64_clients_are_listed_where_nothing_hides_them(
    clients: int, hides: bool, by_silo: bool, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(
        "task: {name: text_classification, model: {random: bert}, data: {source: /nowhere.jsonl}}\n"
    )
    task: Any = yaml_config.load(tmp_path / "a.yaml").task
    names = [f"c{number}" for number in range(clients)]
    assert plan_of(task, names, StatsConfig(), hides=hides).by_silo is by_silo
    assert plan_of(task, names, StatsConfig(by_silo=False), hides=hides).by_silo is False
