"""The formula for memory agrees with DeepSpeed's own estimators where they exist."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedtorch.train.memory import Size, States, deepspeeds_own, known_sizes, states
from fedtorch.train.zero import is_installed


@dataclass(frozen=True)
class Zero:
    stage: int
    precision: str = "bf16"
    kind: str = "deepspeed"
    offload_optimizer: bool = False
    offload_parameters: bool = False
    activation_checkpointing: bool = False
    initial_scale_power: int = 12


def test_the_models_that_people_ask_about_have_their_published_sizes() -> None:
    sizes = {name: size.numbers for name, size in known_sizes().items()}
    assert sizes == {"T5-base": 222_903_552, "T5-3B": 2_851_598_336, "GPT-2 XL": 1_557_611_200}


@pytest.mark.skipif(not is_installed(), reason="deepspeed is not installed")
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(
    "zero",
    [
        Zero(2),
        Zero(3),
        Zero(2, offload_optimizer=True),
        Zero(3, "fp16", offload_optimizer=True),
        Zero(3, offload_optimizer=True, offload_parameters=True),
    ],
    ids=str,
)
def test_the_formula_gives_deepspeeds_own_estimate(zero: Zero, ranks: int) -> None:
    for size in known_sizes().values():
        ours, theirs = states(size, zero, ranks=ranks), deepspeeds_own(size, zero, ranks=ranks)
        assert theirs is not None
        assert ours.device == pytest.approx(theirs.device, rel=1e-6)
        if zero.offload_optimizer:  # else theirs is the model that every rank builds first
            assert ours.host == pytest.approx(theirs.host, rel=1e-6)


def test_without_an_estimator_the_formula_says_what_each_stage_keeps() -> None:
    size = known_sizes()["T5-base"]
    n = size.numbers
    assert deepspeeds_own(size, Zero(1), ranks=2) is None and deepspeeds_own(size, Zero(3, "fp32"), ranks=2) is None
    assert states(size, Zero(0, "fp32"), ranks=1) == States(16 * n)  # as plain torch: weight, gradient, two moments
    assert states(size, Zero(0, "fp32"), ranks=1, moments=0.0) == States(8 * n)  # SGD
    assert states(size, Zero(1), ranks=1) == States(20 * n)
    assert states(size, Zero(1), ranks=4) == States(8 * n)
    assert states(size, Zero(2, "fp32"), ranks=2) == States(14 * n)


def test_what_is_not_trained_has_no_gradient_no_master_and_no_optimiser_state() -> None:
    """100 numbers in one layer, 20 of them trained, on two ranks."""
    size = Size(numbers=100, largest=100, block=100, rest=0, trained=20)
    assert states(size, Zero(0, "fp32"), ranks=1) == States(4 * 100 + 12 * 20)
    assert states(size, Zero(1, "fp32"), ranks=2) == States(4 * 100 + 4 * 20 + 16 * 10)
    assert states(size, Zero(2, "fp32"), ranks=2) == States(4 * 100 + 4 * 10 + 16 * 10)
    assert states(size, Zero(3, "fp32"), ranks=2) == States(4 * 100 + 4 * 50 + 16 * 10)
    assert states(size, Zero(0, "fp32", kind="fsdp"), ranks=2) == States(4 * 50 + 12 * 10 + 16 * 100)


def test_fsdp_keeps_rows_and_gathers_blocks_and_what_lies_outside_of_them() -> None:
    """GPT-2 XL: 48 layers of width 1600; embeddings of 50257 words and 1024 places, and the last norm."""
    size, width = known_sizes()["GPT-2 XL"], 1600
    layer = 12 * width**2 + 13 * width
    rest = (50257 + 1024 + 2) * width
    assert (size.block, size.rest) == (layer, rest) and 48 * layer + rest == size.numbers
    rows = 16 * size.numbers // 2
    fp32 = Zero(0, "fp32", kind="fsdp")
    assert states(size, fp32, ranks=2) == States(rows + 8 * rest + 16 * layer)  # 4 layers of fp32 are more than rest
    assert states(size, Zero(0, kind="fsdp"), ranks=2) == States(rows + 4 * rest + max(4 * rest, 10 * layer))
    assert states(size, fp32, ranks=1) == States(16 * size.numbers)  # the plain engine
    offloaded = Zero(0, "fp32", kind="fsdp", offload_parameters=True)
    assert states(size, offloaded, ranks=1) == States(8 * rest + 16 * layer, 16 * size.numbers)


BUILDS = """
from pathlib import Path
import torch
from torch import nn
from fedtorch.core.weights import Partition
from fedtorch.train.engine import Engine

def kilobytes(name):
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0])

module = nn.Sequential(*(nn.Linear(3100, 3100) for _ in range(6)))
size = sum(p.nbytes for p in module.parameters()) / 1024
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the largest is counted from here on
engine = Engine(module, Partition(), torch.device("cpu"))
assert engine.shared.size * 4 / 1024 == size
print((kilobytes("VmHWM") - before) / size)
"""


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the largest memory is known on Linux only")
def test_an_engine_is_built_without_a_second_copy_of_the_model() -> None:
    """Parameters move into the flat vector one after the other; a vector of zeros took all of it before the first.

    In a process of its own: this one may keep what others have freed.
    """
    done = subprocess.run([sys.executable, "-c", BUILDS], capture_output=True, text=True, check=True, timeout=100)
    assert float(done.stdout) < 0.4


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(not is_installed(), reason="deepspeed is not installed")
def test_the_benchmark_measures_every_engine_on_one_and_two_ranks() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is not part of the package
    from benchmarks.memory import main

    rows = main(["--width", "64", "--layers", "1", "--only", "torch", "stage 0", "stage 3"])
    measured = [(row["engine"], row["ranks"]) for row in rows]
    assert measured == [("torch", 1), ("stage 0", 1), ("stage 3", 1), ("stage 0", 2), ("stage 3", 2)]
    assert all(row["peak_mb"] > 0 for row in rows)
