"""A device that is none: its tensors lie in ordinary memory, but mixing them with tensors of the CPU is an error.

What runs on it to the same bits as on the CPU has every tensor where it belongs, so a machine without a GPU shows what
would fail on one. As on a GPU, a CPU tensor without dimensions may take part in everything, and one of indices in
indexing; a generator of the CPU may not. It is torch's PrivateUse1 backend, of which a process has one: `install` is
for processes of their own. There is no forward-mode differentiation (metaweighting). With torch 2.13.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.utils.backend_registration as registration
from torch import Tensor

NAME = "pretended"
_CPU = torch.device("cpu")
_CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_MAY_MIX = {"aten::copy_", "aten::_to_copy", "aten::index", "aten::index_put_", "aten::_index_put_impl_"}
_WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal"}  # the host must know what they come to
_libraries: list[torch.library.Library] = []
_memory: dict[int, Tensor] = {}  # the numbers by the address of the pretended storage


used: Counter[str] = Counter()
"""What a GPU has and a CPU has not -> how often it was asked for."""
crossed: Counter[str] = Counter()
"""`up`: bytes that were copied from the host to the device; `down`: from the device to the host."""


class Stream:
    """A stream on which everything is done at once."""

    def __init__(self, device: torch.device | None = None) -> None:
        used["stream"] += 1

    def synchronize(self) -> None:
        """Nothing is under way."""


class Event:
    """An event that has come to pass when it was recorded."""

    def record(self, stream: Stream | None = None) -> None:
        used["event recorded"] += 1

    def synchronize(self) -> None:
        used["event awaited"] += 1


class Module(registration._DummyBackendModule):
    """`torch.pretended`: the functions of a device's module that `core.devices` asks for."""

    Stream, Event = Stream, Event
    _initialized = True

    def current_stream(self, device: torch.device) -> Stream:
        return _stream

    def stream(self, stream: Stream) -> AbstractContextManager[object]:
        return nullcontext()

    def empty_cache(self) -> None:
        used["memory given back"] += 1

    def manual_seed_all(self, seed: int) -> None:
        used["seed"] += 1

    def device(self, device: torch.device | int) -> AbstractContextManager[object]:
        return nullcontext()

    def get_rng_state(self, device: int = 0) -> Tensor:
        used["generator kept"] += 1
        return torch.zeros(1)

    def set_rng_state(self, state: Tensor, device: int = 0) -> None:
        used["generator put back"] += 1

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        used["count begun"] += 1

    def max_memory_allocated(self, device: torch.device) -> int:
        return made_bytes()

    def max_memory_reserved(self, device: torch.device) -> int:
        return 3 << 20

    def utilization(self, device: torch.device) -> int:
        raise ModuleNotFoundError("pynvml is not installed")

    def set_device(self, device: torch.device) -> None:
        """There is one only."""


_stream = Stream()
made: dict[int, Tensor] = {}
"""Address -> numbers of all that came to lie on the device; nothing of it is freed."""


def made_bytes() -> int:
    """Bytes of the device's memory that were taken since `made` was cleared, views counted once."""
    return sum(tensor.untyped_storage().nbytes() for tensor in made.values())


