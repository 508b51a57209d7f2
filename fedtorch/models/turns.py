"""The turns of a dialog as token ids: cut to a length, and collated for a model of each side or one for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Turn = tuple[int, list[int]]  # side, token ids without separators


def fit(turns: list[Turn], limit: int) -> list[Turn]:
    """The dialog cut at its last whole turn within `limit` tokens, each turn with one separator.

    If that leaves less than both sides, the turns up to the other side's first one are kept and the longest are cut.
    """
    used, kept = 0, 0
    for _, ids in turns:
        used += len(ids) + 1
        if used > limit:
            break
        kept += 1
    if len({side for side, _ in turns[:kept]}) == 2:
        return turns[:kept]
    both = next(i for i, (side, _) in enumerate(turns) if side != turns[0][0])
    start = max(0, min(both - 1, both + 1 - limit // 2))
    chosen = turns[start : both + 1]
    each = limit // len(chosen) - 1
    return [(side, ids[:each]) for side, ids in chosen]


def lengths(dialogs: Sequence[Sequence[Turn]], *, each: bool) -> list[tuple[int, ...]]:
    """Tokens of each dialog with its separators, as they are padded; all have equally many numbers.

    each: as `collate_turns` pads them, turn by turn, 0 where a dialog has none; else as one sequence.
    """
    turns = [[len(ids) + 1 for _, ids in dialog] for dialog in dialogs]
    if not each:
        return [(sum(sizes),) for sizes in turns]
    most = max(map(len, turns), default=0)
    return [(*sizes, *[0] * (most - len(sizes))) for sizes in turns]


def collate_turns(dialogs: Sequence[Sequence[Turn]], separator: int, *, predict_first: bool = True) -> dict[str, Any]:
    """The batch for `TwoSide`: groups of dialogs in which the same side speaks at every turn, longest first.

    Per group `sides`, `rows` (each dialog's place in the batch) and `segments`; a segment has the dialogs that have
    this turn: `inputs` and `targets` (R, S) int64, padded on the right, and `lengths` (R,).
    """
    groups: list[tuple[list[int], list[int]]] = []
    for place in sorted(range(len(dialogs)), key=lambda i: -len(dialogs[i])):  # stable
        sides = [side for side, _ in dialogs[place]]
        fitting = next((rows for known, rows in groups if known[: len(sides)] == sides), None)
        if fitting is None:
            groups.append((sides, [place]))
        else:
            fitting.append(place)
    return {
        "size": len(dialogs),
        "groups": [
            {
                "sides": sides,
                "rows": rows,
                "segments": [
                    _segment([dialogs[i][turn][1] for i in rows if len(dialogs[i]) > turn], separator, predict_first)
                    for turn in range(len(sides))
                ],
            }
            for sides, rows in groups
        ],
    }


def collate_whole(dialogs: Sequence[Sequence[Turn]], separator: int, *, predict_first: bool = True) -> dict[str, Any]:
    """The batch for `OneModel`: every dialog as one sequence.

    `inputs`, `targets`, `sides` (whose turn a target belongs to), `mask`: int64, shape (B, longest).
    """
    rows = [[_row(ids, separator, predict_first, side) for side, ids in turns] for turns in dialogs]
    joined = [[sum((part[k] for part in parts), []) for parts in rows] for k in range(3)]
    inputs, targets, sides = (_pad(lists, fill) for lists, fill in zip(joined, (separator, -100, 0), strict=True))
    lengths = torch.tensor([len(row) for row in joined[0]])
    mask = (torch.arange(inputs.shape[1]) < lengths.unsqueeze(1)).long()
    return {
        "size": len(dialogs),
        "groups": [{"inputs": inputs, "targets": targets, "sides": sides, "mask": mask}],
    }


def _segment(rows: Sequence[list[int]], separator: int, predict_first: bool) -> dict[str, Tensor]:
    parts = [_row(ids, separator, predict_first, 0) for ids in rows]
    return {
        "inputs": _pad([part[0] for part in parts], separator),
        "targets": _pad([part[1] for part in parts], -100),
        "lengths": torch.tensor([len(part[0]) for part in parts]),
    }


def _row(ids: list[int], separator: int, predict_first: bool, side: int) -> tuple[list[int], list[int], list[int]]:
    targets = [*ids, separator]
    if not predict_first:
        targets[0] = -100
    return [separator, *ids], targets, [side] * len(targets)


def _pad(rows: Sequence[list[int]], fill: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])
