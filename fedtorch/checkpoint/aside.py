"""Checkpoints of an earlier run in the folder of one that begins anew: kept beside it until that has one of its own."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from fedtorch.checkpoint.own_disk import held
from fedtorch.core.errors import CheckpointError

log = logging.getLogger(__name__)


def place_aside(folder: Path) -> Path:
    """Where they are; on the same disk, also where `folder` is a link."""
    own = folder.resolve()
    return own.with_name(f"{own.name}.before")


def set_aside(folder: Path) -> bool:
    """Rename `folder`, that a run may begin in it; on one rank of each disk. True: it had a round that was saved.

    What a run left there that began anew before, and came to no checkpoint, is deleted: what is aside already is older
    and worth more.

    Raises:
        CheckpointError: the disk refuses; nothing is lost.
    """
    own, before = folder.resolve(), place_aside(folder)
    has_saved = (there := held(own)) is not None and there.round > 0
    try:
        if own.is_dir() and before.is_dir() and not has_saved:
            shutil.rmtree(own)
        elif own.is_dir() and any(own.iterdir()):
            shutil.rmtree(before, ignore_errors=True)
            os.replace(own, before)
            log.info("%s is called %s until this run has a checkpoint", own, before)
        if folder.is_symlink():
            own.mkdir(exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"{own} is of an earlier run and cannot be renamed to {before} ({error}); move it yourself, or set "
            "`run.dir`"
        ) from error
    return has_saved


def drop_aside(folder: Path) -> None:
    """Delete what was set aside. A disk that refuses is a warning."""
    before = place_aside(folder)
    try:
        if before.is_dir():
            shutil.rmtree(before)
    except OSError as error:
        log.warning("%s, of an earlier run, could not be deleted: %s", before, error)
