"""Averaging factors: what is lost, by hand and against dense matrices, and by which rules nothing is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from factors import A, B, Factors, Regression
from harness import make_config, make_runner
from torch import Tensor
from toy import Quadratic

from fedtorch.algorithms.adapters.error import figures
from fedtorch.algorithms.adapters.factors import norm_of_product, pairs_of
from fedtorch.algorithms.adapters.hetlora import HetLoRA
from fedtorch.algorithms.adapters.ranks import NORM, FlexLoRA, truncated
from fedtorch.algorithms.adapters.rolora import RoLoRA
from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.config.schema import ClientConfig, PartitionConfig, ServerConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.scores import AGGREGATION_ERROR
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.tracking.tracker import Tracker


def layout(r: int, d_in: int, d_out: int, names: tuple[str, ...] = (A, B)) -> Layout:
    shapes = {A: (r, d_in), B: (d_out, r)}
    return Layout(names, tuple(shapes[name] for name in names), torch.float64)


def test_the_error_by_hand() -> None:
    """r = 1: A = 1, 3 and B = 2, 4 at one half each; mean of products 7, product of means 6, from a product of 0."""
    flat = [torch.tensor(pair, dtype=torch.float64) for pair in ([1.0, 2.0], [3.0, 4.0])]
    received = torch.tensor([1.0, 0.0], dtype=torch.float64)
    found = figures(layout(1, 1, 1), None, received, [received - each for each in flat], [0.5, 0.5])
    assert found == {AGGREGATION_ERROR: pytest.approx(1 / 7, abs=1e-15)}


@pytest.mark.parametrize(("d_in", "d_out"), [(5, 5), (4, 9), (9, 4), (1, 7)])
def test_the_covariance_identity(d_in: int, d_out: int) -> None:
    """Against dense matrices: Σ p_i B_i A_i − B̄ Ā, relative to the product's change."""
    draw = torch.Generator().manual_seed(d_in)
    where, weights = layout(3, d_in, d_out), [0.5, 0.2, 0.3]
    received, *ends = (torch.randn(where.size, generator=draw, dtype=torch.float64) for _ in range(4))
    mean = sum(p * end for p, end in zip(weights, ends, strict=True))

    def product(flat: Any) -> Tensor:
        views = where.view(flat)
        return views[B] @ views[A]

    of_products = sum(p * product(end) for p, end in zip(weights, ends, strict=True))
    expected = (of_products - product(mean)).norm() / (of_products - product(received)).norm()
    found = figures(where, None, received, [received - end for end in ends], weights)[AGGREGATION_ERROR]
    assert abs(found / float(expected) - 1) < 1e-12
    # weights that do not add up to 1 mean the same shares
    again = figures(where, None, received, [received - end for end in ends], [5.0, 2.0, 3.0])
    assert again[AGGREGATION_ERROR] == pytest.approx(found)


def test_the_norm_of_a_product_is_that_of_the_matrix() -> None:
    draw = torch.Generator().manual_seed(0)
    for left, right in (((9, 2), (2, 8)), ((2, 9), (9, 3)), ((5, 0), (0, 5))):
        one, other = torch.randn(*left, generator=draw), torch.randn(*right, generator=draw)
        assert norm_of_product(one, other) == pytest.approx(float((one.double() @ other.double()).norm()), rel=1e-14)


def test_what_is_said_of_one_factor_alone() -> None:
    both, only_a, only_b = layout(2, 3, 4), layout(2, 3, 4, (A,)), layout(2, 3, 4, (B,))
    assert [tuple(pair) for pair in pairs_of(both)] == [(A, B)]
    assert [tuple(pair) for pair in pairs_of(only_b)] == [("", B)]
    nothing = torch.zeros(only_b.size, dtype=torch.float64)
    assert figures(only_b, None, nothing, [nothing], [1.0]) == {AGGREGATION_ERROR: 0.0}  # the other one is fixed
    assert figures(only_a, only_b, nothing, [nothing], [1.0]) == {}  # every client has a product of its own
    assert figures(Layout(("w",), ((3,),)), None, nothing, [nothing], [1.0]) == {}


