"""Which keys a run has in another way than the shipped config of the published row that stands beside it."""

from __future__ import annotations

from pathlib import Path

from fedtorch.config.load import NOT_SET, changes, load, to_dict
from fedtorch.core.errors import ConfigError
from fedtorch.tracking.run_folder import Run

_OTHER = ("run", "system", "track", "checkpoint", "compare")
"""Sections about where and how a run is made; its seed is its own, and results do not depend on the ranks."""


def changed(run: Run, row: str) -> str:
    """`differs from ROW: key OURS (row: THEIRS), ...`, every key of the resolved configs; empty where none differs.

    row: name of a shipped config, such as `lorar/fedopt_lorar`. What that config itself has in another way than the
    paper is marked in it. Of two paths only the last part counts: `data/text2sql` is `/scratch/text2sql`. Keys that
    are younger than the run have their defaults.
    """
    if not run.config:
        return "the run has no config.yaml, so nothing is known about its settings"
    known, why = run.config, ""
    try:
        known = to_dict(load(run.folder / "config.yaml"))
    except ConfigError as error:  # of another version, or with a class or a secret that is not here
        why = f"keys that its config.yaml lacks are not compared, for {str(error).splitlines()[0]}"
    found = [
        f"{key} {ours} (row: {theirs})"
        for key, theirs, ours in changes(to_dict(load(row)), known)
        if key.partition(".")[0] not in _OTHER and not _is_same_place(theirs, ours) and not (why and ours == NOT_SET)
    ]
    return "; ".join(filter(None, (f"differs from {row}: {', '.join(found)}" if found else "", why)))


def _is_same_place(one: str, other: str) -> bool:
    return "/" in one + other and Path(one).name == Path(other).name
