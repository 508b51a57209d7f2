"""A config for a data file: what is guessed of it, what the user said, and the YAML that follows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.shown import shortened
from fedtorch.data.own.conll import looks_like_conll
from fedtorch.data.own.first_config import Settings, chat_template, config_text, escaped
from fedtorch.data.own.guess import guess
from fedtorch.data.own.guessed import Counted, Guess, Wishes
from fedtorch.data.own.model_kind import ModelKind
from fedtorch.data.own.source import KINDS, Table, files_of, open_tables
from fedtorch.data.own.split_files import files_beside, split_files
from fedtorch.data.own.text_files import READERS, TextRows
from fedtorch.data.own.text_form import TextForm, first_bad_byte, no_text_file, usual_separator

_CONLL_LINES = 2000
_LABELS_NAMED = 10


@dataclass(frozen=True)
class Proposal:
    """A config that is not written yet."""

    source: str
    """as the user gave it"""
    found: Guess
    """what it is written from"""
    settings: Settings
    """what else it is written from"""
    told: list[str]
    """what was guessed and why, for people"""

    def text(self, skip_bad_rows: int = 0) -> str:
        """The YAML. skip_bad_rows: rows that it leaves out."""
        text = config_text(self.found, replace(self.settings, skip_bad_rows=skip_bad_rows))
        return f"# From {escaped(self.source)}: {self.found.rows} rows.\n{text}"

    @property
    def template(self) -> str:
        """The chat template that goes beside the config; empty: none is needed."""
        return chat_template(self.found, self.settings)


def propose(
    source: str,
    out: Path,
    model: str | None = None,
    *,
    wishes: Wishes | None = None,
    form: TextForm | None = None,
    counted: Counted | None = None,
) -> Proposal:
    """Look at a source of any kind.

    Args:
        out: where the config is to be written.
        form: what was said of text files.
        counted: what silos' counts propose; its task is taken where none is wished for.

    Raises:
        ConfigError: the source is not there, the model cannot be found or cannot do the task, a wish cannot be met, or
            the counts are of another task.
        DataError: the source cannot be read, has nothing that a task reads, or labels that the counts do not have.
    """
    check_there(source)
    counted = counted or Counted("", "")
    wishes, kind = wishes or Wishes(), ModelKind.of(model) if model else ModelKind()
    wishes = replace(wishes, task=wishes.task or counted.task or None)
    train, splits = split_files(source)
    form = _text_form(files_of(train), form or TextForm())
    with scratch_beside(out) as scratch, open_tables(train, scratch, form) as tables:
        are_shards = train != source and _are_shards(files_of(train))
        found = guess(tables, wishes, model=kind, are_shards=are_shards)
        marks = {table.rows.form.separator for table in tables if isinstance(table.rows, TextRows)} - {None}
        usual = {usual_separator(Path(table.name)) for table in tables}
        form = replace(form, separator=marks.pop() if len(marks) == 1 and marks != usual else form.separator)
        _check_counted(source, found, counted)
        settings = Settings(train, model, kind, splits, out.with_suffix(".jinja"), form, counted=counted)
        told = [_heading(source, found, tables), *_told(found, settings, source)]
    return Proposal(source, found, settings, told)


def check_there(source: str) -> None:
    """Raises ConfigError where a source that was named on the command line is not there."""
    try:
        files_of(source)
    except ConfigError:
        raise ConfigError(
            f"{source!r} is no file, no folder with files, and no glob that names one; give what has the rows"
        ) from None


def _check_counted(source: str, found: Guess, counted: Counted) -> None:
    """Raises ConfigError where counts are of another task, DataError where the file has labels that they lack."""
    if counted.task and found.task != counted.task:
        raise ConfigError(
            f"{counted.run} has counts for the task {counted.task}, but {found.task} is asked for; leave --task out, "
            "or --from-stats"
        )
    unknown = [label for label in found.labels if label not in counted.labels]
    if counted.labels and unknown:
        named = ", ".join(shortened(label) for label in unknown[:_LABELS_NAMED])
        more = f" and {len(unknown) - _LABELS_NAMED} more" if len(unknown) > _LABELS_NAMED else ""
        known = ", ".join(shortened(label) for label in counted.labels[:_LABELS_NAMED])
        raise DataError(
            f"{source} has labels that are not in the counts of {counted.run}: {named}{more}; those have {known}. "
            "Correct the rows, or count anew with all labels"
        )


def name_for(source: str) -> str:
    """A name for the config: that of the file or folder, of a glob its folder's."""
    path = Path(source)
    while "*" in path.name or "?" in path.name:
        path = path.parent
    return re.sub(r"[^\w-]+", "_", path.name.partition(".")[0] if path.suffix else path.name).strip("_") or "own"


@contextmanager
def scratch_beside(out: Path) -> Iterator[Path]:
    """A folder for what `datasets` copies, on the disk that the config is on and for nobody else to read."""
    try:
        with TemporaryDirectory(prefix=".init-", dir=out.parent) as scratch:
            yield Path(scratch)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise ConfigError(
            f"{out.parent} cannot be written into ({error.strerror}); give another place by --out"
        ) from error


def _text_form(files: Sequence[Path], form: TextForm) -> TextForm:
    """The form with what the files show.

    Raises:
        DataError: a file is not in the encoding.
    """
    texts = [file for file in files if file.suffix.lower() in READERS or file.suffix.lower() not in KINDS]
    if texts and form.format is None and all(_is_conll(file, form) for file in texts):
        is_told = any(file.suffix.lower() not in (".conll", ".bio", ".iob", ".iob2") for file in texts)
        form = replace(form, format="conll") if is_told else form
    for file in texts:
        if kind := no_text_file(file):
            raise DataError(f"{file} is {kind}")
        if file.suffix.lower() in READERS and (bad := first_bad_byte(file, form)):
            raise DataError(
                f"{file}: {bad}; give the encoding with --encoding, such as cp1252 (Windows), latin-1 or utf-16, or "
                "save the file as UTF-8"
            )
    return form


def _is_conll(file: Path, form: TextForm) -> bool:
    if file.suffix.lower() in (".json", ".jsonl"):
        return False
    try:
        return looks_like_conll(islice(form.lines(file, newline="\n"), _CONLL_LINES))
    except (OSError, UnicodeError):
        return False


def _are_shards(files: Sequence[Path]) -> bool:
    """Do names of several files differ in numbers alone?"""
    return len(files) > 1 and len({re.sub(r"\d+", "", file.stem) for file in files}) == 1


def _heading(source: str, found: Guess, tables: Sequence[Table]) -> str:
    files = f" in {len(tables)} files" if len(tables) > 1 else ""
    return f"{escaped(source)}: {found.rows} row{'s' if found.rows != 1 else ''}{files}"


def _of_header(found: Guess) -> list[tuple[str, str]]:
    """A sign that the first line of a table is a row."""
    name = found.roles.get("label", "")
    why = f"the column of labels is called {name!r} as one of its values is; write the columns' names in a first line"
    return [("no header?", why)] if name in found.labels else []


def _told(found: Guess, settings: Settings, source: str) -> list[str]:
    why = [*found.why, *_of_header(found), *settings.notes(found)]
    if others := files_beside(source):
        why.append(("passed over", f"{', '.join(others)} beside it; give the folder to use files as splits"))
    width = max(len(what) for what, _ in why)
    return [f"  {what:{width}}  {escaped(reason)}" for what, reason in why]
