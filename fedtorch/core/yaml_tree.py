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


class _Loader(yaml.SafeLoader):
    """Composes nodes only; values are made by `_build`."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):  # also keeps out recursion and exponential growth
            line = self.peek_event().start_mark.line + 1
            raise _Refused(line, "an alias (`*name`) is not supported; write the value out or use a base file")
        return super().compose_node(parent, index)

    def fetch_flow_collection_start(self, token: Any) -> None:
        if self.flow_level >= _DEEPEST:  # the scanner takes the square of that, and looks ahead without an end
            raise _Refused(self.line + 1, "it is nested too deeply")
        super().fetch_flow_collection_start(token)


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
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            return None if node is None else _build(node, (), source, marks)
        finally:
            loader.dispose()
    except _Refused as error:
        raise ConfigError(f"{source}{f':{error.line}' if numbered else ''}: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark and numbered else ""
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{source}{line} is not valid YAML: {reason}") from error
    except RecursionError:
        raise ConfigError(f"{source} is nested too deeply") from None


def _build(node: yaml.Node, key: Key, source: str, marks: dict[Key, str]) -> Any:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
        found: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for name_node, value_node in node.value:
            name, name_line = str(name_node.value), name_node.start_mark.line + 1
            if not isinstance(name_node, yaml.ScalarNode):
                raise _Refused(name_line, "a key should be a single word")
            if name in found:
                path = ".".join(map(str, (*key, name)))
                raise _Refused(name_line, f"duplicate key `{path}`, first given in line {lines[name]}; remove one")
            lines[name] = name_line
            marks[(*key, name)] = f"{source}:{name_line}"
            found[name] = _build(value_node, (*key, name), source, marks)
        return found
    if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
        for index, item in enumerate(node.value):
            marks[(*key, index)] = f"{source}:{item.start_mark.line + 1}"
        return [_build(item, (*key, index), source, marks) for index, item in enumerate(node.value)]
    kind = node.tag.removeprefix(_TAG)
    if isinstance(node, yaml.ScalarNode):
        text = node.value
        if kind == "str":
            return text
        if kind in _SCALARS and re.fullmatch(_SCALARS[kind][0], text):
            try:
                return _scalar(kind, text.replace("_", ""))
            except ValueError as error:  # thousands of digits
                raise _Refused(line, str(error)) from None
    raise _Refused(line, f"the tag `{node.tag.replace(_TAG, '!!')}` is not supported; write a plain value")


def _scalar(kind: str, text: str) -> Any:
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    return int(text) if kind == "int" else float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
