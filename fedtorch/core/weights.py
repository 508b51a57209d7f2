"""Named tensors as views of one flat buffer, and which of them are shared, private or frozen.

What travels is `named_parameters()` (a tied tensor once), never `state_dict()`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]

LINE = 64
"""Bytes. Where a vector of weights that a model is run with begins: at a multiple of this, as torch's own do on a CPU.

A matrix product rounds in an order that depends on where its factors lie in such a line (*measured*, MKL 2024.2: bits
of a product with few rows or columns change when a weight lies 4, 8 or 12 bytes further on). Elsewhere lie an adapter's
base, as in its files, whose digests ranks compare; a model that `predict` or `chat` loads; DeepSpeed's own buffers.
"""


@dataclass(frozen=True)
class Layout:
    """Where each named tensor lies in a flat vector: in the given order, one after the other, no padding.

    Two ranks can exchange flat vectors exactly when the `digest()` of their layouts is equal.
    """

    names: tuple[str, ...]
    """Of the tensors, in the order in which they lie there; each once."""
    shapes: tuple[tuple[int, ...], ...]
    """Of each tensor."""
    dtype: torch.dtype = torch.float32
    """Of the flat vector: fp32; fp64 only for models that are fp64 throughout."""
    offsets: tuple[int, ...] = field(init=False)
    """Where each tensor begins in the flat vector."""
    sizes: tuple[int, ...] = field(init=False)
    """Elements of each tensor."""
    size: int = field(init=False)
    """Elements of the flat vector."""

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names) or len(self.names) != len(self.shapes):
            raise ValueError(f"a layout needs one shape per distinct name, got {len(self.names)} names")
        sizes = [prod(shape) for shape in self.shapes]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + size)
        object.__setattr__(self, "offsets", tuple(starts[:-1]))
        object.__setattr__(self, "sizes", tuple(sizes))
        object.__setattr__(self, "size", starts[-1])

    @classmethod
    def of(cls, weights: Mapping[str, Tensor]) -> Layout:
        """The layout of `weights` in their own order; fp64 if every tensor is, else fp32."""
        wide = bool(weights) and all(tensor.dtype == torch.float64 for tensor in weights.values())
        return cls(
            tuple(weights),
            tuple(tuple(tensor.shape) for tensor in weights.values()),
            torch.float64 if wide else torch.float32,
        )

    def within(self, stretches: Iterable[tuple[int, int]]) -> Layout:
        """Layout of some stretches, (first, last but one), of the flat vector, laid end to end: each name's numbers.

        stretches: ascending; no two overlap.
        """
        counts, ends, at = dict.fromkeys(self.names, 0), (*self.offsets[1:], self.size), 0
        for start, stop in stretches:
            while at < len(ends) and self.offsets[at] < stop:
                counts[self.names[at]] += max(0, min(stop, ends[at]) - max(start, self.offsets[at]))
                if ends[at] > stop:  # the next stretch may have more of it
                    break
                at += 1
        left = {name: (count,) for name, count in counts.items() if count}
        return Layout(tuple(left), tuple(left.values()), self.dtype)

    def empty(self) -> Tensor:
        """A new zero vector of this layout, on the CPU."""
        return torch.zeros(self.size, dtype=self.dtype)

    @torch.no_grad()
    def flatten(self, weights: Mapping[str, Tensor], out: Tensor | None = None) -> Tensor:
        """Copy `weights` (which may hold more names) into `out` or a new CPU vector of shape (size,).

        Raises:
            ValueError: a name is missing or has another shape.
        """
        flat = self.empty() if out is None else out
        for name, view in self.view(flat).items():
            if name not in weights or weights[name].shape != view.shape:
                found = tuple(weights[name].shape) if name in weights else "nothing"
                raise ValueError(f"tensor `{name}` should have shape {tuple(view.shape)}, found {found}")
            view.copy_(weights[name])
        return flat

    def view(self, flat: Tensor) -> Weights:
        """The named tensors as views of `flat` (shape (size,)); writing to them writes to `flat`."""
        if flat.shape != (self.size,):
            raise ValueError(f"a flat vector of this layout has shape ({self.size},), got {tuple(flat.shape)}")
        return {
            name: flat[start : start + prod(shape)].view(shape)
            for name, shape, start in zip(self.names, self.shapes, self.offsets, strict=True)
        }

    def copied(self, flat: Tensor, names: Sequence[str], device: torch.device) -> Weights:
        """Copies of some of the tensors in `flat`, on the device, in one buffer with all that lies between them.

        Each lies in its line of memory as in a vector that begins at a `LINE`. So a model that is run with these has
        the bits of one that is run with the vector.
        """
        own = set(names)
        starts = [offset for name, offset in zip(self.names, self.offsets, strict=True) if name in own]
        first = min(starts, default=0) // LINE * LINE  # elements, which are of a byte or more
        ends = {n: o + size for n, o, size in zip(self.names, self.offsets, self.sizes, strict=True)}
        part = aligned(flat[first : max((ends[name] for name in own), default=0)].to(device, copy=True))
        return {
            name: part[start - first : ends[name] - first].view(shape)
            for name, shape, start in zip(self.names, self.shapes, self.offsets, strict=True)
            if name in own
        }

    def digest(self) -> str:
        """A short hash of names, shapes, order and dtype."""
        text = repr((self.names, self.shapes, str(self.dtype)))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Partition:
    """Which parameters stay with the client, by shell patterns over parameter names (`encoder.block.0.*`).

    A pattern that begins with `!` takes out of its list what it matches; the last pattern that matches a name decides,
    and a list that begins with one of these begins with all names: `["!*lora_*"]` is everything but these.
    A name that is in both lists is frozen. Everything else is shared, but what is not trained anyhow (`fixed`).
    """

    private: tuple[str, ...] = ()
    """Trained by each client for itself, kept in its ClientState, never sent."""
    frozen: tuple[str, ...] = ()
    """Never trained, never sent; every rank builds the same from the seed or the pretrained file."""

    def split(self, names: Iterable[str], fixed: Collection[str] = ()) -> tuple[list[str], list[str], list[str]]:
        """(shared, private, frozen) names, each in the given order; none of those in `fixed`, which are not trained.

        Raises:
            ValueError: a pattern matches no name (a misspelt pattern would silently share everything), or one of
                `private` only such as are not trained.
        """
        names, untrained = list(names), set(fixed)
        for kind, patterns in (("private", self.private), ("frozen", self.frozen)):
            for pattern in patterns:
                found = [name for name in names if fnmatchcase(name, pattern.removeprefix(EXCEPT))]
                if not found:
                    raise ValueError(
                        f"`partition.{kind}` pattern {pattern!r} matches none of the {len(names)} parameters, "
                        f"such as {names[0] if names else '(none)'!r}; correct the pattern or remove it"
                    )
                if kind == "private" and untrained.issuperset(found):
                    raise ValueError(
                        f"`partition.{kind}` pattern {pattern!r} matches {len(found)} parameters, none of which is "
                        f"trained, such as {found[0]!r}; correct the pattern or remove it"
                    )
        names = [name for name in names if name not in untrained]
        frozen = [name for name in names if _matches(name, self.frozen)]
        taken = set(frozen)
        private = [name for name in names if name not in taken and _matches(name, self.private)]
        taken.update(private)
        return [name for name in names if name not in taken], private, frozen


EXCEPT = "!"
"""How a pattern begins that takes names out."""


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Does the last pattern that matches, or a first one that takes out, keep the name?"""
    keeps = bool(patterns) and patterns[0].startswith(EXCEPT)
    for pattern in patterns:
        if fnmatchcase(name, pattern.removeprefix(EXCEPT)):
            keeps = not pattern.startswith(EXCEPT)
    return keeps


