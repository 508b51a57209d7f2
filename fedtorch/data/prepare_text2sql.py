"""`python -m fedtorch.data prepare text2sql`: the eight published sets of Lorar, or any in their format."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtorch.core.errors import DataError
from fedtorch.core.extras import require
from fedtorch.data.client_facts import FACTS, of_queries
from fedtorch.data.folder import write_client, write_manifest
from fedtorch.data.left_out import OMITTED, LeftOut
from fedtorch.data.recipe import Recipe, digests, prepare_once, synthetic_recipe

if TYPE_CHECKING:
    from fedtorch.data.text2sql import QuestionSet

MAX_TARGET_TOKENS = 512
PAPER = "paper"
"""Stands for the eight sets of Lorar."""
_RAW = "a folder such as the `data` of text2sql-data"
# A schema stands in every source, but thousands of copies only slow SentencePiece down; with one copy its names are
# not frequent enough to become tokens (sources a fifth longer). 50 costs half a second over one.
_SCHEMA_COPIES = 50


def prepare_text2sql(
    raw: Path,
    out: Path,
    *,
    clients: Sequence[str] = (),
    db_content: Path | None = None,
    vocab_size: int = 4000,
    parse_sql: bool = False,
) -> dict[str, Any]:
    """Prepares a client of every set in `raw` and returns the manifest.

    A set is `X.json` with `X-schema.csv` beside it, as in text2sql-data. The eight of Lorar come first, in the paper's
    order and under its names; others are called X. clients: the sets to take, by either name; `paper` is the eight.

    Each client gets its splits and the fact `schema`; with `db_content` (a folder of SQLite files, for some or all of
    the sets) a row whose question mentions cell values has its own `schema` with them. `tokenizer/` holds a
    vocabulary of the training splits. The record says what went in, and which gold queries survive the tokenizer.

    Raises:
        DataError: a file is missing or malformed, or `out` was prepared differently.
        ConfigError: no vocabulary of that size can be trained, or sqlglot, for `parse_sql`, is not installed.
    """
    if parse_sql:
        require("--parse-sql", "sqlglot", extra="lorar")
    stems = find_sets(raw, clients)
    databases = _databases(db_content, stems)
    files = [raw / f"{stem}{end}" for stem in stems.values() for end in (".json", "-schema.csv")]
    options = {"sources": digests([*files, *databases.values()], _RAW), "vocab_size": vocab_size}
    return prepare_once(
        out, options, lambda folder: _write(folder, raw, stems, databases, options, parse_sql=parse_sql)
    )


def find_sets(raw: Path, chosen: Sequence[str] = ()) -> dict[str, str]:
    """Client -> stem of the files of its set; see `prepare_text2sql`.

    Raises:
        DataError: there is no set, one that was chosen is not there, or a JSON file has no schema or the other way
            round, where nothing was chosen.
    """
    from fedtorch.data.text2sql import CLIENTS

    files = {end: {path.name.removesuffix(end) for path in raw.glob(f"*{end}")} for end in (".json", "-schema.csv")}
    pairs = files[".json"] & files["-schema.csv"]
    by_stem = {stem: client for client, stem in CLIENTS.items()}
    known = {client: stem for client, stem in CLIENTS.items() if stem in pairs}
    known |= {stem: stem for stem in sorted(pairs - set(by_stem))}
    if chosen:
        wanted = [name for entry in chosen for name in (CLIENTS if entry == PAPER else [by_stem.get(entry, entry)])]
        if missing := [CLIENTS.get(name, name) for name in wanted if name not in known]:
            raise DataError(
                f"{raw} has no set {missing[0]}: {missing[0]}.json or {missing[0]}-schema.csv is missing; the sets "
                f"there are {', '.join(known) or 'none'}; --raw must be {_RAW}"
            )
        return {client: stem for client, stem in known.items() if client in wanted}
    for one, other in ((".json", "-schema.csv"), ("-schema.csv", ".json")):
        if alone := sorted(files[one] - files[other]):
            raise DataError(
                f"{raw / alone[0]}{other} is missing, although {alone[0]}{one} is there; add it, or name the sets to "
                f"take: --clients {' '.join(known) or PAPER}"
            )
    if not known:
        raise DataError(f"{raw} has no X.json with X-schema.csv; --raw must be {_RAW}")
    return known


def _write(
    folder: Path,
    raw: Path,
    stems: Mapping[str, str],
    databases: Mapping[str, Path],
    options: Mapping[str, Any],
    *,
    parse_sql: bool,
) -> None:
    """Write the clients' files, vocabulary and manifest into `folder`."""
    from fedtorch.data import text2sql
    from fedtorch.text.sentencepiece import load_tokenizer, train_vocabulary

    clients: dict[str, Any] = {}
    texts: list[str] = []
    golds: dict[str, dict[str, list[str]]] = {}
    notes: dict[str, Any] = {"excluded": {}, "unfilled": {}, "rows_with_values": {}, OMITTED: [], FACTS: {}}
    for client, stem in stems.items():
        found = text2sql.read_set(raw / f"{stem}.json")
        schema = text2sql.read_schema(raw / f"{stem}-schema.csv")
        facts = {"schema": text2sql.serialise(schema, {})}
        if client in databases:
            notes["rows_with_values"][client] = _add_values(found.splits, schema, databases[client])
        clients[client] = write_client(folder, client, found.splits, facts=facts)
        golds[client] = {split: [row["sql"] for row in rows] for split, rows in found.splits.items()}
        texts += _vocabulary_texts(found.splits["train"], facts["schema"])
        notes["excluded"][client], notes["unfilled"][client] = found.excluded, found.unfilled
        notes[OMITTED].append(_excluded(client, found))
        notes[FACTS][client] = of_queries(found.queries)
    train_vocabulary(texts, folder / "tokenizer", size=options["vocab_size"])
    tokenizer = load_tokenizer(folder / "tokenizer")  # without added tokens: this vocabulary has `<`
    record = {
        "options": options,
        "db_content": bool(databases),
        "db_content_clients": list(databases),
        "vocabulary": len(tokenizer),
        **notes,
        "round_trip": _round_trips(tokenizer, golds),
        **({"parsed": _parsed(golds)} if parse_sql else {}),
    }
    write_manifest(folder, "text2sql", clients=clients, record=record)


