"""The `exchange` section of a config: in how few bits clients' updates travel. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from fedtorch.core.errors import ConfigError

Rounding = Literal["chance", "nearest", "e3m0"]


@dataclass(frozen=True)
class ExchangeConfig:
    """`exchange`: how the numbers of a client's update travel to the server."""

    bits: Literal[32, 16, 4] = 32
    """Bits of each number. 32: as they are. 16: the nearest bfloat16, half the bytes. 4: whole numbers from -7 to 7 of
    a power of two that 4,096 neighbours share, two in a byte: an eighth of the bytes. What the server sends stays as it
    is."""
    rounding: Rounding | None = None
    """With 4 bits; null: by chance. chance: up or down by chance, so that the mean is the number itself; nearest: to
    the nearest; e3m0: to the nearest of 0 and seven powers of two, with their signs."""
    error_feedback: bool = False
    """With 16 and 4 bits. true: a client keeps what rounding has lost, and adds it to its next update: 4 bytes a number
    of state."""

    def __post_init__(self) -> None:
        if self.bits == 16 and self.rounding is not None:
            raise ConfigError(
                f"exchange.rounding is {self.rounding} but exchange.bits is 16, where numbers become the nearest "
                "bfloat16; remove exchange.rounding or set exchange.bits to 4"
            )
        for known in fields(self):
            value = getattr(self, known.name)
            if self.bits == 32 and value != known.default:
                raise ConfigError(
                    f"exchange.{known.name} is {str(value).lower()} but exchange.bits is 32, where nothing is rounded; "
                    f"remove exchange.{known.name} or set exchange.bits to 16 or 4"
                )