class Pretended(Tensor):
    """Shape and device; `held` is the CPU tensor with the numbers, whose views are the views of this one."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    held: Tensor
    storage_in_use: torch.UntypedStorage

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, other: Pretended) -> None:
        Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.held = other.held

    def data_ptr(self) -> int:
        return self.held.data_ptr()


class Plain(registration._DummyBackendModule):
    """The functions that Apple's GPUs have of those: no stream of one's own, no numbers of 64 bits."""

    Event = Event
    _initialized = True
    empty_cache, manual_seed_all, device = Module.empty_cache, Module.manual_seed_all, Module.device
    get_rng_state, set_rng_state = Module.get_rng_state, Module.set_rng_state
    get_amp_supported_dtype, set_device = Module.get_amp_supported_dtype, Module.set_device


_has_float64 = [True]


def install(*, plain: bool = False, has_four_bits: bool = False) -> torch.device:
    """Make the device known to torch, before the first backward pass of the process; returns it.

    plain: it has no streams and no float64, as Apple's GPUs. has_four_bits: it unpacks what bitsandbytes has packed,
    which takes most of a second to import.
    """
    _has_float64[0] = not plain
    registration._setup_privateuseone_for_python_backend(NAME, Plain() if plain else Module())
    every, few = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    every.fallback(_run, "PrivateUse1")
    for op in ("alias", "detach"):  # torch has kernels for these, which would make tensors without numbers
        few.impl(op, lambda tensor: _pretend(_real(tensor)), "PrivateUse1")
    few.impl("_unsafe_view", lambda tensor, size: _pretend(_real(tensor).view(size)), "PrivateUse1")
    few.impl("view.dtype", lambda tensor, dtype: _pretend(_real(tensor).view(dtype)), "PrivateUse1")
    for op, kernel in (  # what the CPU does in other operations
        ("convolution_overrideable", torch.ops.aten.convolution.default),
        ("convolution_backward_overrideable", _convolution_backward),
        ("native_dropout", _dropout),
        ("native_layer_norm", torch.ops.aten.native_layer_norm.default),
        ("_thnn_fused_lstm_cell", _lstm_cell),
        ("_thnn_fused_lstm_cell_backward_impl", _lstm_cell_backward),
    ):
        few.impl(op, partial(_run_as, kernel), "PrivateUse1")
    if has_four_bits:
        import bitsandbytes  # noqa: F401

        packed = torch.library.Library("bitsandbytes", "IMPL")
        packed.impl("dequantize_4bit", partial(_run_as, torch.ops.bitsandbytes.dequantize_4bit.default), "PrivateUse1")
        _libraries.append(packed)
    # tensors made in inference mode could not be given their numbers
    torch.inference_mode.__enter__ = _enter_inference  # type: ignore[method-assign]
    torch.inference_mode.__exit__ = _exit_inference  # type: ignore[method-assign,assignment]
    _libraries.extend((every, few))
    used.clear()
    torch.__future__.set_swap_module_params_on_conversion(True)  # else `Module.to` would part tied weights
    torch.nn.RNNBase._init_flat_weights = _without_weak_references  # type: ignore[method-assign]
    return torch.device(NAME, 0)


_init_flat_weights = torch.nn.RNNBase._init_flat_weights


def _without_weak_references(module: torch.nn.RNNBase) -> None:
    """What an LSTM does when it is made or moved: torch swaps no tensor of which somebody has a weak reference."""
    _init_flat_weights(module)
    module._flat_weight_refs = [None] * len(module._flat_weights)


def _pretend(held: Tensor) -> Tensor:
    """A tensor of the device with these numbers."""
    if held.dtype == torch.float64 and not _has_float64[0]:
        raise TypeError("this device has no float64")
    tensor = torch._C._acc.create_empty_tensor(held.shape, held.dtype)  # type: ignore[attr-defined]
    if tensor.stride() != held.stride():
        realias = torch.ops.aten._reshape_alias.default
        tensor = realias.redispatch(_CPU_KEYS, tensor, held.shape, held.stride())
    tensor.__class__ = Pretended
    made.setdefault(held.untyped_storage().data_ptr(), held)
    storage = tensor.untyped_storage()
    tensor.held = _memory[storage._cdata] = held.detach()
    tensor.storage_in_use = storage  # torch adds gradients in place where it believes that nobody else has the storage
    return tensor


def _real(value: Any) -> Any:
    if isinstance(value, Pretended):
        return value.held
    if isinstance(value, Tensor) and value.device.type == NAME:  # autograd saves copies of what is not numbers
        known = _memory[value.untyped_storage()._cdata]
        return known.as_strided(value.shape, value.stride(), known.storage_offset() + value.storage_offset())
    return _CPU if isinstance(value, torch.device) else value


def _run_as(kernel: Any, *args: Any) -> Any:
    return _each(_given, kernel(*_each(_real, args)))


def _given(leaf: Any) -> Any:
    return _pretend(leaf) if isinstance(leaf, Tensor) else leaf


def _convolution_backward(grad: Tensor, inputs: Tensor, weight: Tensor, *how: Any) -> Any:
    return torch.ops.aten.convolution_backward(grad, inputs, weight, [len(weight)], *how)


def _dropout(inputs: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """The CPU's random numbers; (result, what was kept)."""
    if not train:
        return inputs.clone(), torch.ones_like(inputs, dtype=torch.bool)
    noise = torch.empty_like(inputs).bernoulli_(1 - p)
    return inputs * (noise / (1 - p)), noise.bool()


