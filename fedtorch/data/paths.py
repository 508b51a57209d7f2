"""Names and places on disk: what may name a client, its folder, and folders that appear complete or not at all."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import shutil
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedtorch.core.errors import DataError
from fedtorch.core.names import folded, look_alikes

RESERVED = frozenset({"manifest.json", "tokenizer", "public"})  # used beside the clients' folders
LONGEST_NAME = 100
SAFE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")

_log = logging.getLogger(__name__)


def check_client_name(name: str) -> str:
    """Returns `name` if it can name a client, in a config, a log and (through `folder_name`) on a disk.

    Raises:
        DataError: empty, longer than 100 characters, with `/`, `\\`, `..`, blanks at an end, or any invisible
            character (Unicode category C: NUL, controls, zero width, lone surrogates).
    """
    problem = None
    if not isinstance(name, str) or not name:
        problem = "it is empty or not a string"
    elif len(name) > LONGEST_NAME:
        problem = f"it has {len(name)} characters, at most {LONGEST_NAME} are allowed"
    elif "/" in name or "\\" in name or ".." in name:
        problem = "it contains `/`, `\\` or `..`"
    elif any(unicodedata.category(char).startswith("C") for char in name):
        problem = "it contains a control or invisible character"
    elif name != name.strip():
        problem = "it begins or ends with white space"
    if problem:
        raise DataError(f"client name {ascii(name)[:120]} is refused: {problem}; rename the client")
    return name


def check_client_names(names: Iterable[str]) -> list[str]:
    """Checks each name, and that no two look alike or would have one folder.

    Names look alike if they are equal after NFKC and case folding (`atis`, `ATIS`, full width).

    Raises:
        DataError: a name is refused, or two are duplicates or look-alikes, or would have one folder.
    """
    checked = [check_client_name(name) for name in names]
    if pair := look_alikes(checked, folder_name):
        raise DataError(f"client names {ascii(pair[0])} and {ascii(pair[1])} look alike; rename one of them")
    return checked


def folder_name(client: str) -> str:
    """The client's folder: its name when that is a safe slug, else a slug of it and a hash of the whole name."""
    check_client_name(client)
    if SAFE_NAME.fullmatch(client) and client not in RESERVED:
        return client
    slug = re.sub(r"[^a-z0-9]+", "-", folded(client)).strip("-")[:40]
    return f"{slug or 'client'}-{hashlib.sha256(client.encode()).hexdigest()[:8]}"


def inside(root: Path, *parts: str) -> Path:
    """`root` joined with `parts` and resolved, links included.

    Raises:
        DataError: the result lies outside the root.
    """
    base = Path(root).resolve()
    path = base.joinpath(*parts).resolve()
    if not path.is_relative_to(base):
        raise DataError(f"{base.joinpath(*parts)} leads out of {base} (to {path}); remove the link or the `..`")
    return path


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """An empty folder beside `out` that becomes `out` when the block ends, in one rename.

    Several processes may prepare the same `out` at once: the first to finish wins, the others throw their own
    folder away and leave the winner's alone. So after the block `out` exists and is complete, but may be another
    process's; who cares must look into its manifest. When the block raises, nothing is left behind; after a kill
    a folder `.<name>.<random>.tmp` may be, which can be deleted.

    Raises:
        DataError: `out` exists and is not a folder.
    """
    out = Path(out).resolve()
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file; choose another name for the prepared folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.parent / f".{out.name}.{secrets.token_hex(6)}.tmp"
    temporary.mkdir()
    try:
        yield temporary
        try:
            os.rename(temporary, out)  # replaces nothing but an empty folder
        except OSError:
            if not out.is_dir():
                raise
            # every start of a job on several ranks does this: nothing a user should wonder about
            _log.debug("%s was prepared by another process meanwhile; keeping that one", out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
