"""`python -m fedtorch.data prepare dialog`: two-side dialogs by domain, each domain one client."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedtorch.core.errors import DataError
from fedtorch.core.seeds import generator_for
from fedtorch.data.dialog_folder import SPLITS, write_dialogs
from fedtorch.data.dialogs import TASKMASTER_1, DialogSet, Turns, read_sgd, read_taskmaster_1, read_taskmaster_4
from fedtorch.data.left_out import OMITTED, LeftOut
from fedtorch.data.recipe import Recipe, digests, prepare_once, synthetic_recipe

SGD_CLIENTS = ("flights", "events", "services", "hotels", "restaurants", "movies")
# FedAssistant: about 1,800, 200 and 200 dialogs per domain.
_HELD_OUT = 11
_PATTERNS = {
    "taskmaster1": ("self-dialogs*.json", "woz-dialogs*.json", "sample.json"),
    "taskmaster4": ("data/data_*.json", "data_*.json"),
}
_READERS: dict[str, Callable[..., DialogSet]] = {"taskmaster1": read_taskmaster_1, "taskmaster4": read_taskmaster_4}


def prepare_dialog(
    raw: Path, out: Path, *, source: str, vocab_size: int = 4000, merge: bool = True, seed: int = 0
) -> dict[str, Any]:
    """Prepares the clients and returns the manifest. A row is {"turns": [[side, text], ...]}.

    source: `sgd` (its own splits), or `taskmaster1`, `taskmaster4` (one random split per domain: an eleventh each
    for dev and test). `tokenizer/` holds a byte-level vocabulary of the training dialogs.

    Raises:
        DataError: a file is missing or malformed, or `out` was prepared differently.
    """
    files = _files(raw, source)
    options = {
        "sources": digests([path for group in files.values() for path in group], str(raw), root=raw),
        "source": source,
        "vocab_size": vocab_size,
        "merge": merge,
        "seed": seed,
    }

    def write(folder: Path) -> None:
        clients, found = _read(files, source, merge, seed)
        dropped = {split: dict(part.dropped) for split, part in found.items()}
        seen = {name for part in found.values() for name in part.seen}
        emptied = sorted(seen - set(clients))
        what = f"domains (no dialog is left: {', '.join(emptied)})"
        left_out = [LeftOut("the clients", len(emptied), len(seen), what)]
        record = {"options": options, "dropped": dropped, OMITTED: left_out}
        write_dialogs(folder, clients, record, vocab_size=vocab_size)

    return prepare_once(out, options, write)


def _files(raw: Path, source: str) -> dict[str, list[Path]]:
    """Split -> files; Taskmaster's are all under `all`."""
    if source == "sgd":
        groups = {split: sorted((raw / split).glob("dialogues_*.json")) for split in SPLITS}
        wanted = "train/, dev/ and test/ with dialogues_NNN.json"
    else:
        groups = {"all": sorted(path for pattern in _PATTERNS[source] for path in raw.glob(pattern))}
        wanted = " or ".join(_PATTERNS[source])
    if missing := [name for name, group in groups.items() if not group]:
        raise DataError(f"{raw} has no dialogs ({', '.join(missing)}); --raw must be the folder with {wanted}")
    return groups


def _read(
    files: Mapping[str, Sequence[Path]], source: str, merge: bool, seed: int
) -> tuple[dict[str, dict[str, list[Turns]]], dict[str, DialogSet]]:
    """Client -> split -> dialogs, and what was read, by split or under `all`."""
    if source == "sgd":
        found = {split: read_sgd(group, merge=merge) for split, group in files.items()}
        names = [name for name in SGD_CLIENTS if any(name in f.clients for f in found.values())]
        names += sorted({name for f in found.values() for name in f.clients} - set(names))
        clients = {name: {split: f.clients.get(name, []) for split, f in found.items()} for name in names}
        return clients, found
    everything = _READERS[source](files["all"], merge=merge)
    order = [*TASKMASTER_1.values()]
    names = sorted(everything.clients, key=lambda name: (order.index(name) if name in order else len(order), name))
    return {name: split_randomly(everything.clients[name], seed, name) for name in names}, {"all": everything}


def split_randomly(dialogs: Sequence[Turns], seed: int, client: str) -> dict[str, list[Turns]]:
    """An eleventh each (rounded) for dev and test, the rest for training."""
    order = torch.randperm(len(dialogs), generator=generator_for(seed, "split", client)).tolist()
    held = round(len(dialogs) / _HELD_OUT)
    cuts = {"dev": order[:held], "test": order[held : 2 * held], "train": order[2 * held :]}
    return {split: [dialogs[i] for i in sorted(cuts[split])] for split in SPLITS}


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--raw", type=Path, required=True, help="folder with the publisher's files")
    parser.add_argument("--source", choices=["sgd", "taskmaster1", "taskmaster4"], required=True, help="which set")
    parser.add_argument("--vocab-size", type=int, default=4000, help="entries of the trained vocabulary (4000)")
    parser.add_argument("--no-merge", action="store_true", help="keep utterances of one side in a row as turns")
    parser.add_argument("--seed", type=int, default=0, help="of Taskmaster's random split (0)")


def _run(args: argparse.Namespace) -> Mapping[str, Any]:
    return prepare_dialog(
        args.raw, args.out, source=args.source, vocab_size=args.vocab_size, merge=not args.no_merge, seed=args.seed
    )


RECIPE = Recipe("two-side dialogs by domain (FedAssistant)", _arguments, _run)
SYNTHETIC_RECIPE = synthetic_recipe("small made-up dialogs of six domains", "fedtorch.data.synthetic.dialogs")
