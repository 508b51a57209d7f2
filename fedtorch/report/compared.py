"""Common part of the reports: which runs to show, which of them are one row, figures over seeds, files written."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev

from fedtorch.core.shown import plain
from fedtorch.report.find_runs import Found, NamedRun, find_runs
from fedtorch.tracking.run_folder import Run

_IGNORED = ("run", "track", "system", "checkpoint", "compare")
LONGEST = 80
"""Characters in the name of a folder that is made of others' names."""


def read_all(folders: Sequence[Path]) -> list[NamedRun]:
    """The runs in the folders, each followed by its companions, with the names they go by; each seed once.

    Says what is left out and what is merged.

    Raises:
        ConfigError: a folder has no run.
    """
    found = counted_once(find_runs(folders))
    say_left_out(found)
    return found.runs


def counted_once(found: Found) -> Found:
    """Keep one run for each config and seed; `merged` names the others.

    Two runs of one config and seed are one draw, so that figures over seeds may count only one of them: the finished
    one, else the one that came further, else the first.
    """
    best: dict[tuple[str, str], NamedRun] = {}
    for name, run in found.runs:
        kept = best.setdefault(_draw_of(run), (name, run))[1]
        if (run.is_finished, run.last_round) > (kept.is_finished, kept.last_round):
            best[_draw_of(run)] = (name, run)
    merged = []
    for _, run in found.runs:
        kept = best[_draw_of(run)][1]
        if run is not kept:
            one = f"the same config and seed {run.setting('run.seed')} as {kept.folder}"
            differ = ", although their digests differ" if len({_digest(run), _digest(kept)} - {None}) > 1 else ""
            merged.append(f"{run.folder}: {one}, counted once{differ}")
    return Found(list(best.values()), found.left_out, [*found.merged, *merged])


def say_left_out(found: Found) -> None:
    """Name what is no run and what is counted once, on stderr."""
    for word, lines in (("left out", found.left_out), ("merged", found.merged)):
        for line in lines:
            print(plain(f"{word}: {line}"), file=sys.stderr)


def out_folder(out: Path | None, folders: Sequence[Path]) -> Path:
    """Where a report goes: `--out`, or `report` in the folder it is about.

    A report about several folders belongs to none of them: it goes beside the first, below `report`, into a folder
    named after all.
    """
    different = list({folder.resolve(): folder for folder in folders}.values())
    if out is not None or len(different) == 1:
        return out or different[0] / "report"
    names = [folder.resolve().name or "root" for folder in different]
    name = "-".join(names)
    first = different[0]
    beside = first.parent if first.name not in ("", "..") else first.resolve().parent
    return beside / "report" / (name if len(name) <= LONGEST else f"{names[0][:LONGEST]}-and-{len(names) - 1}-others")


def same_settings(run: Run) -> str:
    """Equal for runs that differ only in seed, name and folder; a run without config is alone."""
    if not run.config:
        return str(run.folder.resolve())
    return json.dumps({k: v for k, v in run.config.items() if k not in _IGNORED}, sort_keys=True, default=str)


def _draw_of(run: Run) -> tuple[str, str]:
    """Equal for runs of one config and seed."""
    return same_settings(run), str(run.setting("run.seed"))


def _digest(run: Run) -> str | None:
    results = run.of_kind("result")
    return results[-1].get("digest") if results else None


def by_settings(runs: Iterable[NamedRun]) -> list[list[NamedRun]]:
    """The runs in groups of those that differ in nothing but the seed, each group a row of a table."""
    groups: dict[str, list[NamedRun]] = {}
    for name, run in runs:
        groups.setdefault(same_settings(run), []).append((name, run))
    return list(groups.values())


def figure(values: Sequence[float], digits: int) -> str:
    """Mean over seeds ± standard deviation; the value alone if there is one, `-` if there is none."""
    if not values:
        return "-"
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"


def show_page(text: str, path: Path) -> Path:
    """Print a page and write it to `path`, which is returned."""
    sys.stdout.write(plain(text))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def say_written(paths: Sequence[Path]) -> None:
    """Name the files that were written, on stderr."""
    print("\n".join(["", *(f"wrote {path}" for path in paths)]), file=sys.stderr)
