"""The manifest of a prepared folder: its form, and whether the files beside it are the ones that it tells of.

A folder of one's own need not have everything: `examples` is required of every split, `sha256` and `characters` are
not. What is there is checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from fedtorch.core.errors import DataError
from fedtorch.core.files import hash_file
from fedtorch.core.regular_file import check_regular, shown_path
from fedtorch.data.paths import SAFE_NAME, check_client_names

FORMAT = 1
PREPARE = "run `fedtorch data prepare NAME --raw DIR --out DIR`"

Number = Annotated[int, Field(ge=0, le=10**9)]
"""Of rows or of what a row has."""


class Split(TypedDict):
    """Entry of the manifest for one file of rows."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    examples: Number
    """rows in the file, one a line"""
    characters: NotRequired[Annotated[int, Field(ge=0, le=10**15)]]
    """of all its texts together, from which a client's cost is estimated"""
    sha256: NotRequired[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]
    """of the file, in hex; where it is missing content is not compared"""
    pairs: NotRequired[list[Annotated[int, Field(ge=0, le=10**15)]]]
    """by row, the (positive, negative) pairs that its candidates form; of question answering"""
    rows: NotRequired[list[Number]]
    """by row, its candidates; of question answering"""
    positives: NotRequired[list[Number]]
    """by row, those of its candidates that are relevant; of question answering"""


class Entry(TypedDict):
    """Entry of the manifest for one client."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    splits: dict[str, Split]
    """name of the split -> its file's facts; the file is `<client>/<split>.jsonl`"""


_ENTRIES = TypeAdapter(dict[str, Entry])


def read_manifest(root: Path) -> dict[str, Any]:
    """The manifest of a prepared folder.

    Raises:
        DataError: missing, not JSON, of another format, or with clients that `check_client_names` refuses.
    """
    path = Path(root) / "manifest.json"
    if not path.exists():
        raise DataError(f"{shown_path(path)} is missing, so {shown_path(root)} is not a prepared folder; {PREPARE}")
    check_regular(path, "the manifest")
    try:
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{ascii(str(path))[1:-1]} cannot be read ({error}); {PREPARE} again") from None
    found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
    if type(found) is not int or found != FORMAT:
        raise DataError(f"{path} has format {ascii(found)[:40]}, expected {FORMAT}; {PREPARE} again")
    if not isinstance(manifest.get("clients"), dict) or not isinstance(manifest.get("record"), dict):
        raise DataError(f"{path} lacks `clients` or `record`; {PREPARE} again")
    check_client_names(manifest["clients"])
    check_form(_ENTRIES, manifest["clients"], f"{path}: clients")
    for client, entry in manifest["clients"].items():
        if strange := [split for split in entry["splits"] if not SAFE_NAME.fullmatch(split)]:
            raise DataError(
                f"{path}: client {client} has a split {ascii(strange[0])[:80]}; use small letters, digits, `_` and `-`"
            )
    return manifest


def check_form(form: TypeAdapter[Any], value: Any, where: str) -> None:
    """Whether `value` is as `form` says, without any conversion.

    Raises:
        DataError: it is not; the message begins with `where` and says at which key, quoting no value.
    """
    try:
        form.validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        key = "".join(f".{ascii(str(part))[1:-1][:80]}" for part in first["loc"])
        raise DataError(f"{where}{key}: {first['msg'].lower()}; {PREPARE} again") from None


def split_facts(root: Path, client: str, split: str) -> Mapping[str, Any]:
    """Facts of the manifest about a split; nothing where there is no manifest, client or split of that name."""
    root = Path(root).resolve()
    try:
        stat = (root / "manifest.json").stat()
    except OSError:
        return {}
    entry = _entries(root, stat.st_mtime_ns, stat.st_size).get(client, {"splits": {}})
    facts: Mapping[str, Any] = entry["splits"].get(split, {})
    return facts


def check_split(root: Path, client: str, split: str, path: Path, rows: int) -> None:
    """Whether `path`, a split with so many rows, is the file that the manifest tells of.

    The file is read once more for that, by blocks, the first time that it is asked about in this process.

    Raises:
        DataError: it has another number of rows, or other content.
    """
    facts = split_facts(root, client, split)
    differs = []
    if facts.get("examples", rows) != rows:
        differs.append(f"it has {rows} rows instead of {facts['examples']}")
    stat = path.stat()
    if "sha256" in facts and _digest(path, stat.st_size, stat.st_mtime_ns, stat.st_ino) != facts["sha256"]:
        differs.append("its content has another sha256")
    if differs:
        raise DataError(
            f"{path} is not the file that {Path(root) / 'manifest.json'} tells of: {' and '.join(differs)}; restore it "
            "or prepare the data again; for a change that is meant, correct `examples` and remove `sha256` of this "
            "split in the manifest"
        )


@lru_cache(maxsize=8)
def _entries(root: Path, *_stamp: int) -> dict[str, Any]:
    entries: dict[str, Any] = read_manifest(root)["clients"]
    return entries


@cache
def _digest(path: Path, *_stamp: int) -> str:
    return hash_file(path, hashlib.sha256()).hexdigest()