def bind(layout: Layout, parameters: Mapping[str, Tensor], device: torch.device) -> Tensor:
    """A flat vector on the device with the values of a layout's parameters, whose storage its views become.

    One parameter after the other moves there, and its old memory is let go of, so that none is there twice.
    """
    flat = aligned(torch.empty(layout.size, dtype=layout.dtype, device=device))  # zeros would take all of it at once
    for name, view in layout.view(flat).items():
        view.copy_(parameters[name].detach())
        _lead(parameters[name], view)
    return flat


def keep_bound(layout: Layout, parameters: Mapping[str, Tensor], flat: Tensor) -> None:
    """Lead parameters back into the flat vector that they were bound to, where they have left it with its values.

    On a GPU an LSTM that is moved, even to where it is, has its weights copied into a vector of cuDNN's own.
    """
    for name, view in layout.view(flat).items():
        if parameters[name].data_ptr() != view.data_ptr():
            _lead(parameters[name], view)


def _lead(parameter: Tensor, view: Tensor) -> None:
    """Make the view's storage the parameter's."""
    if torch.__future__.get_swap_module_params_on_conversion():  # devices whose tensors are of another kind
        torch.utils.swap_tensors(parameter, nn.Parameter(view, requires_grad=parameter.requires_grad))
    else:
        parameter.data = view


