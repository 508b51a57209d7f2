"""Files that a party keeps beside its receipts, to look at them again later: lists of members, keys, leaves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedtorch.core.errors import CheckpointError
from fedtorch.core.prime import Words
from fedtorch.privacy.owner_files import read_own, write_own
from fedtorch.trust.keys import bytes_of
from fedtorch.trust.members import Members, read_members
from fedtorch.trust.merkle import LEAF, leaves, path_length, root_along
from fedtorch.trust.tags import Whole

_SHORT = 16  # digits of a digest in the name of a file
_NODE = 32  # bytes


@dataclass(frozen=True)
class KeptLeaves:
    """Leaves of a round's sum that were looked at."""

    places: Sequence[int]
    """Which, ascending."""
    sums: Whole
    """Their numbers, end to end, int64."""
    tags: Words
    """Their tags as the server told them, uint64."""
    paths: npt.NDArray[np.uint8]
    """Of each the nodes of its path to the sum's root, end to end."""

    def roots(self, count: int) -> list[str]:
        """The root that each of them leads to, hexadecimal. count: leaves of the whole sum."""
        found, at = [], 0
        for number, place in enumerate(self.places):
            length = _NODE * path_length(place, count)
            nodes = [self.paths[i : i + _NODE].tobytes() for i in range(at, at + length, _NODE)]
            (own,) = leaves(self.sums[number * LEAF : (number + 1) * LEAF])
            found.append(root_along(own, place, count, nodes).hex())
            at += length
        return found


class KeptFiles:
    """The files, in the party's folder. All of them may be missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep_members(self, members: Members) -> None:
        """A copy of the list, under its digest."""
        self._write(self._members(members.digest), members.path.read_bytes())

    def members(self, digest: str) -> Members | None:
        """The list with this digest."""
        path = self._members(digest)
        found = read_members(path) if path.is_file() else None
        return found if found is not None and found.digest == digest else None

    def _members(self, digest: str) -> Path:
        return self.folder / f"members.{digest[:_SHORT]}.yaml"

    def keep_key(self, meeting: str, key: bytes) -> None:
        """The key that silos have in common since a meeting, for its owner alone."""
        self._write(self._key(meeting), f"{key.hex()}\n".encode())

    def key(self, meeting: str) -> bytes | None:
        """Read such a key; None: it was not kept here.

        Raises:
            CheckpointError: others may read the file.
        """
        path = self._key(meeting)
        if not path.exists():
            return None
        found = read_own(path, "the key by which silos check sums", "what was checked with it cannot be checked again")
        return bytes_of(found.decode("ascii", "replace").strip())

    def _key(self, meeting: str) -> Path:
        return self.folder / f"tags.{meeting[:_SHORT]}.key"

    def keep_leaves(self, record: str, kept: KeptLeaves) -> None:
        """Leaves of the round that a record is about. record: its digest."""
        path = self._leaves(record)
        places = np.array(kept.places, np.int64)
        arrays = {"places": places, "sums": kept.sums, "tags": kept.tags, "paths": kept.paths}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.partial")
            save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, partial)
            os.replace(partial, path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{path} cannot be written ({error}); free some space, or set trust.keep to 0, and start the run again"
            ) from error

    def leaves(self, record: str) -> KeptLeaves | None:
        """Read such leaves; None: none were kept.

        Raises:
            ValueError: the file is not as it was written.
        """
        path = self._leaves(record)
        if not path.is_file():
            return None
        try:
            found = load_file(path)
            return KeptLeaves(found["places"].tolist(), found["sums"], found["tags"], found["paths"])
        except (OSError, SafetensorError, KeyError) as error:
            raise ValueError(f"{path} is damaged ({error})") from error

    def _leaves(self, record: str) -> Path:
        return self.folder / "leaves" / f"{record[:_SHORT]}.safetensors"

    def _write(self, path: Path, content: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_own(path, content)
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be written ({error.strerror or error}); free some space and start the run again"
            ) from error
