"""Readers of the five public collections behind FedMatch's clients; each gives a `Collection` of cleaned texts.

Every error names file and line (or entry), never the text that stands there.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fedtorch.core.errors import DataError
from fedtorch.data.fedqa import CLIENTS, Builder, Collection, clean
from fedtorch.data.json_file import parse_json, read_bytes

_LABELS = {"True": True, "False": False}


def read_privacyqa(folder: Path) -> Collection:
    """`test.jsonl`: labelled pairs of a question and a policy segment.

    The published negatives are kept. Some questions have no relevant segment at all. The policies' names are not in
    the file, so a question that was asked about several policies is one question.
    """
    path, builder = folder / "test.jsonl", Builder()
    for number, row in read_json_lines(path, ("question", "context", "answer")):
        where = f"{path}:{number}"
        if row["answer"] not in _LABELS:
            raise DataError(f"{where}: `answer` is neither `True` nor `False`; expected one of them")
        question = builder.question(row["question"], where=where)
        builder.pair(question, builder.document(row["context"], where=where), _LABELS[row["answer"]])
    return _filled(builder.build(), path)


def read_pubmedqa(folder: Path) -> Collection:
    """`ori_pqal.json`: a question per PubMed id; its `LONG_ANSWER` is the only positive answer."""
    path, builder = folder / "ori_pqal.json", Builder()
    for number, (pmid, entry) in enumerate(_read_json(path).items()):
        where = f"{path}, entry {number}"
        texts = [entry.get(key) if isinstance(entry, dict) else None for key in ("QUESTION", "LONG_ANSWER")]
        if not all(isinstance(text, str) for text in texts):
            raise DataError(f"{where}: not an entry of PubMedQA; expected an object with QUESTION and LONG_ANSWER")
        question = builder.question(str(texts[0]), pmid, where=where)
        builder.pair(question, builder.document(str(texts[1]), pmid, where=where), True)
    return _filled(builder.build(), path)


def read_fiqa(folder: Path) -> Collection:
    """FinBERT-QA's test questions, the only ones whose answers are published.

    Questions come from `FiQA_train_question_final.tsv`, answers from `test_answers.csv` (no header, a TAB between id
    and text, two blanks between words), and who belongs to whom from `test_gold` of `split_qids.json`. Four questions
    have answers in `FiQA_train_question_doc_final.tsv` that `test_gold` lacks; their texts are not there either.
    """
    gold_path = folder / "split_qids.json"
    gold = _read_json(gold_path).get("test_gold")
    if not isinstance(gold, dict) or not all(isinstance(ids, list) for ids in gold.values()):
        raise DataError(f"{gold_path}: `test_gold` is no object of lists; expected question id -> answer ids")
    texts = fiqa_questions(folder)
    builder = Builder()
    docids = _fiqa_answers(folder / "test_answers.csv", builder)
    for qid, ids in gold.items():
        if qid not in texts:
            raise DataError(f"{gold_path}: question {qid!r} is not in FiQA_train_question_final.tsv; check both files")
        question = builder.question(texts[qid], qid, where=f"{gold_path}, question {qid}")
        for docid in map(str, ids):
            if docid not in docids:
                raise DataError(f"{gold_path}: answer {docid!r} is not in test_answers.csv; check both files")
            builder.pair(question, docids[docid], True)
    return _filled(builder.build(), gold_path)


def fiqa_questions(folder: Path) -> dict[str, str]:
    """Question id -> text, as published, of all 6648 questions in `FiQA_train_question_final.tsv`."""
    rows = read_table(folder / "FiQA_train_question_final.tsv", ("qid", "question"), delimiter="\t")
    return {row["qid"]: row["question"] for _, row in rows}


def read_insuranceqa(folder: Path) -> Collection:
    """`validation.csv` and `test.csv`: labelled pairs, pooled, since the publisher split them by pair, not by question.

    All answers are documents. The labelled negatives (one random answer a pair) are not used, and a question that
    occurs with negatives only is left out and counted.
    """
    builder = Builder()
    negative_only: set[str] = set()
    for path in (folder / "validation.csv", folder / "test.csv"):
        for number, row in read_table(path, ("question", "answer", "label")):
            where = f"{path}:{number}"
            if row["label"] not in ("0", "1"):
                raise DataError(f"{where}: `label` is neither `0` nor `1`; expected one of them")
            docid = builder.document(row["answer"], where=where)
            if row["label"] == "1":
                builder.pair(builder.question(row["question"], where=where), docid, True)
            else:
                negative_only.add(clean(row["question"]))
    found = builder.build()
    left_out = len(negative_only - {question.text for question in found.questions})
    reason = "questions (they have no positive answer)"
    counted = [(left_out, left_out + len(found.questions), reason)]
    return _filled(builder.build({"questions without a positive answer": left_out}, counted), folder)


def read_medquad(folder: Path) -> Collection:
    """`SOURCE/*.xml` of any of the twelve sources; pairs without an answer (three MedlinePlus parts) are left out.

    Ids are the publisher's with the source's number before them: document ids recur from source to source.
    """
    builder, skipped, total = Builder(), 0, 0
    paths = sorted(folder.glob("*/*.xml"))
    if not paths:
        raise DataError(f"{folder} has no SOURCE/*.xml; expected the folders of MedQuAD")
    for path in paths:
        for index, pair in enumerate(_parse_xml(path).iter("QAPair"), start=1):
            where, total = f"{path}, pair {index}", total + 1
            question, answer = pair.find("Question"), pair.find("Answer")
            if question is None:
                raise DataError(f"{where}: no <Question>; expected one in each <QAPair>")
            text = "" if answer is None else "".join(answer.itertext())
            if not text.strip():
                skipped += 1
                continue
            identity = f"{path.parent.name.split('_')[0]}-{question.get('qid') or f'{path.stem}-{index}'}"
            docid = builder.document(text, identity, where=where)
            builder.pair(builder.question("".join(question.itertext()), identity, where=where), docid, True)
    counted = [(skipped, total, "pairs (they have no answer)")]
    return _filled(builder.build({"pairs without an answer": skipped}, counted), folder)


READERS: dict[str, Callable[[Path], Collection]] = {
    "privacyqa": read_privacyqa,
    "pubmedqa": read_pubmedqa,
    "fiqa": read_fiqa,
    "insuranceqa": read_insuranceqa,
    "medquad": read_medquad,
}


def public_questions(raw: Path, clients: Sequence[str] = CLIENTS) -> list[str]:
    """Published questions that come without answers, for CoverQuery's pool: FiQA's TSV and PrivacyQA's training CSV.

    clients: the collections that are in `raw`; of the others nothing is read.

    Our PrivacyQA client is made of the questions in the test CSV (partly reworded: `context` for `text`), so that one
    is left out; FiQA's own must be removed by the caller. The CSV's quotation marks are mangled (`\\phone home\\"` for
    `"phone home"`): all of them are dropped.
    """
    found = list(fiqa_questions(raw / "fiqa").values()) if "fiqa" in clients else []
    if "privacyqa" in clients:
        rows = read_table(raw / "privacyqa" / "train_opp_annotations.csv", ("Query",), delimiter="\t")
        found += [row["Query"].replace("\\", "").replace('"', "") for _, row in rows]
    return found


def read_json_lines(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number (from 1) and object of every line that is not blank; `fields` must be there, as strings.

    Raises:
        DataError: missing, not UTF-8, or a line is no such object.
    """
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        row = parse_json(line, f"{path}:{number}", "expected one JSON object a line")
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in fields):
            raise DataError(f"{path}:{number}: expected a JSON object with the strings {', '.join(fields)}")
        yield number, row


