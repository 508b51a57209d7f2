"""A guess about a file, what the user said in its place, and the words in names of columns that tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedtorch.data.own.columns import Column

CLIENT_NAMES = (
    "client hospital clinic site center centre institution organisation organization org company bank school branch "
    "department ward device user author speaker account customer patient owner region country state city store shop "
    "station team publisher domain tenant agency office practice "
    "klient mandant klinik krankenhaus praxis standort ort filiale niederlassung abteilung schule firma land stadt"
).split()
"""Words in the name of a column that say whose a row is, the better ones first."""
LABEL_NAMES = (
    "label labels class category target diagnosis sentiment intent topic outcome verdict rating tag tags y klasse "
    "kategorie diagnose stimmung thema urteil bewertung"
).split()
NUMBER_NAMES = "label score rating similarity target y bewertung note wert punkte".split()
ID_NAMES = {"id", "uid", "uuid", "guid"}
SPLIT_NAMES = {"split", "set", "fold", "partition", "subset"}
FEW_ROWS = 3
"""A column with fewer rows to a value than this is none of clients or labels."""
FILE, NONE = "file", "none"
"""Words in place of a column for `Wishes.client`."""


@dataclass(frozen=True)
class Wishes:
    """Choices of the user in place of a guess; None: nothing was said."""

    task: str | None = None
    """`task.name`"""
    text: str | None = None
    """the column that is read: a text, a prompt, a source, a list of words"""
    label: str | None = None
    """the column of what is predicted: a label, a completion, a target, tags, spans"""
    client: str | None = None
    """the column that says whose a row is, `file`, or `none`: rows are dealt"""


@dataclass(frozen=True)
class Counted:
    """Keys of a config that silos' counts propose, in place of a guess from one file."""

    run: str
    """folder of the run that counted"""
    task: str
    """`task.name` of what was counted"""
    labels: tuple[str, ...] = ()
    """`task.data.labels`; empty: none are proposed"""
    max_length: int | None = None
    """`task.max_length`"""
    counted_by: str | None = None
    """the tokenizer by whose tokens it is"""
    class_weights: Mapping[str, float] = field(default_factory=dict)
    """`task.class_weights`; empty: none are proposed"""
    tokenizer: str | None = None
    """`task.tokenizer`: folder of the one that was made of counted words"""
    why: Mapping[str, str] = field(default_factory=dict)
    """last part of a key -> why it has this value, or why it is not proposed; one line"""


@dataclass
class Guess:
    """Facts that a config is written from."""

    task: str = ""
    """`task.name` of the config; empty until `guess` has decided"""
    roles: dict[str, str] = field(default_factory=dict)
    """what the task needs -> column"""
    problem: str = "single_label"
    """of `text_classification`"""
    scheme: str = "iob2"
    """of the tags of `token_classification`"""
    is_chat: bool = False
    """are what is read lists of messages?"""
    decimal: str = "."
    """of numbers that are texts"""
    by: str | None = None
    """the column with clients, or `file`; None: rows are dealt"""
    iid: int = 0
    """clients that rows are dealt to"""
    clients: int = 0
    """how many there are"""
    id: str | None = None
    """the column that tells rows apart"""
    split: str | None = None
    """the column that says train, dev or test"""
    splits: list[str] = field(default_factory=list)
    """those that the data set comes in"""
    labels: list[str] = field(default_factory=list)
    """those that were seen"""
    rows: int = 0
    """in all files"""
    tokens: int = 0
    """a length that 99 of 100 rows hardly exceed, in tokens, estimated from words"""
    answer_tokens: int = 0
    """the same of `target`, which is not counted in `tokens`"""
    lengths: list[int] = field(default_factory=list)
    """tokens of each text that is read, where one column is"""
    why: list[tuple[str, str]] = field(default_factory=list)
    """(what was guessed, from what)"""

    def take(self, task: str, roles: dict[str, str], why: str) -> bool:
        """Decide about the task; True, for the rules that end so."""
        self.task, self.roles = task, roles
        self.why.insert(0, (task, why))
        return True


SHOWN = {
    "words": "lists of texts",
    "numbers": "lists of numbers",
    "turns": "messages",
    "objects": "lists of objects",
    "other": "values of no one kind",
}
"""Kinds of columns in words."""


def is_client_like(column: Column) -> bool:
    """Is it called like whose a row is, and not like a label?"""
    return bool(column.parts & set(CLIENT_NAMES)) and not column.parts & set(LABEL_NAMES)


def by_name(columns: Iterable[Column], names: Sequence[str]) -> list[Column]:
    """Those with such a word in their name, in the order of the words."""
    found = [(min(names.index(part) for part in column.parts & set(names)), column)
             for column in columns if column.parts & set(names)]  # fmt: skip
    return [column for _, column in sorted(found, key=lambda pair: pair[0])]
