"""Values against a dataclass: an instance, or messages that say what is wrong, where it was written and what fits."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import LARGEST
from fedtorch.core.yaml_tree import Key, Tree, describe


def validate(cls: Any, values: dict[str, Any], prefix: Key, tree: Tree) -> tuple[Any, list[str]]:
    """An instance of `cls`, or None with one line for each thing that is wrong.

    null in place of a mapping of names clears it, and in place of an entry drops that one, unless the field has a use
    for null: so a layer can take back what a lower one has.
    """
    values = _cleared(cls, values)
    try:
        # As JSON: in pydantic's strict mode that is where mappings become dataclasses and lists become tuples.
        return _adapter(cls).validate_json(json.dumps([values]))[0], []
    except ValidationError as error:
        found = [(_path(e["loc"][1:], values, e["type"]), e) for e in error.errors(include_url=False)]
    except RecursionError:
        return None, [f"{'.'.join(map(str, prefix)) or 'the config'} is nested too deeply"]
    numbers = {key: float(e["input"]) for key, e in found if e["type"] == "float_type" and _is_number(e["input"])}
    if numbers:  # quoted numbers
        for key, number in numbers.items():
            values = _put(values, key, number)
        return validate(cls, values, prefix, tree)
    grouped: dict[Key, list[Any]] = {}
    for key, details in found:
        grouped.setdefault(key, []).append(details)
    return None, [_explain(cls, prefix, key, group, tree) for key, group in grouped.items()]


def check_text(tree: Tree) -> None:
    """No name and no value has a character that no file, log or message can take.

    Raises:
        ConfigError: one has NUL, or half of a surrogate pair.
    """
    for key, text in _texts(tree.data, ()):
        strange = next((char for char in text if char == "\0" or "\ud800" <= char <= "\udfff"), None)
        if strange is not None:
            kind = "NUL" if strange == "\0" else "half of a surrogate pair"
            name = ascii(".".join(map(str, key)))[1:-1]
            raise ConfigError(f"{name} has {kind} in it{at(tree, key)}; remove that character")


def _texts(value: Any, key: Key) -> Iterator[tuple[Key, str]]:
    """(where, text) of every string and key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield (*key, name), str(name)
            yield from _texts(item, (*key, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*key, index))


def _cleared(kind: Any, value: Any) -> Any:
    """`value` of annotation `kind` without the nulls that clear mappings or drop their entries."""
    options = _options(kind)
    if value is None:
        return None if type(None) in options or not any(map(_is_mapping, options)) else {}
    if not isinstance(value, dict):
        return value
    if sections := dataclasses_in(kind):
        hints = [hints_of(section) for section in sections]
        return {key: _cleared(next((h[key] for h in hints if key in h), None), item) for key, item in value.items()}
    if args := next((typing.get_args(option) for option in options if _is_mapping(option)), ()):
        nullable = any(option in (type(None), Any) for option in _options(args[1]))
        return {key: _cleared(args[1], item) for key, item in value.items() if item is not None or nullable}
    return value


