"""What is announced in a round, and what of it costs nothing as no cell is asked for."""

from __future__ import annotations

import numpy as np

from fedtorch.stats.prefixes import Noise
from fedtorch.stats.questions import BRANCHES, END, CountPlan, Question
from fedtorch.stats.rule import CountRule
from fedtorch.stats.settings import Found

FOUND = Question("found_labels", "labels", found=Found(longest=2, width=4))
NAMED = Question("labels", "labels", named_by="found_labels")
ROWS = Question("rows", "rows", cells=("train",))
PLAN = CountPlan(("a", "b"), (ROWS, FOUND, NAMED), by_silo=True)


def with_label(*names: bytes, plan: CountPlan = PLAN) -> np.ndarray:
    """The vector in which each name was counted 9 times."""
    vector = np.zeros(plan.size)
    for round in range(plan.rounds):
        vector[plan.present(round)] = 1.0
    rule = CountRule(plan)
    for level in range(3):
        place = next(each for round in range(plan.rounds) for each in plan.in_round(round) if each.level == level)
        for row, beginning in enumerate(rule.search("found_labels").beginnings(vector, level)):
            for name in names:
                if name[:level] == beginning:
                    vector[place.start + row * BRANCHES + (name[level] if len(name) > level else END)] += 9
    return vector


def test_beginnings_are_announced_level_by_level_and_then_the_names() -> None:
    rule, vector = CountRule(PLAN), with_label(b"x", b"yz")
    assert rule.least == 1 and rule.noise == Noise(0.0) and rule.words is None and rule.recur is None
    said = [rule.announced(vector, round) for round in range(PLAN.rounds)]
    assert said == [
        {"found_labels": [b""]},
        {"found_labels": [b"x", b"y"]},
        {"found_labels": [b"yz"]},
        {"labels": [b"x", b"yz"]},
    ]
    assert all(rule.unasked(each, round) == set() for round, each in enumerate(said))
    assert rule.releases(vector) == PLAN.releases == 5  # rows, three levels, labels


def test_tables_of_which_no_cell_is_asked_for_cost_nothing() -> None:
    rule, nobody = CountRule(PLAN), with_label()
    assert rule.announced(nobody, 1) == {"found_labels": []} and rule.announced(nobody, 3) == {"labels": []}
    assert rule.unasked({"found_labels": []}, 0) == {1} and rule.unasked({"found_labels": [b""]}, 0) == set()
    assert rule.unasked({"found_labels": []}, 1) == rule.unasked({"labels": []}, 3) == {0}
    assert rule.releases(nobody) == 2  # the rows, and the first level


def test_the_least_count_that_is_followed_is_the_rules() -> None:
    vector = with_label(b"x")
    assert CountRule(PLAN, least=9).announced(vector, 3) == {"labels": [b"x"]}
    assert CountRule(PLAN, least=10).announced(vector, 3) == {"labels": []}
    vector[PLAN.in_round(0)[1].start + ord("w")] = 1
    assert CountRule(PLAN).announced(vector, 1) == {"found_labels": [b"w", b"x"]}
