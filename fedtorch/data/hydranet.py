"""HydraNet's input: one row of token ids per (question, column), with labels and the way back to the question's text.

Positions count tokens in a row, from 0. `pieces` are sub-words of the question, counted from its first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from fedtorch.data.wikisql import span_text, value_words, words

Span = tuple[int, int]
"""First and last position or piece, both included."""


class RowLabels(NamedTuple):
    """Labels of one row, a question with one of its columns."""

    select: int
    """1: the column is selected"""
    where: int
    """1: it has a condition"""
    agg: int
    """aggregation; 0 for a column that is not selected"""
    op: int
    """operator of the condition; 0 without one"""
    where_num: int
    """number of conditions of the query"""
    start: int
    """first token of the condition's value; 0 (the first of all) for a column without a condition"""
    end: int
    """last token of the value; 0 as above"""


class HydraNetRow(NamedTuple):
    """Model input of a question with one of its columns."""

    ids: list[int]
    """token ids"""
    first: int
    """the question's tokens are `ids[first:last]`"""
    last: int
    """one past the question's last token"""
    labels: RowLabels | None = None
    """None where the query is not known"""


class Gold(NamedTuple):
    """A query as its rows' labels express it."""

    agg: int
    """aggregation"""
    sel: int
    """selected column"""
    num_conditions: int
    """of the query, even if two of them share a column"""
    conditions: dict[int, tuple[int, Span]]
    """column -> (operator, positions in that column's row)"""
    texts: tuple[tuple[int, int, str], ...]
    """(column, operator, value) as published"""


class Question(NamedTuple):
    """A question with one row per column."""

    rows: list[HydraNetRow]
    """by the number of the column"""
    text: str
    """values are cut out of it, so as the data set has it"""
    piece_words: list[int]
    """the word of each piece"""
    word_starts: list[int]
    """first character of each word"""
    gold: Gold | None
    """None where the query is not known"""
    table: tuple[int, tuple[str, ...]] | None = None
    """number and column types of its table, where that can be asked"""

    def value(self, column: int, span: Span) -> str:
        """The question's text at these positions of a column's row, in whole words, without blanks at its end."""
        first = self.rows[column].first
        start, end = (self.piece_words[place - first] for place in span)
        return span_text(self.text, self.word_starts, start, end)


class Rows:
    """Turns prepared questions into rows; remembers the pieces of every word it has met.

    A row is `[CLS] type column [SEP] question [SEP]`, or with a doubled middle [SEP] where the vocabulary joins pairs
    like that (RoBERTa). Longer ones lose tokens of the longer part, at its end, until they fit.
    """

    def __init__(self, vocabulary: PreTrainedTokenizerBase, max_length: int) -> None:
        self.vocabulary, self.max_length = vocabulary, max_length
        self.start, self.stop = [vocabulary.cls_token_id], [vocabulary.sep_token_id]
        pair: list[int] = vocabulary(" a", " b").input_ids
        self.middle = self.stop * (pair.count(self.stop[0]) - 1)
        self._pieces: dict[str, list[int]] = {}

    def labelled(self, found: Mapping[str, Any]) -> Question | None:
        """The question with labels; None if a value is not in it or is cut off: not to be trained or evaluated on."""
        question = self._question(found)
        spans = {}
        for column, _, value in found["conds"]:
            span = self._pieces_of(question, value)
            if span is None or span[1] >= question.rows[column].last - question.rows[column].first:
                return None
            first = question.rows[column].first
            spans[column] = (span[0] + first, span[1] + first)  # of two conditions on a column the last one counts
        operators = {column: operator for column, operator, _ in found["conds"]}
        conditions = {column: (operators[column], span) for column, span in spans.items()}
        texts = tuple((column, operator, value) for column, operator, value in found["conds"])
        gold = Gold(found["agg"], found["sel"], len(texts), conditions, texts)
        rows = [row._replace(labels=row_labels(gold, column)) for column, row in enumerate(question.rows)]
        table = (found["table"], tuple(found["types"])) if "table" in found else None
        return question._replace(rows=rows, gold=gold, table=table)

    def unlabelled(self, found: Mapping[str, Any], *, with_columns: bool = True) -> Question:
        """The question without its query; with_columns=False: in a single row `[CLS] question [SEP]`."""
        return self._question(found, with_columns)

    def learn(self, texts: Iterable[str]) -> None:
        """Look up the pieces of all these words at once, which is faster than one by one."""
        new = list(dict.fromkeys(text for text in texts if text not in self._pieces))
        if new:  # the leading space makes a word of it, for vocabularies that tell that apart
            found = self.vocabulary([f" {text}" for text in new], add_special_tokens=False).input_ids
            self._pieces.update(zip(new, found, strict=True))

    def _question(self, found: Mapping[str, Any], with_columns: bool = True) -> Question:
        split, starts = words(found["question"])
        columns = [f"{kind} {name}" for kind, name in zip(found["types"], found["header"], strict=True)]
        self.learn([*split, *columns])
        pieces = [(word, piece) for word, text in enumerate(split) for piece in self._pieces[text]]
        ids = [piece for _, piece in pieces]
        rows = [self._row(self._pieces[column], ids) for column in columns] if with_columns else [self._row([], ids)]
        return Question(rows, found["question"], [word for word, _ in pieces], starts, None)

    def _row(self, column: list[int], question: list[int]) -> HydraNetRow:
        middle = self.middle if column else []
        room = self.max_length - len(self.start) - len(middle) - len(self.stop)
        while len(column) + len(question) > room:
            if len(column) > len(question):
                column = column[:-1]
            else:
                question = question[:-1]
        before = [*self.start, *column, *middle]
        return HydraNetRow([*before, *question, *self.stop], len(before), len(before) + len(question))

    def _pieces_of(self, question: Question, value: str) -> Span | None:
        """First and last piece of the value's first occurrence."""
        found = value_words(question.text, value)
        if found is None:
            return None
        places = [place for place, word in enumerate(question.piece_words) if found[0] <= word <= found[1]]
        return (places[0], places[-1]) if places else None


def row_labels(gold: Gold, column: int) -> RowLabels:
    """The labels of one column's row."""
    is_selected = int(column == gold.sel)
    op, (start, end) = gold.conditions.get(column, (0, (0, 0)))
    where = int(column in gold.conditions)
    return RowLabels(is_selected, where, gold.agg * is_selected, op, gold.num_conditions, start, end)
