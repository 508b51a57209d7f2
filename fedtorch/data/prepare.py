"""`python -m fedtorch.data prepare NAME`: from a publisher's files to a prepared folder.

Several processes may prepare the same folder at once (`atomic_folder`); a folder that was prepared from the same
files with the same options is kept, any other is an error rather than a silent reuse.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fedtorch.core.errors import FedtorchError, print_error
from fedtorch.core.terminal import PlainConsole, log_to_terminal
from fedtorch.data import client_facts, left_out, prepare_crossfit, prepare_dialog, prepare_fedqa, prepare_text2sql
from fedtorch.data.recipe import Recipe

_ROWS_SHOWN = 20


def _wikisql_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--raw", type=Path, required=True, help="folder with WikiSQL's .jsonl and .tables.jsonl files")
    parser.add_argument("--no-extra", action="store_true", help="leave out the files in the folder `extra` of --raw")
    parser.add_argument("--vocab-size", type=int, default=4000, help="entries of the trained vocabulary (4000)")


def _run_wikisql(args: argparse.Namespace) -> Mapping[str, Any]:
    from fedtorch.data.prepare_wikisql import prepare_wikisql

    return prepare_wikisql(args.raw, args.out, extra=not args.no_extra, vocab_size=args.vocab_size)


RECIPES = {
    "text2sql": prepare_text2sql.RECIPE,
    "crossfit": prepare_crossfit.RECIPE,
    "synthetic": prepare_text2sql.SYNTHETIC_RECIPE,
    "fedqa": prepare_fedqa.RECIPE,
    "synthetic-qa": prepare_fedqa.SYNTHETIC_RECIPE,
    "wikisql": Recipe("WikiSQL's questions, a pool for server and clients", _wikisql_arguments, _run_wikisql),
    "dialog": prepare_dialog.RECIPE,
    "synthetic-dialog": prepare_dialog.SYNTHETIC_RECIPE,
}


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m fedtorch.data") -> int:
    """The command line; returns the exit code. Errors of `fedtorch.core.errors` become one line on stderr."""
    log_to_terminal(logging.INFO)
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Prepare data sets for fedtorch.",
        epilog="For files of your own: `fedtorch data check CONFIG`, `fedtorch data partition CONFIG`.",
    )
    prepare = parser.add_subparsers(required=True, metavar="COMMAND").add_parser("prepare", help="prepare a data set")
    names = prepare.add_subparsers(required=True, dest="name", metavar="NAME")
    for name, recipe in RECIPES.items():
        sub = names.add_parser(name, help=recipe.about, description=recipe.about)
        sub.add_argument("--out", type=Path, required=True, help="the prepared folder; must not exist yet")
        recipe.add_arguments(sub)
    args = parser.parse_args(arguments)
    try:
        manifest = RECIPES[args.name].run(args)
    except FedtorchError as error:
        return print_error(error, "error")
    show(manifest, args.out)
    return 0


def show(manifest: Mapping[str, Any], out: Path) -> None:
    """Prints clients, sizes, what was left out and, of queries, how many survive the tokenizer."""
    clients, record = manifest["clients"], manifest["record"]
    splits = list(dict.fromkeys(split for client in clients.values() for split in client["splits"]))
    trips, parsed = record.get("round_trip"), record.get("parsed")
    columns = [*splits, *(["survive the tokenizer"] if trips else []), *(["parsed by sqlglot"] if parsed else [])]
    table = Table("client", *columns, title=f"{manifest['name']} in {out}", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"

    def sizes(names: Sequence[str]) -> list[str]:
        return [str(sum(clients[n]["splits"].get(split, {}).get("examples", 0) for n in names)) for split in splits]

    def checks(names: Sequence[str]) -> list[str]:
        cells = []
        if trips:
            entries = [entry for name in names for entry in trips[name].values()]
            matched, total = (sum(entry[key] for entry in entries) for key in ("matched", "total"))
            cells.append(f"{100 * matched / max(total, 1):.2f} % of {total}")
        if parsed:
            cells.append(" of ".join(str(sum(parsed[name][key] for name in names)) for key in ("parsed", "different")))
        return cells

    for name in list(clients)[:_ROWS_SHOWN]:
        table.add_row(name, *sizes([name]), *checks([name]))
    if len(clients) > _ROWS_SHOWN:
        table.add_row(f"... and {len(clients) - _ROWS_SHOWN} more")
    table.add_section()
    table.add_row("total", *sizes(list(clients)), *checks(list(clients)))
    console = PlainConsole()
    console.print(table)
    if (facts := client_facts.table(manifest, most=_ROWS_SHOWN)) is not None:
        console.print(facts)
    for line in left_out.lines(manifest):
        console.print(line, soft_wrap=True)
    if trips:
        console.print(f"lost: {_lost(trips)}")


def _lost(trips: Mapping[str, Mapping[str, Any]]) -> str:
    """How many queries do not survive the tokenizer, by reason."""
    from fedtorch.data.check import REASONS

    entries = [entry["misses"] for splits in trips.values() for entry in splits.values()]
    counts = {reason: sum(entry.get(reason, 0) for entry in entries) for reason in REASONS}
    return ", ".join(f"{count} {reason} ({REASONS[reason]})" for reason, count in counts.items() if count) or "none"
