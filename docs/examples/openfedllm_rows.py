"""Writes the rows of configs/openfedllm: the 20,000 that OpenFedLLM's code draws, dealt to clients, or made ones.

python docs/examples/openfedllm_rows.py sft ALPACA TEMPLATE OUT    from the file of vicgalle/alpaca-gpt4 (or JSONL)
python docs/examples/openfedllm_rows.py dpo HH SYSTEM OUT          from the file of Anthropic/hh-rlhf (or JSONL)
python docs/examples/openfedllm_rows.py made OUT                   small ones, of the package's own

TEMPLATE: a text with {instruction} in it that ends where the answer begins; theirs is `alpaca` of utils/template.py.
SYSTEM: the text before a conversation; theirs is that of `vicuna_v1.1` in utils/conversation.py.
Drawing and dealing are those of `datasets` (`pip install 'fedtorch-nlp[own]'`), so the same clients have the same rows.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

SEED, SAMPLE = 2023, 20_000
"""The seed of both draws, and how many rows are kept of the first one (config.py)."""
WORDS = "red blue green black white brown grey pink gold tan".split()
FORMS = {
    "once": "{0} {1}",
    "twice": "{0} {1} {0} {1}",
    "the other way round": "{1} {0}",
    "and then stop": "{0} {1} stop",
}


def dealt(rows: Any, clients: int, sample: int = SAMPLE) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Draw `sample` rows of a data set of `datasets`, shuffle them once more, and deal them in turn; (client, row)."""
    drawn = rows.shuffle(seed=SEED)
    drawn = drawn.select(range(min(sample, len(drawn)))).shuffle(seed=SEED)
    for number in range(clients):
        for row in drawn.shard(clients, number, contiguous=False):
            yield f"client_{number:02d}", row


def loaded(file: Path) -> Any:
    """The rows of a file of Parquet, or of a JSON object a line, as a data set in memory."""
    from datasets import Dataset
    from pyarrow.parquet import read_table

    if file.suffix == ".parquet":
        return Dataset(read_table(file))
    return Dataset.from_list([json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()])


def sft(file: Path, template: str, clients: int = 20) -> Iterator[dict[str, str]]:
    """Instructions in their template, and answers; an input stands behind its instruction (process_dataset.py)."""
    for client, row in dealt(loaded(file), clients):
        asked = f"{row['instruction']} {row['input']}" if row["input"] else row["instruction"]
        prompt, answer = template.format(instruction=asked), row["output"]
        yield {"client": client, "prompt": prompt, "completion": answer if prompt[-1].isspace() else f" {answer}"}


def pair(chosen: str, rejected: str, system: str) -> dict[str, str] | None:
    """A prompt in Vicuna's form and two answers, of two dialogs; None where they part before their last turn.

    A prompt ends with the last turn's name, so answers are whole. Theirs (process_dataset.py) ends with the last
    letter that both have, and what two answers have in common at their beginning is in neither prompt nor answers.
    """
    (before, _, good), (other, _, bad) = (text.rpartition("\n\nAssistant:") for text in (chosen, rejected))
    if before != other or not good.strip() or not bad.strip() or good == bad:
        return None
    turns = re.split(r"\n\n(Human|Assistant):", before)[1:]
    said = [text.strip() for text in turns[1::2]]
    parts = [f"USER: {text} " if i % 2 == 0 else f"ASSISTANT: {text}</s>" for i, text in enumerate(said)]
    return {"prompt": f"{system.strip()} {''.join(parts)}ASSISTANT:", "chosen": good, "rejected": bad}


def dpo(file: Path, system: str, clients: int = 5) -> Iterator[dict[str, str]]:
    """Dialogs of which people prefer one; those that are no pair are left out after the draw."""
    for client, row in dealt(loaded(file), clients):
        found = pair(row["chosen"], row["rejected"], system)
        if found is not None:
            yield {"client": client, **found}


def made_dpo(clients: int = 5, each: int = 40) -> Iterator[dict[str, str]]:
    """The orders of `made_sft`; what was asked for is better than the same words in another form."""
    for number, row in enumerate(made_sft(clients, each)):
        worse = f" {' '.join(reversed(row['completion'].split()))} no"
        yield {"client": f"client_{number % clients:02d}", "prompt": row["prompt"]} | {
            "chosen": row["completion"],
            "rejected": worse,
        }


def made_sft(clients: int = 20, each: int = 10) -> Iterator[dict[str, str]]:
    """Orders to say two words in some form, and what is then said; all of them different."""
    asked = random.Random(SEED).sample(list(product(WORDS, WORDS, FORMS)), clients * each)
    for number, (word, other, form) in enumerate(asked):
        prompt, answer = f"Say {word} and {other} {form}.\nAnswer:", FORMS[form].format(word, other)
        yield {"client": f"client_{number % clients:02d}", "prompt": prompt, "completion": f" {answer}"}


def write(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """As JSONL, and say how many there are."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{file}: {len(lines)} rows")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sft", file, template, out]:
            write(Path(out), sft(Path(file), Path(template).read_text(encoding="utf-8")))
        case ["dpo", file, system, out]:
            write(Path(out), dpo(Path(file), Path(system).read_text(encoding="utf-8")))
        case ["made", out]:
            write(Path(out) / "small_sft.jsonl", made_sft())
            write(Path(out) / "small_dpo.jsonl", made_dpo())
        case _:
            sys.exit(__doc__)
