"""`python -m fedtorch.data prepare text2sql`: the eight published sets of Lorar as a prepared folder."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtorch.core.errors import DataError
from fedtorch.core.extras import require
from fedtorch.data.folder import write_client, write_manifest
from fedtorch.data.recipe import Recipe, digests, prepare_once, synthetic_recipe

MAX_TARGET_TOKENS = 512
# A schema stands in every source, but thousands of copies only slow SentencePiece down; with one copy its names are
# not frequent enough to become tokens (sources a fifth longer). 50 costs half a second over one.
_SCHEMA_COPIES = 50


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
    from fedtorch.data.text2sql import CLIENTS

    databases = _databases(db_content)
    files = [raw / f"{stem}{end}" for stem in CLIENTS.values() for end in (".json", "-schema.csv")]
    options = {
        "sources": digests([*files, *databases.values()], "the `data` folder of text2sql-data"),
        "vocab_size": vocab_size,
    }
    return prepare_once(out, options, lambda folder: _write(folder, raw, databases, options, parse_sql=parse_sql))


def _write(
    folder: Path, raw: Path, databases: Mapping[str, Path], options: Mapping[str, Any], *, parse_sql: bool
) -> None:
    """Write the clients' files, vocabulary and manifest into `folder`."""
    from fedtorch.data import text2sql
    from fedtorch.text.sentencepiece import load_tokenizer, train_vocabulary

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
    train_vocabulary(texts, folder / "tokenizer", size=options["vocab_size"])
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


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--raw", type=Path, required=True, help="folder with the files of text2sql-data")
    parser.add_argument("--db-content", type=Path, help="folder with SQLite files, to add matching cell values")
    parser.add_argument("--vocab-size", type=int, default=4000, help="entries of the trained vocabulary (4000)")
    parser.add_argument("--parse-sql", action="store_true", help="count the queries that sqlglot can parse (slow)")


def _run(args: argparse.Namespace) -> Mapping[str, Any]:
    return prepare_text2sql(
        args.raw, args.out, db_content=args.db_content, vocab_size=args.vocab_size, parse_sql=args.parse_sql
    )


RECIPE = Recipe("the eight published sets of Lorar", _arguments, _run)
SYNTHETIC_RECIPE = synthetic_recipe("small made-up text-to-SQL clients to try things out", "fedtorch.data.synthetic")