TASK = Regression({"a": (1.0, 2.0, 8), "b": (2.0, -1.0, 24), "c": (3.0, 5.0, 16)})


def rounds_of(
    folder: Path, algorithm: Algorithm, count: int = 4, client: Mapping[str, Any] | None = None, **partition: Any
) -> tuple[list[Mapping[str, Tensor]], list[float | None]]:
    """The shared parameters after every round, and the recorded errors."""
    settings = {"optimizer": "adam", "lr": 0.05, "batch_size": 4, "epochs": 2, **(client or {})}
    config = make_config(folder, TASK, algorithm, rounds=count, client=ClientConfig(**settings),
                         partition=PartitionConfig(**partition))  # fmt: skip
    seen: list[Mapping[str, Tensor]] = []
    runner = make_runner(config, tracker=Tracker(config.folder, clients=list(TASK.clients), rounds=count))
    where = runner.components.engine.shared
    runner.context.components.tracker.working = lambda text: None  # type: ignore[union-attr, method-assign]
    take = runner._step

    def step(decision: Any) -> bool:
        counts = take(decision)
        seen.append({name: view.clone() for name, view in where.view(runner.context.server.weights).items()})
        return counts

    runner._step = step  # type: ignore[method-assign]
    runner.run()
    lines = [json.loads(line) for line in (config.folder / "metrics.jsonl").read_text().splitlines()]
    return seen, [line["extra"].get(AGGREGATION_ERROR) for line in lines if line["kind"] == "round"]


def test_fedit_loses_tens_of_per_cent_of_unlike_clients_and_says_so_every_round(tmp_path: Path) -> None:
    _, errors = rounds_of(tmp_path, FedAvg())
    assert len(errors) == 4 and all(error is not None and 0.1 < error < 10 for error in errors)


def test_with_one_factor_fixed_nothing_is_lost(tmp_path: Path) -> None:
    seen, errors = rounds_of(tmp_path, FedAvg(), frozen=("*lora_A*",))
    assert errors == [0.0] * 4 and A not in seen[0] and seen[0][B].any()


def test_private_factors_are_not_averaged_so_nothing_is_said(tmp_path: Path) -> None:
    seen, errors = rounds_of(tmp_path, FedAvg(), private=("*lora_B*",))
    assert errors == [None] * 4 and list(seen[0]) == ["head", A]


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adafactor"])
def test_rolora_moves_b_and_a_in_turn_and_nothing_is_lost(optimizer: str, tmp_path: Path) -> None:
    lr = {"sgd": 0.02}.get(optimizer, 0.05)
    seen, errors = rounds_of(tmp_path, RoLoRA(), client={"optimizer": optimizer, "lr": lr, "max_grad_norm": 1.0})
    assert errors == [0.0] * 4
    begun: Mapping[str, Tensor] = {A: Factors().get_parameter(A).detach(), B: torch.zeros(4, 2), "head": torch.zeros(4)}
    for before, after, moving in zip([begun, *seen], seen, (B, A, B, A), strict=False):
        assert [name for name in (A, B) if not torch.equal(before[name].double(), after[name])] == [moving]
        assert not torch.equal(before["head"].double(), after["head"])


@pytest.mark.parametrize(
    ("client", "shown"),
    [
        ({"optimizer": "adamw", "weight_decay": 0.1}, "client.weight_decay is 0.1, which would shrink the factor"),
        ({"optimizer_state": "keep"}, "client.optimizer_state is keep, whose moments would move the factor"),
    ],
)
def test_rolora_refuses_what_moves_a_factor_that_rests(client: dict[str, Any], shown: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=shown):
        rounds_of(tmp_path, RoLoRA(), client=client)


