"""Linear layers that keep a frozen weight in four or eight bits, and give gradients to what goes into them.

nf4 is bitsandbytes' (Dettmers et al. 2023, without their second quantisation of the scales): a scale for every 64
numbers. int8 has one for every output. A weight is made whole again for one product at a time, forwards
and backwards, in the number format of the input; nothing else is rounded. So a layer computes with the bits of a plain
one that has the dequantised weight.

Beside `weight`, which has the packed numbers, such a layer has a parameter `scales`. Neither is ever trained, so they
are where an adapter's base is: in no vector that travels, in no client's state and in no checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fedtorch.core.extras import require
from fedtorch.core.model_folder import ADAPTER
from fedtorch.models.adapters.settings import QUANTIZE_KEY, Adapter, Quantize

BLOCK = 64
"""Numbers of nf4 that have one scale."""
_CHUNK = 1 << 20  # numbers that are quantised at once, a multiple of BLOCK: what that needs beside them stays small
_MAX_INT8 = 127


class Form(NamedTuple):
    """How a weight is kept."""

    kind: str
    """`nf4` or `int8`"""
    shape: tuple[int, int]
    """(d_out, d_in)"""


def check_library() -> None:
    """Refuse a quantised base where bitsandbytes is not installed.

    Raises:
        ConfigError: names the extra.
    """
    require(QUANTIZE_KEY, "bitsandbytes", extra="quantize")
    import bitsandbytes  # noqa: F401  # registers its operations; see `core.extras.FetchesNothing`


@torch.no_grad()
def quantized(weight: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """(packed numbers, scales in fp32) of a weight (d_out, d_in) of any floating dtype; made in chunks.

    nf4: uint8 (⌈d_out · d_in / 2⌉, 1), two numbers in one, and a scale for every `BLOCK` numbers in order.
    int8: (d_out, d_in), and a scale for every row.
    """
    if kind == "int8":
        rows = max(1, _CHUNK // weight.shape[1])
        parts = [_rows_in_int8(part) for part in weight.split(rows)]
    else:
        parts = [_blocks_in_nf4(part) for part in weight.reshape(-1).split(_CHUNK)]
    packed, scales = zip(*parts, strict=True)
    return torch.cat(packed), torch.cat(scales)


def _rows_in_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Round to multiples of the largest number / 127, which has its 7 last bits 0 (and is at most 2⁻¹⁶ of it larger).

    So 127 times it is exact, and who quantises the dequantised weight once more finds the same bits, as with nf4.
    """
    rows = rows.float()
    scales = rows.abs().amax(1) / _MAX_INT8
    scales = ((scales.view(torch.int32) + 0x7F) & ~0x7F).view(torch.float32)
    packed = (rows / scales.masked_fill(scales == 0, 1)[:, None]).round_()
    return packed.clamp_(-_MAX_INT8, _MAX_INT8).to(torch.int8), scales


def _blocks_in_nf4(flat: Tensor) -> tuple[Tensor, Tensor]:
    packed, scales = torch.ops.bitsandbytes.quantize_4bit(flat.float(), BLOCK, "nf4", torch.uint8)
    return packed, scales


