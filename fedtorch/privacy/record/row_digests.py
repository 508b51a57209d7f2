"""Digests of rows, whatever a task makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fedtorch.privacy.digests import digest_of


def digest_of_rows(examples: Sequence[Any], units: Sequence[Sequence[int]]) -> bytes:
    """Digest all that a silo trains on, and whose it is."""
    return digest_of([*bytes_of(list(examples)), repr([list(unit) for unit in units]).encode()])


def bytes_of(value: Any) -> Iterator[bytes | memoryview]:
    """All that a row has, in one order."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        yield from (str((value.dtype, value.shape)).encode(), np.ascontiguousarray(value).view(np.uint8).data)
    elif is_dataclass(value) and not isinstance(value, type):
        for known in fields(value):
            yield from bytes_of(getattr(value, known.name))
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield from (repr(key).encode(), *bytes_of(value[key]))
    elif isinstance(value, list | tuple) and any(not isinstance(each, int | str) for each in value):
        yield repr((type(value).__name__, len(value))).encode()
        for each in value:
            yield from bytes_of(each)
    else:
        yield repr(value).encode()
