"""Rows with judged answers, and tasks over them with models of a few hundred weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from own_rows import CLIENTS, GPT2, own, write_rows

from fedtorch.tasks.preference import Preference

DROPPED = {name: 0.1 for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop")}
"""Dropout as GPT-2 has it."""


def pairs(size: int = 24, clients: int = 2) -> list[dict[str, Any]]:
    """Short answers are preferred."""
    return [
        {"prompt": f"what is {i}?", "chosen": f" it is {i}", "rejected": " no" + " idea" * (i % 3),
         "home": CLIENTS[i % clients]} for i in range(size)
    ]  # fmt: skip


def verdicts(size: int = 24, clients: int = 2) -> list[dict[str, Any]]:
    """The same, one answer a row."""
    return [
        {"prompt": row["prompt"], "completion": row["chosen"] if i // clients % 2 else row["rejected"],
         "label": bool(i // clients % 2), "home": row["home"]} for i, row in enumerate(pairs(size, clients))
    ]  # fmt: skip


def write_both(folder: Path = Path()) -> None:
    """Write `pairs.jsonl` and `verdicts.jsonl`."""
    write_rows(folder / "pairs.jsonl", pairs())
    write_rows(folder / "verdicts.jsonl", verdicts())


def judge(source: str = "", *, data: dict[str, Any] | None = None, **changes: Any) -> Preference:
    """A task over one of the files, or another."""
    source = source or ("verdicts.jsonl" if changes.get("kind") == "kto" else "pairs.jsonl")
    return Preference(data=own(source, **data or {}), **{"model": GPT2, "max_length": 64, **changes})
