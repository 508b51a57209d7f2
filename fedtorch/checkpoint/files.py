"""The files of a checkpoint: how they are named, written, digested, listed in a manifest and read back."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from errno import EINVAL
from pathlib import Path
from typing import Any

import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, uint8

from fedtorch.checkpoint.manifest_form import check_form, paths_of, problems
from fedtorch.core.client import file_stem
from fedtorch.core.errors import CheckpointError
from fedtorch.core.files import hash_file
from fedtorch.core.weights import unshared

MANIFEST = "manifest.json"
FEW = 1000
"""Up to so many files of clients, all may be looked at for every checkpoint."""
CLIENT_FILE = re.compile(r"[A-Za-z0-9_-]+-r(\d{6,})(?:-part\d+)?\.safetensors(\.\d+\.partial)?")


@dataclass(frozen=True)
class FileEntry:
    """A file of a checkpoint."""

    path: str
    """Relative to the checkpoints folder; of the server's two files to the checkpoint's own."""
    bytes: int
    """Its size."""
    digest: int
    """xxh3 of its content, 64 bits."""

    def to_numbers(self) -> tuple[int, int, int]:
        """(size, upper and lower half of the digest): each is exact as int64 and as fp64. The path is not sent."""
        return self.bytes, self.digest >> 32, self.digest & 0xFFFFFFFF

    @classmethod
    def from_numbers(cls, client: str, round: int, numbers: Sequence[float], part: int = 0) -> FileEntry:
        """Undo `to_numbers` of the rank that wrote this part of `client` in `round`."""
        size, upper, lower = (int(number) for number in numbers)
        return cls(client_path(client, round, part), size, upper << 32 | lower)


@dataclass(frozen=True)
class Manifest:
    """Content of a checkpoint."""

    folder: Path
    """Where it lies."""
    round: int
    """Rounds done."""
    config: dict[str, Any]
    """The resolved config that it was written with."""
    facts: dict[str, Any]
    """What else a run that goes on from it must agree with."""
    files: dict[str, FileEntry]
    """Path -> file; paths begin with `clients/` or are the server's two files."""
    clients: dict[str, tuple[str, ...]]
    """Client that has a state -> the paths of its files."""
    homes: dict[str, str] = field(default_factory=dict)
    """Client whose files are not here but on the disk of a host of its own -> that host."""

    def locate(self, path: str) -> Path:
        """Where the file that the manifest calls `path` lies."""
        return (self.folder.parent if path.startswith("clients/") else self.folder) / path

    def paths(self, only: Collection[str] | None = None) -> list[str]:
        """All files that are here, or of those of clients the files of the clients in `only`."""
        left_out = [name for name in self.clients if name in self.homes or (only is not None and name not in only)]
        others = {path for name in left_out for path in self.clients[name]}
        return [path for path in self.files if path not in others]

    def fault(self, path: str) -> str | None:
        """Say what is wrong with the file `path`, or None; reads all of it."""
        entry, where = self.files[path], self.locate(path)
        try:
            size = where.stat().st_size
            if size != entry.bytes:
                return f"{where} has {size} bytes instead of {entry.bytes}"
            return None if digest_file(where) == entry.digest else f"{where} has other content than when it was written"
        except OSError as error:
            return f"{where} cannot be read ({error.strerror})"


def client_path(client: str, round: int, part: int = 0) -> str:
    """The file of a client's state after `round` rounds, relative to the checkpoints folder.

    part: 0, or the rank in a worker that has a part of the state for itself.
    """
    return f"clients/{file_stem(client)}-r{round:06d}{f'-part{part}' if part else ''}.safetensors"


def read_manifest(folder: Path) -> Manifest:
    """The manifest in `folder`, checked against its own digest; the files it names are not.

    Raises:
        CheckpointError: it is missing, damaged, or no manifest of this folder's checkpoint.
    """
    path = folder / MANIFEST
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path} is no regular file, which a manifest is; nothing was read")
    try:
        sealed = json.loads(path.read_bytes())
        manifest = sealed["manifest"]
        if sealed["xxh3"] != xxhash.xxh3_64_hexdigest(to_json(manifest).encode()):
            raise CheckpointError(f"{path} has other content than when it was written")
        check_form(path, manifest)
        if problem := next(problems(folder, manifest), None):
            raise CheckpointError(f"{path} {problem}")
        files = {p: FileEntry(p, e["bytes"], int(e["xxh3"], 16)) for p, e in manifest["files"].items()}
        clients = {client: tuple(paths_of(listed)) for client, listed in manifest["clients"].items()}
        homes = manifest.get("homes", {})
        return Manifest(folder, manifest["round"], manifest["config"], manifest["facts"], files, clients, homes)
    except OSError as error:
        advice = "name a folder such as runs/my_run/checkpoints/round_000012"
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); {advice}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a manifest ({type(error).__name__})") from error


