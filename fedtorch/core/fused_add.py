"""Sums with a product, rounded once: the same bits on processors with a fused product and sum and without."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.optim.adamw import adamw

_CHUNK = 1 << 16  # numbers that are looked at together, so that the float64 in between stays in the cache
_LANES = 8  # numbers that torch's loop of adamw takes at once, with AVX512 too; the last ones it takes one by one


@cache
def _is_fused() -> bool:
    """Does torch's own loop round once? It does with AVX2 and AVX512, and not in its plain loops."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def add_multiple(total: Tensor, values: Tensor, factor: float) -> None:
    """total += factor · values, in place, rounded once.

    Both flat and of one dtype on the CPU. The bits do not depend on the processor for float32; other dtypes are left
    to torch. factor: is rounded to float32 first, as torch does.
    """
    if _is_fused() or total.dtype != torch.float32:
        total.add_(values, alpha=factor)
        return
    _add_product(total, values, torch.tensor(factor, dtype=torch.float32).expand_as(values))


def adamw_step(
    vectors: Sequence[Sequence[Tensor]],
    taken: int,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """Take the step of AdamW after `taken` ones, in place, with the bits of torch's fused one where that rounds once.

    vectors: parameters, their gradients, first and second moments, in one order, each contiguous, all of one dtype. The
    bits do not depend on the processor for float32 on the CPU; others are left to torch.
    """
    params, grads, firsts, seconds = map(list, vectors)
    if _is_fused() or any(each.dtype != torch.float32 or each.device.type != "cpu" for each in params):
        steps = [torch.tensor(float(taken)) for _ in params]
        adamw(
            params, grads, firsts, seconds, [], steps, fused=True, amsgrad=False, maximize=False,
            lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay,
        )  # fmt: skip
        return
    rate, share = -lr / (1 - beta1 ** (taken + 1)), np.float32(1 - beta1)
    root = np.float32((1 - beta2 ** (taken + 1)) ** 0.5)
    for each in zip(params, grads, firsts, seconds, strict=True):
        param, grad, first, second = (vector.view(-1) for vector in each)
        param.mul_(1 - lr * weight_decay)
        further = grad - first
        if share < 0.5:  # as torch's lerp does
            add_multiple(first, further, float(share))
        else:
            add_multiple(first.copy_(grad), further, float(share - 1))
        whole, square = len(param) // _LANES * _LANES, grad * (1 - beta2)
        rest = square[whole:] * grad[whole:]  # which torch's compiler has added in another order
        _add_product(rest, second[whole:], torch.tensor(beta2, dtype=torch.float32).expand_as(rest))
        _add_product(second.mul_(beta2)[:whole], square[:whole], grad[:whole])
        second[whole:] = rest
        below = square_root(second).numpy() / root + np.float32(eps)
        param.add_(torch.from_numpy(first.numpy() * np.float32(rate) / below))


def square_root(values: Tensor) -> Tensor:
    """The number nearest to the square root of each, on the CPU.

    torch's own is that of the library MKL, which chooses its way by the processor's maker and is off by one in the
    last digit for a fifth of all numbers on some (*measured*, torch 2.13 on AMD: 19.9 % of a million in fp32).
    """
    return torch.from_numpy(np.sqrt(values.numpy()))


def _add_product(total: Tensor, first: Tensor, second: Tensor) -> None:
    """total += first · second, in place, rounded once. All flat, of float32."""
    for part, one, other in zip(*(vector.split(_CHUNK) for vector in (total, first, second)), strict=True):
        part.copy_(_rounded_to_odd(part.double(), one.double().mul_(other)))


def _rounded_to_odd(first: Tensor, second: Tensor) -> Tensor:
    """The sum in float64, with an odd last bit wherever it is not exact: rounded once more it is as if never rounded.

    first: of float32; second: an exact product of two of these (48 bits). Boldo and Melquiond 2008, Emulation of FMA
    and correctly rounded sums: proved algorithms using rounding to odd.
    """
    total = first + second
    back = total - first
    error = (first - (total - back)) + (second - back)
    bits = total.view(torch.int64)
    is_even = (bits & 1 == 0) & (error != 0) & total.isfinite()
    # away from zero, the bits of a number of either sign are one more
    bits.add_(torch.where((error > 0) == (total > 0), 1, -1).mul_(is_even))
    return total
