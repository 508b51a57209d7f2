"""The cells of docs/results-defences.md: three tasks on real rows, and what stands between clients and attacker.

Each task is tiny and of random weights, so that all cells are done in minutes; each cell changes what the client does,
or what is done to what it sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CLIP, LOW, HIGH = 0.5, 0.02, 1.0
"""C, and the two noise multipliers."""
NO_NOISE = 1e-6
"""For the audit alone, which trains with a clip only where there is noise too; next to nothing."""
ROUNDS = 10

SHARED = """
rounds: {rounds}
run: {{name: {name}, dir: {folder}, export: none}}
eval: {{every: 0}}
checkpoint: {{every: {rounds}}}
track: {{tensorboard: false, progress: "off"}}
system: {{device: cpu, threads: 1}}
algorithm: {{name: fedavg, weights: equal}}
client: {{optimizer: adamw, lr: 0.002, batch_size: 4, epochs: 1}}
"""
TASKS = {
    "questions": """
task:
  name: text_classification
  model: {{random: bert, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 128,
          hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0, max_position_embeddings: 64}}
  max_length: 24
  data: {{source: {questions}, clients: {{iid: 12}}, splits: {{dev: 0, test: 0.4}}, seed: {seed}}}
""",
    "text2sql": """
task:
  name: text2sql
  data: {text2sql}
  model: {{name: t5-random, d_model: 64, d_ff: 128, d_kv: 16, num_heads: 4, num_layers: 1, dropout: 0.0}}
  input_max_length: 32
  output_max_length: 32
  max_train: 32
  max_dev: 4
  max_test: 24
""",
    "dialog": """
task:
  name: dialog
  data: {dialog}
  model: {{name: gpt2-random, width: 64, layers: 1, heads: 4, positions: 96, dropout: 0.0}}
  max_length: 96
  max_train: 8
  max_dev: 2
  max_test: 8
""",
}
TITLES = {"questions": "Questions", "text2sql": "Text to SQL", "dialog": "Dialogs"}
SCORES = {
    "questions": ("accuracy", 100.0, "accuracy, %"),
    "text2sql": ("loss", 1.0, "loss, nats a token"),
    "dialog": ("log_likelihood", -1.0, "loss, nats a token"),
}
"""task -> (name in results.json, times, as the page says it)"""


@dataclass(frozen=True)
class Cell:
    """What a client does, or what is done to its update."""

    title: str
    """a row of the page"""
    sets: tuple[str, ...] = ()
    """beside `SHARED`"""
    noise: float | None = None
    """z with `CLIP`; None: neither"""

    @property
    def released(self) -> str:
        """The audit's channel of what those see who are not the server."""
        if self.noise is None:
            return "sum"
        return "sum, clipped" if self.noise == NO_NOISE else "sum, clipped, noised"

    @property
    def settings(self) -> tuple[str, ...]:
        """Of a run."""
        if self.noise is None:
            return self.sets
        promise = f"{{kind: client, clip: {CLIP}, noise_multiplier: {self.noise}, delta: 1.0e-3, simulate: true, "
        return (*self.sets, "clients={sampling: poisson, rate: 1.0}", f"privacy={promise}seed: 1, reveal: [scores]}}")


CELLS: Mapping[str, Cell] = {
    "step": Cell(
        "one step of SGD, 2 rows", ("client={optimizer: sgd, lr: 0.1, batch_size: 2, epochs: null, steps: 1}",)
    ),
    "sgd": Cell("an epoch of SGD", ("client.optimizer=sgd", "client.lr=0.1")),
    "adamw": Cell("an epoch of AdamW"),
    "frozen": Cell("an epoch of AdamW, embeddings frozen"),
    "adapter": Cell(
        "LoRA of rank 4, AdamW at 0.01",
        ("task.model.adapter={kind: lora, r: 4, targets: all-linear}", "client.lr=0.01"),
    ),
    "clip": Cell(f"an epoch of AdamW, clip {CLIP:g}", noise=NO_NOISE),
    "low": Cell(f"an epoch of AdamW, clip {CLIP:g}, noise {LOW:g}", noise=LOW),
    "high": Cell(f"an epoch of AdamW, clip {CLIP:g}, noise {HIGH:g}", noise=HIGH),
}
FROZEN = {
    "questions": ("partition={frozen: ['bert.embeddings.*']}",),
    "text2sql": ("partition={frozen: ['shared.*']}",),
}
PRIVATE = {"dialog": ("partition={private: ['user.*']}",)}
"""The assistant's model is trained together, the user's stays with its client; keys and values cross between both."""
UNFIT = {("dialog", "adapter")}
"""No adapter fits a model of two sides."""
LEFT_OUT = {("dialog", "frozen")} | {(task, cell) for task in ("text2sql", "dialog") for cell in ("sgd", "low")}
"""A dialog has neither rows nor a span to be hidden; the others take four times as long as those of the questions."""


def wanted() -> list[tuple[str, str]]:
    """(task, cell) of the whole page."""
    return [(task, cell) for task in TASKS for cell in CELLS if (task, cell) not in UNFIT | LEFT_OUT]


def config_of(task: str, seed: int, folder: Path, data: Mapping[str, Path], rounds: int) -> str:
    """As YAML, before what the cell sets."""
    places = {name: str(path.resolve()) for name, path in data.items()}
    return (SHARED + TASKS[task]).format(rounds=rounds, name=folder.name, folder=folder, seed=seed, **places)


def settings_of(task: str, cell: str) -> list[str]:
    """What the cell sets."""
    own = FROZEN[task] if cell == "frozen" else PRIVATE.get(task, ())
    return [*own, *CELLS[cell].settings]
