"""What joins the base: by hand, against dense matrices, in rounds; what travels, what is cut, what begins anew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from factors import A, B, Factors, Regression
from harness import make_config, make_runner
from torch import Tensor

from fedtorch.algorithms.adapters.factors import from_rows, pairs_of, to_rows
from fedtorch.algorithms.adapters.ranks import stacked_factors
from fedtorch.algorithms.adapters.stacks import ADDED, COMPRESSED, RANK, AddsToBase, FedEx, FLoRA, compressed
from fedtorch.config.schema import ClientConfig, EvalConfig
from fedtorch.core.client import ClientState
from fedtorch.core.errors import ConfigError
from fedtorch.core.scores import AGGREGATION_ERROR as AGGREGATION_ERROR
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.rounds.checkpointing import digest
from fedtorch.rounds.runner import Runner
from fedtorch.tracking.tracker import Tracker

RULES = pytest.mark.parametrize("rule", [FLoRA, FedEx])
TASK = Regression({"a": (1.0, 2.0, 8), "b": (2.0, -1.0, 24), "c": (3.0, 5.0, 16)})


class Sent:
    """Whole vectors as updates."""

    def __init__(self, layout: Layout, vectors: Sequence[Tensor]) -> None:
        self.layout, self.vectors, self.reports = layout, vectors, [Report(str(i)) for i in range(len(vectors))]

    def weighted_sum(self, weights: Sequence[float], *, max_norm: float | None = None) -> Tensor:
        return sum((w * v for w, v in zip(weights, self.vectors, strict=True)), torch.zeros(self.layout.size))

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.vectors)


def test_a_stack_by_hand() -> None:
    """r = 1, A = 1 and 3, B = 2 and 4 at one half each: [2 4]·[.5; 1.5] = 7, the mean of the products."""
    layout = Layout((A, B), ((1, 1), (1, 1)), torch.float64)
    sent = [torch.tensor(pair, dtype=torch.float64) for pair in ([1.0, 2.0], [3.0, 4.0])]
    (left, right), *_ = stacked_factors(layout, sent, [0.5, 0.5]).values()
    assert float(left @ right) == 7 and left.shape == (1, 2) == right.T.shape
    server = ServerState({"weights": torch.tensor([1.0, 0.0], dtype=torch.float64)}, layout=layout)
    rule = FLoRA()
    rule.server_update(server, rule.aggregate(Sent(layout, sent), [0.5, 0.5]))
    ((left, right),) = from_rows(layout, server.tensors[ADDED]).values()
    assert float(left @ right) == 7 and server.weights.tolist() == [1.0, 0.0]
    server = ServerState({"weights": torch.tensor([1.0, 0.0], dtype=torch.float64)}, layout=layout)
    FedEx().server_update(server, FedEx().aggregate(Sent(layout, sent), [0.5, 0.5]))
    ((left, right),) = from_rows(layout, server.tensors[ADDED]).values()
    assert float(left @ right) == 1 and server.weights.tolist() == [2.0, 3.0]  # 7 − 6, beside 3·2


NAMES = [(f"{layer}.lora_A.default.weight", f"{layer}.lora_B.default.weight") for layer in "pqr"]
SHAPES = [((4, 5), (5, 4)), ((4, 3), (9, 4)), ((4, 7), (2, 4))]
WIDE = Layout(tuple(n for pair in NAMES for n in pair) + ("head",), tuple(s for p in SHAPES for s in p) + ((3,),),
              torch.float64)  # fmt: skip


def drawn(seed: int, rank: int) -> Tensor:
    """Factors of which only the first `rank` rows and columns are not 0."""
    flat = torch.randn(WIDE.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for pair in pairs_of(WIDE):
        WIDE.view(flat)[pair.a][rank:] = 0
        WIDE.view(flat)[pair.b][:, rank:] = 0
    return flat


@RULES
def test_what_joins_the_base_is_the_dense_mean_of_products(rule: type[AddsToBase]) -> None:
    """Unlike ranks, sizes and scales (which clients put into B), square layers and not, over three rounds."""
    server = ServerState({"weights": drawn(1, 4)}, layout=WIDE)
    if rule is FLoRA:
        for pair in pairs_of(WIDE):
            WIDE.view(server.weights)[pair.b].zero_()
    algorithm, shares = rule(), [0.2, 0.5, 0.3]
    for round in range(3):
        sent = Sent(WIDE, [drawn(10 * round + rank, rank) for rank in (1, 2, 4)])
        stood = {
            pair: p[0] @ p[1] for pair, p in from_rows(WIDE, server.tensors.get(ADDED, torch.zeros(0).double())).items()
        }
        figures = algorithm.measure(server, sent, shares)
        algorithm.server_update(server, algorithm.aggregate(sent, shares))
        assert figures[AGGREGATION_ERROR] < 1e-12 and figures[COMPRESSED] == 0
        views = WIDE.view(server.weights)
        for pair, (left, right) in from_rows(WIDE, server.tensors[ADDED]).items():
            ends = [WIDE.view(flat) for flat in sent.vectors]
            dense = sum(p * end[pair.b] @ end[pair.a] for p, end in zip(shares, ends, strict=True))
            found = left @ right + views[pair.b] @ views[pair.a] - stood[pair]
            assert (found - dense).norm() < 1e-12 * dense.norm()
        head = sum(p * WIDE.view(flat)["head"] for p, flat in zip(shares, sent.vectors, strict=True))
        assert torch.allclose(views["head"], head, atol=1e-15)
    assert figures[RANK] == len(right) == 3 * (7 + 4 * (rule is FedEx))


def test_rows_are_laid_end_to_end_and_come_back() -> None:
    one, other = ({pair: (torch.randn(WIDE.view(WIDE.empty())[pair.b].shape[0], k).double(),
                          torch.randn(k, WIDE.view(WIDE.empty())[pair.a].shape[1]).double()) for pair in pairs_of(WIDE)}
                  for k in (2, 3))  # fmt: skip
    flat = torch.cat([to_rows(WIDE, each).flatten() for each in (one, other)])
    for pair, (left, right) in from_rows(WIDE, flat).items():
        assert torch.equal(left, torch.cat([one[pair][0], other[pair][0]], 1))
        assert torch.equal(right, torch.cat([one[pair][1], other[pair][1]]))


def test_a_cut_keeps_the_best_of_a_rank_and_says_what_is_lost() -> None:
    draw = torch.Generator().manual_seed(0)
    factors = {pair: (torch.randn(shapes[1][0], 9, generator=draw).double(),
                      torch.randn(9, shapes[0][1], generator=draw).double())
               for pair, shapes in zip(pairs_of(WIDE), SHAPES, strict=True)}  # fmt: skip
    flat = to_rows(WIDE, factors).flatten()
    assert compressed(WIDE, flat, 5) == (flat, 0.0)  # not more than twice as many
    cut, loss = compressed(WIDE, flat, 3)
    lost = whole = 0.0
    for pair, (left, right) in from_rows(WIDE, cut).items():
        assert len(right) == 3
        dense = factors[pair][0] @ factors[pair][1]
        tail = torch.linalg.svdvals(dense)[3:].norm()
        assert abs(float((dense - left @ right).norm() - tail)) < 1e-12 * float(dense.norm())
        lost, whole = lost + float(tail) ** 2, whole + float(dense.norm()) ** 2
    assert loss == pytest.approx((lost / whole) ** 0.5, rel=1e-9) and loss > 0
    small = Layout((A, B), ((2, 3), (4, 2)), torch.float64)
    both = {pair: (torch.randn(4, 9).double(), torch.randn(9, 3).double()) for pair in pairs_of(small)}
    cut, loss = compressed(small, to_rows(small, both).flatten(), 4)
    ((left, right),), (pair,) = from_rows(small, cut).values(), both
    assert loss == 0 and len(right) == 3 and torch.allclose(left @ right, both[pair][0] @ both[pair][1], atol=1e-12)


def run_of(folder: Path, algorithm: AddsToBase, task: Regression = TASK, **changes: Any) -> tuple[Runner, list[Any]]:
    settings = {"client": ClientConfig(optimizer="adam", lr=0.05, batch_size=4, epochs=2), "rounds": 3, **changes}
    config = make_config(folder, task, algorithm, **settings)
    runner = make_runner(config, tracker=Tracker(config.folder, clients=list(task.clients), rounds=config.rounds))
    runner.context.components.tracker.working = lambda text: None  # type: ignore[union-attr, method-assign]
    runner.run()
    lines = [json.loads(line) for line in (config.folder / "metrics.jsonl").read_text().splitlines()]
    return runner, [line["extra"] for line in lines if line["kind"] == "round"]


def function_of(run: Any) -> Tensor:
    """The matrix and the shift that a model computes, or a runner's, (4, 4)."""
    model = run.components.engine.module if isinstance(run, Runner) else run
    with torch.no_grad():
        shift = model(torch.zeros(1, 3, dtype=torch.float64))
        return torch.cat([model(torch.eye(3, dtype=torch.float64)) - shift, shift])


