"""YAML text as plain nested data that remembers where each key was written.

A small and safe part of YAML 1.2: mappings, lists and the scalars null, true/false, integers, floats and strings.
`1e-3` is a float, `off` and `yes` are strings, keys are always strings. Duplicate keys, anchors and tags are errors.
"""

from __future__ import annotations

import math
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedtorch.core.errors import ConfigError

Key = tuple[str | int, ...]

_DEEPEST = 100
_PLAINER = {"found invalid Unicode character escape code": "a code such as \\ud800 is half of a surrogate pair"}
_TAG = "tag:yaml.org,2002:"
_SCALARS = {
    "null": (r"~|null|Null|NULL|", [*"~nN", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*)", list("-+0123456789")),
    "float": (
        r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)|[-+]?(?:[0-9][0-9_]*\.[0-9_]*"
        r"|\.[0-9][0-9_]*)|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
}


class _Loader(yaml.CBaseLoader if yaml.__with_libyaml__ else yaml.BaseLoader):  # type: ignore[misc]
    """Reads events only; values are made by `_value`. PyYAML mostly has libyaml, which takes a ninth of the time."""

    yaml_implicit_resolvers: dict[str, Any] = {}


class _Dumper(yaml.SafeDumper):
    """Quotes exactly the strings that `_Loader` would take for something else."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _class in (_Loader, _Dumper):
    for _kind, (_pattern, _first) in _SCALARS.items():
        _class.add_implicit_resolver(_TAG + _kind, re.compile(rf"^(?:{_pattern})$"), _first)


class _Refused(Exception):
    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


@dataclass
class Tree:
    """Nested data that remembers where it was written."""

    data: dict[str, Any] = field(default_factory=dict)
    """Mappings, lists and scalars."""
    marks: dict[Key, str] = field(default_factory=dict)
    """Key path (names and list indices) -> the `file:line` or `--set` that gave it."""

    def where(self, key: Key) -> str:
        """Where `key`, or else the nearest section around it, was written; empty if nowhere."""
        while key and key not in self.marks:
            key = key[:-1]
        return self.marks.get(key, "")


def read_file(path: Path, what: str, most: int = 1 << 20) -> tuple[Tree, bytes]:
    """Parse a file of at most so many bytes; the content beside what it says. what: the setting that names the file.

    Raises:
        ConfigError: it is no such file, or cannot be parsed.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a FIFO would wait for a writer
            raise ConfigError(f"{what} is {path}, which is no regular file")
        if status.st_size > most:
            raise ConfigError(f"{what} is {path}, which has {status.st_size} bytes; expected at most {most}")
        content = path.read_bytes()
        return read(content.decode(), str(path)), content
    except OSError as error:
        raise ConfigError(f"{what} is {path}, which cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{what} is {path}, which is no text in UTF-8") from None


def read(text: str, source: str) -> Tree:
    """Parse one document, a mapping; an empty one gives an empty tree.

    Raises:
        ConfigError: not YAML, not a mapping, a duplicate key (with both lines), an alias or a tag.
    """
    tree = Tree()
    value = _parse(text, source, tree.marks, numbered=True)
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{source} holds {describe(value)} but should hold `key: value` lines")
    tree.data = value or {}
    return tree


def read_value(text: str, source: str) -> Any:
    """Parse one value, such as the right-hand side of `--set`."""
    return _parse(text, source, {}, numbered=False)


def write(data: Any) -> str:
    """YAML that `read` turns into equal data; mappings keep their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def write_value(value: Any) -> str:
    """Write a value so that `read_value` gives an equal one: one line, but for texts with line breaks."""
    text = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf, default_flow_style=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


def merge(lower: Any, upper: Any) -> Any:
    """`upper` over `lower`: mappings key by key, anything else (lists, null) replaces. Neither is changed."""
    if not (isinstance(lower, dict) and isinstance(upper, dict)):
        return upper
    return {key: merge(lower.get(key), upper[key]) if key in upper else lower[key] for key in {**lower, **upper}}


def describe(value: Any) -> str:
    """A value as it should appear in a message: short, with its kind where that is not obvious."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _parse(text: str, source: str, marks: dict[Key, str], *, numbered: bool) -> Any:
    try:
        text.encode()
        loader = _Loader(text)
        try:
            return _document(loader, source, marks)
        finally:
            loader.dispose()
    except _Refused as error:
        raise ConfigError(f"{source}{f':{error.line}' if numbered else ''}: {error}") from None
    except UnicodeEncodeError as error:
        raise ConfigError(f"{source} is not valid YAML: it has {text[error.start]!r}, which is no character") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark and numbered else ""
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{source}{line} is not valid YAML: {_PLAINER.get(reason, reason)}") from error


def _document(loader: Any, source: str, marks: dict[Key, str]) -> Any:
    """The value of the only document; None where there is none."""
    loader.get_event()  # the stream begins
    value = None
    if not loader.check_event(yaml.StreamEndEvent):
        loader.get_event()
        value = _value(loader, loader.get_event(), (), source, marks)
        loader.get_event()
        if not loader.check_event(yaml.StreamEndEvent):
            raise _Refused(loader.peek_event().start_mark.line + 1, "a second document begins here; expected one")
    return value


def _value(loader: Any, event: Any, key: Key, source: str, marks: dict[Key, str]) -> Any:
    line = event.start_mark.line + 1
    if isinstance(event, yaml.AliasEvent):  # also keeps out recursion and exponential growth
        raise _Refused(line, "an alias (`*name`) is not supported; write the value out or use a base file")
    if len(key) > _DEEPEST:
        raise _Refused(line, "it is nested too deeply")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(loader.resolve(yaml.ScalarNode, event.value, event.implicit), event, line)
    kind = "map" if isinstance(event, yaml.MappingStartEvent) else "seq"
    if event.tag not in (None, "!", _TAG + kind):
        raise _Refused(line, _no_tag(event.tag))
    if kind == "map":
        return _mapping(loader, key, source, marks)
    items: list[Any] = []
    while not isinstance(event := loader.get_event(), yaml.SequenceEndEvent):
        marks[(*key, len(items))] = f"{source}:{event.start_mark.line + 1}"
        items.append(_value(loader, event, (*key, len(items)), source, marks))
    return items


def _mapping(loader: Any, key: Key, source: str, marks: dict[Key, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    lines: dict[str, int] = {}
    while not isinstance(event := loader.get_event(), yaml.MappingEndEvent):
        line = event.start_mark.line + 1
        if not isinstance(event, yaml.ScalarEvent):
            raise _Refused(line, "a key should be a single word")
        name = str(event.value)
        if name in found:
            path = ".".join(map(str, (*key, name)))
            raise _Refused(line, f"duplicate key `{path}`, first given in line {lines[name]}; remove one")
        lines[name] = line
        marks[(*key, name)] = f"{source}:{line}"
        found[name] = _value(loader, loader.get_event(), (*key, name), source, marks)
    return found


def _no_tag(tag: str) -> str:
    return f"the tag `{tag.replace(_TAG, '!!')}` is not supported; write a plain value"


def _scalar(resolved: str, event: Any, line: int) -> Any:
    """The value of a text; resolved: the tag that it has by itself, where it was given none."""
    tag = resolved if event.tag in (None, "!") else event.tag
    kind, text = tag.removeprefix(_TAG), event.value
    if kind == "str":
        return text
    if kind not in _SCALARS or not re.fullmatch(_SCALARS[kind][0], text):
        raise _Refused(line, _no_tag(tag))
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    try:
        plain = text.replace("_", "").lower()
        return int(plain) if kind == "int" else float(plain.replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError as error:  # thousands of digits
        raise _Refused(line, str(error)) from None
