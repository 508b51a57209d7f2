"""Cell values of a database that a question mentions, to stand beside their columns in the model's input.

The authors use the value matching of BRIDGE as published with PICARD. Ours is a reading of it in fewer rules:

1. only text cells, opened read-only; numbers, the word `id`, stop words and common answers (`no`, `yes`, `many`)
   are never matched;
2. a cell is compared, ignoring case, with every span of whole words of the question (a possessive `'s` at the end
   may be left off) that begins with the same character;
3. the score is `difflib.SequenceMatcher(...).ratio()`, at least 0.85; the authors use rapidfuzz's ratio, which is
   never smaller (longest common subsequence against matching blocks), so a few spellings pass there and not here;
4. columns with `name` in their name, and cells all in capitals, must match exactly (authors' rule);
5. the two best cells per column, by score, then length, then alphabet. The authors take ties in the order of a set,
   which changes from run to run.
"""

from __future__ import annotations

import re
from contextlib import closing
from difflib import SequenceMatcher
from pathlib import Path

from fedtorch.core.errors import DataError
from fedtorch.data.sqlite import open_read_only

THRESHOLD = 0.85
PER_COLUMN = 2
_LONGEST_CELL = 100  # characters; longer ones are abstracts and comments that no question quotes
_IGNORED = frozenset(
    "id no yes many a about above after again against all am an and any are as at be because been before being below "
    "between both but by can could did do does doing don down during each few for from further had has have having he "
    "her here hers herself him himself his how i if in into is isn it its itself just ll m ma me more most my myself "
    "nor not now o of off on once only or other our ours ourselves out over own re s same she should so some such t "
    "than that the their theirs them themselves then there these they this those through to too under until up ve "
    "very was we were what when where which while who whom why will with won would y you your yours yourself "
    "yourselves".split()
)

Cells = dict[tuple[str, str], dict[str, list[str]]]  # (table, column) -> first character -> cells, sorted


def find_database(folder: Path, stem: str) -> Path | None:
    """The database of a set: `<stem>.sqlite`, `<stem>-db.<anything>.sqlite` or the same with `.db`; None if absent.

    Raises:
        DataError: the folder is missing, or two files fit.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; --db-content takes a folder with SQLite files")
    pattern = re.compile(rf"{re.escape(stem)}(-db\b.*)?\.(sqlite|db)", re.IGNORECASE)
    found = sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise DataError(f"{folder} has {len(found)} databases for {stem} ({names}); keep one")
    return found[0] if found else None


def read_cells(path: Path) -> Cells:
    """All different text cells of a database, names of tables and columns in lower case."""
    cells: Cells = {}
    with closing(open_read_only(path)) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if table.startswith("sqlite_"):
                continue
            for column in [row[1] for row in connection.execute(f"PRAGMA table_info({_quote(table)})")]:
                name = _quote(column)
                query = f"SELECT DISTINCT {name} FROM {_quote(table)} WHERE typeof({name}) = 'text'"
                groups: dict[str, list[str]] = {}
                for cell in sorted({row[0].strip() for row in connection.execute(query)}):
                    if _usable(cell):
                        groups.setdefault(cell[0].lower(), []).append(cell)
                if groups:
                    cells[table.lower(), column.lower()] = groups
    return cells


def match_cells(question: str, cells: Cells) -> dict[tuple[str, str], list[str]]:
    """(table, column) -> at most two cells that the question mentions, best first; columns without any are absent."""
    spans: dict[str, list[str]] = {}
    for span in sorted(_spans(question.lower())):
        spans.setdefault(span[0], []).append(span)
    matched = {}
    for (table, column), groups in cells.items():
        best = []
        for first, candidates in spans.items():
            for cell in groups.get(first, ()):
                exact = "name" in column or cell.isupper()
                score = max(_score(cell.lower(), span, exact) for span in candidates)
                if score >= THRESHOLD:
                    best.append((-score, -len(cell), cell))
        if best:
            matched[table, column] = [cell for *_, cell in sorted(best)[:PER_COLUMN]]
    return matched


def _score(cell: str, span: str, exact: bool) -> float:
    if exact or cell == span:
        return float(cell == span)
    # 2 min / (sum) bounds the ratio from above and costs nothing
    if 2 * min(len(cell), len(span)) < THRESHOLD * (len(cell) + len(span)):
        return 0.0
    matcher = SequenceMatcher(None, cell, span, autojunk=False)
    return matcher.ratio() if matcher.quick_ratio() >= THRESHOLD else 0.0


def _spans(question: str) -> set[str]:
    """Every run of whole words of up to `_LONGEST_CELL` characters, without the ignored single words and numbers."""
    words = [(match.start(), match.end()) for match in re.finditer(r"[^\s'\"()`,.?!;]+", question)]
    spans = set()
    for index, (start, _) in enumerate(words):
        for _, end in words[index:]:
            if end - start > _LONGEST_CELL:
                break
            spans.add(question[start:end])
    return {span for span in spans if _usable(span)}


def _usable(text: str) -> bool:
    if not 1 < len(text) <= _LONGEST_CELL or text.lower() in _IGNORED:
        return False
    return not re.fullmatch(r"[\d.,+-]+", text)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