@RULES
def test_nothing_is_lost_in_rounds_and_that_is_recorded(rule: type[AddsToBase], tmp_path: Path) -> None:
    _, records = run_of(tmp_path, rule(ranks={"a": 1}))
    assert len(records) == 3 and all(0 <= record[AGGREGATION_ERROR] < 1e-12 for record in records)
    assert [record[RANK] for record in records] == ([5, 10, 15] if rule is FLoRA else [7, 14, 21])


@RULES
def test_the_servers_model_computes_the_mean_of_what_clients_models_do(rule: type[AddsToBase], tmp_path: Path) -> None:
    """A layer is linear in W, so exactness shows in outputs: unlike ranks, each with the scale of its own."""
    ends: dict[str, Tensor] = {}

    class Watched(rule):  # type: ignore[misc, valid-type]
        def report(self, job: Any, curve: Any, **extra: float) -> Report:
            job.task.scale_adapter(job.engine.module, self.ranks.get(job.client.name))
            ends[job.client.name] = function_of(job.engine.module)
            job.task.scale_adapter(job.engine.module, None)
            return super().report(job, curve, **extra)  # type: ignore[no-any-return]

    runner, _ = run_of(tmp_path, Watched(ranks={"a": 1, "c": 1}))
    mean = (8 * ends["a"] + 24 * ends["b"] + 16 * ends["c"]) / 48
    found = function_of(runner)
    assert (found - mean).norm() < 1e-12 * mean.norm() and (ends["a"] - mean).norm() > 0.1 * mean.norm()


