"""FedAssistant: top-k with error feedback, its messages and their sizes."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from fedtorch.compression import topk as selection
from fedtorch.compression.compressors import Feedback, Quantise, TopK, give_back, with_feedback
from fedtorch.compression.payload import HEADER_BYTES, PayloadError, Sparse, decode, encode, num_bytes
from fedtorch.compression.topk import count_of, largest
from fedtorch.core.weights import Layout


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def layout_of(*sizes: int, dtype: torch.dtype = torch.float32) -> Layout:
    return Layout(tuple(f"t{i}" for i in range(len(sizes))), tuple((size,) for size in sizes), dtype)


# A worked example: two clients, one tensor of 6, k = 2 on both levels.
GRADS = (
    (
        vector(4, -1, 0.5, 2, 0, -3),
        vector(1, -2, 0.25, 0.5, 1.5, -0.5),
        vector(0, -1.5, 3, 0.2, -0.4, 1),
        vector(-2.3, 0.6, 1, -1.25, 0.3, 0.1),
    ),
    (
        vector(-1, 2.5, 0.1, -2.2, 0.7, 0),
        vector(0.3, 1, -4, 0.9, 0, 2),
        vector(1.2, 0, -0.6, 2.1, 1.1, -0.8),
        vector(0.5, -3, 0.4, 0, 2.4, 1.3),
    ),
)
SIX = layout_of(6, dtype=torch.float64)
TOP = TopK(ratio=1 / 3)


def run(feedback: Feedback, server: str) -> dict[str, list]:
    """The example by the functions that clients and server use; SGD with rate 0.1 from w = 0."""
    log: dict[str, list] = {"sent": [], "step": [], "residual": []}
    residuals: list[Tensor | None] = [None, None]
    mine: Tensor | None = None
    w, total = torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    for grads in zip(*GRADS):
        messages = []
        for i, grad in enumerate(grads):
            message, residuals[i] = with_feedback(TOP, grad, residuals[i], feedback, SIX)
            messages.append(message)
        sent = [decode(message, 6) for message in messages]
        # literal: the client's 1/(Nb) and the server's 1/N
        mean = sum((s.dense() for s in sent), torch.zeros(6, dtype=torch.float64)) / (4 if feedback == "literal" else 2)
        message, mine = with_feedback(TOP, mean, mine, True if server == "server" else "none", SIX)
        step = TOP.decompress(message, SIX)
        if server == "returned":
            residuals = [give_back(r, s, step) for r, s in zip(residuals, sent) if r is not None]
        w, total = w - 0.1 * step, total + step
        log["sent"].append([s.indices.tolist() for s in sent])
        log["step"].append({i: round(v, 9) for i, v in enumerate(step.tolist()) if v})
        log["residual"].append(None if mine is None else {i: round(v, 9) for i, v in enumerate(mine.tolist()) if v})
    return {**log, "w": [w], "clients": residuals, "total": [total], "mine": [mine]}


def test_the_worked_example_of_error_feedback() -> None:
    log = run(True, "server")
    assert log["sent"] == [[[0, 5], [1, 3]], [[1, 3], [2, 5]], [[1, 2], [3, 4]], [[0, 4], [1, 4]]]
    assert log["step"] == [{0: 2.0, 5: -1.5}, {2: -1.95, 5: 1.0}, {2: 1.875, 3: 1.65}, {1: -2.0, 4: 2.8}]
    assert log["residual"] == [{1: 1.25, 3: -1.1}, {1: -0.25, 3: 0.15}, {1: -1.0, 4: 0.9}, {0: -0.65}]
    assert log["w"][0].tolist() == pytest.approx([-0.2, 0.2, 0.0075, -0.165, -0.28, 0.05], abs=1e-9)
    assert log["clients"][0].tolist() == pytest.approx([0, 0.6, 1, -1.05, 0, 0.6], abs=1e-9)
    assert log["clients"][1].tolist() == pytest.approx([1, 0, -0.2, 0, 0, 0.5], abs=1e-9)


def test_the_worked_example_as_the_algorithm_is_printed() -> None:
    log = run("literal", "none")
    assert log["step"] == [{0: 1.0, 5: -0.75}, {0: 1.25, 2: -0.975}, {0: 1.25, 2: -1.125}, {1: -0.975, 4: 1.05}]
    assert log["w"][0].tolist() == pytest.approx([-0.35, 0.0975, 0.21, 0, -0.105, 0.075], abs=1e-9)
    assert [0 in sent[0] for sent in log["sent"]].count(True) == 3  # its gradient was large there once


@pytest.mark.parametrize(("server", "holds"), [("server", True), ("returned", True), ("none", False)])
def test_nothing_is_lost_unless_the_server_forgets(server: str, holds: bool) -> None:
    log = run(True, server)
    kept = log["total"][0] + sum(log["clients"], torch.zeros(6, dtype=torch.float64)) / 2
    if log["mine"][0] is not None:
        kept = kept + log["mine"][0]
    given = sum(itertools.chain(*GRADS), torch.zeros(6, dtype=torch.float64)) / 2
    assert torch.allclose(kept, given, rtol=0, atol=1e-12) == holds


@pytest.mark.parametrize("values", ["fp32", "fp16", "bf16"])
def test_what_rounding_to_16_bits_loses_stays_in_the_residual(values: str) -> None:
    layout = layout_of(100)
    grad = torch.randn(100, generator=torch.Generator().manual_seed(0))
    top = TopK(ratio=0.1, values=values)  # type: ignore[arg-type]
    message, residual = with_feedback(top, grad, None, True, layout)
    assert residual is not None
    torch.testing.assert_close(top.decompress(message, layout) + residual, grad, rtol=1e-6, atol=1e-7)
    sent = decode(message, 100).indices.long()
    assert bool((residual[sent] == 0).all()) == (values == "fp32")


def test_without_feedback_nothing_is_kept() -> None:
    message, residual = with_feedback(TOP, GRADS[0][0], torch.ones(6), "none", SIX)
    assert residual is None and decode(message, 6).indices.tolist() == [0, 5]


# --- selection


@pytest.mark.parametrize(
    ("ratio", "size", "k"),
    [(0.02, 1_000_003, 20_001), (0.07, 100, 7), (1 / 12, 12, 1), (0.0833333333, 12, 1), (0.001, 5, 1), (1.0, 7, 7),
     (0.02, 0, 0), (0.02, 1, 1), (0.5, 3, 2)],
)  # fmt: skip
def test_k_is_the_ratio_rounded_up(ratio: float, size: int, k: int) -> None:
    assert count_of(ratio, size) == k


def test_gpt2_small_at_one_in_fifty_per_tensor_and_global() -> None:
    with torch.device("meta"):
        layout = Layout.of(dict(GPT2LMHeadModel(GPT2Config()).named_parameters()))
    assert (layout.size, len(layout.names)) == (124_439_808, 148)
    assert sum(TopK(ratio=0.02).counts(layout)) == 2_488_877
    assert sum(TopK(ratio=0.02, scope="global").counts(layout)) == 2_488_797
    biases = sum(size for size, shape in zip(layout.sizes, layout.shapes) if len(shape) == 1)
    sent = TopK(ratio=0.02, dense_1d=True).counts(layout)
    assert sum(k for k, shape in zip(sent, layout.shapes) if len(shape) == 1) == biases


def test_ties_take_the_lowest_index_first() -> None:
    assert [found.tolist() for found in largest(torch.tensor([1.0, -2, 2, 1, -1, 1]), 4)] == [
        [0, 1, 2, 3],
        [1, -2, 2, 1],
    ]
    assert largest(torch.zeros(5), 2)[0].tolist() == [0, 1]


@pytest.mark.parametrize("k", [0, 1, 6])
def test_none_one_and_all(k: int) -> None:
    flat = torch.tensor([0.0, 3, -4, 1, 2, -1])
    assert largest(flat, k)[0].tolist() == sorted(sorted(range(6), key=lambda i: -abs(flat[i]))[:k])


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.0005, 0.01, 0.08, 0.5]), st.sampled_from(["wide", "ties", "rare"]))
def test_sampled_selection_gives_exactly_the_exact_one(seed: int, ratio: float, kind: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randn(5000, generator=generator)
    if kind == "ties":
        flat = flat.round()
    elif kind == "rare":  # nearly everything is zero, so the sample's threshold is of no use
        flat = flat * (torch.rand(5000, generator=generator) < 0.001)
    k = count_of(ratio, 5000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "SAMPLE", 500)
        patch.setattr(selection, "_CHUNK", 700)
        indices, values = largest(flat, k, sampled=True)
    assert indices.numel() == k and torch.equal(indices, largest(flat, k)[0]) and torch.equal(values, flat[indices])


def test_nan_in_a_long_vector_is_noticed_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "SAMPLE", 500)
    monkeypatch.setattr(selection, "_CHUNK", 700)
    for place in (0, 699, 700, 4999):
        flat = torch.randn(5000, generator=torch.Generator().manual_seed(0))
        flat[place] = float("nan")
        with pytest.raises(ValueError, match="NaN"):
            largest(flat, 50, sampled=True)


def test_nan_has_no_place_in_an_order_and_k_must_fit() -> None:
    with pytest.raises(ValueError, match="NaN"):
        largest(torch.tensor([1.0, float("nan"), 3]), 1)
    with pytest.raises(ValueError, match="4 entries of a vector of 3 were asked for; expected 0 to 3"):
        largest(torch.ones(3), 4)


# --- messages


@pytest.mark.parametrize(
    ("encoding", "expected"), [("index32", 160_008), ("bitmap", 205_005), ("auto", 160_008)]
)  # fmt: skip
def test_sizes_of_the_specification(encoding: str, expected: int) -> None:
    layout = layout_of(1_000_003)
    top = TopK(ratio=0.02, encoding=encoding)  # type: ignore[arg-type]
    message = top.compress(torch.randn(layout.size), layout)
    assert top.message_bytes(layout) == message.numel() - HEADER_BYTES == expected
    assert decode(message, layout.size).indices.numel() == 20_001


def test_fp64_keeps_its_dtype_unless_16_bits_were_asked_for() -> None:
    for values, item_bytes in (("fp32", 8), ("fp16", 2), ("bf16", 2)):
        top = TopK(ratio=1 / 3, values=values)  # type: ignore[arg-type]
        message = top.compress(GRADS[0][0], SIX)
        assert message.numel() - HEADER_BYTES == top.message_bytes(SIX) == 2 * item_bytes + 1
        assert decode(message, 6).values.dtype.itemsize == item_bytes == top.kept(SIX).values.itemsize


@pytest.mark.parametrize(
    ("k", "index", "half", "bitmap"),
    [(9_750_000, 78.0, 58.5, 53.63), (4_680_000, 37.44, 28.08, 33.35), (2_340_000, 18.72, 14.04, 23.99),
     (1_170_000, 9.36, 7.02, 19.31)],
)  # fmt: skip
def test_the_papers_megabytes(k: int, index: float, half: float, bitmap: float) -> None:
    n = 117_000_000
    found = (num_bytes(n, k, "index32"), num_bytes(n, k, "index32", 2), num_bytes(n, k, "bitmap"))
    assert [x / 1e6 for x in found] == pytest.approx([index, half, bitmap], abs=0.006)


def test_a_bitmap_is_smaller_above_one_in_32() -> None:
    for k in (9999, 10_001):
        assert num_bytes(320_000, k, "auto") == num_bytes(320_000, k, "index32" if k < 10_000 else "bitmap")


@settings(max_examples=80, deadline=None)
@given(
    size=st.integers(0, 300),
    share=st.floats(0, 1),
    encoding=st.sampled_from(["auto", "index32", "bitmap"]),
    values=st.sampled_from(["fp32", "fp16", "bf16", "fp64"]),
    seed=st.integers(0, 100),
)
def test_a_message_comes_back(size: int, share: float, encoding: str, values: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    k = round(share * size)
    indices = torch.randperm(size, generator=generator)[:k].sort().values.to(torch.int32)
    numbers = torch.randint(-99, 99, (k,), generator=generator).to(torch.float64)
    message = encode(Sparse(size, indices, numbers), encoding, values)  # type: ignore[arg-type]
    back = decode(message, size)
    assert torch.equal(back.indices, indices) and torch.equal(back.values.double(), numbers)
    item_bytes = {"fp64": 8, "fp32": 4}.get(values, 2)
    assert message.numel() == HEADER_BYTES + num_bytes(size, k, encoding, item_bytes)  # type: ignore[arg-type]


SOUND = encode(Sparse(20, torch.tensor([3, 5, 19], dtype=torch.int32), torch.ones(3)), "index32")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
@example(b"")
@example(SOUND.numpy().tobytes()[:-1])
@example(SOUND.numpy().tobytes() + b"\0")
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    message = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)
    with pytest.raises(PayloadError):
        decode(message, 20)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, HEADER_BYTES * 8 - 1))
def test_a_flipped_bit_in_the_header_is_noticed(bit: int) -> None:
    broken = SOUND.clone()
    broken[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PayloadError):
        decode(broken, 20)


@pytest.mark.parametrize("indices", [[3, 3, 4], [5, 4, 6], [-1, 2, 3], [1, 2, 20], [-5, -3, 30]])
def test_indices_that_are_not_ascending_or_outside_are_refused(indices: list[int]) -> None:
    with pytest.raises(PayloadError, match="strictly ascending from 0 to 19"):
        decode(encode(Sparse(20, torch.tensor(indices, dtype=torch.int32), torch.ones(3)), "index32"), 20)


def test_a_bitmap_with_other_bits_than_announced_is_refused() -> None:
    message = encode(Sparse(20, torch.tensor([3, 5], dtype=torch.int32), torch.ones(2)), "bitmap")
    message[-1] |= 128  # bit 23 of 20
    with pytest.raises(PayloadError, match="3 bits set; its header says 2"):
        decode(message, 20)


def test_a_message_of_another_layout_or_ratio_is_refused() -> None:
    message = TOP.compress(GRADS[0][0], SIX)
    with pytest.raises(PayloadError, match="2 of 6 numbers; expected a sparse one of 7"):
        decode(message, 7)
    with pytest.raises(PayloadError, match="2 numbers; expected 3"):
        TopK(ratio=0.5).decompress(message, SIX)
    with pytest.raises(PayloadError, match="kind 1 with 6 numbers"):
        Quantise().decompress(message, SIX)
    with pytest.raises(PayloadError, match="kind 2"):
        decode(Quantise().compress(torch.ones(6), SIX), 6)


# --- the second compressor


@pytest.mark.parametrize("scale", ["max", "norm"])
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("size", [1, 7, 64, 65])
def test_quantised_numbers_are_a_step_off_at_most(scale: str, rounding: str, size: int) -> None:
    layout = layout_of(size)
    flat = torch.randn(size, generator=torch.Generator().manual_seed(1))
    packer = Quantise(levels=127, bucket=16, scale=scale, rounding=rounding)  # type: ignore[arg-type]
    message = packer.compress(flat, layout, seed=3)
    assert message.numel() - HEADER_BYTES == packer.message_bytes(layout) == size + 4 * -(-size // 16)
    norm = flat.abs().max() if scale == "max" else torch.linalg.vector_norm(flat)
    assert (packer.decompress(message, layout) - flat).abs().max() <= norm / 127 + 1e-6
    assert torch.equal(message, packer.compress(flat, layout, seed=3))


def test_stochastic_rounding_is_unbiased() -> None:
    layout = layout_of(4)
    flat = torch.tensor([1.0, 0.3, -0.7, 0.05])
    packer = Quantise(levels=1, bucket=4)
    mean = sum(packer.decompress(packer.compress(flat, layout, seed=s), layout) for s in range(2000)) / 2000
    torch.testing.assert_close(mean, flat, rtol=0, atol=0.05)  # four standard errors of a coin


def test_error_feedback_works_with_any_compressor() -> None:
    layout = layout_of(6)
    packer, residual, total = Quantise(levels=4, bucket=8), None, torch.zeros(6)
    grads = [grad.float() for grad in GRADS[0]]
    for seed, grad in enumerate(grads):
        message, residual = with_feedback(packer, grad, residual, True, layout, seed=seed)
        total += packer.decompress(message, layout)
    assert residual is not None
    torch.testing.assert_close(total + residual, torch.stack(grads).sum(0))


def test_a_vector_that_is_not_finite_does_not_become_finite() -> None:
    layout = layout_of(4)
    for value in (float("nan"), float("inf")):
        packer = Quantise(bucket=4)
        message = packer.compress(torch.tensor([1.0, value, 0, 0]), layout)
        assert not packer.decompress(message, layout).isfinite().all()


@pytest.mark.slow
def test_ten_million_numbers_are_selected_and_packed_in_a_second() -> None:
    layout = layout_of(10_000_000)
    flat = torch.randn(layout.size)
    started = time.perf_counter()
    TopK(ratio=0.02).compress(flat, layout)
    assert time.perf_counter() - started < 2
