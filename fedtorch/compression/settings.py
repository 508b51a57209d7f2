"""The `exchange` section of a config: in how few bits clients' updates travel. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from fedtorch.core.errors import ConfigError

Rounding = Literal["chance", "nearest", "e3m0"]


@dataclass(frozen=True)
class ExchangeConfig:
    """`exchange`: how the numbers of a client's update travel to the server."""

    bits: Literal[32, 4] = 32
    """Of each number. 32: as they are. 4: whole numbers from -7 to 7 of a power of two that 4,096 neighbours share,
    two in a byte: an eighth of the bytes. What the server sends stays as it is."""
    rounding: Literal["chance", "nearest", "e3m0"] = "chance"
    """With 4 bits. chance: up or down by chance, so that the mean is the number itself; nearest: to the nearest; e3m0:
    to the nearest of 0 and seven powers of two, with their signs."""
    error_feedback: bool = False
    """With 4 bits. true: a client keeps what rounding has lost, and adds it to its next update: 4 bytes a number of
    state."""

    def __post_init__(self) -> None:
        for known in fields(self):
            value = getattr(self, known.name)
            if self.bits == 32 and value != known.default:
                raise ConfigError(
                    f"exchange.{known.name} is {str(value).lower()} but exchange.bits is 32, where nothing is rounded; "
                    f"remove exchange.{known.name} or set exchange.bits to 4"
                )