def _lstm_cell(inputs: Tensor, hidden: Tensor, cell: Tensor, *biases: Tensor | None) -> tuple[Tensor, ...]:
    """(hidden, cell, gates after their activations)."""
    gates = inputs + hidden + sum(bias for bias in biases if bias is not None)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new = f * cell + i * g
    return o * new.tanh(), new, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(
    grad_hidden: Tensor | None, grad_cell: Tensor | None, cell: Tensor, new: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Tensor, ...]:
    i, f, g, o = gates.chunk(4, 1)
    zero = torch.zeros_like(new)
    grad_hidden, grad_cell = zero if grad_hidden is None else grad_hidden, zero if grad_cell is None else grad_cell
    flow = grad_cell + grad_hidden * o * (1 - new.tanh() ** 2)
    parts = (
        flow * g * i * (1 - i),
        flow * cell * f * (1 - f),
        flow * i * (1 - g**2),
        grad_hidden * new.tanh() * o * (1 - o),
    )
    grad = torch.cat(parts, 1)
    return grad, flow * f, grad.sum(0) if has_bias else zero


def _enter_inference(self: Any) -> None:
    self._was_enabled = torch.is_grad_enabled()
    torch.set_grad_enabled(self._was_enabled and not self.mode)


def _exit_inference(self: Any, *_: object) -> None:
    torch.set_grad_enabled(self._was_enabled)


def _resized(tensor: Any) -> Any:
    """The tensor, with the shape that an operation has given to its numbers."""
    if isinstance(tensor, Pretended) and tensor.shape != tensor.held.shape:
        tensor.data = _pretend(tensor.held)
    return tensor


def _count(source: Tensor, target: torch.device) -> None:
    """Count a copy from one place to the other."""
    if source.device.type != target.type:
        crossed["up" if source.device.type == "cpu" else "down"] += source.nbytes


def _way(source: Any, place: torch.device) -> str:
    """Where a copy goes, for `used`: between host and device it costs however small it is."""
    return "copied " + {"cpu": "out", source.device.type: "within"}.get(place.type, "in")


@dataclass(frozen=True)
class _About:
    """Facts of an operation that each of its calls needs, thousands in a run."""

    name: str
    names: tuple[str, ...]
    """Names of its arguments, in their order."""
    written: tuple[str, ...]
    """Names of the arguments that it changes, if it returns nothing else."""
    num_returns: int


@cache
def _about(op: Any) -> _About:
    schema = op._schema
    declared, returns = schema.arguments, schema.returns
    is_in_place = returns and all(value.alias_info is not None and value.alias_info.is_write for value in returns)
    written = [a.name for a in declared if is_in_place and a.alias_info is not None and a.alias_info.is_write]
    return _About(schema.name, tuple(a.name for a in declared), tuple(written), len(returns))


_SIMPLE = {int, float, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format}


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """As torch's `tree_map`, of what operations take and return, in a third of its time."""
    kind = type(value)
    if kind in _SIMPLE:
        return value
    if kind is tuple or kind is list:
        return kind([_each(function, part) for part in value])
    return function(value)


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operation: on the real tensors, once they are known to be in one place."""
    about = _about(op)
    name = about.name
    if name == "aten::_copy_from":
        _count(args[0], args[1].device)
        used[_way(args[0], args[1].device)] += 1
        _real(args[1]).copy_(_real(args[0]))
        return args[1]
    if name in ("aten::copy_", "aten::_to_copy"):
        _count(args[-1], args[0].device if name == "aten::copy_" else kwargs.get("device") or args[0].device)
    if name in _WAITS:
        used["waited"] += 1

    def taken(leaf: Any) -> Any:
        if type(leaf) is Pretended:  # most are, and to ask for instances of torch's classes takes longer
            return leaf.held
        if isinstance(leaf, Tensor) and leaf.device.type == "cpu" and leaf.dim() and name not in _MAY_MIX:
            raise RuntimeError(f"{op}: a CPU tensor of shape {tuple(leaf.shape)} among tensors of the device")
        if isinstance(leaf, torch.Generator):
            raise RuntimeError(f"{op}: a generator of the CPU for a tensor of the device")
        return _real(leaf)

    if name == "aten::as_strided" and len(args) > 3:
        args = (*args[:3], args[3] + _real(args[0]).storage_offset())
    real = [leaf.held if type(leaf) is Pretended else _each(taken, leaf) for leaf in args]
    out = op(*real, **{key: _each(taken, value) for key, value in kwargs.items()})
    if name == "aten::_to_copy" and kwargs.get("device") == _CPU:
        used[_way(args[0], _CPU)] += 1
        return out
    if about.written:
        given = dict(zip(about.names, args)) | kwargs
        written = [_resized(given[key]) for key in about.written]
        return written[0] if about.num_returns == 1 else tuple(written[: about.num_returns])
    return _pretend(out) if type(out) is Tensor else _each(_given, out)
