"""Files that are splits: train, dev and test beside one another, by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedtorch.data.own.rows import SPLIT_NAMES
from fedtorch.data.own.source import files_of

_WORDS = re.compile(r"[^\W_]+")


def split_files(source: str) -> tuple[str | list[str], dict[str, str]]:
    """Find the files of each split in a folder whose files or sub-folders are called after splits.

    Returns (train, other split -> its name for a config). `notes-train.jsonl`, `train-00000-of-00002.parquet` and
    `train/part.csv` are of train. Where a name says nothing, or no file is of train, the source stays as it is.
    """
    folder = Path(source).expanduser()
    if not folder.is_dir() or any((folder / name).is_file() for name in ("dataset_dict.json", "dataset_info.json")):
        return source, {}
    found: dict[str, list[Path]] = {}
    for file in files_of(source):
        parts = file.relative_to(folder).parts
        split = _split_of(parts[0] if len(parts) > 1 else file.stem)
        if split is None or len(parts) > 2:
            return source, {}
        found.setdefault(split, []).append(file)
    if "train" not in found or (len(found) == 1 and len(found["train"]) == 1):
        return source, {}
    named = {split: _one_name(folder, files) for split, files in found.items()}
    if not all(named.values()):
        return source, {}
    return named.pop("train"), named


def files_beside(source: str) -> list[str]:
    """Files that look like other splits of a file that looks like train."""
    file = Path(source).expanduser()
    if not file.is_file() or _split_of(file.stem) != "train":
        return []
    others = sorted(other for other in file.parent.glob(f"*{file.suffix}") if other.is_file())
    return [str(other) for other in others if _split_of(other.stem) in ("dev", "test")]


def _split_of(name: str) -> str | None:
    """The split that a name says; None: none, or several."""
    found = {SPLIT_NAMES[word] for word in _WORDS.findall(name.casefold()) if word in SPLIT_NAMES}
    return found.pop() if len(found) == 1 else None


def _one_name(folder: Path, files: Sequence[Path]) -> str:
    """Name that covers all these files and no others: the file, its folder, or a glob; empty: nothing does."""
    if len(files) == 1:
        return str(files[0])
    first = files[0]
    if first.parent != folder:
        same = files_of(str(first.parent))
        return str(first.parent) if sorted(same) == sorted(files) else ""
    start = _WORDS.search(first.stem)
    pattern = f"{folder}/{start[0] if start else ''}*{first.suffix}"
    is_plain = not set("[]*?") & set(str(folder))
    return pattern if is_plain and sorted(files_of(pattern)) == sorted(files) else ""
