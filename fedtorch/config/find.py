"""From what stands behind `--config` or under `base` to files: a path, or the name of a config that is shipped.

A path that exists is taken, with or without `.yaml`. Else `<folder>/<name>`, such as `lorar/fedopt_lorar`,
`smoke/fedavg` or `overlays/zero2`, is a shipped config from whatever folder one calls: `rows`, `figures`, `tuning` and
`small`, into which a paper's configs are sorted, need not be named.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from fedtorch.core.errors import ConfigError
from fedtorch.core.version import PACKAGE

SORTED = ("rows", "figures", "tuning", "small")
"""Folders of a paper that a name leaves out; no name is in two of them."""

FORMER = {
    "deepspeed": "overlays",
    "defaults": "overlays",
    "defaults/fedassistant": "fedassistant/_base",
    "defaults/fedmatch": "fedmatch/_bert",
    "defaults/fedmatch_common": "fedmatch/_base",
    "defaults/fedparsing": "fedparsing/_base",
    "defaults/fedparsing_teacher": "fedparsing/_base",
    "defaults/fewfedweight": "fewfedweight/_base",
    "defaults/lorar": "lorar/_federated",
    "defaults/lorar_common": "lorar/_base",
    "defaults/smoke": "smoke/_base",
    "defaults/smoke_bert": "smoke/_bert",
    "defaults/smoke_dialog": "smoke/_dialog",
    "defaults/smoke_qa": "smoke/_qa",
    "fedmatch/sweeps": "fedmatch/figures",
}
"""Folders and names that are no longer taken -> what holds the same values, for the error."""


def shipped() -> Path:
    """The folder of the configs that come with the package: inside it where it is installed, beside it in a clone."""
    inside = PACKAGE / "configs"
    return inside if inside.is_dir() else PACKAGE.parent / "configs"


def find(given: Path, *, folder: Path | None = None, named_in: str = "") -> Path:
    """Find the file of one config.

    folder: of the file whose `base` this is, from which relative paths count; None on a command line, where they
    count from the working directory. named_in: the place of that `base`, for messages.

    Raises:
        ConfigError: there is no such file and no such name, or several files have the name.
    """
    path = given if folder is None else Path(os.path.normpath(folder / given))
    for file in (path, path.parent / f"{path.name}.yaml"):
        if os.path.exists(file) and not file.is_dir():
            return file
    name = _name(given, folder)
    if (named := _named(name)) is not None:
        return named
    what = f"config file {path}" if folder is None else f"base file {path}{named_in}"
    if path.is_dir() or (name and (shipped() / name).is_dir()):
        raise ConfigError(f"{what} is a folder; name one of the files in it")
    raise ConfigError(
        f"{what} does not exist, and no config of that name is in {shipped()}; {_advice(name or path.name)}"
    )


def find_all(given: Path) -> list[Path]:
    """List a sweep's configs: of a folder, by path or name, all (of a paper's its `rows`), else `given` itself.

    Files whose name begins with `_` hold what others share, and are left out.

    Raises:
        ConfigError: nothing is there, or the folder holds no config.
    """
    name = _name(given)
    place = given if given.is_dir() or not name else shipped() / name
    if given.is_file() or _named(name) is not None or not place.is_dir():
        find(given)
        return [given]
    place = place / "rows" if (place / "rows").is_dir() else place
    if found := sorted(place.glob("[!_]*.yaml")):
        return found
    raise ConfigError(f"{given} is a folder without a .yaml file")


def run_name(given: Path) -> str:
    """Name of a run whose config does not say it: the config's name, without folder and `.yaml`."""
    return given.stem if given.is_file() else given.name.removesuffix(".yaml")


def names() -> list[str]:
    """Every shipped config that can be run or laid over another, as `find` takes it."""
    root = shipped()
    files = [path.relative_to(root) for path in root.glob("*/**/[!_]*.yaml")]
    return sorted(f"{file.parts[0]}/{file.stem}" for file in files)


def _name(given: Path, folder: Path | None = None) -> str:
    """Name of the path among the shipped configs; empty for one that can only be a path."""
    whole, root = (Path(os.path.abspath(path)) for path in ((folder or Path()) / given, shipped()))
    if whole.is_relative_to(root):
        parts = whole.relative_to(root).parts
    else:
        parts = given.parts[1:] if given.parts[:1] == ("configs",) else given.parts
    return "" if given.anchor in parts or ".." in parts else "/".join(parts).removesuffix(".yaml")


def _named(name: str) -> Path | None:
    """The file of a shipped config; None if nothing has that name."""
    folder, _, stem = name.rpartition("/")
    if not folder or not stem:
        return None
    found = [file for part in ("", *SORTED) if (file := shipped() / folder / part / f"{stem}.yaml").is_file()]
    if len(found) > 1:
        raise ConfigError(f"two configs are called {name}: {found[0]} and {found[1]}; give the path of one")
    return found[0] if found else None


def _now(name: str) -> str:
    """Name the config that stands for one that is no longer taken; empty for any other."""
    folder, _, stem = name.removesuffix(".yaml").rpartition("/")
    new = FORMER.get(f"{folder}/{stem}") or (f"{FORMER[folder]}/{stem}" if folder in FORMER else "")
    if not new and stem.startswith("real_small_"):
        row = f"{folder}/{stem.removeprefix('real_small_')}"
        return f"{row} overlays/{folder}_small" if _named(row) and _named(f"overlays/{folder}_small") else ""
    return new if _named(new) else ""


def _advice(name: str) -> str:
    if new := _now(name):
        return f"it is `{new}` now"
    by_stem: dict[str, list[str]] = {}
    for known in names():
        by_stem.setdefault(known.rpartition("/")[2], []).append(known)
    stem = name.rpartition("/")[2].removesuffix(".yaml")
    near = by_stem.get(stem) or (get_close_matches(name, names(), 3) if "/" in name else [])
    near = near or [known for other in get_close_matches(stem, by_stem, 1) for known in by_stem[other]]
    if near:
        return f"did you mean {' or '.join(f'`{known}`' for known in near[:3])}?"
    return "give the path of a file, or a name such as `smoke/fedavg`"
