"""The layers of a config: files with their bases, and `--set`, each laid over the ones before."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtorch.config.choices import SET, without_replaced
from fedtorch.config.find import find
from fedtorch.config.python_configs import plain_data
from fedtorch.config.registry import NAMED, named_class
from fedtorch.config.validate import at, check_text, field_names
from fedtorch.core.errors import ConfigError
from fedtorch.core.yaml_tree import Key, Tree, describe, merge, read, read_value

_LARGEST_BYTES = 1 << 20
_DEEPEST = 50


def read_file(path: Path, parents: tuple[Path, ...], known: dict[Path, Tree]) -> Tree:
    """The file over its base files; known: what was read already, as several files may have the same base."""
    place = path.resolve()
    if place in known:
        return known[place]
    if place in parents:
        chain = " -> ".join(os.path.relpath(p) for p in (*parents, place))
        raise ConfigError(f"base files form a cycle: {chain}; remove one `base`")
    if len(parents) > _DEEPEST:
        raise ConfigError(f"base file {path} is number {_DEEPEST + 1} in a chain of `base` lines; make it shorter")
    own = read(_text_of(path, "base" if parents else "config"), str(path))
    check_text(own)
    known[place] = _over_bases(own, path.parent, (*parents, place), known)
    return known[place]


def read_dict(given: Mapping[str, Any]) -> Tree:
    """Read what Python code gives in place of a file; relative paths under `base` count from the working directory."""
    own = Tree(plain_data(given, ""))
    check_text(own)
    return _over_bases(own, Path(), (), {})


def _over_bases(own: Tree, folder: Path, parents: tuple[Path, ...], known: dict[Path, Tree]) -> Tree:
    bases = own.data.pop("base", None)
    bases = [bases] if isinstance(bases, str) else bases or []
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(f"base{at(own, ('base',))} is {describe(bases)} but should be a list of file names")
    tree = Tree()
    for base in bases:
        file = find(Path(base), folder=folder, named_in=at(own, ("base",)))
        tree = overlay(tree, read_file(file, parents, known))
    return overlay(tree, own)


def _text_of(path: Path, kind: str) -> str:
    # a command's output, as bash hands it over, may be a config; what never ends, or never begins, is none
    if not path.is_file() and (kind == "base" or not path.is_relative_to("/dev")):
        raise ConfigError(f"{kind} file {path} is no ordinary file; give the path of one")
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
        if len(data) > _LARGEST_BYTES:
            raise ConfigError(f"{kind} file {path} has more than {_LARGEST_BYTES} bytes; is it a config?")
        return data.decode("utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{kind} file {path} cannot be read: {error}") from error


def read_override(override: str) -> Tree:
    name, equals, text = override.partition("=")
    keys = name.strip().split(".")
    source = f"{SET}{override.encode(errors='backslashreplace').decode()}"  # as messages and logs can take it
    if not equals or not all(keys):
        advice = "" if equals else "; the name of a config stands before --set"
        raise ConfigError(f"`{source}` should have the form `--set section.key=value`{advice}")
    if keys[0] == "base":
        raise ConfigError(f"`{source}`: base can only be given in a file")
    value = read_value(text, f"`{source}`")
    marks: dict[Key, str] = {tuple(keys[: n + 1]): source for n in range(len(keys))}
    for key in reversed(keys):
        value = {key: value}
    return Tree(value, marks)


def overlay(lower: Tree, upper: Tree) -> Tree:
    """`upper` over `lower`: mappings key by key; what belonged to a choice that `upper` makes otherwise is gone."""
    data = dict(lower.data)
    for section, (_, _, default) in NAMED.items():
        old, new = data.get(section), upper.data.get(section)
        if isinstance(old, dict) and isinstance(new, dict) and isinstance(new.get("name"), str):
            if new["name"] != old.get("name", default):
                known = field_names(named_class(section, new["name"], at(upper, (section, "name"))))
                data[section] = {key: value for key, value in old.items() if key in known}
    return Tree(merge(without_replaced(Tree(data, lower.marks), upper), upper.data), {**lower.marks, **upper.marks})
