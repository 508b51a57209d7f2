"""Texts, or pairs of texts, that get a label, several labels or a number, by any model with a classification head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.scores import COUNT
from fedtorch.metrics.confusion import count_labels
from fedtorch.metrics.regression import FIGURES, sums
from fedtorch.models.classified import classify
from fedtorch.models.padding import by_length, pad
from fedtorch.tasks.base import Scores
from fedtorch.tasks.label_figures import BUILT_IN, known_metrics, label_figures
from fedtorch.tasks.labelled_texts import LabelledTexts, Problem
from fedtorch.tasks.long_texts import LongTexts, Window, padded
from fedtorch.tasks.new_rows import NewTexts, refuse_perplexity

_PROBLEMS = {
    "single_label": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}


@dataclass(frozen=True)
class Example:
    """A tokenised text."""

    ids: list[int]
    """tokens; of a long text those of its first window"""
    types: list[int] | None
    """which of two texts a token belongs to, for models that are told"""
    target: Any
    """number of the label, numbers of the labels, or the value"""
    more: Sequence[Window] = ()
    """further windows, where a long text is read in several"""

    @property
    def windows(self) -> list[Window]:
        """All of them."""
        return [Window(self.ids, self.types), *self.more]

    @classmethod
    def of(cls, windows: Sequence[Window], target: Any) -> Example:
        """A text of these."""
        return cls(windows[0].ids, windows[0].types, target, windows[1:])


@dataclass(frozen=True, kw_only=True)
class TextClassification(LongTexts):
    """Cross entropy over labels, binary cross entropy over each of several, or squared error of a number."""

    head: ClassVar[Any] = "SequenceClassification"
    task_kind: ClassVar[str] = "text_classification"
    built_in: ClassVar[Mapping[str, Any]] = BUILT_IN
    lower_is_better: ClassVar[tuple[str, ...]] = ("rmse", "mae")
    replaceable: ClassVar[tuple[str, ...]] = ("rmse", "mae", "r2")

    problem: Problem = "single_label"
    """what a label is: a word, a list of words, or a number (`regression`; no labels are declared then)"""
    class_weights: Literal["balanced"] | Mapping[str, float] | None = None
    """what each label's rows count in the loss, which is divided by the number of rows; balanced: rows / (labels · rows
    of the label), over all clients"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_weights is not None and self.problem != "single_label":
            raise ConfigError(f"task.class_weights is for task.problem single_label, not {self.problem}")
        if self.client_weight == "tokens":
            raise ConfigError("task.client_weight is tokens, but a text has one label for all of them; set examples")

    @property
    def main_metric(self) -> str:  # type: ignore[override]  # a constant of most tasks
        """By what a label is."""
        return "negative_squared_error" if self.problem == "regression" else "accuracy"

    @property
    def has_labels(self) -> bool:
        """Unless it is a number."""
        return self.problem != "regression"

    def pinned_problem(self, *, learns: bool = True) -> str:
        """Reason why the data cannot be pinned; empty where it can."""
        if self.class_weights == "balanced":
            return "task.class_weights is balanced, for which all rows are counted; give a weight for each label"
        return super().pinned_problem(learns=learns)

    def form(self) -> LabelledTexts:
        """A text and its label."""
        known = self.data.labels if self.problem != "regression" else ()
        return LabelledTexts(self.problem, known, decimal=self.data.decimal)

    def label_of(self, row: Mapping[str, Any]) -> Any:
        """The label, or the labels."""
        return None if self.problem == "regression" else row["label"]

    def settings(self) -> dict[str, Any]:
        """Also what a label is."""
        return {**super().settings(), "problem": self.problem}

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """All labels in the order of their numbers."""
        if self.problem == "regression":
            return ()
        if self.data.labels:
            return self.data.labels
        found = {str(label) for entry in self.prepared["clients"].values() for label in entry.get("labels", {})}
        return tuple(sorted(found))

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Label -> its number."""
        return {label: number for number, label in enumerate(self.labels)}

    def head_settings(self) -> dict[str, Any]:
        """Labels by number, for whoever loads the model later."""
        if self.problem == "regression":
            return {"num_labels": 1, "problem_type": "regression"}
        return {
            "num_labels": len(self.labels),
            "id2label": dict(enumerate(self.labels)),
            "label2id": self.numbers,
            "problem_type": _PROBLEMS[self.problem],
        }

    def examples(self, rows: Sequence[Mapping[str, Any]], where: str) -> list[Example]:
        """Tokens of every row, as `OwnTask` reads them."""
        return [
            Example.of(windows, self._target(row["label"], where))
            for windows, row in zip(self._inputs(rows, where), rows, strict=True)
        ]

    def _inputs(self, rows: Sequence[Mapping[str, Any]], where: str) -> list[list[Window]]:
        """Each row's windows."""
        sides = [[row["text"] for row in rows]]
        if any("text_pair" in row for row in rows):
            sides.append([row.get("text_pair", "") for row in rows])
        return self.encoded(*sides, where=[row.get("where", where) for row in rows])

    def example_lengths(self, examples: Sequence[Example]) -> list[tuple[int, ...]]:
        """Tokens of each, as if all its windows were as long as the first."""
        return [(len(example.ids) * len(example.windows),) for example in examples]

    def collate(self, examples: Sequence[Example], train: bool) -> dict[str, Any]:
        """input_ids, attention_mask (batch, longest), int64; targets: (batch,) numbers, or (batch, labels) 0 or 1.

        Where a text has several windows there are rows for all of them, and `windows` says how many each text has.
        """
        windows = [window for example in examples for window in example.windows]
        ids = [window.ids for window in windows]
        batch: dict[str, Any] = padded(ids, self.vocabulary.pad_token_id or 0)
        if all(window.types is not None for window in windows):
            batch["token_type_ids"] = pad([window.types or [] for window in windows], 0)
        if len(windows) > len(examples):
            batch["windows"] = torch.tensor([len(example.windows) for example in examples])
        targets = [example.target for example in examples]
        if self.problem == "multi_label":
            batch["targets"] = torch.zeros(len(targets), len(self.labels))
            for row, labels in enumerate(targets):
                batch["targets"][row, labels] = 1.0
        else:
            batch["targets"] = torch.tensor(targets, dtype=torch.float32 if self.problem == "regression" else None)
        return batch

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, Tensor | int]:
        """(sum, number of terms): one a row, or a row and label where a row has several."""
        logits, targets = self.logits(model, batch).float(), batch["targets"]
        if self.problem == "regression":
            return nn.functional.mse_loss(logits[:, 0], targets, reduction="sum"), len(targets)
        if self.problem == "multi_label":
            total = nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
            return total, targets.numel()
        weights = None if self.label_weights is None else self.label_weights.to(logits.device)
        # by rows, not by their weights: a batch all of whose rows weigh 0 has a loss
        return nn.functional.cross_entropy(logits, targets, weights, reduction="sum"), len(targets)

    def terms(self, batch: dict[str, Any]) -> int:
        """Rows, or rows times labels."""
        targets: Tensor = batch["targets"]
        return targets.numel()

    @cached_property
    def label_weights(self) -> Tensor | None:
        """(labels,) fp32, None where all are 1."""
        if self.class_weights is None:
            return None
        if self.class_weights != "balanced":
            if unknown := [label for label in self.class_weights if label not in self.numbers]:
                raise ConfigError(f"task.class_weights has {unknown[0]!r}, which is no label: {', '.join(self.labels)}")
            return torch.tensor([float(self.class_weights.get(label, 1.0)) for label in self.labels])
        counts = dict.fromkeys(self.labels, 0)
        for entry in self.prepared["clients"].values():
            for label, count in entry["labels"].items():
                counts[label] += count
        rows = sum(counts.values())
        return torch.tensor([rows / (len(counts) * count) if count else 0.0 for count in counts.values()])

    def logits(self, model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
        """(batch, labels), see `classify`; of a text in several windows their mean."""
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "token_type_ids") if key in batch}
        found = classify(model, inputs)
        if "windows" not in batch:
            return found
        return torch.stack([part.mean(0) for part in found.split(batch["windows"].tolist())])

    def predict(self, model: nn.Module, examples: Sequence[Example], batch_size: int) -> list[Any]:
        """Number of the likeliest label; numbers of all labels above a half; or the value."""
        return [self._prediction(row) for row in self._all_logits(model, examples, batch_size)]

    def _all_logits(self, model: nn.Module, examples: Sequence[Example], batch_size: int) -> list[Tensor]:
        """(labels,) fp32 on the CPU of each example, in their order; those of like length share a batch."""
        device = next(model.parameters()).device
        found: list[Any] = [None] * len(examples)
        for picked in by_length([sum(each) for each in self.example_lengths(examples)], batch_size):
            batch = self.collate([examples[i] for i in picked], False)
            logits = self.logits(model, {key: value.to(device) for key, value in batch.items()}).float().cpu()
            for i, row in zip(picked, logits, strict=True):
                found[i] = row
        return found

    def new_form(self, *, perplexity: bool = False) -> NewTexts:
        """A text, or two."""
        refuse_perplexity(self.task_kind, perplexity)
        return NewTexts(optional=("text_pair",))

    def answers(self, model: nn.Module, rows: Sequence[Mapping[str, Any]], batch_size: int) -> list[dict[str, Any]]:
        """label or labels, and the probability of each label; or the value."""
        nothing: Any = [] if self.problem == "multi_label" else 0
        examples = [Example.of(windows, nothing) for windows in self._inputs(rows, "")]
        return [self._answer(logits) for logits in self._all_logits(model, examples, batch_size)]

    def _answer(self, logits: Tensor) -> dict[str, Any]:
        found = self._prediction(logits)
        if self.problem == "regression":
            return {"value": found}
        is_multi = self.problem == "multi_label"
        shares = (logits.sigmoid() if is_multi else logits.softmax(0)).tolist()
        chosen = {"labels": [self.labels[i] for i in found]} if is_multi else {"label": self.labels[found]}
        return {**chosen, "probabilities": {label: round(p, 6) for label, p in zip(self.labels, shares, strict=True)}}

    def score(self, examples: Sequence[Example], predictions: Sequence[Any]) -> Scores:
        """accuracy and the counts from which F1 and Matthews correlation are made; or sums of errors and moments."""
        count = len(examples)
        targets = [example.target for example in examples]
        if self.problem == "regression":
            error = -sum((true - found) ** 2 for true, found in zip(targets, predictions, strict=True))
            found = sums(targets, predictions).items()
            return {"negative_squared_error": (error, count), **{COUNT + name: (value, count) for name, value in found}}
        listed = [(t, p) if isinstance(t, list) else ([t], [p]) for t, p in zip(targets, predictions, strict=True)]
        hits = sum(set(true) == set(found) for true, found in listed)
        scores: Scores = {"accuracy": (float(hits), count)}
        counts = count_labels([true for true, _ in listed], [found for _, found in listed], len(self.labels))
        for label, number in enumerate(counts):
            for name in ("hits", "predicted", "true"):
                if value := getattr(number, name):
                    scores[f"{COUNT}{label}/{name}"] = (float(value), count)
        return scores

    def known_metrics(self) -> Mapping[str, Any]:
        """Those of what a label is."""
        return known_metrics(self.problem)

    def with_metrics(self, chosen: Mapping[str, Any]) -> Self:
        """Add metrics as the base class does; of numbers errors and Pearson's correlation are measured unasked."""
        always = FIGURES if self.problem == "regression" else ()
        return super().with_metrics({name: name for name in always} | dict(chosen))

    def compared(self, examples: Sequence[Example], predictions: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Labels, lists of labels, or numbers."""
        references = [example.target for example in examples]
        return [self._named(found) for found in predictions], [self._named(true) for true in references]

    def _named(self, value: Any) -> Any:
        if self.problem == "regression":
            return value
        return [self.labels[i] for i in value] if isinstance(value, list) else self.labels[value]

    def figures(self, totals: Mapping[str, float]) -> dict[str, float]:
        """F1 and Matthews correlation; or RMSE, MAE, R² and Pearson's correlation."""
        return label_figures(self.problem, len(self.labels), totals)

    def _target(self, label: Any, where: str) -> Any:
        if self.problem == "regression":
            return float(label)
        try:
            return [self.numbers[one] for one in label] if isinstance(label, list) else self.numbers[label]
        except KeyError as error:
            raise DataError(f"{where} has the label {error}, which is not among {', '.join(self.labels)}") from None

    def _prediction(self, logits: Tensor) -> Any:
        if self.problem == "regression":
            return float(logits[0])
        return (logits > 0).nonzero()[:, 0].tolist() if self.problem == "multi_label" else int(logits.argmax())