def room_for(form: Form, device: torch.device) -> tuple[Tensor, Tensor]:
    """Packed numbers and scales of that form, without values."""
    rows, columns = form.shape
    if form.kind == "int8":
        return torch.empty(rows, columns, dtype=torch.int8, device=device), torch.empty(rows, device=device)
    packed = torch.empty((rows * columns + 1) // 2, 1, dtype=torch.uint8, device=device)
    return packed, torch.empty(-(-rows * columns // BLOCK), device=device)


def dequantized(packed: Tensor, scales: Tensor, form: Form, dtype: torch.dtype) -> Tensor:
    """The weight (d_out, d_in) whole, in `dtype`; a new tensor."""
    rows, columns = form.shape
    if form.kind == "int8":
        return packed.float().mul_(scales[:, None]).to(dtype)
    # of an odd width bitsandbytes would have torch compile something
    shape = [rows, columns] if columns % 2 == 0 else [2 * len(packed)]
    whole: Tensor = torch.ops.bitsandbytes.dequantize_4bit(packed, scales, BLOCK, form.kind, shape, dtype)
    return whole.reshape(-1)[: rows * columns].view(rows, columns)


class _Product(torch.autograd.Function):
    """x Wᵀ + b of a weight that nothing but this product keeps whole; x alone has a gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, packed: Tensor, scales: Tensor, bias: Tensor | None, form: Form) -> Tensor:
        return linear(x, dequantized(packed, scales, form, x.dtype), bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, packed, scales, _, ctx.form = inputs
        ctx.save_for_backward(packed, scales)
        ctx.save_for_forward(packed, scales)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        packed, scales = ctx.saved_tensors
        (grad,) = grads
        # 16 bits as in `precision.FixedLinear`, for its reason
        dtype = torch.float32 if grad.device.type == "cpu" else grad.dtype
        return (grad.to(dtype) @ dequantized(packed, scales, ctx.form, dtype)).to(grad.dtype), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        packed, scales = ctx.saved_tensors
        return linear(tangents[0], dequantized(packed, scales, ctx.form, tangents[0].dtype))


class QuantizedLinear(nn.Linear):
    """A linear layer, or GPT-2's kind of it, whose weight is kept in few bits and not trained."""

    form: Form
    scales: nn.Parameter
    is_transposed: bool
    """Was the weight that of a `Conv1D`, (d_in, d_out)? Here it is kept as (d_out, d_in)."""

    def whole(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Its weight (d_out, d_in), dequantised."""
        return dequantized(self.weight, self.scales, self.form, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """As the layer it was, with the dequantised weight; inside autocast in its number format."""
        kind, bias = input.device.type, None
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            input = input.to(torch.get_autocast_dtype(kind))
        if self.bias is not None:
            bias = self.bias.to(input.dtype)
        product: Tensor = _Product.apply(input, self.weight, self.scales, bias, self.form)
        return product


def reserve(module: Any, kind: str, device: torch.device) -> None:
    """Make a linear layer one that is quantised, in place: it has room for its numbers, without values."""
    from transformers.pytorch_utils import Conv1D

    is_transposed = isinstance(module, Conv1D)
    rows, columns = reversed(module.weight.shape) if is_transposed else module.weight.shape
    module.__class__ = QuantizedLinear
    module.form, module.is_transposed = Form(kind, (rows, columns)), is_transposed
    module.out_features, module.in_features = rows, columns
    packed, scales = room_for(module.form, device)
    module.weight = nn.Parameter(packed, requires_grad=False)
    module.scales = nn.Parameter(scales, requires_grad=False)


def packed_parameters(weight: Tensor, module: QuantizedLinear) -> tuple[nn.Parameter, nn.Parameter]:
    """`weight` and `scales` of a layer that has been made room in, from its weight as a file or a layer has it."""
    packed, scales = quantized(weight.T if module.is_transposed else weight, module.form.kind)
    return nn.Parameter(packed, requires_grad=False), nn.Parameter(scales, requires_grad=False)


def kept_whole(adapter: Adapter) -> tuple[str, ...]:
    """The modules that an adapter trains whole, by the ends of their names; of one in a folder those of its file."""
    if adapter.path is None:
        return adapter.save
    try:
        saved = json.loads(Path(adapter.path, ADAPTER).read_bytes()).get("modules_to_save")
    except (OSError, ValueError, AttributeError):
        return ()  # whoever reads the adapter says it
    return tuple(map(str, saved)) if isinstance(saved, list) else ()


def layers_to_quantize(model: Any, kept: Sequence[str] = ()) -> list[str]:
    """The linear layers within a model that are quantised, by name.

    Not the output matrix, heads, poolers, what is tied to another layer, what transformers says must stay in fp32 (T5's
    `wo`), and `kept`, the ends of names of modules that are trained whole. So transformers chooses too, but for the
    heads and poolers, which a run may draw and train.
    """
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.base import get_keys_to_not_convert

    left = {*get_keys_to_not_convert(model), *(getattr(model, "_keep_in_fp32_modules", None) or ()), "pooler", *kept}
    base = f"{model.base_model_prefix}."
    within = base if hasattr(model, model.base_model_prefix) else ""
    names = []
    for name, module in model.named_modules():
        if type(module) in (nn.Linear, Conv1D) and name.startswith(within) and not _is_within(name, left):
            names.append(name)
    return names


def _is_within(name: str, left: set[str]) -> bool:
    """Is it, or something around it, among these, which are whole names or ends of them?"""
    parts = name.split(".")
    return any(".".join(parts[start:stop]) in left for stop in range(1, len(parts) + 1) for start in range(stop))


@torch.no_grad()
def quantize_in_place(model: Any, quantize: Quantize, adapter: Adapter) -> None:
    """Quantise the weights of a model that is built, one layer after the other; those that are already stay.

    adapter: what will be added, for its `kept_whole`.

    Raises:
        ConfigError: bitsandbytes is not installed.
    """
    check_library()
    for name in layers_to_quantize(model, kept_whole(adapter)):
        module = model.get_submodule(name)
        weight = module.weight.detach()
        reserve(module, quantize.kind, torch.device("meta"))
        module.weight, module.scales = packed_parameters(weight, module)


def quantization_of(model: nn.Module) -> Quantize | None:
    """How a model's base is quantised; None: it is not."""
    kinds = [module.form.kind for module in model.modules() if isinstance(module, QuantizedLinear)]
    return Quantize(kind=kinds[0]) if kinds else None  # type: ignore[arg-type]


@torch.no_grad()
def plain_layer(module: QuantizedLinear, added: Tensor | None = None) -> nn.Module:
    """A layer of the class that it was, in fp32, with the dequantised weight. added: to it, (d_out, d_in)."""
    from transformers.pytorch_utils import Conv1D

    rows, columns = module.form.shape
    with torch.device("meta"):
        plain: Any = Conv1D(rows, columns) if module.is_transposed else nn.Linear(columns, rows)
    whole = module.whole() if added is None else module.whole() + added
    plain.weight = nn.Parameter(whole.T.contiguous() if module.is_transposed else whole, requires_grad=False)
    plain.bias = module.bias
    plain.train(module.training)
    return plain
