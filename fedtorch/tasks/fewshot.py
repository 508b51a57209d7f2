"""Many few-shot tasks per client with one encoder-decoder (FewFedWeight): text in, text out, each task by its metric.

Shapes: B rows of a batch, T target tokens, S source tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from fedtorch.core.ranges import Count
from fedtorch.data.prepared_gym import PreparedGym, score_name
from fedtorch.metrics.generation import MEANS, METRICS, STRIPPING, cannot_tell, is_undefined
from fedtorch.models.adapters.saved import bases_elsewhere
from fedtorch.models.encoder_decoder import RANDOM, EncoderDecoder
from fedtorch.models.generation import Generated, decode_greedily, token_energies
from fedtorch.models.padding import pad
from fedtorch.models.t5 import save_pretrained
from fedtorch.tasks.base import Scores
from fedtorch.tasks.prepared import Prepared
from fedtorch.text.sentencepiece import decode, load_tokenizer


class Example(NamedTuple):
    """A row."""

    task: str
    """of the gym, whose metric scores it"""
    source: list[int]
    """token ids of the input"""
    targets: list[list[int]]
    """token ids of every acceptable answer"""
    golds: list[str]
    """their text"""
    weights: list[float] | None = None
    """of the target's tokens, None for all alike"""
    is_pseudo: bool = False
    """was the target made by a model?"""


