"""The keys below `task.data` of a config over data of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from glob import glob
from pathlib import Path
from typing import Any, Literal

from fedtorch.core.ranges import BelowOne, Whole
from fedtorch.data.own.client_rule import ClientRule
from fedtorch.data.own.text_form import TextForm

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Hub:
    """A data set of the hub; the only source that asks the network."""

    hub: str
    """its name"""
    config: str | None = None
    """its configuration, where it has several"""
    revision: str | None = None
    """commit, tag or branch"""


@dataclass(frozen=True)
class SplitRule:
    """Which rows are for training, for choosing (dev) and for the final figures (test)."""

    dev: BelowOne | str = 0.1
    """a share of every client's rows, stratified by label where there is one; or the file, glob or split that has it.
    A file with the column of `clients.by` is dealt by it, and so are files that are all named after clients where
    `clients.by` is file; any other file is every client's, whole"""
    test: BelowOne | str = 0.1
    """the same"""
    column: str | None = None
    """a column whose values are train, dev (or validation) and test; then `dev` and `test` are not used"""
    held_out: tuple[str, ...] = ()
    """clients that are evaluated and never trained: all their rows are test"""
    stratify: bool = False
    """shares have a row of every label of which the client has three rows or more, as far as they have places; false:
    of every label alike as far as whole rows allow, so that a rare one may be missing. Of one row of a label train
    keeps it, of two test has the second. For tasks with labels"""

    def __post_init__(self) -> None:
        shares = [share for share in (self.dev, self.test) if isinstance(share, float | int)]
        if sum(shares) >= 1:
            raise ValueError(f"dev and test take {sum(shares):g} of every client's rows, so that none is left to train")


@dataclass(frozen=True)
class OwnData:
    """Where the rows are, what their columns mean and whose they are."""

    source: str | tuple[str, ...] | Hub
    """a file, a glob, a folder (of one file or sub-folder per client, or as `save_to_disk` wrote it), several of these,
    or `{hub: NAME}`"""
    columns: Mapping[str, str] = field(default_factory=dict)
    """what the task needs -> the column that has it; where nothing is said the column has the same name. `body.text` is
    what objects in column `body` have as `text`, unless a column is called so; so it is with all keys for columns"""
    clients: ClientRule = field(default_factory=lambda: ClientRule(by="file"))
    """who owns a row"""
    splits: SplitRule = field(default_factory=SplitRule)
    """which rows are for training"""
    labels: tuple[str, ...] = ()
    """all labels there are, in the order of their numbers; empty: those of the rows, sorted"""
    id: str | None = None
    """a column that tells rows apart; null: their content does"""
    person: str | None = None
    """a column that says which person a row is about; set by `privacy.unit`"""
    seed: Whole = 42
    """of whatever is drawn of partition and splits; not the run's, so that runs differ in the seed alone"""
    skip_bad_rows: Whole = 0
    """so many unusable rows are left out, each with a warning; more are an error"""
    tokenizer_size: Whole = 2000
    """entries of the vocabulary that is trained where the model is a random one and `task.tokenizer` names none"""
    separator: str | None = None
    """what is between the cells of .csv and .tsv files, one character; null: a comma or a tab as the ending says, or
    where the header has none of these another one that fits the first lines"""
    encoding: str = "utf-8"
    """of all text files, such as cp1252, latin-1 or utf-16"""
    format: Literal["conll"] | None = None
    """what all text files but JSON are: a word and its tag a line; null: as their ending says"""
    decimal: Literal[".", ","] = "."
    """what stands before the decimals of a number that is a text, as in tables: 3.5 or 3,5"""
    prepared: str | None = None
    """a folder that `fedtorch data prepare own` has made of these sources, which are not looked at then"""

    def __post_init__(self) -> None:
        self.text_form  # noqa: B018  # refuses what is no encoding and no separator

    @property
    def text_form(self) -> TextForm:
        """How text files are read."""
        return TextForm(self.encoding, self.separator, self.format)

    def options(self) -> dict[str, Any]:
        """The keys that decide about the rows; later ones only where they are set, so that digests of before stay."""
        found = {key: value for key, value in asdict(self).items() if key != "prepared"}
        if not self.splits.stratify:
            del found["splits"]["stratify"]
        usual = {"person": None, "separator": None, "encoding": "utf-8", "format": None, "decimal": "."}
        return {key: value for key, value in found.items() if key not in usual or value != usual[key]}

    def reads(self, path: str) -> bool:
        """Is the file among what `source` and `splits` name, or in a folder of it?"""
        sources = self.source if isinstance(self.source, tuple) else (self.source,)
        named = [name for name in (*sources, self.splits.dev, self.splits.test) if isinstance(name, str)]
        own = {Path(found).resolve() for name in named for found in glob(name, recursive=True)}
        place = Path(path).resolve()
        return not own.isdisjoint((place, *place.parents))

    def alone(self, source: str, columns: Mapping[str, str] | None = None) -> OwnData:
        """Keys for rows elsewhere that are not dealt: without clients, splits and ids. columns: None keeps all."""
        return replace(
            self,
            source=source,
            columns=self.columns if columns is None else columns,
            clients=ClientRule(by="file"),
            splits=SplitRule(0.0, 0.0),
            id=None,
            person=None,
            prepared=None,
        )