def test_the_digest_of_a_run_is_about_the_base_too(tmp_path: Path) -> None:
    runner, _ = run_of(tmp_path, FLoRA())
    before = digest(runner.context)
    runner.context.server.tensors[ADDED][3] += 1e-9
    assert runner.result.digest == before != digest(runner.context)


@RULES
def test_one_client_is_local_training(rule: type[AddsToBase], tmp_path: Path) -> None:
    """For one round; then FLoRA draws A anew. FedEx has nothing to add."""
    task = Regression({"a": (1.0, 2.0, 8)})
    runner, _ = run_of(tmp_path / "one", rule(), task, rounds=1)
    config = make_config(tmp_path / "plain", task, rounds=1, client=runner.components.config.client)
    plain = make_runner(config)
    plain.run()
    assert (function_of(runner) - function_of(plain)).abs().max() < 1e-6
    before = Factors()
    assert not torch.equal(
        before.get_parameter(B).detach(), plain.components.engine.shared.view(plain.context.vectors.weights)[B]
    )
    if rule is FLoRA:
        views = runner.components.engine.shared.view(runner.context.server.weights)
        assert torch.equal(views[A], before.get_parameter(A).detach()) and not views[B].any()


@RULES
def test_a_stack_cut_to_full_rank_is_as_good_as_a_long_one(rule: type[AddsToBase], tmp_path: Path) -> None:
    long, _ = run_of(tmp_path / "long", rule())
    cut, records = run_of(tmp_path / "cut", rule(added_rank=3))  # that of a 4 × 3 matrix
    assert records[-1][RANK] == 3 and records[-1][COMPRESSED] < 1e-12
    assert (function_of(long) - function_of(cut)).abs().max() < 1e-6
    _, records = run_of(tmp_path / "short", rule(added_rank=1))
    assert records[-1][RANK] == 1 and 0.01 < records[-1][COMPRESSED] < 1 and records[-1][AGGREGATION_ERROR] < 1e-12