def _vocabulary_texts(rows: Sequence[Mapping[str, str]], schema: str) -> list[str]:
    """Texts of one client that the vocabulary is trained on."""
    from fedtorch.data.text2sql import source_text, target_text

    questions, targets = [row["question"] for row in rows], [target_text(row["sql"]) for row in rows]
    return [*questions, *targets, *[source_text("", schema)] * _SCHEMA_COPIES]


def _excluded(client: str, found: QuestionSet) -> LeftOut:
    total = found.excluded + sum(map(len, found.splits.values()))
    return LeftOut(client, found.excluded, total, "questions (the publisher marked them `exclude`)")


def _databases(folder: Path | None, stems: Mapping[str, str]) -> dict[str, Path]:
    from fedtorch.data.cell_values import find_database

    if folder is None:
        return {}
    found = {client: find_database(folder, stem) for client, stem in stems.items()}
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
    parser.add_argument("--raw", type=Path, required=True, help="folder with sets: X.json and X-schema.csv")
    parser.add_argument(
        "--clients", nargs="+", default=[], metavar="SET", help="sets to take; `paper`: the eight of Lorar (all)"
    )
    parser.add_argument("--db-content", type=Path, help="folder with SQLite files, to add matching cell values")
    parser.add_argument("--vocab-size", type=int, default=4000, help="entries of the trained vocabulary (4000)")
    parser.add_argument("--parse-sql", action="store_true", help="count the queries that sqlglot can parse (slow)")


def _run(args: argparse.Namespace) -> Mapping[str, Any]:
    return prepare_text2sql(
        args.raw,
        args.out,
        clients=args.clients,
        db_content=args.db_content,
        vocab_size=args.vocab_size,
        parse_sql=args.parse_sql,
    )


RECIPE = Recipe("text-to-SQL sets: the eight of Lorar, and any in their format", _arguments, _run)
SYNTHETIC_RECIPE = synthetic_recipe("small made-up text-to-SQL clients to try things out", "fedtorch.data.synthetic")