@pytest.mark.parametrize("server", [{"optimizer": "adam", "lr": 0.1}, {"optimizer": "sgd", "lr": 1.0, "momentum": 0.9}])
def test_rolora_refuses_a_server_whose_moments_move_a_factor_that_rests(server: dict[str, Any]) -> None:
    RoLoRA().check_server(ServerConfig(optimizer="sgd", lr=1.0))
    with pytest.raises(ConfigError, match="whose moments would move the factor that rests"):
        RoLoRA().check_server(ServerConfig(**server))


@pytest.mark.parametrize("names", [(A,), (B,)])
def test_rolora_refuses_one_factor_alone(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="no layer of the model has both factors"):
        RoLoRA().places("sent", layout(2, 3, 4, names), "a", 0)


def test_what_rests_does_not_travel(tmp_path: Path) -> None:
    """8 bytes a number: B has 8 of them, A 6, the head 4; down all at first, then what moved."""
    config = make_config(
        tmp_path, TASK, RoLoRA(), rounds=3, client=ClientConfig(optimizer="sgd", lr=0.01, batch_size=4)
    )
    runner = make_runner(config)
    runner.run()
    sent = runner.context.comm.meter.totals()
    assert sent["aggregate/bytes_up"] == 8 * 3 * ((8 + 4) + (6 + 4) + (8 + 4))
    assert sent["broadcast/bytes_down"] == 8 * 3 * (18 + (8 + 4) + (6 + 4) + 18)  # the last one is the best model's


@pytest.mark.parametrize("rule", [HetLoRA, FlexLoRA])
def test_clients_of_unlike_rank_send_and_receive_their_own_part(rule: Any, tmp_path: Path) -> None:
    algorithm = rule(ranks={"a": 1, "c": 1})
    config = make_config(
        tmp_path, TASK, algorithm, rounds=2, client=ClientConfig(optimizer="adam", lr=0.05, batch_size=4)
    )
    runner = make_runner(config)
    runner.run()
    # a and c: 4 + 3 numbers and the head's 4, b: 8 + 6 + 4
    sent = runner.context.comm.meter.totals()
    assert sent["aggregate/bytes_up"] == 2 * 8 * (11 + 18 + 11)
    assert sent["broadcast/bytes_down"] == 8 * (3 * 18 + 2 * (11 + 18 + 11))  # w^0 whole; a round; to be evaluated
    assert runner.context.server.weights.isfinite().all() and runner.context.server.weights.any()


def test_padded_factors_give_the_same_product_and_stay_padded(tmp_path: Path) -> None:
    """A client of rank 1 in a model of rank 2 trains as in a model of rank 1, but for the last bits of sums."""
    one = HetLoRA(ranks={"a": 1})
    task = Regression({"a": (1.0, 2.0, 8)})
    runner = make_runner(make_config(tmp_path, task, one, rounds=3, client=ClientConfig(lr=0.05, batch_size=4)))
    runner.run()
    views = runner.components.engine.shared.view(runner.context.server.weights)
    assert not views[A][1].any() and not views[B][:, 1].any() and views[B][:, 0].any()
    assert torch.equal(views[B] @ views[A], views[B][:, :1] @ views[A][:1])


def test_hetlora_weighs_by_the_norms_of_products() -> None:
    """3, 1 and 0; where nothing has learned, by size; and by no more than factors of the norm that came can have."""

    def report(name: str, examples: int, product: float, norm: float = 4.0) -> Report:
        return Report(name, examples=examples, norm=norm, extra={NORM: product})

    assert HetLoRA().weigh([report("a", 1, 3.0), report("b", 5, 1.0), report("c", 4, 0.0)]) == [0.75, 0.25, 0.0]
    assert HetLoRA().weigh([report("a", 1, 0.0), report("b", 3, 0.0)]) == [0.25, 0.75]
    assert HetLoRA().weigh([report("a", 1, 1e9, norm=2.0), report("b", 1, 1.0, norm=2.0)]) == [2 / 3, 1 / 3]


