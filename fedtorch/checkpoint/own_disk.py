"""States of a run on a disk that is not the server's: a note beside them, and how they are counted without one."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from fedtorch.checkpoint.files import MANIFEST
from fedtorch.checkpoint.local_disks import saved_states
from fedtorch.checkpoint.manifest_form import folders
from fedtorch.core.files import replace_file

log = logging.getLogger(__name__)

NOTE = "saved.json"


@dataclass(frozen=True)
class Held:
    """States that would be lost with a disk's checkpoints."""

    round: int
    """Rounds done in the newest checkpoint of all ranks that this disk has a part of; 0: nothing says which."""
    clients: int
    """Whose states are there."""
    run: str
    """Digest of the run that they are of (`run_digest`); empty where nothing says it."""


def write_note(folder: Path, round: int, run: str) -> None:
    """Say that all ranks have saved `round` rounds of `run`, and this disk its part of them; 0: the run begins.

    A disk that refuses is a warning: the note then tells of less than there is.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / NOTE, json.dumps({"round": round, "run": run}) + "\n")
    except OSError as error:
        log.warning("could not write %s: %s", folder / NOTE, error)


def held(folder: Path) -> Held | None:
    """Look for what a run that begins anew would take away from `folder`; None: nothing was ever saved there.

    States without a note, as earlier versions left them, count; those of a run that came to no checkpoint do not.
    """
    note = _read_note(folder)
    whole = [round for round, path in folders(folder).items() if (path / MANIFEST).is_file()]
    clients = len({stem for stem, _, _ in saved_states(folder)})
    round = max([0 if note is None else note[0], *whole])
    if round or (note is None and clients):
        return Held(round, clients, "" if note is None else note[1])
    return None


def _read_note(folder: Path) -> tuple[int, str] | None:
    try:
        found = json.loads((folder / NOTE).read_text())
        round, run = found["round"], found["run"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return (round, run) if type(round) is int and round >= 0 and isinstance(run, str) else None
