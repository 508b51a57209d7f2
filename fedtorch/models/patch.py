"""Which private patch of FedMatch, and where in a BERT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import Count


@dataclass(frozen=True)
class Patch:
    """Which patch, and where (FedMatch): V^D g(V^E h), with h a layer's or sub-layer's input or output."""

    insertion: Literal["inner", "outer", "vertical", "horizontal"] = "horizontal"
    """inner: on what attention and feed-forward put out; outer: beside them; vertical: on top of the last layer;
    horizontal: beside every layer, or beside the whole encoder"""
    structure: Literal["lr", "pal"] = "lr"
    """low-rank (two linear maps around a GELU), or projected attention"""
    size: Count = 128
    """width d_s of the patch"""
    heads: Count = 6
    """attention heads of pal, of which `size` must be a multiple"""
    inner_skip: bool = True
    """inner: x + Patch(x) instead of Patch(x), which near zero would wipe out the pre-trained function"""
    scope: Literal["layer", "encoder"] = "layer"
    """horizontal: a patch beside each layer, or one beside the whole encoder: LN'(BERT(e) + Patch(e))"""
    position: Literal["outside_ln", "inside_ln"] = "outside_ln"
    """horizontal, scope layer: add to the layer's output, or before its last LayerNorm"""
    pal_share_projections: bool = True
    """pal: one V^E, V^D for all layers (inner, outer: one for attention, one for feed-forward), or one in each"""

    def __post_init__(self) -> None:
        if self.structure == "pal" and self.size % self.heads:
            below = self.size - self.size % self.heads
            near = [size for size in (below, below + self.heads) if size]
            raise ConfigError(
                f"patch.size is {self.size}, which is not a multiple of patch.heads, {self.heads}, as structure pal "
                f"needs; set it to {' or '.join(map(str, near))}, or change the heads"
            )
        horizontal = self.insertion == "horizontal"
        _only(self.inner_skip or self.insertion == "inner", "inner_skip", "false", "insertion inner")
        _only(self.scope == "layer" or horizontal, "scope", self.scope, "insertion horizontal")
        _only(
            self.position == "outside_ln" or (horizontal and self.scope == "layer"),
            "position",
            self.position,
            "insertion horizontal with scope layer",
        )


def _only(holds: bool, key: str, value: str, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"patch.{key} is {value}, which only {wanted} knows; remove the key or change the insertion")