@dataclass(frozen=True)
class FewShotTasks(Prepared):
    """Clients that hold dozens of few-shot tasks each, from CrossFit's gym or any folder in its layout."""

    main_metric: ClassVar[str] = "tasks_mean"
    synthetic_folder: ClassVar[str] = "synthetic_gym"
    reads_other_clients: ClassVar[bool] = True  # the manifest's record: tasks and sizes of all clients

    model: EncoderDecoder = field(default_factory=EncoderDecoder)
    """which encoder-decoder"""
    tokenizer: str | None = None
    """folder; null: the model's own, or for random models the one beside the data"""
    template: Literal["paper", "crossfit"] = "paper"
    """input text: `<task>: <x>`, or ` [<task>] <x>`"""
    input_max_length: Count = 512
    """longer inputs are cut at the end"""
    output_max_length: Count = 64
    """longer answers are cut; also the most tokens that are generated"""
    strip: bool = True
    """accuracy and macro-F1: leave blanks at both ends out of the comparison; CrossFit does not"""

    def make_synthetic(self, folder: Path) -> None:
        """Eight tasks of four clients."""
        from fedtorch.data.synthetic.gym import prepare

        prepare(folder)

    @cached_property
    def gym(self) -> PreparedGym:
        """The prepared folder's manifest and rows."""
        gym = PreparedGym(self.folder)
        gym.require_packages()
        return gym

    @cached_property
    def prepared(self) -> dict[str, Any]:
        """The gym's manifest."""
        return self.gym.manifest

    @cached_property
    def vocabulary(self) -> PreTrainedTokenizerBase:
        """The tokenizer, checked to be a working one."""
        key, name = self.tokenizer_named(self.tokenizer, None if self.model.name in RANDOM else self.model.name)
        return load_tokenizer(name, key=key)

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """Examples per client and split after sub-sampling."""
        return {
            client: {split: self.gym.size(client, split, self.max_rows(split)) for split in splits}
            for client, splits in self.gym.sizes.items()
        }

    def check(self, client: str) -> str | None:
        """Parse all rows; every task must be one whose metric is known. Names tasks whose metric tells nothing."""
        golds: dict[str, list[list[str]]] = {}
        for split in self.gym.sizes[client]:
            for row in self.gym.rows(client, split, None):
                golds.setdefault(row["task"], []).append(row["outputs"])
        metrics = self.gym.metric_of
        if not (found := [task for task, rows in golds.items() if cannot_tell(metrics[task], rows)]):
            return None
        return (
            f"{', '.join(found)}: no answer is `acceptable`, against which {metrics[found[0]]} compares all others, so "
            "it is 0 whatever is predicted; give the task another metric, such as Classification-F1, or write its "
            "answers as acceptable and unacceptable"
        )

    def load(self, client: str, split: str) -> list[Example]:
        """Tokenised examples, task after task; a fixed random subset of each where `max_<split>` says so."""
        rows = self.gym.rows(client, split, self.max_rows(split))
        if not rows:
            return []
        sources = self._encode([self.source_text(row["task"], row["input"]) for row in rows], self.input_max_length)
        answers = self._encode([text for row in rows for text in row["outputs"]], self.output_max_length)
        examples, start = [], 0
        for row, source in zip(rows, sources, strict=True):
            end = start + len(row["outputs"])
            examples.append(Example(row["task"], source, answers[start:end], row["outputs"]))
            start = end
        return examples

    def source_text(self, task: str, text: str) -> str:
        """Text that the encoder reads; the fields inside `text` are joined by a literal ` [SEP] `, as in the gym."""
        return f"{task}: {text}" if self.template == "paper" else f" [{task}] {text}"

    def build_model(self, seed: int) -> nn.Module:
        """An encoder-decoder whose embedding fits the vocabulary."""
        return self.model.build(seed, self.vocabulary)

    def collate(self, examples: Sequence[Example], train: bool) -> dict[str, Tensor]:
        """input_ids BS, labels BT (−100 is padding), weights BT (fp32, rows sum to 1), is_pseudo B.

        Of several answers, training draws one with torch's generator, which is seeded for each client and round;
        otherwise it is the first.
        """
        targets = [self._target(example, train) for example in examples]
        pairs = zip(examples, targets, strict=True)
        weights = [example.weights or [1.0 / len(target)] * len(target) for example, target in pairs]
        inputs = pad([example.source for example in examples], self.vocabulary.pad_token_id)
        labels = pad(targets, -100)
        padded = [[*row, *[0.0] * (labels.shape[1] - len(row))] for row in weights]
        return {
            "input_ids": inputs,
            "attention_mask": (inputs != self.vocabulary.pad_token_id).long(),
            "labels": labels,
            "weights": torch.tensor(padded),
            "is_pseudo": torch.tensor([example.is_pseudo for example in examples]),
        }

    def row_losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Σ_j w_j·NLL_j of each row's target tokens, shape B: the mean NLL where all weights are alike."""
        nll_BT = nn.functional.cross_entropy(
            self._logits(model, batch).transpose(1, 2), batch["labels"], ignore_index=-100, reduction="none"
        )
        return (nll_BT * batch["weights"]).sum(1)

    def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, int]:
        """(sum of the rows' losses, number of rows)."""
        losses_B = self.row_losses(model, batch)
        return losses_B.sum(), len(losses_B)

    def predict(self, model: nn.Module, examples: Sequence[Example], batch_size: int) -> list[str]:
        """Answers by greedy decoding."""
        made = self.label(model, examples, batch_size=batch_size)
        return [decode(self.vocabulary, row.tokens) for row in made]

    def eval_batches(self, examples: Sequence[Example], size: int) -> Iterator[Sequence[Example]]:
        """One part per task: F1 and correlations need all its predictions together."""
        for _, group in groupby(examples, key=lambda example: example.task):
            yield list(group)

    def score(self, examples: Sequence[Example], predictions: Sequence[str]) -> Scores:
        """`tasks_mean`: (sum over tasks, tasks); `<task>/<metric>`: (value · n, n), so that sum / count is the value.

        `<task>/undefined`: (1, 1) beside a correlation that is 0 only because it has no value.
        """
        rows: dict[str, tuple[list[str], list[list[str]]]] = {}
        for example, prediction in zip(examples, predictions, strict=True):
            found, golds = rows.setdefault(example.task, ([], []))
            found.append(prediction)
            golds.append(example.golds)
        scores: Scores = {self.main_metric: (0.0, 0)}
        total = 0.0
        for task, (found, golds) in rows.items():
            metric = self.gym.metric_of[task]
            value = METRICS[metric](found, golds, **({"strip": self.strip} if metric in STRIPPING else {}))
            total += value
            scores[score_name(task, metric)] = (value * len(found), len(found))
            if is_undefined(metric, found, golds):
                scores[f"{task.lower()}/undefined"] = (1.0, 1)
        return {**scores, self.main_metric: (total, len(rows))}

    def metrics(self) -> tuple[str, ...]:
        """The mean over tasks, and every task's own metric."""
        return (self.main_metric, *(score_name(task, metric) for task, metric in self.gym.metric_of.items()))

    def single_metrics(self) -> tuple[str, ...]:
        """Metrics that are means over examples; F1 and correlations of one example say nothing."""
        return tuple(score_name(task, metric) for task, metric in self.gym.metric_of.items() if metric in MEANS)

    def label(
        self,
        model: nn.Module,
        examples: Sequence[Example],
        *,
        batch_size: int,
        top_k: int = 1,
        temperature: float = 1.0,
        on_batch: Callable[[], None] | None = None,
    ) -> list[Generated]:
        """Answers of the model to each input, with the energy of every token; the model is in eval mode."""
        return decode_greedily(
            model,
            [example.source for example in examples],
            batch_size=batch_size,
            max_length=self.output_max_length,
            top_k=top_k,
            temperature=temperature,
            on_batch=on_batch,
        )

    @torch.inference_mode()
    def evaluate_labels(
        self,
        model: nn.Module,
        examples: Sequence[Example],
        labels: Sequence[Generated],
        *,
        batch_size: int,
        top_k: int,
        temperature: float,
        on_batch: Callable[[], None] | None = None,
    ) -> list[Generated]:
        """Repeat the labels with the energies that `model` gives their tokens, from teacher-forced passes."""
        found = []
        device = next(model.parameters()).device
        for start in range(0, len(labels), batch_size):
            if on_batch is not None:
                on_batch()
            made = labels[start : start + batch_size]
            pairs = zip(examples[start : start + batch_size], made, strict=True)
            rows = [self.relabelled(example, row.tokens, None) for example, row in pairs]
            batch = {key: value.to(device) for key, value in self.collate(rows, False).items()}
            logits_BTV = self._logits(model, batch).float()
            both = [token_energies(logits_BTV, k, temperature).tolist() for k in (top_k, None)]
            for row, *energies in zip(made, *both, strict=True):
                found.append(Generated(row.tokens, *(_unforced(new, row.energies) for new in energies)))
        return found

    def relabelled(self, example: Example, tokens: list[int], weights: list[float] | None) -> Example:
        """The example with a model's answer in place of the gold ones."""
        return example._replace(targets=[tokens], weights=weights, is_pseudo=True)

    def unsaved(self, model: nn.Module) -> list[str]:
        """An adapter's base."""
        return bases_elsewhere(model)

    def save_model(self, model: nn.Module, folder: Path) -> None:
        """`save_pretrained` of model and tokenizer."""
        save_pretrained(model, self.vocabulary, folder)

    def facts(self) -> dict[str, str]:
        """Digest of the data manifest."""
        return {"data": self.gym.digest}

    def record(self) -> dict[str, Any]:
        """How the data were made."""
        return {"data": self.prepared["record"], "vocabulary": len(self.vocabulary)}

    def _logits(self, model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits BTV of the target's tokens, teacher-forced."""
        inputs = model.prepare_decoder_input_ids_from_labels(batch["labels"])
        logits: Tensor = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            decoder_input_ids=inputs,
            use_cache=False,
        ).logits
        return logits

    def _target(self, example: Example, train: bool) -> list[int]:
        choices = len(example.targets)
        return example.targets[int(torch.randint(choices, ())) if train and choices > 1 else 0]

    def _encode(self, texts: list[str], max_length: int) -> list[list[int]]:
        ids: list[list[int]] = self.vocabulary(texts, truncation=True, max_length=max_length).input_ids
        return ids


def _unforced(energies: Sequence[float], before: Sequence[float]) -> list[float]:
    """Energies of a label's tokens; NaN where that of before is, for a token that was forced."""
    return [old if math.isnan(old) else new for new, old in zip(energies, before, strict=False)]
