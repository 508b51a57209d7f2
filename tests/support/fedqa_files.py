"""Small files in the formats of the five published collections and of the released layout; the texts are ours."""

from __future__ import annotations

import json
from pathlib import Path

TOPICS = ["lamp", "river", "stone", "bread", "cloud", "paper", "glass", "wheel", "bird", "tree", "salt", "rope"]


def write_collections(raw: Path) -> None:
    """Twelve questions in each of the five collections."""
    for write in (write_privacyqa, write_pubmedqa, write_fiqa, write_insuranceqa, write_medquad):
        write(raw)


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_privacyqa(raw: Path) -> None:
    rows = []
    for i, topic in enumerate(TOPICS):
        for j in range(10):
            relevant = j < 2 and i not in (3, 7)  # two questions have no relevant segment
            context = f"Segment {j} on the {topic}  and more"
            rows.append({"context": context, "question": f"Is the {topic} shared? ", "answer": str(relevant)})
    put(raw / "privacyqa" / "test.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    header = "Folder\tDocID\tQueryID\tSplit\tQuery\tfirst\n"
    lines = ['a\tb\tb_0\ttrain\t"is ""this"" \\public\\""?"\t1\n', "a\tb\tb_1\ttrain\tIs the lamp shared?\t0\n"]
    put(raw / "privacyqa" / "train_opp_annotations.csv", header + "".join(lines))


def write_pubmedqa(raw: Path) -> None:
    entries = {
        str(100 + i): {"QUESTION": f"Does {topic} help?", "CONTEXTS": [], "LONG_ANSWER": f"The {topic} helps {i} ways."}
        for i, topic in enumerate(TOPICS)
    }
    put(raw / "pubmedqa" / "ori_pqal.json", json.dumps(entries))


def write_fiqa(raw: Path) -> None:
    folder = raw / "fiqa"
    questions = [f"{i}\t{i}\tWhere to buy a {topic}?\tMay 1\n" for i, topic in enumerate([*TOPICS, "public share"])]
    put(folder / "FiQA_train_question_final.tsv", "\tqid\tquestion\ttimestamp\n" + "".join(questions))
    put(folder / "split_qids.json", json.dumps({"test_gold": {str(i): [50 + i, 70 + i] for i in range(len(TOPICS))}}))
    first = [f'{50 + i}\tBuy  the  {topic}  at  "Joe\'s"\n' for i, topic in enumerate(TOPICS)]
    second = [f"{70 + i}\tNo  {topic}\tis  for  sale\n" for i, topic in enumerate(TOPICS)]
    put(folder / "test_answers.csv", "".join(first + second))


def write_insuranceqa(raw: Path) -> None:
    rows = {"validation": ["question,answer,label\n"], "test": ["question,answer,label\n"]}
    for i, topic in enumerate(TOPICS):
        rows["validation"].append(f'do {topic} insurance pay,"yes , {topic} pay , {i}",1\n')
        rows["test"].append(f"do {topic} insurance pay,{topic} be cheap,1\n")
        rows["test"].append(f"what be {topic},unrelated {i} text,0\n")
    for name, lines in rows.items():
        put(raw / "insuranceqa" / f"{name}.csv", "".join(lines))


def medquad_document(pairs: list[tuple[str, str | None]]) -> str:
    """One XML file; None is a pair without <Answer>."""
    body = "".join(
        f'<QAPair pid="{i}"><Question qid="01-{i}" qtype="x">{question}</Question>'
        + ("" if answer is None else f"<Answer>{answer}</Answer>")
        + "</QAPair>"
        for i, (question, answer) in enumerate(pairs, start=1)
    )
    return f'<?xml version="1.0"?>\n<Document id="01">\n<QAPairs>\n{body}\n</QAPairs>\n</Document>\n'


def write_medquad(raw: Path) -> None:
    for source in ("1_A_QA", "2_B_QA"):  # the same ids in both
        pairs: list[tuple[str, str | None]] = [
            (f"What is {topic} in {source}?", f"A {topic}\n  of {source}") for topic in TOPICS[:6]
        ]
        put(raw / "medquad" / source / "01.xml", medquad_document([*pairs, ("No answer?", None), ("Blank?", " \n ")]))


def write_released(raw: Path, client: str) -> None:
    """Training questions without negatives beside ordinary ones, and ranked dev and test files."""
    train = [{"question": f"What is {t}?", "answer": f"A {t} is used", "label": "1"} for t in TOPICS[:4]]
    train += [{"question": "What is lamp?", "answer": "Something else", "label": 0}]
    train += [{"question": "Nobody knows?", "answer": "Indeed", "label": 0}]
    put(raw / client / "train.json", "".join(json.dumps(row) + "\n" for row in train))
    rows = [
        {"question": f"Which {t} is it?", "answer": f"{a} {t}", "label": int(a == "right")}
        for t in TOPICS[4:8]
        for a in ("wrong", "right")
    ]
    for split in ("dev", "test"):
        put(raw / client / f"{split}.json", "".join(json.dumps(row) + "\n" for row in rows))
        ids = [(f"q{i // 2}", f"d{i % 2}") for i in range(len(rows))]
        put(raw / client / f"{split}.rank", "".join(f"{q} Q0 {d} 0 0 tag\n" for q, d in ids))
        labels = [f"{q} 0 {d} {row['label']}\n" for (q, d), row in zip(ids, rows, strict=True)]
        put(raw / client / f"{split}.ref", "".join(labels))
