"""Rules against references that share no code with them: exact fractions, dense matrices, plain loops in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from harness import make_config, make_runner
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import Quadratic

from fedtorch.algorithms.adapters.hetlora import HetLoRA
from fedtorch.algorithms.adapters.ranks import NORM, FlexLoRA
from fedtorch.algorithms.adapters.stacks import FedEx, FLoRA, from_rows
from fedtorch.algorithms.feddyn import FedDyn
from fedtorch.algorithms.robust.base import rule_of
from fedtorch.comm.local import LocalUpdates
from fedtorch.config.schema import ClientsConfig
from fedtorch.core.norms import norm_and_max
from fedtorch.core.update import Report, UpdateBuffer
from fedtorch.core.weights import Layout

Floats = npt.NDArray[np.float64]

COHORTS = st.integers(1, 8).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(1, 12), min_size=n, max_size=n),
        st.lists(st.lists(st.integers(-20, 20), min_size=3, max_size=3), min_size=n, max_size=n),
    )
)
"""Sizes of a round's clients, and an update of three whole numbers of each; ties are likely, and meant."""


def updates_of(rows: Floats) -> LocalUpdates:
    local, reports = UpdateBuffer(rows.shape[1], torch.float64, Path("unused"), memory_bytes=1 << 30), []
    for place, row in enumerate(torch.from_numpy(rows.copy())):
        local.put(f"c{place}", row)
        norm, max_abs = norm_and_max(row)
        reports.append(Report(f"c{place}", norm=norm, max_abs=max_abs))
    return LocalUpdates(reports, local)


def combined(name: str, sizes: Sequence[int], rows: Any, **fields: Any) -> list[float]:
    shares = [size / sum(sizes) for size in sizes]
    found: list[float] = rule_of({"name": name, **fields}).combine(updates_of(np.array(rows, float)), shares).tolist()
    return found