def put_in_place(partial: Path, target: Path) -> None:
    """Rename `partial` to `target`; a folder already there steps aside first, as rename wants an empty one."""
    old = target.with_name(f"{target.name}.old")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(target, old)
    try:
        os.replace(partial, target)
    except OSError:
        if old.exists():
            os.replace(old, target)
        raise
    sync(target.parent)


def remove_folder(folder: Path) -> None:
    """Delete a checkpoint's folder."""
    (folder / MANIFEST).unlink(missing_ok=True)  # first, so that a half-deleted folder is no checkpoint
    shutil.rmtree(folder)


@contextmanager
def writing(target: Path, need: int, partial: Path) -> Iterator[Path]:
    """Turn what the disk raises into a CheckpointError about `target`, and remove `partial`."""
    try:
        yield partial
    except (OSError, SafetensorError) as error:  # safetensors wraps the system's error in its own class
        shutil.rmtree(partial, ignore_errors=True)
        remove_files(partial)
        raise CheckpointError(
            f"could not write {target}: {error}; it needs {need} bytes, {_free_bytes(target)} are free; "
            "the last complete checkpoint is untouched; free some space, or set `run.dir` to another disk"
        ) from error


def remove_files(*paths: Path) -> None:
    """Remove what is there of `paths`, on a disk that may refuse even that."""
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _free_bytes(path: Path) -> int | str:
    for folder in path.parents:
        if folder.exists():
            try:
                return shutil.disk_usage(folder).free
            except OSError:
                break
    return "unknown"


@contextmanager
def put_whole(path: Path, need: int) -> Iterator[Path]:
    """Where to write a file that takes the place of `path` when the block ends, and not if it fails.

    need: bytes that it needs, for the message.

    Raises:
        CheckpointError: the disk refused; nothing of it is left.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with writing(path, need, partial):
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        os.replace(partial, path)
        sync(path.parent)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> dict[str, Tensor]:
    """Write and sync a safetensors file; tensors may be on any device and share memory. What was written of them."""
    found = unshared(tensors)
    save_file(found, path, metadata=metadata)
    sync(path)
    return found


def entry_of(name: str, path: Path, found: Mapping[str, Tensor]) -> FileEntry:
    """The entry, under this name, of a file that `save_tensors` has written; found: what it returned."""
    return FileEntry(name, path.stat().st_size, digest_written(path, found))


def digest_written(path: Path, found: Mapping[str, Tensor]) -> int:
    """`digest_file` of a safetensors file that was just written of these tensors; reads its head alone.

    found: contiguous, on the CPU. Bytes that are in memory already are digested in a third of the time.
    """
    with path.open("rb") as file:
        length = file.read(8)
        head = file.read(int.from_bytes(length, "little"))
    hasher = xxhash.xxh3_64(length + head)
    places = json.loads(head) if found else {}  # without tensors what save_file writes there is no JSON
    for name in sorted(found, key=lambda name: places[name]["data_offsets"]):
        if found[name].numel():
            hasher.update(found[name].reshape(-1).view(uint8).numpy().data)
    return hasher.intdigest()


def load_tensors(path: Path, names: Sequence[str]) -> dict[str, Tensor]:
    """Tensors in the order of `names`, copied: a mapped file that another machine deletes later is a bus error."""
    if not names:  # safe_open refuses a file without tensors and metadata, which save_file writes
        return {}
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name).clone() for name in names}


@contextmanager
def parsing(path: Path) -> Iterator[None]:
    """Turn what reading a file of another form raises into a CheckpointError."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is not what a checkpoint has there ({type(error).__name__})") from error


def checked(found: Manifest, path: str) -> Path:
    """Where the file `path` of `found` lies.

    Raises:
        CheckpointError: it is not what was written.
    """
    if fault := found.fault(path):
        raise CheckpointError(fault)
    return found.locate(path)


def digest_file(path: Path) -> int:
    """xxh3 of the file's content, 64 bits."""
    return hash_file(path, xxhash.xxh3_64()).intdigest()


def sync(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != EINVAL:  # a file system that cannot sync a folder
            raise
    finally:
        os.close(handle)


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON with numpy's and torch's numbers as plain ones, dataclasses as objects, paths as text."""
    return json.dumps(value, default=_plain, indent=indent)


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return asdict(value)
    return value.item() if hasattr(value, "item") else str(value)


def check_present(folder: Path, entries: Mapping[str, Sequence[FileEntry]]) -> None:
    """Are the files of all clients in `folder`, with their sizes?

    Raises:
        CheckpointError: one is not; names the client, the file and both sizes.
    """
    for client, entry in ((client, entry) for client, files in entries.items() for entry in files):
        path = folder / entry.path
        size = path.stat().st_size if path.exists() else None
        if size != entry.bytes:
            raise CheckpointError(
                f"the state of client `{client}` should be in {path} with {entry.bytes} bytes, the server finds "
                f"{'no such file' if size is None else f'{size} bytes'}; "
                "`run.dir` must lie on a file system that all ranks share"
            )
