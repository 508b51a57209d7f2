"""The server's step has the same bits whatever instructions torch takes, and a sum of a product is rounded once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.feddyn import FedDyn
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.core import fused_add
from fedtorch.core.fused_add import adamw_step, add_multiple, square_root
from fedtorch.core.server import ServerOptimizer, ServerState
from fedtorch.core.settings import ServerConfig
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout

LAYOUT = Layout(("first", "second.bias", "third"), ((90, 101), (44,), (10877,)))
SGD = ServerConfig(optimizer="sgd", lr=0.013, momentum=0.9)
ADAMW = ServerConfig(optimizer="adamw", lr=0.013, weight_decay=0.1, no_decay=("*.bias",))
RULES: dict[str, tuple[Algorithm, ServerConfig]] = {
    "none": (FedAvg(), ServerConfig()),
    "sgd": (FedAvg(), SGD),
    "nesterov": (FedAvg(), ServerConfig(optimizer="sgd", lr=0.7, momentum=0.9, nesterov=True)),
    "adam": (FedAvg(), ServerConfig(optimizer="adam", lr=0.013)),
    "yogi": (FedAvg(), ServerConfig(optimizer="yogi", lr=0.013)),
    "adagrad": (FedAvg(), ServerConfig(optimizer="adagrad", lr=0.013)),
    "adamw": (FedAvg(), ADAMW),
    "adamw with a schedule": (FedAvg(), replace(ADAMW, beta1=0.3, beta2=0.999, schedule="linear", warmup_ratio=0.4)),
    "SCAFFOLD": (Scaffold(), SGD),
    "FedDyn": (FedDyn(alpha=0.03), ServerConfig()),
    "FedDyn with sgd": (FedDyn(alpha=0.03), SGD),
}


def digests() -> dict[str, str]:
    """Of weights and buffers after three steps of each rule, on numbers of many magnitudes."""
    found, random = {}, np.random.default_rng(7)
    draws = [random.normal(size=20011) * 2.0 ** random.integers(-30, 3, 20011) for _ in range(6)]
    weights, control, *grads = (torch.from_numpy(draw.astype(np.float32)) for draw in draws)
    for name, (algorithm, rule) in RULES.items():
        tensors = {"weights": weights.clone(), "control": control.clone()}
        server = ServerState(tensors, optimizer=ServerOptimizer(rule), num_clients=3, num_rounds=5, layout=LAYOUT)
        server.accepted = [Report("a"), Report("b")]
        vectors = len(algorithm.travels.vectors)
        for grad in grads:
            algorithm.server_update(server, torch.cat([grad, grad.flip(0)][:vectors]))
        content = b"".join(server.tensors[key].numpy().tobytes() for key in sorted(server.tensors))
        found[name] = hashlib.sha256(content).hexdigest()
    return found


@pytest.mark.processes
@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_a_step_has_the_same_bits_with_other_instructions(capability: str) -> None:
    folder = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {folder!r}); import test_fused_add as t; print(t.digests())"
    environ = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    told = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == str(digests())


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(FLOATS, FLOATS, st.floats(-2, 2, width=32))
def test_without_fused_instructions_it_is_rounded_once(first: float, second: float, factor: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_add, "_is_fused", lambda: False)
        total = torch.tensor([first], dtype=torch.float32)
        add_multiple(total, torch.tensor([second], dtype=torch.float32), factor)
    exact = Fraction(first) + Fraction(second) * Fraction(factor)
    found = total.item()
    if np.isinf(found):
        assert abs(exact) >= Fraction(2) ** 128 - Fraction(2) ** 103
        return
    below, above = (np.nextafter(np.float32(found), np.float32(end)) for end in (-np.inf, np.inf))
    distance = abs(Fraction(found) - exact)
    for other in (below, above):
        if np.isfinite(other):
            assert distance <= abs(Fraction(float(other)) - exact)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="torch rounds twice itself")
@pytest.mark.parametrize("size", [1, 7, 33, 20011])
@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.99), (0.5, 0.95), (0.3, 0.999), (0.0, 0.0)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_without_fused_instructions_adamw_has_the_bits_of_torchs_own(
    size: int, beta1: float, beta2: float, weight_decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(size)
    draws = [random.normal(size=size) * 2.0 ** random.integers(-30, 3, size) for _ in range(4)]
    mine, others = ([[torch.zeros(size)] for _ in range(4)] for _ in range(2))
    for taken, draw in enumerate(draws):
        for vectors, is_fused in ((mine, False), (others, True)):
            monkeypatch.setattr(fused_add, "_is_fused", [lambda: False, lambda: True][is_fused])
            vectors[1] = [torch.from_numpy(draw.astype(np.float32))]
            adamw_step(vectors, taken, lr=0.013, beta1=beta1, beta2=beta2, eps=1e-8, weight_decay=weight_decay)
    assert all(torch.equal(one[0], other[0]) for one, other in zip(mine, others, strict=True))


def test_a_sum_that_two_roundings_would_get_wrong() -> None:
    """1 + 2^-23 + 2^-24 − 2^-60 is below the middle of two numbers, and in float64 it is the middle."""
    first, values, factor = 1 + 2.0**-23, 2.0**-24 * (1 + 2.0**-18), 1 - 2.0**-18
    assert np.float32(first + values * factor) == 1 + 2.0**-22
    total = torch.tensor([first])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_add, "_is_fused", lambda: False)
        add_multiple(total, torch.tensor([values]), factor)
    assert total.item() == first


def test_a_square_root_is_the_nearest_number() -> None:
    values = torch.cat([torch.rand(100_003, generator=torch.Generator().manual_seed(0)), torch.tensor([0.0, 4.0])])
    assert torch.equal(square_root(values), values.double().sqrt().float())  # whose 53 bits are enough to round by
    assert square_root(values.double()).dtype == torch.float64
