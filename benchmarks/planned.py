"""Print what a dry run says of large models: memory on one device and on eight, before there is any.

python -m benchmarks.planned

Prints the table of docs/gpus.md. Weights are random and never made; 535 MB of memory and two minutes of a busy core.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from fedtorch.config.load import load
from fedtorch.planning.activations import activation_bytes
from fedtorch.planning.dry_run import built_bytes
from fedtorch.setup.build import BuiltRun, build
from fedtorch.train.memory import Size, optimizer_numbers, states

LLAMA_08B = ("hidden_size=1536", "intermediate_size=4096", "num_hidden_layers=24", "num_attention_heads=12",
             "vocab_size=32000")  # fmt: skip
LLAMA_7B = ("hidden_size=4096", "intermediate_size=11008", "num_hidden_layers=32", "num_attention_heads=32",
            "vocab_size=32000")  # fmt: skip
LORA = (*LLAMA_7B, "adapter={kind: lora, r: 8}")
MODELS = {"0.8 B, all weights": LLAMA_08B, "7 B, LoRA": LORA, "7 B, LoRA beside nf4": (*LORA, "quantize={kind: nf4}")}
"""Row -> keys below task.model of `diloco/small/made`."""
EIGHT = ("system.ranks_per_worker=8", "client.accumulation=8")
ENGINES = {
    "plain": (1, ()),
    "ZeRO 3": (1, ("engine.kind=deepspeed", "engine.stage=3")),
    "ZeRO 3 over 8": (8, ("engine.kind=deepspeed", "engine.stage=3", *EIGHT)),
    "FSDP over 8": (8, ("engine.kind=fsdp", *EIGHT)),
}
"""Engine -> ranks, each with a device of its own, and keys."""


def main() -> None:
    """Print a row for each model and engine."""
    with TemporaryDirectory() as folder:
        os.chdir(folder)  # where the config looks for its rows
        Path("data/openfedllm").mkdir(parents=True)
        rows = [json.dumps({"prompt": f"What is {n}?", "completion": "a number " * 300}) for n in range(200)]
        Path("data/openfedllm/small_sft.jsonl").write_text("\n".join(rows))
        print("| model | engine | weights, gradients, optimiser | activations | host, while it is built |")
        print("|---|---|---:|---:|---:|")
        for model, sizes in MODELS.items():
            for engine, (ranks, keys) in ENGINES.items():
                if "nf4" not in model or engine == "plain":  # the others refuse packed weights
                    print(f"| {model} | {engine} | {' | '.join(_figures(sizes, ranks, keys))} |")


def _figures(sizes: tuple[str, ...], ranks: int, keys: tuple[str, ...]) -> list[str]:
    """GiB of a device's states and activations, and of the host for each rank."""
    own = (*(f"task.model.{size}" for size in sizes), "engine.precision=bf16", "task.max_length=512")
    config = load("diloco/small/made", [*own, "client.batch_size=1", "system.server_works=true", *keys])
    built = build(config, num_ranks=ranks, rank=0, is_for_count=True)
    found = (_states(built, ranks), activation_bytes(built) or 0, built_bytes(built))
    return [f"{size / 2**30:.1f}" for size in found]


def _states(built: BuiltRun, ranks: int) -> float:
    moments, size = optimizer_numbers(built.config.client), Size.of(built.engine.module)
    if built.config.engine.kind != "torch":
        return states(size, built.config.engine, ranks=ranks, moments=moments).device
    return sum(each.nbytes for each in built.engine.module.parameters()) + size.trained * (4 + 4 * moments)


if __name__ == "__main__":
    main()
