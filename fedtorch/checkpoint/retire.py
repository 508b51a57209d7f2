"""Deleting what no kept checkpoint needs: by looking at everything where that is cheap, else by what was replaced."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from fedtorch.checkpoint.files import CLIENT_FILE, FEW, Manifest, read_manifest, remove_folder
from fedtorch.checkpoint.manifest_form import folders
from fedtorch.core.errors import CheckpointError


class Retiring:
    """Files that a process deletes after each of its checkpoints.

    A whole pass reads the kept manifests and lists all client files. It is the first one, every one while there are no
    more than `FEW` files, and one is due again once a quarter as many files were replaced as there are; so on average a
    checkpoint costs what changed in it. Between them a pass deletes what the checkpoints since the last whole one
    replaced. What no pass in between knows of (a file whose checkpoint failed) waits for the next whole one.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self._rounds: list[int] = []
        """rounds of the kept checkpoints, ascending"""
        self._replaced: list[tuple[int, list[str]]] = []
        """round -> files that the checkpoints before it name, and it does not"""
        self._ahead: list[tuple[int, Path]] = []
        """files of later rounds than the last whole pass, which that pass had to leave"""
        self._since = 0
        self.anew()

    def anew(self) -> None:
        """The next pass is a whole one: the process went back, or something failed."""
        self._rounds, self._replaced, self._ahead, self._since = [], [], [], 0

    def after(self, round: int, named: Collection[str], replaced: list[str], num_files: int) -> None:
        """Delete what is needed no more once the checkpoint after `round` rounds is in place.

        named: the files that it is the first to name. replaced: those that it does not name and the one before does.
        num_files: of all clients.

        Raises:
            OSError: the disk refuses; the next pass is a whole one.
        """
        self._since += len(named)
        is_next = bool(self._rounds) and round > self._rounds[-1]
        known, self._rounds = self._rounds, []  # a pass that fails is followed by a whole one
        if is_next and num_files > FEW and 4 * self._since < num_files:
            self._rounds = self._changes(round, known, set(named), replaced)
        else:
            self.anew()
            self._rounds = self._whole(round)

    def _changes(self, round: int, known: list[int], named: Collection[str], replaced: list[str]) -> list[int]:
        rounds = [*known, round][-self.keep :]
        for number, folder in folders(self.folder).items():
            if number not in rounds:
                remove_folder(folder)
        self._leftovers()
        self._replaced.append((round, replaced))
        gone = [path for number, paths in self._replaced for path in paths if number <= rounds[0]]
        self._replaced = [(number, paths) for number, paths in self._replaced if number > rounds[0]]
        gone += [f"clients/{path.name}" for number, path in self._ahead if number <= round]
        self._ahead = [(number, path) for number, path in self._ahead if number > round]
        for path in gone:
            if path not in named:
                (self.folder / path).unlink(missing_ok=True)
        return rounds

    def _whole(self, round: int) -> list[int]:
        kept: list[Manifest] = []
        for number, folder in sorted(folders(self.folder).items(), reverse=True):
            try:
                if number <= round and len(kept) < self.keep:
                    kept.append(read_manifest(folder))
                    continue
            except CheckpointError:
                pass  # damaged: `latest` has said so if it mattered
            remove_folder(folder)
        self._leftovers()
        named = [{path for paths in found.clients.values() for path in paths} for found in reversed(kept)]
        rounds = [found.round for found in reversed(kept)]
        for index in range(1, len(kept)):
            self._replaced.append((rounds[index], sorted(named[index - 1] - named[index])))
        used = set[str]().union(*named)
        for path in self.folder.glob("clients/*"):
            match = CLIENT_FILE.fullmatch(path.name)
            if match and int(match[1]) > round:  # stays: a worker that is ahead of the server may be writing it
                self._ahead.append((int(match[1]), path))
            elif match and f"clients/{path.name}" not in used:
                path.unlink(missing_ok=True)
        return rounds

    def _leftovers(self) -> None:
        for path in self.folder.iterdir():
            if path.suffix in (".partial", ".old") and path.is_dir():
                shutil.rmtree(path)
