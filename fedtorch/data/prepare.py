"""`python -m fedtorch.data prepare NAME`: from a publisher's files to a prepared folder.

Several processes may prepare the same folder at once (`atomic_folder`); a folder that was prepared from the same
files with the same options is kept, any other is an error rather than a silent reuse.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedtorch.core.errors import DataError, FedtorchError
from fedtorch.core.extras import require
from fedtorch.data import prepare_crossfit, prepare_dialog, prepare_fedqa
from fedtorch.data.folder import atomic_folder, read_manifest, write_client, write_manifest
from fedtorch.data.recipe import Recipe, digests, is_prepared

MAX_TARGET_TOKENS = 512
# A schema stands in every source, but thousands of copies only slow SentencePiece down; with one copy its names are
# not frequent enough to become tokens (sources a fifth longer). 50 costs half a second over one.
_SCHEMA_COPIES = 50
_ROWS_SHOWN = 20


def prepare_text2sql(
    raw: Path, out: Path, *, db_content: Path | None = None, vocab_size: int = 4000, parse_sql: bool = False
) -> dict[str, Any]:
    """Prepares the eight Lorar clients and returns the manifest; `raw` holds the files of text2sql-data.

    Each client gets its splits and the fact `schema`; with `db_content` (a folder of SQLite files, for some or all of
    the sets) a row whose question mentions cell values has its own `schema` with them. `tokenizer/` holds a
    vocabulary of the training splits. The record says what went in, and which gold queries survive the tokenizer.

    Raises:
        DataError: a file is missing or malformed, or `out` was prepared differently.
        ConfigError: no vocabulary of that size can be trained, or sqlglot, for `parse_sql`, is not installed.
    """
    if parse_sql:
        require("--parse-sql", "sqlglot", extra="lorar")
    from fedtorch.data import text2sql
    from fedtorch.text.sentencepiece import load_tokenizer, train_vocabulary

    databases = _databases(db_content)
    files = [raw / f"{stem}{end}" for stem in text2sql.CLIENTS.values() for end in (".json", "-schema.csv")]
    options = {
        "sources": digests([*files, *databases.values()], "the `data` folder of text2sql-data"),
        "vocab_size": vocab_size,
    }
    if is_prepared(out, options):
        return read_manifest(out)
    with atomic_folder(out) as folder:
        clients: dict[str, Any] = {}
        texts: list[str] = []
        golds: dict[str, dict[str, list[str]]] = {}
        notes: dict[str, Any] = {"excluded": {}, "unfilled": {}, "rows_with_values": {}}
        for client, stem in text2sql.CLIENTS.items():
            found = text2sql.read_set(raw / f"{stem}.json")
            schema = text2sql.read_schema(raw / f"{stem}-schema.csv")
            facts = {"schema": text2sql.serialise(schema, {})}
            if client in databases:
                notes["rows_with_values"][client] = _add_values(found.splits, schema, databases[client])
            clients[client] = write_client(folder, client, found.splits, facts=facts)
            golds[client] = {split: [row["sql"] for row in rows] for split, rows in found.splits.items()}
            texts += [row["question"] for row in found.splits["train"]]
            texts += [text2sql.target_text(row["sql"]) for row in found.splits["train"]]
            texts += [text2sql.source_text("", facts["schema"])] * _SCHEMA_COPIES
            notes["excluded"][client], notes["unfilled"][client] = found.excluded, found.unfilled
        train_vocabulary(texts, folder / "tokenizer", size=vocab_size)
        tokenizer = load_tokenizer(folder / "tokenizer")  # without added tokens: this vocabulary has `<`
        record = {
            "options": options,
            "db_content": bool(databases),
            "db_content_clients": list(databases),
            "vocabulary": len(tokenizer),
            **notes,
            "round_trip": _round_trips(tokenizer, golds),
        }
        if parse_sql:
            record["parsed"] = _parsed(golds)
        write_manifest(folder, "text2sql", clients=clients, record=record)
    is_prepared(out, options)  # another process may have been faster, with other options
    return read_manifest(out)


def _databases(folder: Path | None) -> dict[str, Path]:
    from fedtorch.data.cell_values import find_database
    from fedtorch.data.text2sql import CLIENTS

    if folder is None:
        return {}
    found = {client: find_database(folder, stem) for client, stem in CLIENTS.items()}
    databases = {client: path for client, path in found.items() if path is not None}
    if not databases:
        raise DataError(f"{folder} has no database of any set; expected files such as geography.sqlite or leave it out")
    return databases


def _add_values(splits: dict[str, list[dict[str, str]]], schema: dict[str, list[str]], database: Path) -> int:
    """Gives each row whose question mentions cell values its own `schema`, in place; returns how many rows."""
    from fedtorch.data.cell_values import match_cells, read_cells
    from fedtorch.data.text2sql import serialise

    cells, plain, count = read_cells(database), serialise(schema, {}), 0
    for rows in splits.values():
        for row in rows:
            text = serialise(schema, match_cells(row["question"], cells))
            if text != plain:
                row["schema"] = text
                count += 1
    return count


def _round_trips(tokenizer: Any, golds: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, Any]:
    from fedtorch.data.check import round_trip

    return {
        client: {
            split: round_trip(tokenizer, queries, max_length=MAX_TARGET_TOKENS).as_record()
            for split, queries in splits.items()
        }
        for client, splits in golds.items()
    }


def _parsed(golds: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, dict[str, int]]:
    from fedtorch.data.check import count_parsed

    result = {}
    for client, splits in golds.items():
        parsed, different = count_parsed(sql for queries in splits.values() for sql in queries)
        result[client] = {"parsed": parsed, "different": different}
    return result


def _text2sql_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--raw", type=Path, required=True, help="folder with the files of text2sql-data")
    parser.add_argument("--db-content", type=Path, help="folder with SQLite files, to add matching cell values")
    parser.add_argument("--vocab-size", type=int, default=4000, help="entries of the trained vocabulary (4000)")
    parser.add_argument("--parse-sql", action="store_true", help="count the queries that sqlglot can parse (slow)")


def _run_text2sql(args: argparse.Namespace) -> Mapping[str, Any]:
    return prepare_text2sql(
        args.raw, args.out, db_content=args.db_content, vocab_size=args.vocab_size, parse_sql=args.parse_sql
    )


def _synthetic_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same data (0)")


def _run_synthetic(args: argparse.Namespace) -> Mapping[str, Any]:
    from fedtorch.data.synthetic import prepare

    prepare(args.out, seed=args.seed)
    return read_manifest(args.out)


def _wikisql_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--raw", type=Path, required=True, help="folder with WikiSQL's .jsonl and .tables.jsonl files")
    parser.add_argument("--no-extra", action="store_true", help="leave out the files in the folder `extra` of --raw")
    parser.add_argument("--vocab-size", type=int, default=4000, help="entries of the trained vocabulary (4000)")


def _run_wikisql(args: argparse.Namespace) -> Mapping[str, Any]:
    from fedtorch.data.prepare_wikisql import prepare_wikisql

    return prepare_wikisql(args.raw, args.out, extra=not args.no_extra, vocab_size=args.vocab_size)


RECIPES = {
    "text2sql": Recipe("the eight published sets of Lorar", _text2sql_arguments, _run_text2sql),
    "crossfit": prepare_crossfit.RECIPE,
    "synthetic": Recipe("small made-up text-to-SQL clients to try things out", _synthetic_arguments, _run_synthetic),
    "fedqa": prepare_fedqa.RECIPE,
    "synthetic-qa": prepare_fedqa.SYNTHETIC_RECIPE,
    "wikisql": Recipe("WikiSQL's questions, a pool for server and clients", _wikisql_arguments, _run_wikisql),
    "dialog": prepare_dialog.RECIPE,
    "synthetic-dialog": prepare_dialog.SYNTHETIC_RECIPE,
}


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m fedtorch.data") -> int:
    """The command line; returns the exit code. Errors of `fedtorch.core.errors` become one line on stderr."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    parser = argparse.ArgumentParser(prog=prog, description="Prepare data sets for fedtorch.")
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
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    show(manifest, args.out)
    return 0


