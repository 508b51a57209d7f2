"""Data sets as people have them, written by a few lines each, with what `fedtorch init` proposes for them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORDS = "scan fever lung mass history report grave mild severe benign heart liver".split()
SITES = ("north", "south", "west")
KINDS = ("good", "bad")
Rows = list[dict[str, Any]]


def text(i: int, words: int = 7) -> str:
    """A few words, different for every i."""
    return " ".join(WORDS[(i * k + k // 5) % len(WORDS)] for k in range(1, words + 1)) + f" {i}"


def rows(number: int = 48, **columns: Callable[[int], Any]) -> Rows:
    """Rows of such columns."""
    return [{name: make(i) for name, make in columns.items()} for i in range(number)]


def kind(i: int) -> str:
    """A label."""
    return KINDS[i // 3 % 2]


def site(i: int) -> str:
    """A client."""
    return SITES[i % 3]


def jsonl(found: Rows, name: str = "data.jsonl") -> Callable[[Path], str]:
    """Writes a file, and says what to give to `init`."""

    def write(folder: Path) -> str:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found), "utf-8")
        return name

    return write


def table(found: Rows, name: str = "data.csv", separator: str = ",", encoding: str = "utf-8") -> Callable[[Path], str]:
    """The same as a table."""

    def write(folder: Path) -> str:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("w", encoding=encoding, newline="") as file:
            lines = csv.DictWriter(file, list(found[0]), delimiter=separator)
            lines.writeheader()
            lines.writerows(found)
        return name

    return write


def parquet(found: Rows, name: str = "data.parquet") -> Callable[[Path], str]:
    """The same as Parquet."""

    def write(folder: Path) -> str:
        from datasets import Dataset

        Dataset.from_list(found).to_parquet(str(folder / name))
        return name

    return write


def plain(content: str, name: str) -> Callable[[Path], str]:
    """The same of a text."""

    def write(folder: Path) -> str:
        (folder / name).write_text(content, "utf-8")
        return name

    return write


def together(source: str, *parts: Callable[[Path], str]) -> Callable[[Path], str]:
    """Several files, of which `source` is given to `init`."""

    def write(folder: Path) -> str:
        for part in parts:
            part(folder)
        return source

    return write


@dataclass(frozen=True)
class Case:
    """A data set, and what is proposed for it."""

    write: Callable[[Path], str]
    """writes it into a folder, and says what to give to `init`"""
    task: str
    """`task.name`"""
    columns: Mapping[str, str]
    """`task.data.columns`"""
    clients: Mapping[str, Any]
    """`task.data.clients`"""
    also: Mapping[str, Any] = field(default_factory=dict)
    """further keys below `task`, with dots"""
    said: tuple[str, ...] = ()
    """what is printed among other things"""
    options: tuple[str, ...] = ()
    """given to `init` beside the source"""
    model: str | None = None
    """`model_type` of a small model in folder `model`, which is given too"""


def people(i: int) -> dict[str, Any]:
    """A text, and a span in it."""
    before = text(i, 2 + i % 3)
    return {"text": f"{before} Anna Smith came", "entities": [span(before, "PER")] if i % 4 else []}


def span(before: str, label: str) -> dict[str, Any]:
    """That of a name behind some words."""
    return {"start": len(before) + 1, "end": len(before) + 11, "label": label}


def tagged(i: int, tags: str = "B-PER I-PER O B-LOC") -> dict[str, Any]:
    """Words and their tags."""
    return {"tokens": ["Anna", "Smith", WORDS[i % 12], f"Rome{i}"], "tags": tags.split()}


def conll(number: int = 30, mark: str = " ", tags: str = "B-PER I-PER O B-LOC") -> str:
    """Sentences as of the CoNLL tasks."""
    found = [tagged(i, tags) for i in range(number)]
    lines = [
        "\n".join(f"{word}{mark}X{mark}{tag}" for word, tag in zip(row["tokens"], row["tags"], strict=True))
        for row in found
    ]
    return f"-DOCSTART-{mark}-X-{mark}O\n\n" + "\n\n".join(lines) + "\n"


TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


def chat(i: int) -> dict[str, Any]:
    """A conversation in which a tool is called."""
    call = {"type": "function", "function": {"name": "look_up", "arguments": {"word": WORDS[i % 12]}}}
    messages = [
        {"role": "user", "content": text(i)},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": "look_up", "content": "found"},
        {"role": "assistant", "content": f"it is {kind(i)}"},
    ]
    return {"messages": messages, "tools": TOOLS, "team": site(i)}


GERMAN = rows(
    Bewertung=lambda i: f"Grüße, {text(i)}; schön",
    Note=lambda i: f"{1 + i % 40 / 8:.3f}".replace(".", ","),
    Filiale=lambda i: ("Köln", "München")[i % 2],
)
NOTES = rows(note=text, diagnosis=kind, hospital=site)
BY_SITE, BY_FILE = {"by": "site"}, {"by": "file"}
DEALT = {"iid": 4}
STRATIFIED = {"data.splits": {"dev": 0.1, "test": 0.1, "stratify": True}}

FOURTEEN: dict[str, Case] = {
    "sentence pairs": Case(
        jsonl(rows(premise=text, hypothesis=lambda i: text(i + 1, 4), label=lambda i: i % 3, site=site)),
        "text_classification",
        {"text": "premise", "text_pair": "hypothesis", "label": "label"},
        BY_SITE,
        STRATIFIED,
    ),
    "several labels": Case(
        jsonl(rows(text=text, topics=lambda i: ["heart", "lung", "liver"][: i % 4], site=site)),
        "text_classification",
        {"text": "text", "label": "topics"},
        BY_SITE,
        {"problem": "multi_label", **STRATIFIED},
    ),
    "numbers": Case(
        jsonl(rows(review=text, stars=lambda i: 1 + i % 40 / 10, shop=site)),
        "text_classification",
        {"text": "review", "label": "stars"},
        {"by": "shop"},
        {"problem": "regression", "data.splits": {"dev": 0.1, "test": 0.1}},
    ),
    "BIO tags": Case(
        jsonl([{**tagged(i), "hospital": site(i)} for i in range(48)]),
        "token_classification",
        {"tokens": "tokens", "tags": "tags"},
        {"by": "hospital"},
        STRATIFIED,
    ),
    "spans": Case(
        jsonl([{**people(i), "clinic": site(i)} for i in range(48)]),
        "token_classification",
        {"text": "text", "spans": "entities"},
        {"by": "clinic"},
        {"annotation": "spans", **STRATIFIED},
    ),
    "chat with tools": Case(
        jsonl([chat(i) for i in range(48)]),
        "causal_lm",
        {"messages": "messages"},
        {"by": "team"},
        {"rows_are": "messages", "chat_template": "data.jinja", "truncate": "left"},
    ),
    "German CSV": Case(
        table(GERMAN, separator=";", encoding="cp1252"),
        "text_classification",
        {"text": "Bewertung", "label": "Note"},
        {"by": "Filiale"},
        {"problem": "regression", "data.separator": ";", "data.encoding": "cp1252", "data.decimal": ","},
        ("separator", "2 clients"),
        ("--encoding", "cp1252"),
    ),
    "nested Parquet": Case(
        parquet(
            rows(
                body=lambda i: {"text": text(i), "lang": "en"},
                meta=lambda i: {"hospital": site(i), "label": kind(i)},
            )
        ),
        "text_classification",
        {"text": "body.text", "label": "meta.label"},
        {"by": "meta.hospital"},
        STRATIFIED,
    ),
    "files per client": Case(
        together("sites", *(jsonl(rows(20, note=text, diagnosis=kind), f"sites/{name}.jsonl") for name in SITES)),
        "text_classification",
        {"text": "note", "label": "diagnosis"},
        BY_FILE,
        STRATIFIED,
    ),
    "split files": Case(
        together(
            "corpus",
            jsonl(NOTES, "corpus/notes-train.jsonl"),
            jsonl(NOTES[:9], "corpus/notes-dev.jsonl"),
            jsonl(NOTES[9:18], "corpus/notes-test.jsonl"),
        ),
        "text_classification",
        {"text": "note", "label": "diagnosis"},
        {"by": "hospital"},
        {
            "data.source": "corpus/notes-train.jsonl",
            "data.splits": {"dev": "corpus/notes-dev.jsonl", "test": "corpus/notes-test.jsonl"},
        },
    ),
    "rare labels": Case(
        jsonl(rows(60, text=text, label=lambda i: "rare" if i in (5, 30, 45) else kind(i), ward=lambda i: f"w{i % 2}")),
        "text_classification",
        {"text": "text", "label": "label"},
        {"by": "ward"},
        STRATIFIED,
    ),
    "long documents": Case(
        jsonl(rows(30, document=lambda i: text(i, 900), category=kind, court=site)),
        "text_classification",
        {"text": "document", "label": "category"},
        {"iid": 3},
        {"long": "windows", "max_length": 256},
        ("client? `court`, 3 values", "on average 81% of a text would be cut"),
    ),
    "empty texts": Case(
        jsonl(
            rows(text=lambda i: "" if i % 12 == 5 else text(i), label=lambda i: kind(i) if i % 16 else None, site=site)
        ),
        "text_classification",
        {"text": "text", "label": "label"},
        BY_SITE,
        {"data.skip_bad_rows": 7},
        ("7 of 48 rows cannot be used and are left out", "data.jsonl:1: `label` is missing or empty"),
    ),
    "own BERT": Case(
        jsonl(NOTES),
        "text_classification",
        {"text": "note", "label": "diagnosis"},
        {"by": "hospital"},
        {"model": {"path": "model"}, "max_length": 32},
        model="bert",
    ),
    "own ModernBERT": Case(
        jsonl([{**people(i), "clinic": site(i)} for i in range(48)]),
        "token_classification",
        {"text": "text", "spans": "entities"},
        {"by": "clinic"},
        {"model": {"path": "model"}},
        model="modernbert",
    ),
    "own T5": Case(
        jsonl(rows(prompt=text, completion=kind, site=site)),
        "seq2seq",
        {"source": "prompt", "target": "completion"},
        BY_SITE,
        {"model": {"path": "model"}},
        ("the model is a t5",),
        model="t5",
    ),
    "own Llama": Case(
        jsonl([chat(i) for i in range(48)]),
        "causal_lm",
        {"messages": "messages"},
        {"by": "team"},
        {"model": {"path": "model"}, "chat_template": "data.jinja", "truncate": "left"},
        ("the model has none, so a plain one is written to data.jinja",),
        model="llama",
    ),
}
"""The kinds of data sets that were tried first; own models count as one."""


def compared(i: int) -> dict[str, Any]:
    """Two conversations that begin alike."""
    asked = {"role": "user", "content": text(i)}
    good, bad = ({"role": "assistant", "content": f"it is {each}"} for each in (kind(i), WORDS[i % 12]))
    return {"chosen": [asked, good], "rejected": [asked, bad], "team": site(i)}


MORE: dict[str, Case] = {
    "answers to compare": Case(
        jsonl(rows(prompt=text, chosen=kind, rejected=lambda i: f"no {i}", team=site)),
        "preference",
        {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"},
        {"by": "team"},
        {"kind": "dpo", "truncate": "left", "max_length": 32},
        ("columns `chosen` and `rejected` hold answers to compare",),
    ),
    "answers to compare, the prompt by another name": Case(
        jsonl(rows(asked=lambda i: text(i, 20), chosen=kind, rejected=lambda i: f"no {i}", team=site)),
        "preference",
        {"prompt": "asked", "chosen": "chosen", "rejected": "rejected"},
        {"by": "team"},
        {"kind": "dpo"},
    ),
    "conversations to compare": Case(
        jsonl([compared(i) for i in range(48)]),
        "preference",
        {"chosen": "chosen", "rejected": "rejected"},
        {"by": "team"},
        {"kind": "dpo", "chat_template": "data.jinja", "truncate": "left"},
    ),
    "conversations to compare for a model without a template": Case(
        jsonl([compared(i) for i in range(48)]),
        "preference",
        {"chosen": "chosen", "rejected": "rejected"},
        {"by": "team"},
        {"model": {"path": "model"}, "chat_template": "data.jinja"},
        ("the model has none, so a plain one is written to data.jinja",),
        model="llama",
    ),
    "answers, good or not": Case(
        jsonl(rows(prompt=text, completion=kind, label=lambda i: i % 2 == 0, team=site)),
        "preference",
        {"prompt": "prompt", "completion": "completion", "label": "label"},
        {"by": "team"},
        {"kind": "kto", "truncate": "left"},
        ("column `label` says whether `completion` is good",),
    ),
    "answers, good or not, in a CSV, as it was said": Case(
        table(rows(question=text, answer=kind, rating=lambda i: i % 2, team=site)),
        "preference",
        {"prompt": "question", "completion": "answer", "label": "rating"},
        {"by": "team"},
        {"kind": "kto"},
        options=("--task", "preference", "--label", "rating"),
    ),
    "prompts, completions and a number, which may be anything": Case(
        jsonl(rows(prompt=text, completion=kind, label=lambda i: i % 2, team=site)),
        "causal_lm",
        {"prompt": "prompt", "completion": "completion"},
        {"by": "team"},
    ),
    "labels in a CSV": Case(
        table(NOTES), "text_classification", {"text": "note", "label": "diagnosis"}, {"by": "hospital"}
    ),
    "a pipe": Case(
        table(NOTES, separator="|"),
        "text_classification",
        {"text": "note", "label": "diagnosis"},
        {"by": "hospital"},
        {"data.separator": "|"},
    ),
    "tabs in a CSV": Case(
        table(NOTES, separator="\t"),
        "text_classification",
        {"text": "note", "label": "diagnosis"},
        {"by": "hospital"},
        {"data.separator": "\t"},
    ),
    "a TSV": Case(
        table(NOTES, "data.tsv", "\t"),
        "text_classification",
        {"text": "note", "label": "diagnosis"},
        {"by": "hospital"},
        {"data.separator": None},
    ),
    "UTF-16": Case(
        table(NOTES, separator="\t", encoding="utf-16"),
        "text_classification",
        {"text": "note", "label": "diagnosis"},
        {"by": "hospital"},
        {"data.encoding": "utf-16"},
        options=("--encoding", "utf-16"),
    ),
    "true and false": Case(
        jsonl(rows(mail=text, spam=lambda i: i % 3 == 0)),
        "text_classification",
        {"text": "mail", "label": "spam"},
        DEALT,
    ),
    "files and a column of clients": Case(
        together("sites", *(jsonl(NOTES[k::3], f"sites/{name}.jsonl") for k, name in enumerate(SITES))),
        "text_classification",
        {"text": "note", "label": "diagnosis"},
        {"by": "hospital"},
    ),
    "one folder a client": Case(
        together("sites", *(table(rows(20, text=text, label=kind), f"sites/{name}/rows.csv") for name in SITES)),
        "text_classification",
        {"text": "text", "label": "label"},
        BY_FILE,
    ),
    "folders as splits": Case(
        together("d", jsonl(NOTES, "d/train/a.jsonl"), jsonl(NOTES[:9], "d/validation/a.jsonl")),
        "text_classification",
        {"text": "note", "label": "diagnosis"},
        {"by": "hospital"},
        {
            "data.source": "d/train/a.jsonl",
            "data.splits": {"dev": "d/validation/a.jsonl", "test": 0.1, "stratify": True},
        },
    ),
    "parts of train": Case(
        together(
            "d",
            *(jsonl(rows(30, text=text, label=kind), f"d/train-0000{k}-of-00002.jsonl") for k in range(2)),
            jsonl(rows(9, text=text, label=kind), "d/test-00000-of-00001.jsonl"),
        ),
        "text_classification",
        {"text": "text", "label": "label"},
        {"iid": 6},
        {
            "data.source": "d/train*.jsonl",
            "data.splits": {"dev": 0.1, "test": "d/test-00000-of-00001.jsonl", "stratify": True},
        },
    ),
    "a column of splits": Case(
        jsonl(rows(text=text, label=kind, split=lambda i: ("train", "train", "train", "validation", "test")[i % 5])),
        "text_classification",
        {"text": "text", "label": "label"},
        DEALT,
        {"data.splits": {"column": "split"}},
    ),
    "ids": Case(
        jsonl(rows(id=lambda i: f"r{i}", text=text, label=kind)),
        "text_classification",
        {"text": "text", "label": "label"},
        DEALT,
        {"data.id": "id"},
    ),
    "two sentences and a number": Case(
        table(rows(sentence1=text, sentence2=lambda i: text(i + 2), score=lambda i: i / 10)),
        "text_classification",
        {"text": "sentence1", "text_pair": "sentence2", "label": "score"},
        DEALT,
        {"problem": "regression"},
    ),
    "pairs of one name": Case(
        jsonl(rows(satz_a=text, satz_b=lambda i: text(i, 3), klasse=kind)),
        "text_classification",
        {"text": "satz_a", "text_pair": "satz_b", "label": "klasse"},
        DEALT,
    ),
    "a hospital and nothing else": Case(
        jsonl(rows(text=text, hospital=site)), "causal_lm", {"text": "text"}, {"by": "hospital"}, {"rows_are": "text"}
    ),
    "two columns of clients": Case(
        jsonl(rows(text=text, hospital=site, ward=lambda i: f"w{i % 3}")),
        "causal_lm",
        {"text": "text"},
        {"by": "hospital"},
        said=("client? `ward`, 3 values",),
    ),
    "lines of text": Case(
        plain("\n".join(map(text, range(40))), "data.txt"), "causal_lm", {"text": "text"}, DEALT, {"rows_are": "text"}
    ),
    "prompts": Case(
        jsonl(rows(instruction=text, output=kind)),
        "causal_lm",
        {"prompt": "instruction", "completion": "output"},
        DEALT,
        {"truncate": "left"},
    ),
    "long prompts": Case(
        jsonl(rows(30, prompt=lambda i: text(i, 700), completion=kind)),
        "causal_lm",
        {"prompt": "prompt", "completion": "completion"},
        {"iid": 3},
        {"truncate": "left", "max_length": 256},
    ),
    "choices": Case(
        jsonl(rows(question=text, choices=lambda i: ["one", "two"], answer=lambda i: i % 2)),
        "causal_lm",
        {"prompt": "question", "choices": "choices", "completion": "answer"},
        DEALT,
        {"rows_are": "choices"},
    ),
    "summaries": Case(
        parquet(rows(article=text, highlights=lambda i: text(i, 2))),
        "seq2seq",
        {"source": "article", "target": "highlights"},
        DEALT,
    ),
    "CoNLL": Case(
        plain(conll(), "data.conll"),
        "token_classification",
        {"tokens": "tokens", "tags": "tags"},
        {"iid": 3},
        STRATIFIED,
    ),
    "CoNLL in a .txt": Case(
        plain(conll(), "data.txt"),
        "token_classification",
        {"tokens": "tokens", "tags": "tags"},
        {"iid": 3},
        {"data.format": "conll"},
    ),
    "CoNLL in a .tsv": Case(
        plain(conll(mark="\t"), "data.tsv"),
        "token_classification",
        {"tokens": "tokens", "tags": "tags"},
        {"iid": 3},
        {"data.format": "conll", "data.separator": None},
    ),
    "CoNLL of 2003": Case(
        plain(conll(tags="I-PER I-PER O I-LOC"), "eng.train"),
        "token_classification",
        {"tokens": "tokens", "tags": "tags"},
        {"iid": 3},
        {"scheme": "iob1", "data.format": "conll"},
        ("the tags as IOB1 has them",),
    ),
    "BIOES": Case(
        jsonl([tagged(i, "B-PER E-PER O S-LOC") for i in range(48)]),
        "token_classification",
        {"tokens": "tokens", "tags": "tags"},
        DEALT,
        {"scheme": "bioes"},
    ),
    "spans as lists": Case(
        jsonl(
            [
                {"text": row["text"], "label": [list(one.values()) for one in row["entities"]]}
                for row in map(people, range(48))
            ]
        ),
        "token_classification",
        {"text": "text", "spans": "label"},
        DEALT,
        {"annotation": "spans"},
    ),
    "spans in a CSV": Case(
        table([{**row, "entities": json.dumps(row["entities"])} for row in map(people, range(48))]),
        "token_classification",
        {"text": "text", "spans": "entities"},
        DEALT,
        {"annotation": "spans"},
    ),
    "spans in Parquet": Case(
        parquet([people(i) for i in range(48)]),
        "token_classification",
        {"text": "text", "spans": "entities"},
        DEALT,
        {"annotation": "spans"},
    ),
    "Chinese": Case(
        jsonl(rows(text=lambda i: "今天天气很好我们去公园" * 9 + str(i), label=kind)),
        "text_classification",
        {"text": "text", "label": "label"},
        DEALT,
        {"max_length": 112},
    ),
    "names with blanks": Case(
        table(rows(**{"The Note: all": text, "yes": kind, "Shop #1": site})),
        "text_classification",
        {"text": "The Note: all", "label": "yes"},
        {"by": "Shop #1"},
    ),
    "an array of objects": Case(
        lambda folder: (folder / "data.json").write_text(json.dumps(NOTES, indent=1)) and "data.json" or "",
        "text_classification",
        {"text": "note", "label": "diagnosis"},
        {"by": "hospital"},
    ),
    "a column with a dot": Case(
        jsonl(rows(**{"body.text": text, "label": kind})),
        "text_classification",
        {"text": "body.text", "label": "label"},
        DEALT,
    ),
    "three rows": Case(
        jsonl(rows(3, text=text, label=lambda i: KINDS[i % 2])),
        "text_classification",
        {"text": "text", "label": "label"},
        {"iid": 1},
    ),
    "a label that is said": Case(
        jsonl(rows(title=lambda i: text(i, 3), body=text, colour=kind, hospital=site)),
        "text_classification",
        {"text": "title", "label": "hospital"},
        {"by": "colour"},
        options=("--label", "hospital", "--client", "colour", "--text", "title"),
    ),
    "a task that is said": Case(
        jsonl(rows(note=text, diagnosis=kind, hospital=site)),
        "seq2seq",
        {"source": "note", "target": "diagnosis"},
        {"by": "hospital"},
        options=("--task", "seq2seq", "--label", "diagnosis"),
    ),
    "plain texts that are said": Case(
        jsonl(rows(note=text, diagnosis=kind, hospital=site)),
        "causal_lm",
        {"text": "note"},
        DEALT,
        {"rows_are": "text"},
        options=("--task", "causal_lm", "--client", "none"),
    ),
    "an answer that is said": Case(
        jsonl(rows(ask=text, reply=lambda i: text(i, 3))),
        "causal_lm",
        {"prompt": "ask", "completion": "reply"},
        DEALT,
        options=("--label", "reply"),
    ),
    "German words": Case(
        table(rows(Befund=text, Kategorie=kind, Klinik=site, Wert=lambda i: f"1.00{i % 10},5"), separator=";"),
        "text_classification",
        {"text": "Befund", "label": "Kategorie"},
        {"by": "Klinik"},
        {"data.decimal": None},
        ("label? `Wert`, 10 values",),
    ),
    "several labels in a CSV": Case(
        table(rows(text=text, labels=lambda i: json.dumps(["heart", "lung", "liver"][: i % 4]))),
        "text_classification",
        {"text": "text", "label": "labels"},
        DEALT,
        {"problem": "multi_label"},
    ),
    "tags in a CSV": Case(
        table([{name: json.dumps(value) for name, value in tagged(i).items()} for i in range(48)]),
        "token_classification",
        {"tokens": "tokens", "tags": "tags"},
        DEALT,
    ),
    "choices in a CSV": Case(
        table(
            rows(question=text, choices=lambda i: json.dumps(["one", "two"]), answer=lambda i: ("one", "two")[i % 2])
        ),
        "causal_lm",
        {"prompt": "question", "choices": "choices", "completion": "answer"},
        DEALT,
    ),
    "labels as texts and numbers": Case(
        jsonl(rows(text=text, label=lambda i: (1, "1", "a")[i % 3])),
        "text_classification",
        {"text": "text", "label": "label"},
        DEALT,
        {"data.skip_bad_rows": None},
    ),
    "whole numbers as pandas has them": Case(
        parquet(rows(text=text, label=lambda i: float(i % 3))),
        "text_classification",
        {"text": "text", "label": "label"},
        DEALT,
        {"problem": None, "data.skip_bad_rows": None},
    ),
    "flags beside a label": Case(
        table(rows(text=text, toxic=lambda i: i % 2, rude=lambda i: i % 3 // 2, lang=lambda i: "de")),
        "text_classification",
        {"text": "text", "label": "toxic"},
        DEALT,
        said=("label? `rude`, 2 values; `lang`, one value",),
    ),
    "own GPT-2 for labels": Case(
        jsonl(NOTES),
        "text_classification",
        {"text": "note", "label": "diagnosis"},
        {"by": "hospital"},
        {"model": {"path": "model"}},
        model="gpt2",
    ),
}
"""Further ones."""


def proposal(case: Case) -> str:
    """What is proposed, as the page has it in a table."""
    columns = ", ".join(f"{role}: {name}" for role, name in case.columns.items())
    ((rule, value),) = case.clients.items()
    shown = {key: found for key, found in case.also.items() if key not in ("data.splits", "data.source", "max_length")}
    if "dev" in (splits := case.also.get("data.splits", {})) and isinstance(splits["dev"], str):
        shown["data.splits"] = splits
    also = ", ".join(f"`{key.removeprefix('data.')}: {plain_value(found)}`" for key, found in shown.items())
    if case.options:
        also = f"{also}; said: `{' '.join(case.options)}`"
    return f"`{case.task}` | `{{{columns}}}` | `{rule}: {value}` | {also}"


def plain_value(found: Any) -> str:
    """As YAML has it in a line."""
    if isinstance(found, Mapping):
        return "{" + ", ".join(f"{key}: {plain_value(value)}" for key, value in found.items()) + "}"
    return json.dumps(found) if isinstance(found, bool) or found in (";", ",") else str(found)
