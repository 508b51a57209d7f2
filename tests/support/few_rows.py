"""A part of each published collection, in files like the published ones, which is prepared in a moment.

For tests of what comes after preparing. Whole collections are read by tests/data/test_described_data.py and
test_fedqa_real.py, and prepared by the latter, tests/papers/test_lorar_data.py and tests/data/test_crossfit.py.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any


def few_of_text2sql(raw: Path, out: Path) -> Path:
    """About forty queries of each set, two questions each; returns `out`."""
    for path in (raw / "text2sql").glob("*.json"):
        entries = json.loads(path.read_bytes())
        few = entries[:: max(1, len(entries) // 40)]
        _put(out / path.name, json.dumps([{**entry, "sentences": entry["sentences"][:2]} for entry in few]))
        shutil.copy(path.with_name(f"{path.stem}-schema.csv"), out)
    return out


def few_of_fedqa(raw: Path, out: Path) -> Path:
    """Some forty questions of each of the five collections; returns `out`."""
    raw = raw / "fedqa"
    for name, most in (("privacyqa/test.jsonl", 1500), ("privacyqa/train_opp_annotations.csv", 100)):
        _put(out / name, _head(raw / name, most))
    for name in ("FiQA_train_question_final.tsv", "test_answers.csv"):
        _put(out / "fiqa" / name, (raw / "fiqa" / name).read_text(encoding="utf-8"))
    gold = json.loads((raw / "fiqa/split_qids.json").read_bytes())["test_gold"]
    _put(out / "fiqa/split_qids.json", json.dumps({"test_gold": dict(islice(gold.items(), 40))}))
    abstracts = json.loads((raw / "pubmedqa/ori_pqal.json").read_bytes())
    _put(out / "pubmedqa/ori_pqal.json", json.dumps(dict(islice(abstracts.items(), 40))))
    for name in ("insuranceqa/validation.csv", "insuranceqa/test.csv"):
        with (raw / name).open(encoding="utf-8", newline="") as file, io.StringIO(newline="") as few:
            csv.writer(few).writerows(islice(csv.reader(file), 60))
            _put(out / name, few.getvalue())
    for path in sorted((raw / "medquad").glob("*/*.xml"))[::20]:
        _put(out / path.relative_to(raw), path.read_text(encoding="utf-8"))
    return out


def few_of_sgd(raw: Path, out: Path) -> Path:
    """Every eighth dialog of each file; returns `out`."""
    for path in (raw / "dialog/sgd").glob("*/dialogues_*.json"):
        _put(out / path.parent.name / path.name, json.dumps(json.loads(path.read_bytes())[::8]))
    return out


def few_of_crossfit(raw: Path, out: Path) -> Path:
    """All 46 tasks, with six rows of each file; returns `out`."""
    for path in (raw / "crossfit").glob("*/*.tsv"):
        _put(out / path.parent.name / path.name, _head(path, 6))
    return out


FEW: dict[str, Callable[[Path, Path], Path]] = {
    "text2sql": few_of_text2sql,
    "fedqa": few_of_fedqa,
    "dialog": few_of_sgd,
    "crossfit": few_of_crossfit,
}


def prepare_few(recipe: str, shared_data: Path, out: str, *more: Any) -> None:
    """Prepare a part of a collection as `fedtorch data prepare` does; its files lie beside `out`."""
    from fedtorch.data.prepare import main

    raw = FEW[recipe](shared_data, Path(f"{out}.raw"))
    assert main(["prepare", recipe, "--raw", str(raw), "--out", out, *more]) == 0


def _head(path: Path, most: int) -> str:
    with path.open(encoding="utf-8", newline="") as file:
        return "".join(islice(file, most))


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")
