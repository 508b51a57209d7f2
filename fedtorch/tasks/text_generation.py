"""Common part of tasks whose answers are texts: templates, generating, and metrics of what was generated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from fedtorch.core.errors import ConfigError
from fedtorch.core.extras import require
from fedtorch.core.ranges import Count
from fedtorch.core.scores import COUNT
from fedtorch.metrics.text import MEANS, POOLED, from_numbered, numbered, of_statistics, row_scores, statistics
from fedtorch.models.generation import new_tokens
from fedtorch.models.padding import by_length, pad
from fedtorch.tasks.base import Scores
from fedtorch.tasks.chosen_metrics import selectable
from fedtorch.tasks.own import OwnTask
from fedtorch.text.templates import check_strings, filled, template_columns

Metric = Literal["exact_match", "rouge_1", "rouge_2", "rouge_l", "bleu", "chrf"]
IGNORED = -100
"""The label of a token that is not learned."""


@dataclass(frozen=True)
class Generation:
    """How answers are generated."""

    max_new_tokens: Count = 64
    """tokens of the longest answer"""
    num_beams: Count = 1
    """1: greedy"""


@dataclass(frozen=True)
class SourceTarget:
    """A tokenised row: what is read, and what is to come."""

    source: list[int]
    """tokens that are read, cut to `max_length`"""
    target: list[int]
    """with the end token"""
    gold: str
    """the target as text"""


@dataclass(frozen=True, kw_only=True)
class TextTask(OwnTask):
    """A task whose answer is a text."""

    main_metric: ClassVar[str] = "exact_match"
    built_in: ClassVar[Mapping[str, Any]] = {name: name for name in (*MEANS, *POOLED)}

    generate: Generation = field(default_factory=Generation)
    """how answers are generated"""
    measures: tuple[Metric, ...] = ("exact_match",)
    """what is measured of generated answers; bleu and chrf are sacrebleu's of all rows together"""
    template: str | None = None
    """what the model reads, with columns in braces: `Question: {question}\\nAnswer: `; null: the source alone"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("task.measures", self.measures)
        if self.template is not None:
            self.template_columns()

    def template_columns(self) -> list[str]:
        """The columns that the template names.

        Raises:
            ConfigError: it is no template.
        """
        try:
            found = template_columns(self.template)
        except ValueError as error:
            raise ConfigError(
                f"task.template is no template ({error}); write {{column}}, and {{{{ for a brace"
            ) from None
        if bad := [name for name in found if not name.isidentifier()]:
            raise ConfigError(f"task.template names {bad[0]!r}; write the name of a column in braces, such as {{text}}")
        return found

    def settings(self) -> dict[str, Any]:
        """Also the template, which is applied when rows are prepared."""
        return {**super().settings(), "template": self.template}

    @property
    def asked(self) -> tuple[str, ...]:
        """Metrics of generated answers: `measures`, and those that `eval.metrics` names."""
        names = [name for name in self.chosen.values() if name in (*MEANS, *POOLED)]
        return tuple(dict.fromkeys((*self.measures, *names)))

    def with_metrics(self, chosen: Mapping[str, Any]) -> Self:
        """Accept metrics whose packages are there."""
        task = super().with_metrics(chosen)
        _require("eval.metrics", task.asked)
        return task

    def means(self) -> tuple[str, ...]:
        """Metrics of generated answers that are means over rows."""
        return tuple(name for name in MEANS if name in self.asked)

    def labels_named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Texts have none; what transformers puts there means nothing."""
        return self.data.labels

    def metrics(self) -> tuple[str, ...]:
        """Metrics that a best model can be chosen by."""
        return tuple(dict.fromkeys((*self.means(), *selectable(self.chosen, self.lower_is_better))))

    def single_metrics(self) -> tuple[str, ...]:
        """Means over rows."""
        return self.means()

    def text_scores(self, predictions: Sequence[str], golds: Sequence[str]) -> Scores:
        """Scores of generated texts: means, and counts for figures of all rows together."""
        count = len(golds)
        scores: Scores = {name: (s, count) for name, s in row_scores(predictions, golds, self.asked).items()}
        counts = numbered(statistics(predictions, golds, self.asked)) if count else {}
        return {**scores, **{f"{COUNT}{name}": (value, count) for name, value in counts.items()}}

    def figures(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Figures that are no means, from sums by name."""
        counts = {name.removeprefix(COUNT): value for name, value in totals.items() if name.startswith(COUNT)}
        found = {name: from_numbered(counts, name) for name in POOLED}
        return {name: of_statistics(name, values) for name, values in found.items() if values}

    @torch.inference_mode()
    def generated(
        self, model: Any, sources: Sequence[Sequence[int]], batch_size: int, *, left: bool
    ) -> list[list[int]]:
        """New tokens after each source, in the given order; sources of like length share a batch."""
        device, pad_id = next(model.parameters()).device, self.vocabulary.pad_token_id
        found: list[list[int]] = [[] for _ in sources]
        for picked in by_length([len(source) for source in sources], batch_size, longest_first=True):
            ids = pad([sources[i] for i in picked], pad_id, left=left).to(device)
            mask = pad([[1] * len(sources[i]) for i in picked], 0, left=left).to(device)
            before = ids.shape[1] if left else 1
            limit, search = self.generate.max_new_tokens, {"num_beams": self.generate.num_beams, "do_sample": False}
            new = new_tokens(model, ids, mask, self.vocabulary, max_new=limit, before=before, **search)
            for i, row in zip(picked, new, strict=True):
                found[i] = row
        return found


def _require(key: str, names: Sequence[str]) -> None:
    """The packages that compute some metrics are there."""
    if {"bleu", "chrf"} & set(names):
        require(f"{key} bleu and chrf", "sacrebleu", extra="own")
    if any(name.startswith("rouge") for name in names):
        require(f"{key} rouge", "rouge_score", extra="own")


@dataclass(frozen=True)
class Texts:
    """Form of a row with texts in columns, of which `source` is filled into a template."""

    required: Sequence[str]
    """roles, the last of which is the answer"""
    template: str | None
    """an input with `{ROLE}` for each column; None: the first column is read as it is"""
    optional: Sequence[str] = ()
    """roles of columns that are used where the source has them"""

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """source and target."""
        check_strings({name: value for name, value in values.items() if value is not None})
        return {"source": filled(self.template, values, self.required[0]), "target": values[self.required[-1]]}

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """Both."""
        return [row["source"], row["target"]]


def token_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(sum of the cross entropies, number) of the labels that are not -100; logits (B, T, V), labels (B, T)."""
    flat = nn.functional.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return flat, (labels != IGNORED).sum()
