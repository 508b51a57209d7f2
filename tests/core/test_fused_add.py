"""The server's step has the same bits whatever instructions torch takes, and a sum of a product is rounded once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedtorch.core import fused_add
from fedtorch.core.fused_add import add_multiple
from fedtorch.core.server import ServerOptimizer, ServerState
from fedtorch.core.settings import ServerConfig

RULES = {
    "none": ServerConfig(),
    "sgd": ServerConfig(optimizer="sgd", lr=0.013, momentum=0.9),
    "nesterov": ServerConfig(optimizer="sgd", lr=0.7, momentum=0.9, nesterov=True),
    **{name: ServerConfig(optimizer=name, lr=0.013) for name in ("adam", "yogi", "adagrad")},
}


def digests() -> dict[str, str]:
    """Of weights and buffers after three steps of each rule, on numbers of many magnitudes."""
    found, random = {}, np.random.default_rng(7)
    draws = [random.normal(size=20011) * 2.0 ** random.integers(-30, 3, 20011) for _ in range(4)]
    weights, *grads = (torch.from_numpy(draw.astype(np.float32)) for draw in draws)
    for name, rule in RULES.items():
        server = ServerState({"weights": weights.clone()}, optimizer=ServerOptimizer(rule), num_clients=3)
        for grad in grads:
            assert server.optimizer is not None
            server.optimizer.step(server, grad.clone())
        content = b"".join(server.tensors[key].numpy().tobytes() for key in sorted(server.tensors))
        found[name] = hashlib.sha256(content).hexdigest()
    return found


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


def test_a_sum_that_two_roundings_would_get_wrong() -> None:
    """1 + 2^-23 + 2^-24 − 2^-60 is below the middle of two numbers, and in float64 it is the middle."""
    first, values, factor = 1 + 2.0**-23, 2.0**-24 * (1 + 2.0**-18), 1 - 2.0**-18
    assert np.float32(first + values * factor) == 1 + 2.0**-22
    total = torch.tensor([first])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_add, "_is_fused", lambda: False)
        add_multiple(total, torch.tensor([values]), factor)
    assert total.item() == first
