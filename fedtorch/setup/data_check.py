"""`fedtorch data check CONFIG`: what every client has, and whether training would take it; no text is shown."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from fedtorch.config import load as yaml_config
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError, DataError, FedtorchError, print_error
from fedtorch.core.files import replace_file
from fedtorch.core.scores import sharers
from fedtorch.core.shown import plain
from fedtorch.core.terminal import PlainConsole, log_to_terminal, print_table
from fedtorch.report.stats_page import page
from fedtorch.setup.data_units import HEADS, unit_table
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules import check_data
from fedtorch.stats.of_overview import stats_of
from fedtorch.tasks.own import OwnTask
from fedtorch.tasks.own_overview import ClientRows, Overview, draw, overview, some_rows

LABELS_SHOWN, PROBLEMS_SHOWN = 4, 20
LABELS = "labels of train"


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.setup.data_check") -> int:
    """Print the tables and write the picture; returns the exit code (0, 2 the config is wrong, 3 the data are)."""
    args = _parser(prog).parse_args(arguments)
    log_to_terminal(logging.ERROR)  # the tables say the rest
    try:
        config = yaml_config.load(args.config, args.set)
        task = own_task(config.task, config.task_name)
        found = _looked_at(task)
        show(found, task)
        show_units(config)
        picture = args.out or args.config[0].with_name(f"{args.config[0].stem}.check.png")
        draw(found, picture)
        print(f"picture: {picture}")
        if args.html:
            write_page(found, task, args.html)
            print(f"page: {args.html}")
        for client, row in some_rows(task, args.show):
            print(f"{client}: {plain(json.dumps(row, ensure_ascii=False))}")
        if found.problems:
            raise DataError("\n  ".join(["training would refuse these data:", *found.problems[:PROBLEMS_SHOWN]]))
        check_data(Plan.of(config, 1))
        return 0
    except FedtorchError as error:
        return print_error(error)


def _looked_at(task: OwnTask) -> Overview:
    """The overview; on a terminal a bar shows how far it is."""
    form = "{desc}{bar:20} {n_fmt}/{total_fmt} clients {elapsed}"
    with tqdm(desc="rows are prepared ", total=1, file=sys.stderr, disable=None, leave=False, bar_format=form) as bar:

        def say(done: int, of: int) -> None:
            bar.total, bar.n, bar.desc = of, done, "rows are looked at "
            bar.refresh()

        return overview(task, say)


def own_task(task: object, name: str) -> OwnTask:
    """The task of a config, if its data are files of one's own.

    Raises:
        ConfigError: they are not.
    """
    if not isinstance(task, OwnTask):
        raise ConfigError(
            f"task.name is {name}, whose data `fedtorch data prepare` has checked; this is for tasks with "
            "task.data.source, such as text_classification"
        )
    return task


def add_config(parser: argparse.ArgumentParser, name: str = "config", **more: Any) -> None:
    """The arguments `config`, or what else it is called, and `--set`."""
    parser.add_argument(
        name, type=Path, nargs="+", metavar="CONFIG", help="YAML file; later ones change the first", **more
    )
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="override one key")


def show(found: Overview, task: OwnTask) -> None:
    """Two tables, the first leaks, and what may spoil a run."""
    console = PlainConsole()
    splits = list(dict.fromkeys(split for client in found.clients.values() for split in client.rows))
    has_labels = any(client.labels for client in found.clients.values())
    _print(console, found, _sizes(splits, has_labels, found.shared), f"{task.task_kind} in {task.folder}")
    _print(
        console, found, _lengths(task.max_length), f"tokens (task.max_length {task.max_length}), and rows that recur"
    )
    if has_labels:
        console.print("JS: Jensen–Shannon divergence of the labels to those of all, in bits; 0 is alike")
    for split, owners in found.shared.items():
        rows, whose = found.clients[next(iter(owners))].rows[split], sharers(found.clients, owners)
        console.print(f"{split}: the same {rows} rows, shared by {whose}; they count once")
    for line in found.remarks():
        console.print(line, soft_wrap=True)
    for leak in found.leaks:
        console.print(f"  {leak}", soft_wrap=True)


def write_page(found: Overview, task: OwnTask, path: Path) -> None:
    """Write the page of `fedtorch stats`, of clients whose rows all lie here.

    Raises:
        ConfigError: it cannot be written.
    """
    tables = stats_of(found, task.max_length, task.tokenizer or task.source_model.path or "a new tokenizer")
    remarks = {"Remarks": ["All rows lie here; nothing was sent.", *found.remarks()]}
    text = page(tables, title=f"{task.task_kind}: what clients have", remarks=remarks)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); give another name by --html") from error


def show_units(config: Config) -> None:
    """A table of the units of a promise about rows or persons; nothing without one.

    Raises:
        ConfigError: clients have no declared number of units, or names of some are wrong.
    """
    rows, lines = unit_table(config)
    if not rows:
        return
    table = Table(*HEADS, box=box.SIMPLE)
    for row in rows:
        table.add_row(*map(plain, row))
    console = PlainConsole()
    console.print(table)
    for line in lines:
        console.print(line, soft_wrap=True)


def _sizes(splits: Sequence[str], has_labels: bool, shared: Collection[str] = ()) -> dict[str, Any]:
    columns: dict[str, Any] = {
        f"{split} (shared)" if split in shared else split: lambda rows, split=split: str(rows.rows.get(split, 0))
        for split in splits
    }
    if has_labels:
        columns["JS"] = lambda rows: "" if rows.divergence is None else f"{rows.divergence:.3f}"
        columns[LABELS] = _labels
    return columns


def _lengths(most: int) -> dict[str, Any]:
    return {
        "median": lambda rows: str(rows.quantile(0.5)),
        "95 %": lambda rows: str(rows.quantile(0.95)),
        "longest": lambda rows: str(max(rows.tokens, default=0)),
        "cut": lambda rows: f"{rows.cut / max(1, len(rows.tokens)):.1%}",
        "twice here": lambda rows: str(rows.inside),
        "elsewhere too": lambda rows: str(rows.across),
        "dev, test in train": lambda rows: str(rows.leaks),
        "nothing to learn": lambda rows: str(rows.unsupervised),
    }


def _labels(rows: ClientRows) -> str:
    shown = [f"{label[:20]} {count}" for label, count in rows.labels.most_common(LABELS_SHOWN) if count]
    more = len([count for count in rows.labels.values() if count]) - len(shown)
    return ", ".join(shown) + (f", {more} more" if more > 0 else "")


def _print(console: Console, found: Overview, columns: Mapping[str, Any], title: str) -> None:
    rows = [[name, *(cell(client) for cell in columns.values())] for name, client in found.clients.items()]
    whole = found.total()
    total = ["all", *(cell(whole) for cell in columns.values())]
    print_table(console, title, ["client", *columns], rows, total=total, left=[LABELS])


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Prepare a config's own data and show sizes, labels, lengths, duplicates and leaks of every "
        "client. Texts are not shown. `fedtorch run --dry-run` checks model and ranks.",
    )
    add_config(parser)
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print N rows of train, texts and all")
    parser.add_argument("--html", type=Path, metavar="HTML", help="also write a page: labels, lengths, rows of clients")
    parser.add_argument("--out", type=Path, metavar="PNG", help="the picture (CONFIG's name with .check.png)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
