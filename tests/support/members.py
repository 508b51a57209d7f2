"""What a class offers to those who use it: its public members with their signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Protocol


def signatures(cls: type) -> dict[str, str]:
    """Public member -> `name: type` of a field or property, `name(arguments) -> type` of a method.

    Annotations as they stand in the source, which every module of ours keeps as text.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base in (object, Protocol) or base.__module__ in ("typing", "collections.abc"):
            continue
        for name, kind in inspect.get_annotations(base).items():
            found[name] = f"{name}: {kind}"
        for name, member in vars(base).items():
            if shown := _shown(name, member):
                found[name] = shown
    return {name: text for name, text in found.items() if not name.startswith("_")}


def _shown(name: str, member: Any) -> str:
    if isinstance(member, property | cached_property):
        getter: Any = member.fget if isinstance(member, property) else member.func
        return f"{name}: {inspect.get_annotations(getter)['return']}"
    if isinstance(member, classmethod | staticmethod):
        member = member.__func__
    if not inspect.isfunction(member):
        return ""
    return f"{name}({', '.join(_arguments(member))}) -> {inspect.get_annotations(member).get('return')}"


def _arguments(function: Callable[..., Any]) -> Iterator[str]:
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]
    is_starred = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not is_starred:
            is_starred = True
            yield "*"
        is_starred |= parameter.kind is parameter.VAR_POSITIONAL
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        yield f"{stars}{parameter.name}: {parameter.annotation}{default}"