def exact_median(sizes: Sequence[int], values: Sequence[int]) -> Fraction:
    """The mean of all values between which the weight is halved: by whole numbers."""
    repeated = sorted(value for size, value in zip(sizes, values, strict=True) for _ in range(size))
    return Fraction(repeated[(len(repeated) - 1) // 2] + repeated[len(repeated) // 2], 2)


@settings(max_examples=150)
@given(cohort=COHORTS)
def test_the_median_is_that_of_every_example_repeated(cohort: Any) -> None:
    sizes, rows = cohort
    expected = [float(exact_median(sizes, column)) for column in zip(*rows, strict=True)]
    # times the sum of all shares, which as floats need not be 1 (of 9, 4, 9, 2 and 11 examples it is 1 - 2^-53)
    assert combined("median", sizes, rows) == pytest.approx(expected, rel=1e-15)


@settings(max_examples=150)
@given(cohort=COHORTS, percent=st.integers(1, 49))
def test_the_trimmed_mean_is_that_of_a_line_cut_at_both_ends(cohort: Any, percent: int) -> None:
    sizes, rows = cohort
    cut = Fraction(percent, 100) * sum(sizes)
    expected = []
    for column in zip(*rows, strict=True):
        begun, total = Fraction(0), Fraction(0)
        for value, size in sorted(zip(column, sizes, strict=True)):
            inside = min(begun + size, sum(sizes) - cut) - max(begun, cut)
            total, begun = total + max(inside, Fraction(0)) * value, begun + size
        expected.append(float(total / (sum(sizes) - 2 * cut)))
    # weights are whole numbers of 2^-52 of all
    assert combined("trimmed_mean", sizes, rows, trim=percent / 100) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(max_examples=100)
@given(cohort=COHORTS)
def test_clipping_without_a_limit_is_at_the_first_norm_beyond_half_of_the_examples(cohort: Any) -> None:
    sizes, rows = cohort
    norms = np.linalg.norm(np.array(rows, float), axis=1)
    repeated = np.sort(np.repeat(norms, sizes))
    limit = repeated[len(repeated) // 2]
    factors = [1.0 if norm <= limit else limit / norm for norm in norms]
    expected = sum(s * f * np.array(row, float) for s, f, row in zip(sizes, factors, rows, strict=True)) / sum(sizes)
    assert combined("clip", sizes, rows) == pytest.approx(expected.tolist(), rel=1e-7, abs=1e-7)


@settings(max_examples=100)
@given(rows=st.lists(st.lists(st.integers(-20, 20), min_size=3, max_size=3), min_size=5, max_size=8), size=st.data())
def test_krum_takes_the_row_that_numpy_takes(rows: Any, size: Any) -> None:
    attackers = size.draw(st.integers(0, (len(rows) - 3) // 2))
    sizes = size.draw(st.permutations(range(1, len(rows) + 1)))
    squares = ((np.array(rows)[:, None] - np.array(rows)[None]) ** 2).sum(-1)
    scores = [sorted(np.delete(line, place))[: len(rows) - attackers - 2] for place, line in enumerate(squares)]
    best = min(range(len(rows)), key=lambda place: (sum(scores[place]), -sizes[place]))
    assert combined("krum", sizes, rows, attackers=attackers) == pytest.approx(rows[best], rel=1e-12)


A, B, HEAD = "q.lora_A.default.weight", "q.lora_B.default.weight", "head"
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 6))


def of_factors(shape: tuple[int, int, int], clients: int, seed: int) -> tuple[Layout, Floats, list[float]]:
    """Layout of A (r, d_in), B (d_out, r) and a head; what clients send, and their shares."""
    r, d_in, d_out = shape
    layout = Layout((A, B, HEAD), ((r, d_in), (d_out, r), (2,)), torch.float64)
    draw = np.random.default_rng(seed)
    shares = draw.integers(1, 9, clients).astype(float)
    return layout, draw.normal(size=(clients, layout.size)), (shares / shares.sum()).tolist()


def parts(layout: Layout, flat: Floats) -> tuple[Floats, Floats, Floats]:
    r, d_in = layout.shapes[0]
    d_out = layout.shapes[1][0]
    return flat[: r * d_in].reshape(r, d_in), flat[r * d_in : -2].reshape(d_out, r), flat[-2:]


def mean_product(layout: Layout, sent: Floats, shares: Sequence[float]) -> Floats:
    total: Floats = sum(p * b @ a for p, (a, b, _) in zip(shares, (parts(layout, row) for row in sent), strict=True))
    return total


@settings(max_examples=60)
@given(shape=SHAPES, clients=st.integers(1, 4), seed=st.integers(0, 1000))
def test_flexlora_is_the_truncated_svd_of_the_dense_mean(shape: Any, clients: int, seed: int) -> None:
    layout, sent, shares = of_factors(shape, clients, seed)
    updates = updates_of(sent)
    updates.layout = layout
    a, b, head = parts(layout, FlexLoRA().aggregate(updates, shares).numpy())
    u, s, vt = np.linalg.svd(mean_product(layout, sent, shares))
    rank = min(shape[0], len(s))
    best = u[:, :rank] * s[:rank] @ vt[:rank]
    assert np.abs(b @ a - best).max() < 1e-9
    assert np.abs(a[:rank] @ a[:rank].T - np.eye(rank)).max() < 1e-9
    assert head.tolist() == pytest.approx((np.array(shares) @ sent[:, -2:]).tolist(), abs=1e-9)


@settings(max_examples=60)
@given(shape=SHAPES, clients=st.integers(1, 4), seed=st.integers(0, 1000), rule=st.sampled_from([FLoRA, FedEx]))
def test_what_a_stack_holds_is_the_dense_mean(shape: Any, clients: int, seed: int, rule: Any) -> None:
    layout, sent, shares = of_factors(shape, clients, seed)
    updates = updates_of(sent)
    updates.layout = layout
    found = rule().aggregate(updates, shares)
    ((left, right),) = from_rows(layout, found[layout.size :]).values()
    dense = (left @ right).numpy()
    assert np.abs(dense - mean_product(layout, sent, shares)).max() < 1e-9
    assert np.abs(found[: layout.size].numpy() - np.array(shares) @ sent).max() < 1e-9


@settings(max_examples=60)
@given(shape=SHAPES, clients=st.integers(1, 5), seed=st.integers(0, 1000))
def test_hetlora_weighs_by_dense_norms(shape: Any, clients: int, seed: int) -> None:
    layout, sent, _ = of_factors(shape, clients, seed)
    norms = [float(np.linalg.norm(b @ a)) for a, b, _ in (parts(layout, row) for row in sent)]
    reports = [
        Report(f"c{i}", norm=float(np.linalg.norm(row)), extra={NORM: norm})
        for i, (row, norm) in enumerate(zip(sent, norms, strict=True))
    ]
    # ‖B A‖ <= ‖B‖ ‖A‖ <= (‖A‖² + ‖B‖²) / 2: the measured norm takes nothing from a client that is honest
    assert HetLoRA().weigh(reports) == pytest.approx([norm / sum(norms) for norm in norms])


@pytest.mark.parametrize("seed", range(6))
def test_feddyn_is_a_plain_loop_of_its_algorithm(seed: int, tmp_path: Path) -> None:
    """Acar et al. 2021, algorithm 1, on quadratics that every client minimises exactly; two or three of four take part.

    The paper's ∇L_i are `g`, whose mean over all clients is −h.
    """
    draw = np.random.default_rng(seed)
    alpha, taking_part, start = float(draw.uniform(0.2, 2)), int(draw.integers(2, 4)), float(draw.normal())
    curves = {f"c{i}": (float(draw.uniform(0.5, 3)), float(draw.normal(scale=3)), 1) for i in range(4)}
    config = make_config(
        tmp_path,
        Quadratic(clients=curves, start=(start,)),
        FedDyn(alpha=alpha),
        per_client={name: {"lr": 1 / (a + alpha)} for name, (a, _, _) in curves.items()},
        clients=ClientsConfig(per_round=taking_part),
        rounds=8,
    )
    runner = make_runner(config)
    runner._share_initial_weights()
    w, h, g = start, 0.0, dict.fromkeys(curves, 0.0)
    for _ in range(8):
        before = {name: runner.context.store.get(name).tensors.get("gradient") for name in curves}
        runner._one_round()
        after = {name: runner.context.store.get(name).tensors.get("gradient") for name in curves}
        cohort = [name for name in curves if after[name] is not before[name]]
        assert len(cohort) == taking_part
        models = {}
        for name in cohort:
            a, b, _ = curves[name]
            models[name] = (a * b + g[name] + alpha * w) / (a + alpha)
            g[name] -= alpha * (models[name] - w)
        h -= alpha * sum(model - w for model in models.values()) / len(curves)
        w = sum(models.values()) / len(models) - h / alpha
        assert float(runner.context.server.weights) == pytest.approx(w, rel=1e-8, abs=1e-8)
        for name in cohort:
            assert float(runner.context.store.get(name).tensors["gradient"]) == pytest.approx(
                g[name], rel=1e-7, abs=1e-7
            )
