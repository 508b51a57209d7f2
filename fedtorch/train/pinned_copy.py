"""Copies between the host's memory and a device, through page-locked memory where that pays: flat vectors, batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fedtorch.core import devices, kernels

WINDOW_BYTES = 4 << 20  # of page-locked memory, twice per engine


class PinnedCopier:
    """Copies for one engine; on the CPU plain ones.

    A GPU reads and writes page-locked memory only: from ordinary memory the driver copies piece by piece through a
    small buffer of its own, and nothing else goes on meanwhile. Page-locking every vector would lock much of the host's
    memory, so vectors pass through two page-locked windows: while the device moves one, the host fills or empties the
    other. One thread uses it, on the present stream.
    """

    def __init__(self, device: torch.device, *, windowed: bool | None = None, pin: bool = True) -> None:
        """windowed: None: on a GPU. pin: False only for tests without one."""
        self._device, self._pin = device, pin
        self._is_windowed = devices.is_gpu(device) if windowed is None else windowed
        self._windows: list[Tensor] = []  # in bytes; made at the first use
        self._moved: list[Any] = [None, None]  # when the device is done with each window

    @torch.no_grad()
    def upload(self, host: Tensor, device: Tensor) -> None:
        """Fill the flat `device` from `host`; later work on the device sees it, and `host` may be changed at once.

        Nothing is done where they are the same memory.
        """
        if host.data_ptr() == device.data_ptr() and len(host) == len(device):
            return
        if not self._is_windowed or host.device.type != "cpu" or host.dtype != device.dtype:
            _copy(host, device)
            return
        for slot, start, stop, window in self._cuts(device):
            self._wait(slot)
            window.copy_(host[start:stop])
            device[start:stop].copy_(window, non_blocking=self._pin)
            self._note(slot)

    @torch.no_grad()
    def download(self, device: Tensor, out: Tensor | None = None) -> Tensor:
        """A copy of the flat `device` in the host's memory, in `out` if it is given; complete when this returns."""
        device = device.detach()
        if not self._is_windowed or device.device.type != self._device.type:  # DeepSpeed's whole weights are here
            return device.clone() if out is None else out.copy_(device)
        out = torch.empty(device.shape, dtype=device.dtype) if out is None else out
        previous: tuple[int, int, int, Tensor] | None = None
        for cut in self._cuts(device):
            slot, start, stop, window = cut
            window.copy_(device[start:stop], non_blocking=self._pin)
            self._note(slot)
            if previous is not None:
                self._unload(out, *previous)
            previous = cut
        if previous is not None:
            self._unload(out, *previous)
        return out

    def _unload(self, out: Tensor, slot: int, start: int, stop: int, window: Tensor) -> None:
        self._wait(slot)
        out[start:stop].copy_(window)

    def _cuts(self, flat: Tensor) -> Iterator[tuple[int, int, int, Tensor]]:
        """(slot, start, stop, window) of the vector's parts; the windows take turns."""
        if not self._windows:
            self._windows = [devices.page_locked(WINDOW_BYTES, torch.uint8) for _ in range(2)]
        width = WINDOW_BYTES // flat.dtype.itemsize
        for place, start in enumerate(range(0, len(flat), width)):
            stop = min(start + width, len(flat))
            window = self._windows[place % 2][: (stop - start) * flat.dtype.itemsize].view(flat.dtype)
            yield place % 2, start, stop, window

    def _note(self, slot: int) -> None:
        """Note that the device is done with this window when it has done what was just begun."""
        if devices.is_gpu(self._device):
            self._moved[slot] = devices.noted(self._device, self._moved[slot])

    def _wait(self, slot: int) -> None:
        if (event := self._moved[slot]) is not None:
            event.synchronize()


def _copy(host: Tensor, device: Tensor) -> None:
    """Fill `device` without a window."""
    if host.device == device.device == torch.device("cpu") and host.dtype == device.dtype == torch.float32:
        kernels.copy(host.detach().numpy(), device.detach().numpy())
    else:
        device.copy_(host)


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor in it (through dicts, lists, tuples) on `device`."""
    if isinstance(batch, Tensor):
        return devices.lock_pages(batch, device).to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def check_ids(batch: Any, most: int) -> None:
    """Look at the numbers of every entry `..._ids` of a batch, on the CPU. most: rows of the model's largest table.

    Raises:
        IndexError: one of them is no row of it.
    """
    for key, ids in batch.items() if isinstance(batch, Mapping) else ():
        if key.endswith("_ids") and isinstance(ids, Tensor) and ids.numel() and ids.device.type == "cpu":
            least, largest = map(int, torch.aminmax(ids))
            if least < 0 or largest >= most:
                raise IndexError(f"{key} has the id {least if least < 0 else largest}; the model knows 0 to {most - 1}")
