"""A model that no machine of this kind could hold is refused at its first tensor, not by the system's killer."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedtorch.core.errors import ConfigError

_MAKES = frozenset(f"aten::{name}" for name in ("empty", "zeros", "ones", "full", "rand", "randn"))


class WithinMemory(TorchDispatchMode):
    """Inside the block tensors are made until together they are larger than all memory of this machine.

    Freed ones count too, so the limit is twice that memory: it is for slips of the hand in widths and layers.

    Raises:
        ConfigError: they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.limit_bytes = 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func.name().partition(".")[0] in _MAKES and str(options.get("device")) != "meta":
            dtype = options.get("dtype") or torch.get_default_dtype()
            self.bytes += math.prod(args[0]) * dtype.itemsize
            if self.bytes > self.limit_bytes:
                raise ConfigError(
                    f"the model that `task` describes does not fit into this machine: with a tensor of {list(args[0])} "
                    f"it has come to {self.bytes / 2**30:.0f} GiB; lower its widths, layers or positions"
                )
        return func(*args, **options)
