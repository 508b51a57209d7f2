"""A round of LoRA over a large base in bf16: what travels, and what a server and two workers hold on one machine.

python benchmarks/large_adapter.py [--small] [--rule fedavg|flora|fedex] [--rounds 2] [--steps 1]
    [--quantize nf4|int8] [--json OUT]

The base has the shape of a Llama of 1.1 billion parameters and random weights; it is written to a temporary folder.
Memory is the ranks' proportional set size, in which a page that several processes share counts once.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.command import parser_of, write_figures
from fedtorch.text.byte_bpe import train_subwords

LARGE = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
         "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048}  # fmt: skip
SMALL = {**LARGE, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "vocab_size": 300}  # fmt: skip
WORDS = "rain sun wind cloud snow storm river field tree stone bird north south day".split()
CONFIG = """
task:
  name: causal_lm
  model: {{path: {base}, adapter: {{r: 8, base: saved}}, quantize: {quantize}}}
  data: {{source: {rows}, columns: {{text: text}}, clients: {{by: who}}, splits: {{dev: 0, test: 0.2}}}}
  rows_are: text
  max_length: 32
  generate: {{max_new_tokens: 1}}
algorithm: {{name: {rule}}}
rounds: {rounds}
client: {{optimizer: adamw, lr: 1.0e-3, batch_size: 1, steps: {steps}}}
eval: {{every: 0}}
checkpoint: {{every: {rounds}}}
run: {{name: large, dir: {run}, export: none}}
track: {{tensorboard: false, progress: "off"}}
"""


def make_base(folder: Path, sizes: dict[str, int]) -> int:
    """Write a base in bf16 with a tokenizer; its parameters. Weights repeat a million random numbers, drawn quickly."""
    train_subwords([" ".join(WORDS)], folder, size=262)
    config = LlamaConfig(**sizes, dtype="bfloat16", architectures=["LlamaForCausalLM"])
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in LlamaForCausalLM(config).state_dict().items()}
    drawn = (torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    tensors = {}
    for name, shape in shapes.items():
        repeats = math.ceil(shape.numel() / len(drawn))
        flat = drawn.repeat(repeats)[: shape.numel()] if len(shape) > 1 else torch.ones(shape.numel())
        tensors[name] = flat.bfloat16().view(shape).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    return sum(shape.numel() for shape in shapes.values())


def make_rows(path: Path) -> None:
    """Ten rows for each of two clients, all different."""
    draw = torch.Generator().manual_seed(0)
    lines = []
    for number in range(20):
        chosen = torch.randint(len(WORDS), (5,), generator=draw).tolist()
        lines.append({"text": f"{number} " + " ".join(WORDS[place] for place in chosen), "who": "ab"[number % 2]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def memory_of(pid: int) -> dict[str, int]:
    """Bytes of a process that is there, by what `smaps_rollup` calls them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {line.split()[0].rstrip(":"): int(line.split()[1]) << 10 for line in lines}


def ranks_of(parent: int) -> list[int]:
    """The processes below `parent`, at any depth."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                pid = int(path.parent.name)
                found += [pid, *ranks_of(pid)]
        except (OSError, IndexError):
            continue
    return found


def watch(command: list[str], run: Path) -> dict[str, Any]:
    """Run the job to its end; the peaks of its processes' memory, in bytes, and what it says of its rounds."""
    started, peak, private = time.monotonic(), 0, dict[int, int]()
    log = run.with_suffix(".log")
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        while process.poll() is None:
            each = {pid: memory_of(pid) for pid in (process.pid, *ranks_of(process.pid))}
            peak = max(peak, sum(found.get("Pss", 0) for found in each.values()))
            for pid, found in each.items():
                private[pid] = max(private.get(pid, 0), found.get("Anonymous", 0))
            time.sleep(0.25)
    if process.returncode:
        raise RuntimeError(f"the job ended with {process.returncode}:\n{log.read_text()[-3000:]}")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rounds = [record for record in records if record["kind"] == "round"]
    return {
        "seconds": time.monotonic() - started,
        "peak_bytes": peak,
        "private_bytes": sorted(private.values(), reverse=True)[:3],
        "up": [record["bytes_up"] for record in rounds],
        "down": [record["bytes_down"] for record in rounds],
        "round_seconds": [sum(record["seconds"].values()) for record in rounds],
        "loss": [record["loss"] for record in rounds],
        "test": json.loads((run / "results.json").read_text())["averages"],
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--small", action="store_true", help="a base of a few layers, to see that it works")
    parser.add_argument("--rule", default="fedavg", help="algorithm.name")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1, help="of each client in a round")
    parser.add_argument("--quantize", choices=("nf4", "int8"), help="task.model.quantize.kind; default: bf16")
    args = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        base, rows, run = (Path(folder) / name for name in ("base", "rows.jsonl", "run"))
        make_rows(rows)
        numbers = make_base(base, SMALL if args.small else LARGE)
        config = Path(folder) / "large.yaml"
        quantize = "null" if args.quantize is None else f"{{kind: {args.quantize}}}"
        keys = {"rule": args.rule, "rounds": args.rounds, "steps": args.steps, "quantize": quantize}
        config.write_text(CONFIG.format(base=base, rows=rows, run=run, **keys))
        job = ["torch.distributed.run", "--nproc_per_node=3", "-m", "fedtorch.main", "--config", str(config)]
        found = {"parameters": numbers, "base_bytes": (base / "model.safetensors").stat().st_size,
                 **watch([sys.executable, "-m", *job], run)}  # fmt: skip
    megabytes = {name: [round(each / 1e6, 3) for each in found[name]] for name in ("private_bytes", "up", "down")}
    print(f"base: {numbers / 1e9:.3f} billion parameters, {found['base_bytes'] / 1e9:.2f} GB")
    print(f"peak of all processes together: {found['peak_bytes'] / 2**30:.2f} GiB")
    print(f"of which no file is behind, by rank: {megabytes['private_bytes']} MB")
    print(f"a round: {megabytes['up']} MB up, {megabytes['down']} MB down, of both clients together")
    print(f"seconds: {found['seconds']:.0f} in all, {[round(each) for each in found['round_seconds']]} by round")
    print(f"loss of training by round: {found['loss']}")
    scores = {name: (mean["micro"], mean["count"]) for name, mean in found["test"].items()}
    print(f"test, with numbers of rows: {scores}")
    write_figures(args.json, found)
    return found


if __name__ == "__main__":
    main()