def aligned(flat: Tensor) -> Tensor:
    """The vector itself if it begins at a `LINE`, or is not on a CPU; else a copy that does."""
    if flat.device.type != "cpu" or flat.data_ptr() % LINE == 0:
        return flat
    room = torch.empty(flat.numel() + LINE, dtype=flat.dtype)
    skipped = -room.data_ptr() % LINE // room.element_size()
    return room[skipped : skipped + flat.numel()].copy_(flat)


def release(module: nn.Module, names: Iterable[str]) -> None:
    """Let go of the values of these parameters, and of tensors tied to them; names, shapes and dtypes stay.

    They are on torch's meta device then, so that whoever computes with them gets an error.
    """
    empty = {
        id(held): nn.Parameter(torch.empty_like(held, device="meta"), requires_grad=held.requires_grad)
        for held in map(module.get_parameter, names)
    }
    for owner in module.modules():
        for key, held in list(owner._parameters.items()):
            if id(held) in empty:
                owner._parameters[key] = empty[id(held)]


def mapped(flat: Tensor, folder: Path) -> Tensor:
    """The flat CPU vector as one that the system reads from a file when it is looked at, and may drop again.

    The file has no name, so it goes with the tensor. `flat` itself where the disk is full.
    """
    if not flat.numel():
        return flat
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder) as file:
            Path(file.name).write_bytes(flat.numpy().data)  # numpy's tofile may be silent on a full disk
            return torch.from_file(file.name, shared=False, size=flat.numel(), dtype=flat.dtype)
    except OSError:
        return flat


def unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, contiguous, copied where two share memory, which safetensors refuses.

    Views of one buffer that do not overlap are no such two, and stay as they are.
    """
    taken: dict[int, list[tuple[int, int]]] = {}
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        start, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        ranges = taken.setdefault(tensor.untyped_storage().data_ptr(), [])
        overlaps = any(start < other_stop and other_start < stop for other_start, other_stop in ranges)
        found[name] = tensor.clone() if overlaps else tensor
        ranges.append((start, stop))
    return found


def sharing_memory(tensors: Mapping[str, Tensor], memory: Iterable[Tensor]) -> list[str]:
    """Names of the tensors that lie in the memory of one of the others, whatever part of it they are."""
    taken = {other.untyped_storage().data_ptr() for other in memory if other.numel()}
    return [name for name, each in tensors.items() if each.numel() and each.untyped_storage().data_ptr() in taken]


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """sha256 of the tensors' names and bytes, in name order; equal exactly when every bit is."""
    hasher = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        hasher.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        if tensor.numel():
            hasher.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def digest_of_entries(tensors: Mapping[str, Tensor]) -> bytes:
    """32 bytes that depend on every name and bit; those of two sets of entries together are the two combined by xor."""
    return xor(*(bytes.fromhex(digest_of({name: tensor})) for name, tensor in tensors.items()))


def xor(*digests: bytes) -> bytes:
    """32 bytes, bit by bit."""
    whole = 0
    for digest in digests:
        whole ^= int.from_bytes(digest, "big")
    return whole.to_bytes(32, "big")
