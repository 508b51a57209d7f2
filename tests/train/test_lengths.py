"""Batches by length: each example once, within the budget, in the order of Hugging Face, the same bits anywhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from hypothesis import given
from hypothesis import strategies as st
from own_rows import classifier, weather, write_rows
from toy import Quadratic
from transformers.trainer_pt_utils import get_length_grouped_indices

from fedtorch.config.load import digest, record_difference, to_dict
from fedtorch.config.schema import ClientConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.seeds import generator_for
from fedtorch.setup.build import build
from fedtorch.tasks.base import Merged, Task
from fedtorch.train.batches import Batching
from fedtorch.train.lengths import filled, grouped, padded

ONE_TEXT = st.lists(st.tuples(st.integers(1, 60)), min_size=1, max_size=80)
TWO_TEXTS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), min_size=1, max_size=80)
ROWS = [(1 + 7 * i % 23,) for i in range(40)]


@dataclass(frozen=True)
class Silent(Quadratic):
    """Does not say how long its examples are."""

    example_lengths = Task.example_lengths


def planned(batching: Batching, epochs: int = 1, first: int = 0) -> list[Any]:
    return list(batching.epochs(len(batching.lengths), first=first, count=epochs, seed=5, client="a"))


@given(st.one_of(ONE_TEXT, TWO_TEXTS), st.integers(1, 200), st.booleans(), st.integers(1, 3))
def test_every_example_comes_once_an_epoch_and_the_budget_is_kept(
    lengths: list[tuple[int, ...]], budget: int, by_length: bool, accumulation: int
) -> None:
    batching = Batching(8, accumulation, by_length=by_length, max_tokens=budget, lengths=lengths)
    for epoch in (0, 1):
        plans = planned(batching, first=epoch)
        batches = [batch for plan in plans for batch in plan.micro_batches]
        assert Counter(i for batch in batches for i in batch) == Counter(range(len(lengths)))
        assert all(padded(batch, lengths) <= budget or len(batch) == 1 for batch in batches)
        assert all(plan.divisor == len(plan.micro_batches) == accumulation for plan in plans[:-1])


@given(st.one_of(ONE_TEXT, TWO_TEXTS), st.integers(1, 200))
def test_a_batch_is_closed_only_where_the_next_example_does_not_fit(
    lengths: list[tuple[int, ...]], budget: int
) -> None:
    batches = filled(range(len(lengths)), lengths, budget)
    for batch, after in zip(batches, batches[1:], strict=False):
        assert padded((*batch, after[0]), lengths) > budget


@given(ONE_TEXT, st.integers(1, 9))
def test_the_order_is_that_of_hugging_faces_trainers(lengths: list[tuple[int]], size: int) -> None:
    order = torch.randperm(len(lengths), generator=generator_for(5, "order", "a", 0)).tolist()
    sums = [each[0] for each in lengths]
    theirs = get_length_grouped_indices(sums, size, generator=generator_for(5, "order", "a", 0))
    ours = grouped(order, lengths, size)
    assert [sums[i] for i in ours] == [sums[i] for i in theirs]
    if sums.count(max(sums)) == 1:  # else theirs may take another one of the longest
        assert ours == theirs


@pytest.mark.parametrize("accumulation", [1, 3])
def test_examples_of_equal_length_are_batched_as_without(accumulation: int) -> None:
    plain = Batching(4, accumulation, lengths=[(7,)] * 50)
    for batching in (
        replace(plain, by_length=True),
        replace(plain, max_tokens=4 * 7 + 6),
        replace(plain, by_length=True, max_tokens=4 * 7),
    ):
        assert planned(batching, epochs=2) == planned(plain, epochs=2)


def test_like_lengths_come_together_and_the_longest_first() -> None:
    def tokens(batching: Batching) -> int:
        return sum(padded(batch, ROWS) for plan in planned(batching) for batch in plan.micro_batches)

    grouping = Batching(4, by_length=True, lengths=ROWS)
    assert tokens(grouping) < 0.85 * tokens(Batching(4, lengths=ROWS))
    assert max(ROWS) == ROWS[planned(grouping)[0].micro_batches[0][0]]
    assert planned(grouping) != planned(grouping, first=1)


@pytest.mark.parametrize("by_length", [False, True])
def test_steps_go_through_epochs_of_different_numbers_of_steps(by_length: bool) -> None:
    batching = Batching(4, by_length=by_length, max_tokens=60, lengths=ROWS)
    whole = planned(batching, epochs=4)
    assert len({sum(plan.epoch == epoch for plan in whole) for epoch in range(4)}) > 1
    for epoch, cursor in ((0, 0), (0, 19), (1, 3), (2, 0)):
        start = sum(plan.epoch < epoch for plan in whole) + cursor
        plans = batching.steps(40, cursor=cursor, count=9, seed=5, client="a", epoch=epoch)
        assert list(plans) == whole[start : start + 9]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("lengths"))
        yield write_rows(Path("rows.jsonl"), weather(60))


BY_LENGTH = {"group_by_length": True, "max_tokens_per_batch": 120, "accumulation": 2}


def trained(folder: Path, source: str, rounds: int, **client: Any) -> Any:
    settings = ClientConfig(optimizer="sgd", lr=0.1, **client)
    runner = make_runner(make_config(folder, classifier(source), client=settings, rounds=rounds))
    runner.run()
    return runner


@pytest.mark.parametrize("steps", [5, 1])
def test_rounds_of_steps_go_on_where_the_last_one_stopped(steps: int, place: str, tmp_path: Path) -> None:
    """As many steps in one round see the same examples: plain SGD of one client does not know rounds."""
    task = classifier(place, data={"clients": replace(classifier(place).data.clients, by=None, iid=1)})
    weights = []
    for rounds, count in ((10 // steps, steps), (1, 10)):
        hp = ClientConfig(optimizer="sgd", lr=0.1, steps=count, max_tokens_per_batch=90)
        runner = make_runner(make_config(tmp_path / str(rounds), task, client=hp, rounds=rounds))
        model = runner.components.engine.module
        assert model.config.hidden_dropout_prob > 0
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0  # drawn anew every round
        runner.run()
        weights.append(runner.context.server.weights)
    assert torch.allclose(*weights, rtol=0, atol=1e-6)


def test_batches_by_length_are_another_config(tmp_path: Path) -> None:
    now = make_config(tmp_path, Quadratic(clients={"a": (1.0, 1.0, 3)}), client=ClientConfig())
    assert record_difference(to_dict(now), to_dict(now)) == []
    assert digest(now) != digest(replace(now, client=ClientConfig(group_by_length=True)))


@pytest.mark.parametrize("key", [{"group_by_length": True}, {"max_tokens_per_batch": 9}])
@pytest.mark.parametrize("paradigm", ["federated", "centralized"])
def test_a_task_that_tells_no_lengths_is_refused(key: dict[str, Any], paradigm: str, tmp_path: Path) -> None:
    task = Silent(clients={"a": (1.0, 1.0, 3)})
    config = make_config(tmp_path, task, client=ClientConfig(**key), paradigm=paradigm)
    with pytest.raises(ConfigError, match=f"client.{next(iter(key))} is set but the task .* how long"):
        make_runner(config)


def test_an_order_that_is_not_shuffled_is_not_sorted() -> None:
    with pytest.raises(ConfigError, match="client.group_by_length is true.*client.shuffle is false"):
        ClientConfig(group_by_length=True, shuffle=False)


def test_examples_above_the_budget_are_counted_and_named(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ClientConfig(optimizer="sgd", max_tokens_per_batch=12)
    runner = make_runner(make_config(tmp_path, classifier(place), client=settings, rounds=1))
    lengths = {name: [len(e.ids) for e in classifier(place).load(name, "train")] for name in ("north", "west")}
    reports = {report.client: report for report in runner.trainer.train_cohort()}
    for name, each in lengths.items():
        above = sum(length > 12 for length in each)
        assert above and reports[name].extra["over_budget"] == above
        assert reports[name].steps >= above
    remarks = build(runner.components.config, num_ranks=1, rank=0).remarks
    assert any("examples are longer than client.max_tokens_per_batch 12" in remark for remark in remarks)


def test_all_data_together_have_lengths_too(place: str, tmp_path: Path) -> None:
    task = Merged(classifier(place))
    assert task.example_lengths(task.load("all", "train"))[0] == (len(task.load("all", "train")[0].ids),)
    settings = ClientConfig(optimizer="sgd", **BY_LENGTH)
    config = make_config(tmp_path, classifier(place), client=settings, rounds=1, paradigm="centralized")
    assert make_runner(config).run() is not None
