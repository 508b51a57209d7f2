"""The code that a run executes: this package's files, and all files of others that its config names.

Whatever is here looks at files alone: nothing of the code that is asked about is imported or run.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from fedtorch.config.find import find
from fedtorch.core.errors import ConfigError
from fedtorch.core.version import PACKAGE, VERSION
from fedtorch.core.yaml_tree import read, read_value

_OWN = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):[A-Za-z_][\w.]*")
_OURS = ("fedtorch", "launchers")
_BUILT = ("*.so", "*.pyd")


@dataclass(frozen=True)
class Code:
    """Code with one digest."""

    what: str
    """Its files, in words."""
    digest: str
    """sha256:..., as a policy's `code` names it."""


def code_digest(*classes: Any) -> str:
    """sha256 of the package's source files and of the files that define `classes` (a user's algorithm or trainer).

    Files count as they were when these classes were first asked about.
    """
    return _code_digest(classes)


@lru_cache(maxsize=64)  # of megabytes, for every meeting of every run
def _code_digest(classes: tuple[Any, ...]) -> str:
    files: dict[str, bytes] = {}
    for cls in classes:
        module = __import__(cls.__module__, fromlist=["_"])
        if path := getattr(module, "__file__", None):
            files[f"{cls.__module__}:{cls.__qualname__}"] = Path(path).read_bytes()
    return (_hashed({"": _package_digest().encode(), **files}) if files else _package_digest())[:16]


def codes_of(configs: Sequence[Path], overrides: Sequence[str] = ()) -> list[Code]:
    """All code that a run of these configs executes: the package, what was built of it here, and files of others.

    The latter are those that a `module:Class`, a path of a Python file or a folder with such files in the config leads
    to, with all that lies beside them and that they import. Files of a base config count too where another layer
    replaces what it names, for they may be imported while the config is read.

    Raises:
        ConfigError: a config cannot be read.
    """
    ours = _package_files()
    found = [Code(f"fedtorch {VERSION}, {len(ours)} files", f"sha256:{_hashed(ours)}")]
    built = sorted(path for pattern in _BUILT for path in PACKAGE.rglob(pattern))
    found += [Code(f"{path.relative_to(PACKAGE)}, built on this machine", _digest(path)) for path in built]
    own = {path.resolve(): None for text in _texts(configs, overrides) for path in _files_of(text)}
    return found + [Code(os.path.relpath(path), _digest(path)) for path in sorted(own)]


def _hashed(files: Mapping[str, bytes]) -> str:
    hasher = hashlib.sha256()
    for name in sorted(files):
        hasher.update(name.encode() + b"\0" + files[name])  # Python refuses sources with such a byte
    return hasher.hexdigest()


def _digest(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


@cache
def _package_digest() -> str:
    return _hashed(_package_files())


def _package_files() -> dict[str, bytes]:
    return {path.relative_to(PACKAGE).as_posix(): path.read_bytes() for path in PACKAGE.rglob("*.py")}


def _texts(configs: Sequence[Path], overrides: Sequence[str]) -> Iterator[str]:
    """All strings in the layers of a config."""
    seen: set[Path] = set()
    for path in configs:
        yield from _strings(_layers(find(path), seen))
    for override in overrides:
        name, _, text = override.partition("=")
        yield from _strings(read_value(text, f"`--set {name}`"))


def _layers(path: Path, seen: set[Path]) -> list[Any]:
    """Contents of a config file and of its bases, each once."""
    if (place := path.resolve()) in seen:
        return []
    seen.add(place)
    try:
        data = read(path.read_text(encoding="utf-8"), str(path)).data
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} cannot be read: {error}") from error
    bases = data.pop("base", None)
    named = [base for base in (bases if isinstance(bases, list) else [bases]) if isinstance(base, str)]
    return [data, *(layer for base in named for layer in _layers(find(Path(base), folder=path.parent), seen))]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _files_of(text: str) -> Iterator[Path]:
    """The files with code that a string in a config leads to."""
    if (named := _OWN.fullmatch(text)) is not None and named[1].partition(".")[0] not in _OURS:
        yield from _imported(named[1])
    path = Path(text)
    try:
        if path.suffix == ".py" and path.is_file():
            yield from _beside(path.parent, [path])
        elif path.is_dir():
            yield from path.glob("*.py")
    except (OSError, ValueError):  # a text that is no path
        return


def _imported(module: str) -> Iterator[Path]:
    """Files of a module, found as an import finds them, and what they import of the same folder."""
    for root in dict.fromkeys([*map(Path, sys.path), Path.cwd()]):
        if found := _files_in(root, module):
            yield from _beside(root, found)
            return


def _files_in(root: Path, module: str) -> list[Path]:
    """A module's file below a folder, with those of the packages around it; none: it is not there."""
    parts = module.split(".")
    place = root.joinpath(*parts)
    last = next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)
    if last is None:
        return []
    around = [root.joinpath(*parts[:depth]) / "__init__.py" for depth in range(1, len(parts))]
    return [*(path for path in around if path.is_file()), last]


def _beside(root: Path, begun: Sequence[Path]) -> Iterator[Path]:
    """Files, and all below the same folder that they import, and so on."""
    found, left = dict[Path, None](), list(begun)
    while left:
        if (path := left.pop()) in found:
            continue
        found[path] = None
        for module in _imports(path, root):
            left += _files_in(root, module)
    yield from found


def _imports(path: Path, root: Path) -> Iterator[str]:
    """Names of all modules that a file may import; some are none, as `from x import y` may name a function."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    package = path.parent.relative_to(root).parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from filter(None, [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)])
