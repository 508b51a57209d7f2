"""What each rule for adapters sends in a round and loses by averaging: the same made-up classes, dealt unevenly.

python benchmarks/adapter_rules.py [--base FOLDER] [--rounds 6] [--out RUNS]

A small BERT of random weights, or the encoder in FOLDER; six clients whose labels follow Dir(0.3), two of them of
rank 2 where a rule takes unlike ranks. One process; prints the table of `fedtorch report adapters`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fedtorch.main import main as run
from fedtorch.report.command_line import main as report

LABELS = ("weather", "travel", "food", "music")
WORDS = {
    "weather": ("rain", "cloud", "storm", "cold", "wind"),
    "travel": ("train", "road", "bridge", "cold", "ticket"),
    "food": ("bread", "soup", "cold", "salt", "ticket"),
    "music": ("song", "drum", "wind", "bridge", "concert"),
}
RANDOM = "random: bert, hidden_size: 128, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 256"
UNLIKE = "ranks: {client_000: 2, client_001: 2}"
RULES = {
    "fedit": ("kind: lora, r: 8", "{name: fedavg}", ""),
    "ffa": ("kind: lora, r: 8", "{name: fedavg}", '{frozen: ["*lora_A*"]}'),
    "fedsa": ("kind: lora, r: 8", "{name: fedavg}", '{private: ["*lora_B*"]}'),
    "rolora": ("kind: lora, r: 8", "{name: rolora}", ""),
    "fed-sb": ("kind: sb, r: 8", "{name: fedavg}", ""),
    "hetlora": ("kind: lora, r: 8", f"{{name: hetlora, {UNLIKE}}}", ""),
    "flexlora": ("kind: lora, r: 8", f"{{name: flexlora, {UNLIKE}}}", ""),
    "flora": ("kind: lora, r: 8", f"{{name: flora, {UNLIKE}}}", ""),
    "fedex": ("kind: lora, r: 8", "{name: fedex}", ""),
}
"""name -> adapter, algorithm, partition"""
CONFIG = """
task:
  name: text_classification
  model: {{{model}, adapter: {{{adapter}}}}}
  data:
    source: {rows}
    clients: {{dirichlet: {{alpha: 0.3, number: 6, min_size: 8}}}}
    splits: {{dev: 0, test: 0.25}}
  max_length: 32
algorithm: {algorithm}
partition: {partition}
rounds: {rounds}
client: {{optimizer: adamw, lr: 5.0e-3, batch_size: 8, epochs: 1}}
eval: {{every: 0}}
run: {{name: {name}, dir: {folder}, export: none}}
track: {{tensorboard: false, progress: "off"}}
"""


def write_rows(path: Path, size: int = 480) -> None:
    """Texts of five words, most of them of the label's own, some of which other labels have too."""
    draw = random.Random(0)
    rows = []
    for number in range(size):
        label = LABELS[number % len(LABELS)]
        other = draw.choice(LABELS)
        words = [*draw.choices(WORDS[label], k=3), *draw.choices(WORDS[other], k=2), f"no {number}"]
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "label": label})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main(arguments: list[str] | None = None) -> int:
    """Run every rule and print the table; the first exit code that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", help="folder of an encoder; default: a small one of random weights")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, help="keep the runs there")
    args = parser.parse_args(arguments)
    with TemporaryDirectory() as scratch:
        out = args.out or Path(scratch)
        out.mkdir(parents=True, exist_ok=True)
        write_rows(out / "rows.jsonl")
        for name, (adapter, algorithm, partition) in RULES.items():
            settings = {
                "model": RANDOM if args.base is None else f"path: {args.base}",
                "adapter": adapter,
                "rows": out / "rows.jsonl",
                "algorithm": algorithm,
                "partition": partition or "{}",
                "rounds": args.rounds,
                "name": name,
                "folder": out / name,
            }
            (out / f"{name}.yaml").write_text(CONFIG.format(**settings))
            if code := run(["--config", str(out / f"{name}.yaml")]):
                return code
        return report(["adapters", *(str(out / name) for name in RULES), "--out", str(out)])


if __name__ == "__main__":
    sys.exit(main())
