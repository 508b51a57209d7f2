"""Which examples go into which step where they are not shuffled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from harness import SGD, make_config, make_runner
from toy import Quadratic

from fedtorch.train.batches import Batching

IN_ORDER = ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9))


def test_examples_that_are_not_shuffled_come_as_they_stand_in_every_epoch() -> None:
    plans = list(Batching(4, shuffle=False).epochs(10, first=3, count=2, seed=1, client="a"))
    assert [plan.micro_batches for plan in plans] == [(micro,) for micro in IN_ORDER] * 2
    assert [plan.epoch for plan in plans] == [3, 3, 3, 4, 4, 4]
    assert plans == list(Batching(4, shuffle=False).epochs(10, first=3, count=2, seed=9, client="b"))
    grouped = Batching(4, 2, shuffle=False).epochs(10, first=0, count=1, seed=1, client="a")
    assert [plan.micro_batches for plan in grouped] == [IN_ORDER[:2], IN_ORDER[2:]]


def test_steps_that_are_not_shuffled_go_on_where_the_last_round_stopped() -> None:
    plans = Batching(4, shuffle=False).steps(10, cursor=2, count=3, seed=1, client="a")
    assert [plan.micro_batches for plan in plans] == [(IN_ORDER[2],), (IN_ORDER[0],), (IN_ORDER[1],)]


def test_a_client_that_does_not_shuffle_is_a_plain_loop_over_its_file(tmp_path: Path) -> None:
    """Client b alone does not; its examples pull to 1.5 to 2.5, so their order matters."""
    task = Quadratic(clients={"a": (1.0, 1.0, 7), "b": (1.0, 2.0, 10)}, noise=0.5)
    client = replace(SGD, batch_size=4, epochs=2)
    weights = []
    for per_client in ({"b": {"shuffle": False}}, {}):
        runner = make_runner(make_config(tmp_path, task, client=client, per_client=per_client, rounds=1))
        found = {}
        for one in runner.components.clients:
            runner.trainer._train(one)
            found[one.name] = -runner.context.updates.get(one.name).item()
        weights.append(found)
    w = 0.0
    pulls = [pull for _, pull in task.load("b", "train")]
    for _ in range(2):
        for micro in IN_ORDER:
            w += 0.1 * sum(pulls[place] - w for place in micro) / len(micro)
    assert weights[0]["b"] == pytest.approx(w, rel=1e-12)
    assert weights[1]["b"] != pytest.approx(w, rel=1e-6)
    assert weights[0]["a"] == weights[1]["a"]
