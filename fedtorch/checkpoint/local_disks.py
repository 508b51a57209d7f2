"""States on the disks of the hosts where clients live: what a disk without the server's files is told, and keeps."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedtorch.checkpoint.files import CLIENT_FILE, FileEntry, Manifest, sync
from fedtorch.checkpoint.manifest_form import CLIENT_PATH
from fedtorch.core.client import file_stem

log = logging.getLogger(__name__)

_PART = "entry"
Lists = dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class Apart:
    """Where states are, on a job whose hosts have disks of their own."""

    homes: Mapping[str, str]
    """client -> the host that keeps its state, for those that the server's disk has not"""
    leads: bool
    """Is this rank the one that tidies up a disk that is not the server's?"""


def to_lists(found: Manifest, client: str) -> Lists:
    """Lists of a client's files in a manifest, as numbers: the round and the entry of every part."""
    lists = {}
    for path in found.clients[client]:
        match = CLIENT_PATH.fullmatch(path)
        assert match is not None, "a manifest that was read names such files only"
        lists[f"{_PART}{match[3] or 0}"] = (float(match[2]), *map(float, found.files[path].to_numbers()))
    return lists


def told(folder: Path, round: int, clients: Mapping[str, Mapping[str, tuple[float, ...]]]) -> Manifest:
    """The manifest as far as `to_lists` of the server's tells it, for a disk that has none; of files in `folder`."""
    files: dict[str, FileEntry] = {}
    paths: dict[str, tuple[str, ...]] = {}
    for client, lists in clients.items():
        entries = [
            FileEntry.from_numbers(client, int(saved), numbers, int(key.removeprefix(_PART)))
            for key, (saved, *numbers) in lists.items()
        ]
        files |= {entry.path: entry for entry in entries}
        paths[client] = tuple(entry.path for entry in entries)
    return Manifest(folder / f"round_{round:06d}", round, {}, {}, files, paths)


def without(found: Manifest, clients: Collection[str]) -> Manifest:
    """The checkpoint, in which these clients have no state."""
    gone = {path for client in clients for path in found.clients.get(client, ())}
    return replace(
        found,
        files={path: entry for path, entry in found.files.items() if path not in gone},
        clients={client: paths for client, paths in found.clients.items() if client not in clients},
        homes={client: home for client, home in found.homes.items() if client not in clients},
    )


def copy_states(found: Manifest, source: Path, clients: Collection[str]) -> None:
    """Copy these clients' files, as far as they are there, from another run's checkpoints to where `found` has them.

    Raises:
        OSError: the disk refuses.
    """
    for path in (path for client in clients for path in found.clients[client]):
        target = found.locate(path)
        if (source / path).is_file() and not (target.exists() and target.samefile(source / path)):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / path, target)
            sync(target)


def tidy(folder: Path, oldest: int) -> None:
    """Delete the client files in `folder` that no checkpoint after `oldest` rounds or more needs.

    Of a client such checkpoints need the newest file that is as old as `oldest`, and all later ones. A disk that
    refuses is a warning.
    """
    newest: dict[str, int] = {}
    found = list(saved_states(folder))
    for stem, round, _ in found:
        if round <= oldest:
            newest[stem] = max(round, newest.get(stem, round))
    try:
        for stem, round, path in found:
            if round < newest.get(stem, round):
                path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("old states in %s could not be deleted: %s", folder, error)


def newest(folder: Path, client: str) -> int:
    """The round of the client's newest state in `folder`, unfinished files aside; -1 if there is none."""
    found = (CLIENT_PATH.fullmatch(f"clients/{path.name}") for *_, path in saved_states(folder))
    return max((int(match[2]) for match in found if match and match[1] == file_stem(client)), default=-1)


def set_aside_after(folder: Path, round: int, aside: Path) -> None:
    """Move the client files in `folder` of rounds after `round`, to which the run has gone back, to `aside`.

    Raises:
        OSError: the disk refuses.
    """
    for _, saved, path in saved_states(folder):
        if saved > round:
            target = aside / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)


def saved_states(folder: Path) -> Iterator[tuple[str, int, Path]]:
    """(client's stem, round, path) of what is there, unfinished files included."""
    for path in sorted(folder.glob("clients/*")):
        if match := CLIENT_FILE.fullmatch(path.name):
            yield path.name[: match.start(1)], int(match[1]), path
