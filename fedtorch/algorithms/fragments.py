"""Parts of a model that are exchanged in turn: each parameter in exactly one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

from fedtorch.core.errors import ConfigError
from fedtorch.core.places import Places
from fedtorch.core.ranges import Count
from fedtorch.core.weights import Layout

_LAYER = re.compile(r"(?:.*?\.)?\d+(?=\.|$)")


@dataclass(frozen=True)
class ByLayers:
    """Fragments of so many layers; what is in no layer (embeddings, a head) is in the last one."""

    layers: Count = 3
    """layers of a fragment; the last may have fewer"""
    pattern: Literal["strided", "sequential"] = "strided"
    """strided: of L layers in P fragments, fragment p has the layers p, p + P, p + 2P, ...; sequential: neighbours"""


Fragments = tuple[tuple[str, ...], ...] | ByLayers
"""Shell patterns over parameter names, one tuple for each fragment; or a rule."""


@lru_cache(maxsize=8)
def names_of(fragments: Fragments, names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The parameters of each fragment.

    Raises:
        ConfigError: a parameter is in no fragment or in two, or a fragment has none.
    """
    if isinstance(fragments, ByLayers):
        return _by_layers(fragments, names)
    found = [tuple(n for n in names if any(fnmatchcase(n, p) for p in patterns)) for patterns in fragments]
    for number, part in enumerate(found, start=1):
        if not part:
            raise ConfigError(
                f"algorithm.fragments: no parameter fits a pattern of fragment {number} "
                f"({', '.join(fragments[number - 1])}); correct it, names look like `{names[0]}`"
            )
    counts = Counter(name for part in found for name in part)
    for name in names:
        if counts[name] != 1:
            where = "no fragment" if not counts[name] else f"{counts[name]} fragments"
            raise ConfigError(
                f"algorithm.fragments: the parameter `{name}` is in {where}; each belongs in exactly one, so change "
                "the patterns"
            )
    return tuple(found)


def _by_layers(rule: ByLayers, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    layers = list(dict.fromkeys(layer for name in names if (layer := _layer_of(name))))
    if not layers:
        raise ConfigError(
            f"algorithm.fragments goes by layers but no parameter's name has a layer's number, such as `{names[0]}`; "
            "give lists of patterns, such as [[encoder.*], [decoder.*]]"
        )
    count = -(-len(layers) // rule.layers)
    strided = {layer: place % count for place, layer in enumerate(layers)}
    sequential = {layer: place // rule.layers for place, layer in enumerate(layers)}
    part = strided if rule.pattern == "strided" else sequential
    of = {name: part.get(_layer_of(name), count - 1) for name in names}
    return tuple(tuple(name for name in names if of[name] == number) for number in range(count))


def _layer_of(name: str) -> str:
    """The beginning of a parameter's name up to the first number in it; empty where it has none."""
    match = _LAYER.match(name)
    return match[0] if match else ""


def place_of(fragments: Fragments, layout: Layout, round: int) -> int:
    """Number of the fragment that a round (from 0) exchanges.

    Raises:
        ConfigError: see `names_of`.
    """
    return round % len(names_of(fragments, layout.names))


@lru_cache(maxsize=64)
def places_of(fragments: Fragments, layout: Layout, number: int) -> Places | None:
    """The numbers of a fragment; None: all there are.

    Raises:
        ConfigError: see `names_of`.
    """
    parts = names_of(fragments, layout.names)
    return None if len(parts) == 1 else Places.of_names(layout, parts[number])
