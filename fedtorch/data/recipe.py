"""Common part of the recipes of `fedtorch data prepare`: digests of the sources, and writing a folder once."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from fedtorch.core.errors import DataError
from fedtorch.data.folder import atomic_folder, read_manifest
from fedtorch.data.json_file import read_bytes


class Recipe(NamedTuple):
    """How the command line prepares one data set."""

    about: str
    """a line for the help"""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    """adds the data set's own options to the command's parser"""
    run: Callable[[argparse.Namespace], Mapping[str, Any]]
    """prepares as the arguments say and returns the manifest"""


def synthetic_recipe(about: str, module: str) -> Recipe:
    """Recipe of a set that the package makes itself: `module` has `prepare(out, seed=...)`, imported when it is run."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same data (0)")

    def run(args: argparse.Namespace) -> Mapping[str, Any]:
        import_module(module).prepare(args.out, seed=args.seed)
        return read_manifest(args.out)

    return Recipe(about, add_arguments, run)


def prepare_once(out: Path, options: Mapping[str, Any], write: Callable[[Path], None]) -> dict[str, Any]:
    """The manifest of `out`, which `write` makes (in a temporary folder) unless it was prepared with these options.

    Several processes may call it at once: the slower ones keep the folder of the first.

    Raises:
        DataError: `out` was prepared with other options, or is no prepared folder.
    """
    if not is_prepared(out, options):
        with atomic_folder(out) as folder:
            write(folder)
        is_prepared(out, options)  # another process may have been faster, with other options
    return read_manifest(out)


def digests(files: Sequence[Path], expected: str, *, root: Path | None = None) -> dict[str, str]:
    """File name, or path below `root`, -> first 16 digits of its sha256.

    Raises:
        DataError: a file is missing; `expected` says what `--raw` must be.
    """
    found = {}
    for path in files:
        if not path.is_file():
            raise DataError(f"{path} is missing; --raw must be {expected}")
        name = path.name if root is None else path.relative_to(root).as_posix()
        found[name] = hashlib.sha256(read_bytes(path, f"--raw must be {expected}")).hexdigest()[:16]
    return found


def is_prepared(out: Path, options: Mapping[str, Any]) -> bool:
    """Whether `out` is a folder prepared with these options; False if it is absent or empty.

    Raises:
        DataError: it was prepared with other ones, or is no prepared folder.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    found = read_manifest(out)["record"].get("options", {})
    changed = sorted(key for key in {*found, *options} if found.get(key) != options.get(key))
    if changed:
        raise DataError(f"{out} was prepared before with other {', '.join(changed)}; remove it or choose another --out")
    return True