def read_table(path: Path, columns: Sequence[str], *, delimiter: str = ",") -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and row of a CSV or TSV with a header; `columns` must be in the header, other ones are kept.

    Raises:
        DataError: missing, not UTF-8, a column is missing, or a row has more or fewer cells than the header.
    """
    reader = csv.reader(read_text(path).split("\n"), delimiter=delimiter)
    try:
        header = next(reader, [])
        missing = [name for name in columns if name not in header]
        if missing:
            raise DataError(f"{path}:1: the header lacks {', '.join(missing)}; expected {', '.join(columns)}")
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise DataError(f"{path}:{reader.line_num}: {len(row)} cells; expected {len(header)}")
            yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not readable as a table ({error}); correct the line") from None


def read_text(path: Path) -> str:
    """The file's text with `\\n` line ends.

    Raises:
        DataError: missing or not UTF-8 (the line is named).
    """
    data = read_bytes(path, "--raw must be a folder with the client's published files")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(f"{path}:{line}: not UTF-8; convert the file") from None


def _read_json(path: Path) -> dict[str, Any]:
    value = parse_json(read_text(path), str(path), "download the file again")
    if not isinstance(value, dict):
        raise DataError(f"{path} holds a {type(value).__name__}; expected a JSON object")
    return value


def _fiqa_answers(path: Path, builder: Builder) -> dict[str, str]:
    """Publisher's id -> id in the collection (another one where two answers have the same text)."""
    docids = {}
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        docid, tab, text = line.partition("\t")
        if not tab or not docid.isdigit():
            raise DataError(f"{path}:{number}: expected an answer's number, a TAB and its text")
        docids[docid] = builder.document(text, docid, where=f"{path}:{number}")
    return docids


def _parse_xml(path: Path) -> ElementTree.Element:
    data = read_bytes(path, "download the file again")
    try:
        return ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise DataError(f"{path}:{error.position[0]}: not XML; download the file again") from None
    except (ValueError, LookupError) as error:  # an encoding that is unknown or of several bytes
        raise DataError(f"{path}:1: not readable as XML ({type(error).__name__}); download the file again") from None


def _filled(collection: Collection, path: Path) -> Collection:
    if not any(question.positives for question in collection.questions):
        raise DataError(f"{path} has no question with a positive answer; expected at least one")
    return collection