@pytest.mark.parametrize(("d_in", "d_out", "rank"), [(5, 7, 2), (7, 5, 3), (6, 6, 6), (3, 9, 3)])
def test_flexlora_is_off_by_the_singular_tail(d_in: int, d_out: int, rank: int) -> None:
    draw = torch.Generator().manual_seed(rank)
    left, right = (torch.randn(*shape, generator=draw).double() for shape in ((d_out, 9), (9, d_in)))
    whole = left @ right
    b, a = truncated(left, right, rank)
    tail = torch.linalg.svdvals(whole)
    for count in range(1, rank + 1):  # the first rows of any client's rank are the best of that rank
        off = (whole - b[:, :count] @ a[:count]).norm()
        assert abs(float(off - tail[count:].norm())) < 1e-12 * float(whole.norm())


def test_flexlora_has_rows_that_can_learn_where_there_are_fewer_singular_values_than_ranks() -> None:
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.randn(*shape, generator=draw).double() for shape in ((5, 1), (1, 4)))
    b, a = truncated(left, right, 3)
    assert torch.allclose(b @ a, left @ right, atol=1e-13) and not b[:, 1:].any()
    assert torch.allclose(a @ a.T, torch.eye(3).double(), atol=1e-13)


def test_flexlora_of_clients_of_one_rank_keeps_the_mean_of_products(tmp_path: Path) -> None:
    """Two clients of rank 1 in a model of rank 2: nothing is cut."""
    task = Regression({"a": (1.0, 2.0, 8), "b": (2.0, -1.0, 24)})
    algorithm = FlexLoRA(ranks={"a": 1, "b": 1})
    config = make_config(tmp_path, task, algorithm, rounds=2, client=ClientConfig(optimizer="adam", lr=0.05))
    runner = make_runner(config, tracker=Tracker(config.folder, clients=["a", "b"], rounds=2))
    runner.context.components.tracker.working = lambda text: None  # type: ignore[union-attr, method-assign]
    runner.run()
    lines = [json.loads(line) for line in (config.folder / "metrics.jsonl").read_text().splitlines()]
    errors = [line["extra"][AGGREGATION_ERROR] for line in lines if line["kind"] == "round"]
    assert len(errors) == 2 and max(errors) < 1e-12


@pytest.mark.parametrize(
    ("algorithm", "shown"),
    [
        (HetLoRA(ranks={"a": 3}), "algorithm.ranks.a is 3 but task.model.adapter.r is 2"),
        (FlexLoRA(ranks={"d": 1}), "algorithm.ranks names 'd', who is no client; there are a, b, c"),
    ],
)
def test_ranks_that_cannot_be_are_refused(algorithm: Any, shown: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=shown):
        make_runner(make_config(tmp_path, TASK, algorithm))


def test_a_rank_fits_into_every_layer_of_an_adapter_that_has_unlike_ones() -> None:
    """As an adapter that was saved with a rank pattern has."""
    names = tuple(f"{layer}.lora_{side}.weight" for layer in ("wide", "narrow") for side in "AB")
    layout = Layout(names, ((4, 8), (8, 4), (2, 8), (8, 2)))
    assert HetLoRA(ranks={"a": 2}).rank_of(layout, "a") == 2
    with pytest.raises(ConfigError, match="algorithm.ranks.a is 3 but task.model.adapter.r is 2"):
        HetLoRA(ranks={"a": 3}).rank_of(layout, "a")


def test_rules_for_factors_want_factors(tmp_path: Path) -> None:
    for algorithm in (RoLoRA(), HetLoRA(), FlexLoRA()):
        with pytest.raises(ConfigError, match="both of whose factors|has both factors"):
            make_runner(make_config(tmp_path, Quadratic({"a": (1.0, 2.0, 3)}), algorithm))
