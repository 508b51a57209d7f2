"""HetLoRA's clients give up ranks: by numbers, kept in their states, and nothing else where the keys are not set."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from factors import A, B, Regression
from harness import make_config, make_runner

from fedtorch.algorithms.adapters.hetlora import RANK, HetLoRA
from fedtorch.config.schema import ClientConfig
from fedtorch.core.client import ClientState
from fedtorch.core.errors import ConfigError

TASK = Regression({"a": (1.0, 2.0, 8), "b": (2.0, -1.0, 24), "c": (3.0, 5.0, 16)})
ADAM = ClientConfig(optimizer="adam", lr=0.05, batch_size=4)


def job_of(rule: HetLoRA, folder: Path, client: str = "a") -> Any:
    """A client's job, as far as ranks go."""
    engine = make_runner(make_config(folder, TASK, rule)).components.engine
    return SimpleNamespace(engine=engine, client=SimpleNamespace(name=client), state=ClientState())


def test_the_penalty_and_its_gradient(tmp_path: Path) -> None:
    """λ ‖B'‖ ‖A'‖ of the second row and column: against autograd; where B' is 0 both gradients are."""
    rule = HetLoRA(rank_decay=0.5, rank_penalty=0.3)
    job = job_of(rule, tmp_path)
    views = job.engine.shared.view(job.engine.flat)
    for b in (torch.arange(8.0).view(4, 2), torch.zeros(4, 2)):
        job.engine.clear_gradients()
        views[B].copy_(b)
        a, b = (views[name].clone().requires_grad_() for name in (A, B))
        expected = 0.3 * b[:, 1].norm() * a[1].norm()
        hook = rule.correction(job)
        assert hook is not None and float(hook(job.engine)) == pytest.approx(float(expected.detach()))
        found = dict(zip(job.engine.trained_names, job.engine.shared_gradients(), strict=True))
        if b.any():
            expected.backward()
            assert torch.allclose(found[A], a.grad) and torch.allclose(found[B], b.grad)
            assert found[A][1].any() and not found[A][0].any() and not found[B][:, 0].any()
        else:
            assert not found[A].any() and not found[B].any()


@pytest.mark.parametrize(("after", "left"), [(0.5, 1), (1.0, 2), (2.0, 2)])
def test_the_last_ranks_go_where_they_have_become_smaller(after: float, left: int, tmp_path: Path) -> None:
    rule = HetLoRA(rank_decay=0.5)
    job = job_of(rule, tmp_path)
    begun = torch.ones(job.engine.shared.size, dtype=torch.float64)
    trained = begun.clone()
    views = job.engine.shared.view(trained)
    views[A][1] *= after
    assert rule.after_training(job, 2, begun, trained) == {RANK: left} and rule.present_rank(job) == left
    assert bool(views[A][1].any()) == bool(views[B][:, 1].any()) == (left == 2)
    assert views[A][0].all() and views[B][:, 0].all() and views["head"].all()


def test_what_a_rank_may_shrink_to() -> None:
    half = HetLoRA(rank_decay=0.5)
    assert [half.lasting(rank) for rank in (8, 5, 2, 1)] == [4, 2, 1, 1]


@pytest.mark.parametrize(
    ("decay", "rank", "kept"), [(0.7, 8, 5), (0.7, 7, 4), (0.9, 2, 1), (0.99, 8, 7), (0.3, 8, 2), (0.1, 8, 1)]
)
def test_a_part_of_a_rank_is_rounded_down(decay: float, rank: int, kept: int) -> None:
    """5.6, 4.9, 1.8, 7.92, 2.4 and 0.8, of which at least one is kept."""
    assert HetLoRA(rank_decay=decay).lasting(rank) == kept


def test_a_client_that_gave_up_a_rank_trains_without_it(tmp_path: Path) -> None:
    """c alone has a second rank; once that is given up, nobody sends anything there but zeros."""
    rule = HetLoRA(ranks={"a": 1, "b": 1}, rank_decay=0.5, rank_penalty=100.0)
    sgd = ClientConfig(optimizer="sgd", lr=0.002, batch_size=4)
    runner = make_runner(make_config(tmp_path, TASK, rule, rounds=6, client=sgd))
    runner.run()
    states = {name: runner.context.store.get(name).numbers.get(RANK) for name in TASK.clients}
    assert states == {"a": None, "b": None, "c": 1}
    views = runner.components.engine.shared.view(runner.context.server.weights)
    assert not views[A][1].any() and not views[B][:, 1].any() and views[B][:, 0].any()


def test_without_the_keys_nothing_changes(tmp_path: Path) -> None:
    """A decay alone changes no weights as long as no rank is given up."""
    found = []
    for name, rule in (("off", HetLoRA()), ("on", HetLoRA(rank_decay=0.5))):
        runner = make_runner(make_config(tmp_path / name, TASK, rule, rounds=1, client=ADAM))
        runner.run()
        found.append(runner.context.server.weights)
    assert all(
        torch.equal(weights, found[0]) for weights in found
    )  # B is 0 before the first round, so nothing becomes smaller


@pytest.mark.parametrize(
    ("rule", "client", "shown"),
    [
        ({"rank_decay": 0.5}, {"optimizer_state": "keep"}, "client.optimizer_state is keep, whose moments would move"),
        ({"rank_penalty": 0.1}, {}, "algorithm.rank_penalty is 0.1 but algorithm.rank_decay is null"),
    ],
)
def test_what_does_not_go_together_is_refused(
    rule: dict[str, Any], client: dict[str, Any], shown: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=shown):
        make_runner(make_config(tmp_path, TASK, HetLoRA(**rule), client=ClientConfig(**client)))