@lru_cache
def hints_of(cls: Any) -> dict[str, Any]:
    """Field -> annotation of a dataclass; none where one of them names what does not exist."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except NameError:  # reported where the adapter is made
        return {}


def _options(kind: Any) -> list[Any]:
    """`kind`, or the members of a union, without annotations around them."""
    if typing.get_origin(kind) is typing.Annotated:
        return _options(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [option for member in typing.get_args(kind) for option in _options(member)]
    return [kind]


def _is_mapping(kind: Any) -> bool:
    return kind is dict or typing.get_origin(kind) in (dict, Mapping)


@lru_cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    rules = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    try:  # a list around it, because pydantic takes no settings from outside for a dataclass that stands alone
        return TypeAdapter(list[cls], config=rules)
    except (PydanticUserError, NameError) as error:
        raise ConfigError(f"the fields of {cls.__module__}:{cls.__qualname__} cannot be checked: {error}") from error


def _explain(cls: Any, prefix: Key, key: Key, errors: list[Any], tree: Tree) -> str:
    first, where = errors[0], (*prefix, *key)
    name = ".".join(map(str, where))
    if first["type"] == "unexpected_keyword_argument":
        return unknown(cls, key, tree, prefix)
    if first["type"] == "missing":
        return f"{name} is not given{at(tree, where)} but is required; add it"
    if first["type"] in ("value_error", "assertion_error"):  # from a `__post_init__`
        reason, mark = str(first["ctx"]["error"]), tree.where(where)
        lead = "" if not name or f"{name}." in reason else f"{name}: "
        return f"{lead}{reason}" + (f" ({mark})" if mark else "")
    kind = _type_at(cls, key)
    expected = _expected(kind) if kind is not None else first["msg"]
    if first["type"] == "less_than_equal" and first["ctx"]["le"] == LARGEST:
        expected += f" and at most {LARGEST}"
    return wrong(where, first["input"], expected, tree)


def unknown(cls: Any, key: Key, tree: Tree, prefix: Key = ()) -> str:
    known = [name for section in dataclasses_in(_type_at(cls, key[:-1])) for name in field_names(section)]
    where = (*prefix, *key)
    return f"unknown key `{'.'.join(map(str, where))}`{at(tree, where)}; {nearest(str(key[-1]), known)}"


def wrong(key: Key, value: Any, expected: str, tree: Tree) -> str:
    return f"{'.'.join(map(str, key))} is {describe(value)}{at(tree, key)} but should be {expected}"


def nearest(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f"did you mean `{near[0]}`?" if near else f"choose one of {', '.join(known)}" if known else "remove it"


def at(tree: Tree, key: Key) -> str:
    where = tree.where(key)
    return f" in {where}" if where else ""


def _expected(kind: Any) -> str:
    """Say in words what a field's annotation allows."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
        limits = [m for item in args[1:] for m in getattr(item, "metadata", [item])]
        pairs = [(n, getattr(m, n)) for m in limits for n in words if getattr(m, n, None) is not None]
        found = [f"{words[name]} {limit:g}" for name, limit in pairs if limit != LARGEST]
        return _expected(args[0]) + (f" {' and '.join(found)}" if found else "")
    if origin is typing.Literal:
        return " or ".join(str(value) or "empty" for value in args)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_expected(arg) for arg in args)
    if origin in (tuple, list, frozenset, set) or kind in (tuple, list):
        if origin is tuple and args and args[-1] is not ...:
            return f"a list of {len(args)}: " + ", ".join(_expected(arg) for arg in args)
        return "a list" + (f" of items that are each {_expected(args[0])}" if args else "")
    if origin is dict or kind is dict or dataclasses.is_dataclass(kind):
        return "a mapping"
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false", Path: "a path"}
    return "null" if kind in (None, type(None)) else names.get(kind, getattr(kind, "__name__", str(kind)))


def _type_at(kind: Any, key: Key) -> Any:
    """The annotation of the field at `key` below `kind`; None where that cannot be told."""
    for part in key:
        sections = dataclasses_in(kind)
        if sections:
            hints = [typing.get_type_hints(section, include_extras=True) for section in sections]
            kind = next((hint[str(part)] for hint in hints if str(part) in hint), None)
        elif typing.get_origin(kind) in (list, tuple, dict):
            args = [arg for arg in typing.get_args(kind) if arg is not ...]
            fixed = typing.get_origin(kind) is tuple and isinstance(part, int) and part < len(args)
            kind = args[part] if fixed and isinstance(part, int) else args[-1]
        else:
            return None
    return kind


def dataclasses_in(kind: Any) -> list[Any]:
    """`kind` itself, or the dataclasses in a union or annotation."""
    if typing.get_origin(kind) in (typing.Annotated, typing.Union, types.UnionType):
        return [found for option in typing.get_args(kind) for found in dataclasses_in(option)]
    return [kind] if isinstance(kind, type) and dataclasses.is_dataclass(kind) else []


def _path(location: Sequence[str | int], values: Any, kind: str) -> Key:
    """pydantic's location without the names of union members that it puts in."""
    key: list[str | int] = []
    for place, part in enumerate(location, 1):
        if isinstance(values, dict) and part in values:
            values = values[part]
        elif isinstance(values, list) and isinstance(part, int) and part < len(values):
            values = values[part]
        elif not (kind == "missing" and place == len(location)):
            continue
        key.append(part)
    return tuple(key)


def field_names(cls: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(cls) if field.init and not field.metadata.get("hidden")]


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        return False


def _put(values: Any, key: Key, value: Any) -> Any:
    """A copy of nested `values` with `value` at `key`."""
    if not key:
        return value
    copy = values.copy()
    copy[key[0]] = _put(values[key[0]], key[1:], value)
    return copy
