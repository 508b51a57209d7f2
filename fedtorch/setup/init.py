"""`fedtorch init FILE`: look at a data file and write a config that runs as it is."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fedtorch.config import load as yaml_config
from fedtorch.core import yaml_tree
from fedtorch.core.errors import ConfigError, DataError, FedtorchError, print_error
from fedtorch.setup.data_check import own_task
from fedtorch.stats.proposals import proposals
from fedtorch.stats.table import Stats
from fedtorch.tasks.own_first import (
    Counted,
    Proposal,
    TextForm,
    Wishes,
    name_for,
    propose,
    scratch_beside,
    unusable_rows,
)

TASKS = ("text_classification", "token_classification", "seq2seq", "causal_lm", "preference")
MOST_LEFT_OUT = 0.5
"""The part of rows from which on a file is not what it was taken for."""


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.setup.init") -> int:
    """Write the config; returns the exit code (0 done, 2 an option is wrong, 3 the file is)."""
    args = _parser(prog).parse_args(arguments)
    try:
        wishes = Wishes(args.task, args.text, args.label, args.client)
        out = args.out or Path(f"{name_for(args.file)}.yaml")
        form, run = _form(args.encoding, args.separator), args.from_stats
        counted = proposals(Stats.read(run), run) if run else None
        print(write(args.file, out, args.model, wishes=wishes, form=form, counted=counted))
        return 0
    except FedtorchError as error:
        return print_error(error)


def write(
    source: str,
    out: Path,
    model: str | None = None,
    *,
    wishes: Wishes | None = None,
    form: TextForm | None = None,
    counted: Counted | None = None,
) -> str:
    """Write the config `out` for a source of any kind; what was guessed and why, for people.

    counted: keys that silos' counts propose, in place of guesses.

    Raises:
        ConfigError: `out` is there already, the source is not, the model cannot be found or cannot do the task, or the
            counts are of another task.
        DataError: the source cannot be read, has nothing that a task reads, or labels that the counts do not have.
    """
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} is there already and is not overwritten; give another name by --out")
    if not _is_text(source):
        raise ConfigError(f"the name {source!r} is no text in UTF-8, as a config is; rename it")
    proposal = propose(source, out, model, wishes=wishes, form=form, counted=counted)
    told, text = _tried(proposal, out)
    template = out.with_suffix(".jinja")
    try:
        for place, content in ((out, text), *(((template, proposal.template),) if proposal.template else ())):
            with place.open("x", encoding="utf-8") as file:
                file.write(content)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error.strerror}); give another name by --out") from error
    name = shlex.quote(str(out))
    return "\n".join(
        [*told, f"{out} is written. Next:", f"  fedtorch data check {name}", f"  fedtorch run --config {name}"]
    )


def _is_text(name: str) -> bool:
    """Has it no half of a surrogate pair, which stands for a byte of a file's name that is no UTF-8?"""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _tried(proposal: Proposal, out: Path) -> tuple[list[str], str]:
    """Return what to say, and the config, with the number of rows in it that the task cannot use.

    Raises:
        DataError: too many rows cannot be used.
    """
    config = yaml_config.load(yaml_tree.read(proposal.text(), str(out)).data)
    with scratch_beside(out) as scratch:
        found = unusable_rows(own_task(config.task, config.task_name), scratch)
    if not found.bad:
        return proposal.told, proposal.text()
    if found.bad > MOST_LEFT_OUT * found.rows:
        raise DataError(
            "\n  ".join([f"{found.bad} of {found.rows} rows cannot be used as {config.task_name}:", *found.named])
            + "\nsay what the columns are with --task, --text and --label, or correct the rows"
        )
    said = f"  {found.bad} of {found.rows} rows cannot be used and are left out (task.data.skip_bad_rows):"
    return [*proposal.told, said, *(f"    {problem}" for problem in found.named)], proposal.text(found.most)


def _form(encoding: str | None, separator: str | None) -> TextForm:
    names = {"tab": "\t", "\\t": "\t"}
    try:
        return TextForm(encoding or "utf-8", None if separator is None else names.get(separator, separator))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Look at a data file and write a config that runs as it is; nothing is overwritten. What is "
        "guessed can be said with options instead.",
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="JSONL, JSON, CSV, TSV, Parquet, Arrow, CoNLL or text; a glob; a folder; a saved data set",
    )
    parser.add_argument("--model", metavar="NAME", help="folder or name of a pretrained model (a small random one)")
    parser.add_argument("--out", type=Path, metavar="YAML", help="the config to write (FILE's name with .yaml)")
    parser.add_argument("--task", choices=TASKS, help="what is to be learned")
    parser.add_argument("--text", metavar="COLUMN", help="what is read: text, prompt, source or list of words")
    parser.add_argument("--label", metavar="COLUMN", help="what is predicted: label, completion, target, tags or spans")
    parser.add_argument("--client", metavar="COLUMN", help="whose a row is; or `file`, or `none` to deal rows")
    parser.add_argument("--encoding", metavar="NAME", help="of text files (utf-8), such as cp1252, latin-1 or utf-16")
    parser.add_argument("--separator", metavar="CHAR", help="of the cells of CSV files, `tab` for a tab")
    parser.add_argument(
        "--from-stats",
        type=Path,
        metavar="RUN",
        help="run of `fedtorch stats`, whose labels, length, weights of labels and tokenizer are taken",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