def show(manifest: Mapping[str, Any], out: Path) -> None:
    """Prints clients, sizes and, where the record has them, the gold queries that survive the tokenizer."""
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
    console = Console()
    console.print(table)
    for line in _left_out(record.get("dropped", {})):
        console.print(line, highlight=False)
    if trips:
        from fedtorch.data.check import REASONS

        entries = [entry["misses"] for splits in trips.values() for entry in splits.values()]
        counts = {reason: sum(entry.get(reason, 0) for entry in entries) for reason in REASONS}
        lost = [f"{count} {reason} ({REASONS[reason]})" for reason, count in counts.items() if count]
        console.print(f"lost: {', '.join(lost) or 'none'}", highlight=False)


def _left_out(dropped: Mapping[str, int | Mapping[str, int]]) -> Iterator[str]:
    """Split -> number of rows whose query cannot be labelled (text-to-SQL), or -> reason -> number (dialogs)."""
    plain = [f"{count} {split}" for split, count in dropped.items() if not isinstance(count, Mapping)]
    if plain:
        yield f"left out, since the query cannot be labelled: {', '.join(plain)}"
    for split, reasons in dropped.items():
        if isinstance(reasons, Mapping) and reasons:
            from fedtorch.data.dialogs import DROPPED

            found = [f"{count} {reason} ({DROPPED[reason]})" for reason, count in sorted(reasons.items())]
            yield f"left out of {'all files' if split == 'all' else split}: {', '.join(found)}"
