"""Server and client states on disk: written aside, renamed into place, checked by digest before they are used."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtorch.checkpoint.aside import drop_aside, place_aside, set_aside
from fedtorch.checkpoint.compatibility import Changes, check_fits
from fedtorch.checkpoint.files import (
    MANIFEST,
    FileEntry,
    Manifest,
    check_present,
    checked,
    client_path,
    entry_of,
    load_tensors,
    parsing,
    put_in_place,
    put_whole,
    read_manifest,
    remove_files,
    save_tensors,
    sync,
    to_json,
    writing,
)
from fedtorch.checkpoint.inside import read_client, read_server
from fedtorch.checkpoint.local_disks import Apart
from fedtorch.checkpoint.manifest import ClientLines, write_folder
from fedtorch.checkpoint.manifest_form import OtherFormError, folders
from fedtorch.checkpoint.retire import Retiring
from fedtorch.core.client import ClientState
from fedtorch.core.errors import CheckpointError
from fedtorch.core.server import ServerState

__all__ = ["Checkpoints", "FileEntry", "Manifest"]

logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of a run.

    1. Each home rank calls `write_client` for every client that changed, and sends the entry's numbers.
    2. The server calls `write`. It writes into `round_000012.partial` (manifest last), renames that to
       `round_000012`, and only then deletes what no kept manifest refers to.

    A client that did not change keeps its earlier file, to which the new manifest refers.
    A process that dies anywhere leaves the previous checkpoint intact; what it left unfinished has no manifest
    and is removed by a later `write`. After a failed `write` its entries are void: the changed clients have to be
    written again. No rank may read while the server writes.
    Nothing of an earlier run is deleted before this one has a checkpoint (`set_aside`, `drop_aside`).
    Where hosts have disks of their own (`apart`), the manifest is on the server's alone, and says which host has a
    client's files. A resume then goes on from what all ranks have agreed on (`resumed`).
    """

    def __init__(self, folder: Path, *, keep: int, apart: Apart | None = None) -> None:
        """apart: where hosts have disks of their own; None: all ranks see the same `folder`."""
        if keep < 1:
            raise ValueError(f"`keep` is {keep}; at least one checkpoint must be kept")
        self.folder = folder
        """Holds a folder for each checkpoint, and `clients/`, which they share."""
        self.keep = keep
        """How many checkpoints are kept."""
        self._entries: dict[str, tuple[FileEntry, ...]] = {}
        """Of the last checkpoint written or loaded, for unchanged clients."""
        self._lines = ClientLines()
        self._retiring = Retiring(folder, keep)
        self.apart = apart
        self.resumed: Manifest | None = None
        """The checkpoint that `at` gives for its round, where ranks cannot all read it."""

    @property
    def aside(self) -> Path:
        """Where an earlier run's checkpoints are while this one has none yet."""
        return place_aside(self.folder)

    def write_client(self, round: int, client: str, state: ClientState, part: int = 0) -> FileEntry:
        """Write the state of `client` after `round` rounds; called on its home rank, blocks on nobody.

        part: where each rank of a worker writes the entries that it alone has, the rank's place in the worker.

        Raises:
            CheckpointError: the disk refused; nothing is left behind.
        """
        name = client_path(client, round, part)
        with put_whole(self.folder / name, state.num_bytes) as partial:
            extra = {"client": client, "round": round, "part": part}
            extra |= {"numbers": state.numbers, "names": list(state.tensors)}
            entry = entry_of(name, partial, save_tensors(partial, state.tensors, {"state": to_json(extra)}))
        return entry

    def write(
        self,
        round: int,
        server: ServerState,
        entries: Mapping[str, Sequence[FileEntry]],
        *,
        config: Mapping[str, Any],
        facts: Mapping[str, Any],
    ) -> Path:
        """Complete the checkpoint after `round` rounds and return its folder; server only, blocks on nobody.

        entries: the files of the clients written since the last successful `write` or `load_server`.
        config: the resolved config. facts: what else must fit (code version, digest of the layout).
        Checkpoints of later rounds are deleted: training went back before them.

        Raises:
            CheckpointError: the disk refused, or the file of one of `entries` is not there. The previous checkpoint is
                untouched.
        """
        target = self.folder / f"round_{round:06d}"
        partial = target.with_name(f"{target.name}.partial")
        changed = {client: tuple(files) for client, files in entries.items()}
        before = {client: self._entries[client] for client in changed if client in self._entries}
        merged = {**self._entries, **changed}
        need = sum(t.numel() * t.element_size() for t in server.tensors.values())
        named, known = _paths(changed), set(_paths(before))
        new = [self.folder / path for path in named if path not in known]
        homes = {} if self.apart is None else self.apart.homes
        try:
            with writing(target, need, partial):
                check_present(self.folder, {name: files for name, files in changed.items() if name not in homes})
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
                write_folder(partial, round, server, merged, config, facts, homes, self._lines)
                put_in_place(partial, target)
        except CheckpointError:
            if not target.exists():
                remove_files(*new)  # room on a full disk
            self._retiring.anew()
            raise
        self._entries = merged
        try:
            self._retiring.after(round, named, sorted(known - set(named)), len(merged))
        except OSError as error:
            logger.warning("old checkpoints in %s could not be deleted: %s", self.folder, error)
        return target

    def latest(self, only: Collection[str] | None = None) -> Manifest | None:
        """The newest checkpoint whose files all have the right size and digest; None if there never was one.

        Server only (it reads every file); the others then use `at` with the round it found. only: see `open`.

        Raises:
            CheckpointError: there are checkpoints, but every one of them is damaged.
        """
        faults: list[str] = []
        for round, folder in sorted(folders(self.folder).items(), reverse=True):
            if not (folder / MANIFEST).exists():
                continue
            try:
                return self.open(folder, only)
            except OtherFormError:
                raise
            except CheckpointError as error:
                faults.append(str(error))
                logger.warning("THE CHECKPOINT OF ROUND %d IS DAMAGED AND WILL BE SKIPPED: %s", round, error)
        if faults:
            raise CheckpointError(
                f"every checkpoint in {self.folder} is damaged: {'; '.join(faults)}; "
                "restore the files, or begin anew with `--resume never`"
            )
        return None

    def open(self, folder: Path, only: Collection[str] | None = None) -> Manifest:
        """The checkpoint in `folder` (of this run or another), every file of it checked; server only.

        only: of clients' files those of these clients; None: of all.

        Raises:
            CheckpointError: it is none, or damaged; the message names the file.
        """
        found = read_manifest(folder)
        for name in found.paths(only):
            if fault := found.fault(name):
                raise CheckpointError(fault)
        path, state = read_server(found)
        if state.get("states", len(found.clients)) != len(found.clients):
            raise CheckpointError(f"{path} is of a checkpoint with the states of other clients than its manifest lists")
        return found

    def at(self, round: int) -> Manifest:
        """This run's checkpoint after `round` rounds, files unchecked (loading checks what it loads).

        Raises:
            CheckpointError: there is none.
        """
        if self.resumed is not None and self.resumed.round == round:
            return self.resumed
        folder = folders(self.folder).get(round)
        if folder is None:
            raise CheckpointError(
                f"no checkpoint of round {round} in {self.folder}, although the server found one; "
                "`run.dir` must lie on a file system that all ranks share"
            )
        return read_manifest(folder)

    def adopt(self, found: Manifest) -> Manifest:
        """Copy another run's checkpoint into this run's folder, so that every rank finds it with `at`; server only.

        A checkpoint that lies in this run's folder already is returned as it is.

        Raises:
            CheckpointError: it cannot be copied; nothing but unreferenced client files is left behind.
        """
        if found.folder.resolve().parent == self.folder.resolve():
            return found
        target = self.folder / f"round_{found.round:06d}"
        partial = target.with_name(f"{target.name}.partial")
        need = sum(entry.bytes for entry in found.files.values())
        with writing(target, need, partial):
            (self.folder / "clients").mkdir(parents=True, exist_ok=True)
            for path in (path for path in found.paths() if path.startswith("clients/")):
                shutil.copyfile(found.locate(path), self.folder / path)
                sync(self.folder / path)
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(found.folder, partial)
            put_in_place(partial, target)
        return read_manifest(target)

    def load_server(self, found: Manifest) -> ServerState:
        """The server's state; the next `write` refers to the client files of `found`, one of this run's (`adopt`).

        Raises:
            CheckpointError: a file is damaged.
        """
        path, state = read_server(found)
        with parsing(path):
            tensors = load_tensors(found.locate("server.safetensors"), state["names"])
            self._entries = {client: tuple(found.files[p] for p in paths) for client, paths in found.clients.items()}
            self._retiring.anew()
            return ServerState(tensors, state["numbers"], num_clients=state["num_clients"])

    def load_client(
        self, found: Manifest, client: str, is_wanted: Callable[[str], bool] = lambda _: True
    ) -> ClientState:
        """The state of `client`, an empty one if it had none; called on its home rank.

        is_wanted: asked for every entry, tensor or number; the others are not read.

        Raises:
            CheckpointError: a file of it is damaged.
        """
        whole = ClientState()
        for name in found.clients.get(client, ()):
            path = checked(found, name)
            with parsing(path):
                state = read_client(path, client)
                whole.tensors |= load_tensors(path, [name for name in state["names"] if is_wanted(name)])
                whole.numbers |= {name: value for name, value in state["numbers"].items() if is_wanted(name)}
        return whole

    def check_fits(
        self,
        found: Manifest,
        config: Mapping[str, Any],
        changes: Changes,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Refuse a checkpoint of another config, or with other `facts`.

        Raises:
            CheckpointError: with the keys that differ, their values, and what to do about them.
        """
        check_fits(found, config, changes, facts)

    def set_aside(self) -> bool:
        """Begin anew; see `aside.set_aside`."""
        self._entries = {}
        self._retiring.anew()
        return set_aside(self.folder)

    def drop_aside(self) -> None:
        """Delete what was set aside, now that the run has a checkpoint. A disk that refuses is a warning."""
        drop_aside(self.folder)


def _paths(entries: Mapping[str, Sequence[FileEntry]]) -> list[str]:
    return [entry.path for files in entries.values() for entry in files]
