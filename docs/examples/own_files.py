"""Writes the files that docs/your-data.md works with: notes to classify, questions, pairs of texts, a saved
data set, answers to compare.

python docs/examples/own_files.py [FOLDER]
"""

from __future__ import annotations

import csv
import json
import random
import sys
from itertools import product
from pathlib import Path

SIGNS = {
    "benign": "round soft slow small smooth stable mild".split(),
    "malignant": "large fast hard irregular spread grave new".split(),
}
PLACES = {"heart": "chest", "liver": "belly", "brain": "head", "knee": "leg", "elbow": "arm", "lung": "chest"}


def note(draw: random.Random, diagnosis: str) -> str:
    """A few words, most of which tell the diagnosis."""
    words = [draw.choice(SIGNS[diagnosis if draw.random() < 0.85 else draw.choice(list(SIGNS))]) for _ in range(4)]
    return f"the {draw.choice(list(PLACES))} has a {' '.join(words[:2])} mass , {' '.join(words[2:])}"


def write(folder: Path) -> None:
    """Write them, the same ones every time."""
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    sites = {"north": 90, "east": 70, "south": 50, "west": 30}
    rows = [
        {"note": note(draw, diagnosis := draw.choice(list(SIGNS))), "diagnosis": diagnosis, "hospital": site}
        for site, number in sites.items() for _ in range(number)
    ]  # fmt: skip
    (folder / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (folder / "questions.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["prompt", "completion", "department"])
        signs = sum(SIGNS.values(), [])
        asked = draw.sample(list(product(PLACES, signs, signs)), 240)
        for i, (organ, sign, other) in enumerate(asked):
            prompt = f"where is the {sign} {organ} of a {other} patient ?"
            table.writerow([prompt, f" in the {PLACES[organ]}", f"ward {i % 4 + 1}"])
    with (folder / "pairs.tsv").open("w", newline="") as file:
        table = csv.writer(file, delimiter="\t")
        table.writerow(["source", "target"])
        for _ in range(320):
            diagnosis = draw.choice(list(SIGNS))
            table.writerow([note(draw, diagnosis), f"{diagnosis} mass"])
    from datasets import Dataset

    kinds = [draw.choice(list(SIGNS)) for _ in range(600)]
    saved = Dataset.from_dict({"text": [note(draw, kind) for kind in kinds], "label": kinds})
    saved.save_to_disk(str(folder / "saved"))
    with (folder / "answers.jsonl").open("w") as file:  # people like them short
        for i, (organ, sign, other) in enumerate(draw.sample(list(product(PLACES, signs, signs)), 160)):
            prompt = f"where is the {sign} {organ} of a {other} patient ?"
            row = {"prompt": prompt, "chosen": f" {PLACES[organ]}", "rejected": f" in the {PLACES[organ]}"}
            file.write(json.dumps({**row, "department": f"ward {i % 4 + 1}"}) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
