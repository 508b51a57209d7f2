"""The frames of an error that lie in the user's own code: no other ones help who wrote a plug-in."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from fedtorch.core.version import PACKAGE

_OURS = (PACKAGE, PACKAGE.parent / "launchers")
_PLACES = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_INSTALLED = tuple(dict.fromkeys([*_PLACES, *(place.resolve() for place in _PLACES)]))  # also through a link


def is_own(path: Path) -> bool:
    """Is a file the user's: no part of this package, nor installed?"""
    return not any(path.is_relative_to(folder) for folder in (*_OURS, *_INSTALLED))


def own_frames(error: BaseException) -> traceback.StackSummary:
    """Those below this package's first frame that are neither its nor a library's, the innermost last."""
    found, is_within = traceback.StackSummary(), False
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if any(path.is_relative_to(folder) for folder in _OURS):
            is_within = True
        elif is_within and path.is_absolute() and not any(path.is_relative_to(folder) for folder in _INSTALLED):
            found.append(frame)
    return found


def own_place(error: BaseException) -> str:
    """` at mine.py:12 in weigh`: the innermost of these frames, without any text of the error; empty if none is."""
    frames = own_frames(error)
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