@RULES
def test_what_travels(rule: type[AddsToBase], tmp_path: Path) -> None:
    """8 bytes a number: per rank 4 + 3, the head 4; a and c send one rank, b two. Down what is new of the base."""
    runner, _ = run_of(tmp_path, rule(ranks={"a": 1, "c": 1}), eval=EvalConfig(every=0))
    sent = runner.context.comm.meter.totals()
    assert sent["aggregate/bytes_up"] == 3 * 8 * (11 + 18 + 11)
    own = 3 * 4 if rule is FLoRA else 11 + 18 + 11  # of the vectors
    rank = 4 if rule is FLoRA else 4 + 2
    assert sent["broadcast/bytes_down"] == 8 * (3 * 18 + 3 * own + 3 * 3 * rank * 7)


def test_every_round_of_flora_begins_with_a_new_a_that_all_clients_have(tmp_path: Path) -> None:
    seen: list[tuple[int, Tensor]] = []

    class Watched(FLoRA):
        def start_of(self, job: Any, received: Tensor) -> Tensor:
            start = super().start_of(job, received)
            seen.append((job.round, job.engine.shared.view(start)[A].clone()))
            return start

    run_of(tmp_path, Watched())
    by_round = [[a for round, a in seen if round == number] for number in range(3)]
    assert all(torch.equal(a, first) for first, *others in by_round for a in others)
    assert not torch.equal(by_round[0][0], by_round[1][0]) and not torch.equal(by_round[1][0], by_round[2][0])
    assert all(0.3 < float(a.abs().max()) <= 3**-0.5 for a in (by_round[1][0], by_round[2][0]))


def test_moments_of_factors_begin_anew_and_those_of_a_head_go_on(tmp_path: Path) -> None:
    """Kept optimisers: without this AdamW would go on with the moments of an A that is no more."""
    seen: list[dict[str, float]] = []

    class Watched(FLoRA):
        def start_of(self, job: Any, received: Tensor) -> Tensor:
            kept = job.state.tensors
            seen.append({name: float(kept[f"train/optimizer/{name}/step"]) for name in (A, B, "head")
                         if f"train/optimizer/{name}/step" in kept})  # fmt: skip
            return super().start_of(job, received)

    task = Regression({"a": (1.0, 2.0, 8)})
    client = ClientConfig(optimizer="adamw", lr=0.05, batch_size=4, optimizer_state="keep")
    runner, _ = run_of(tmp_path, Watched(), task, client=client)
    assert seen == [{}, {"head": 2.0}, {"head": 4.0}]
    kept: ClientState = runner.context.store.get("a")
    assert {name: float(kept.tensors[f"train/optimizer/{name}/step"]) for name in (A, B, "head")} == {
        A: 2.0, B: 2.0, "head": 6.0
    }  # fmt: skip


def test_factors_to_start_from_are_begun_with_in_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B is not 0 at the start: the server's factors stay, and the base gets the difference."""

    def build_model(self: Regression, seed: int) -> Factors:
        model = Factors()
        with torch.no_grad():
            model.get_parameter(B).fill_(0.5)
        return model

    monkeypatch.setattr(Regression, "build_model", build_model)
    runner, records = run_of(tmp_path, FLoRA())
    views = runner.components.engine.shared.view(runner.context.server.weights)
    assert (views[B] == 0.5).all() and max(record[AGGREGATION_ERROR] for record in records) < 1e-12
    assert [record[RANK] for record in records] == [8, 16, 24]  # and one for the product that is taken off


@RULES
def test_the_best_model_has_the_base_of_its_round(rule: type[AddsToBase], tmp_path: Path) -> None:
    """At a rate so high that later rounds are worse."""
    client = ClientConfig(optimizer="adam", lr=0.6, batch_size=1000, epochs=4)
    runner, _ = run_of(tmp_path / "all", rule(), rounds=5, eval=EvalConfig(every=1), client=client)
    best = runner.result.best_round
    assert best is not None and best < 5
    again, _ = run_of(tmp_path / "again", rule(), rounds=best, client=client)
    assert torch.equal(function_of(runner), function_of(again))


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        (
            {"eval": EvalConfig(every=1, best="per_client")},
            "eval.best is per_client but .* set eval.best to together",
        ),
        ({"eval": EvalConfig(every=1, point="trained")}, "eval.point is trained but .* set eval.point to received"),
    ],
)
def test_models_that_clients_keep_are_refused(changes: dict[str, Any], shown: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=shown):
        make_runner(make_config(tmp_path, TASK, FLoRA(), **changes))
