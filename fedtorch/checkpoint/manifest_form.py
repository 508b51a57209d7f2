"""Form of a checkpoint's manifest, beside the digest that it carries of itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedtorch.core.client import file_stem
from fedtorch.core.errors import CheckpointError
from fedtorch.core.version import VERSION

FORM = 1
"""Form of the files; a version that writes them in another way, which this one cannot read, counts on."""
FOLDER = re.compile(r"round_(\d{6,})(\.old)?")
SERVER_FILES = ("server.safetensors", "server.json")
CLIENT_PATH = re.compile(r"clients/([A-Za-z0-9_-]+)-r(\d{6,})(?:-part(\d+))?\.safetensors")
_DIGEST = re.compile(r"[0-9a-f]{1,16}")


class OtherFormError(CheckpointError):
    """The checkpoint is whole, but another version of fedtorch wrote it, in a form that this one does not read."""


def check_form(path: Path, manifest: Any) -> None:
    """Refuse a manifest of another form. Those of before forms were numbered are of the first.

    Raises:
        OtherFormError: names the version that reads it.
    """
    form = manifest.get("form", FORM) if isinstance(manifest, dict) else FORM
    if form != FORM:
        version = str(manifest.get("fedtorch", "of an unknown version"))[:40]
        raise OtherFormError(
            f"{path} was written by fedtorch {version} in form {str(form)[:10]}; fedtorch {VERSION}, which runs here, "
            f"reads form {FORM}. Go on with fedtorch {version} on all sides, or begin anew in another `run.dir`; "
            "nothing was changed"
        )


def folders(root: Path) -> dict[int, Path]:
    """Round -> its checkpoint's folder. `.old` counts only where a process died between the renames of `put_in_place`.

    Whether they are complete is not looked at.
    """
    if not root.is_dir():
        return {}
    found: dict[int, Path] = {}
    for path in sorted(root.iterdir(), reverse=True):  # `x.old` before `x`, which overwrites it
        if (match := FOLDER.fullmatch(path.name)) and path.is_dir():
            found[int(match[1])] = path
    return found


def paths_of(listed: Any) -> list[Any]:
    """The files that a manifest lists for a client; one alone in manifests of earlier versions."""
    return [listed] if isinstance(listed, str) else [*listed]


def problems(folder: Path, manifest: Any) -> Iterator[str]:
    """Yield what is wrong with a manifest that was read in `folder`; quotes names of files only."""
    if not isinstance(manifest, dict):
        yield "is no object"
        return
    kinds = {"round": int, "config": dict, "facts": dict, "files": dict, "clients": dict}
    strange = [name for name, kind in kinds.items() if type(manifest.get(name)) is not kind]
    if strange:
        yield f"has no `{strange[0]}`, or not as {kinds[strange[0]].__name__}"
        return
    named = FOLDER.fullmatch(folder.name)
    if manifest["round"] < 0 or (named and int(named[1]) != manifest["round"]):
        yield f"is of round {manifest['round']}, but its folder is {folder.name}"
    yield from _in_files(manifest["files"])
    yield from _in_clients(manifest["clients"], manifest["files"], manifest["round"])
    homes = manifest.get("homes", {})
    if not isinstance(homes, dict) or not all(isinstance(home, str) for home in homes.values()):
        yield "has no hosts as `homes`"
    elif strange := [client for client in homes if client not in manifest["clients"]]:
        yield f"has a home of client {ascii(strange[0])[:80]}, of whom it has no file"


def _in_files(files: Mapping[str, Any]) -> Iterator[str]:
    for path, entry in files.items():
        if path not in SERVER_FILES and not CLIENT_PATH.fullmatch(path):
            yield f"names {path!r}, which is no file of a checkpoint"
        size, digest = (entry.get(key) if isinstance(entry, dict) else None for key in ("bytes", "xxh3"))
        if type(size) is not int or size < 0 or type(digest) is not str or not _DIGEST.fullmatch(digest):
            yield f"has no size and digest of {path!r}"
    if missing := [name for name in SERVER_FILES if name not in files]:
        yield f"does not list {missing[0]}"


def _in_clients(clients: Mapping[str, Any], files: Mapping[str, Any], round: int) -> Iterator[str]:
    used: set[str] = set()
    for client, listed in clients.items():
        if not isinstance(listed, str | list) or not all(isinstance(path, str) for path in listed):
            yield f"lists no files of client {ascii(client)[:80]}"
            return
        for path in paths_of(listed):
            match = CLIENT_PATH.fullmatch(path)
            if path not in files or match is None:
                yield f"names {path!r}, which is no file of a checkpoint"
            elif match[1] != file_stem(client) or int(match[2]) > round or path in used:
                yield f"lists {path!r} for client {ascii(client)[:80]}, whose file after {round} rounds it cannot be"
            used.add(path)
    if unused := [path for path in files if path not in used and path not in SERVER_FILES]:
        yield f"names {unused[0]!r}, which is of no client"
