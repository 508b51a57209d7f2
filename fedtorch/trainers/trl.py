"""TRL's trainers on raw rows: SFT, DPO, KTO, reward models."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, cast

from torch import nn

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.extras import require
from fedtorch.train.settings import ClientConfig, TrainerConfig
from fedtorch.trainers.base import own
from fedtorch.trainers.hugging_face import HuggingFace, Round
from fedtorch.trainers.over_rounds import continued
from fedtorch.trainers.reference import start_model

log = logging.getLogger(__name__)


class HasVocabulary(Protocol):
    """A task with a tokenizer."""

    vocabulary: Any


class OfTRL(HuggingFace):
    """One of TRL's trainers, found by its name when it is used: TRL is an extra."""

    rows = "raw"
    defaults = {"gradient_checkpointing": False}  # TRL's is on, and bf16 too
    name: ClassVar[str]
    """`<name>Trainer` and `<name>Config` in TRL"""
    columns: ClassVar[Sequence[tuple[str, ...]]]
    """forms of a row, of which it reads the first whose columns are all there"""

    def __init__(self, settings: TrainerConfig) -> None:
        super().__init__(settings)
        require(f"client.trainer {settings.name}", "trl", extra="trl", instead="use a trainer that is here")

    @property
    def arguments_class(self) -> type:  # type: ignore[override]
        """`<name>Config`."""
        import trl

        found: type = getattr(trl, f"{self.name}Config")
        return found

    def check(self, hp: ClientConfig, task: Any) -> None:
        """Refuse also rows that are no texts of their own."""
        if self.settings.rows == "examples":
            raise ConfigError(
                f"client.trainer.rows is examples but {self.settings.name} tokenises by itself; remove it, or set it "
                "to raw"
            )
        if task.raw_columns and not any(set(form) <= {*task.raw_columns} for form in self.columns):
            raise ConfigError(
                f"client.trainer is {self.settings.name}, which reads rows with {_shown(self.columns)}; the task's "
                f"rows have {', '.join(task.raw_columns)}"
            )
        super().check(hp, task)
        vocabulary = getattr(own(task), "vocabulary", None)
        _say_what_is_added(self.settings.name, vocabulary)
        known: dict[str, int] = getattr(vocabulary, "get_vocab", dict)()
        for key in ("eos_token", "pad_token"):
            if (token := self.settings.args.get(key)) is not None and token not in known:
                raise ConfigError(
                    f"client.trainer.args.{key} is {token} but the tokenizer of task.model has no such token; remove it"
                )

    def check_module(self, module: nn.Module) -> None:
        """Refuse a model that does not foretell the next token."""
        head = getattr(module, "get_output_embeddings", lambda: None)()
        if head is None or getattr(getattr(module, "config", None), "is_encoder_decoder", False):
            raise ConfigError(
                f"client.trainer is {self.settings.name}, which trains decoders, but the model of task is a "
                f"{type(module).__name__}; set task.name to causal_lm or preference"
            )

    def make(self, round: Round) -> Any:
        """TRL's trainer on a set of the client's rows, with a tokenizer of its own."""
        import datasets
        import trl

        rows = chosen(round.rows, self.columns, self.settings.name)
        kept, task = round.callback.kept, cast("HasVocabulary", own(round.job.task))
        return continued(getattr(trl, f"{self.name}Trainer"), kept)(
            model=round.job.engine.module,
            args=round.args,
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=copy.deepcopy(task.vocabulary),
            callbacks=[round.callback],
            **self.more(round),
        )

    def more(self, round: Round) -> dict[str, Any]:
        """Further arguments of the trainer itself."""
        return {}


class SFT(OfTRL):
    """Supervised fine-tuning: on texts, on prompts and their completions, or on conversations."""

    name = "SFT"
    columns = (("messages", "tools"), ("messages",), ("prompt", "completion"), ("text",))


class _WithReference(OfTRL):
    """A trainer that compares with a reference: always the start model, unless the task says the round's.

    On the first round's weights a trainer would copy these; from the second on it would compare with what other clients
    have learned, or load the model's folder again.
    """

    def more(self, round: Round) -> dict[str, Any]:
        """`ref_model`."""
        of_round = getattr(round.job.task, "refers_to", "") == "round"
        return {"ref_model": start_model(round.job, round.weights if of_round else None)}


class DPO(_WithReference):
    """Direct preference optimisation (and the other losses of TRL's DPOTrainer) on pairs of answers."""

    name = "DPO"
    columns = (("prompt", "chosen", "rejected"), ("chosen", "rejected"))


class KTO(_WithReference):
    """Kahneman-Tversky optimisation on answers that are good or bad."""

    name = "KTO"
    columns = (("prompt", "completion", "label"),)


class Reward(OfTRL):
    """A reward model on pairs of answers; the model has a head of one number."""

    name = "Reward"
    columns = (("prompt", "chosen", "rejected"), ("chosen", "rejected"))

    def check(self, hp: ClientConfig, task: Any) -> None:
        """Refuse also a padding token that ends texts: transformers then reads the number off another token."""
        super().check(hp, task)
        vocabulary = task.vocabulary
        if vocabulary.pad_token_id == vocabulary.eos_token_id:
            raise ConfigError(
                f"client.trainer is {self.settings.name} but the tokenizer pads with its end token, which transformers "
                "takes for no part of a text; give the tokenizer a padding token of its own, or use task.name: reward "
                "without a trainer"
            )

    def check_module(self, module: nn.Module) -> None:
        """Refuse a model without such a head."""
        if getattr(getattr(module, "config", None), "num_labels", None) != 1 or not hasattr(module, "score"):
            raise ConfigError(
                f"client.trainer is {self.settings.name} but the model is a {type(module).__name__} without a head of "
                "one number; set task.name to reward, and take a decoder"
            )


def _say_what_is_added(name: str, vocabulary: Any) -> None:
    """Warn of a tokenizer that puts tokens of its own around a text: the trainer learns them, the scores leave them."""
    if vocabulary is not None and vocabulary("a").input_ids != vocabulary("a", add_special_tokens=False).input_ids:
        log.warning(
            "the tokenizer adds tokens of its own to a text: %s trains prompts and answers with them, and the task's "
            "scores are of texts without; conversations are not concerned (docs/trainers.md)",
            name,
        )


def chosen(rows: Sequence[Mapping[str, Any]], forms: Sequence[tuple[str, ...]], name: str) -> list[dict[str, Any]]:
    """The rows with the columns of the first form that all of them have.

    Raises:
        DataError: none fits.
    """
    for form in forms:
        if rows and all(all(column in row for column in form) for row in rows):
            return [{column: row[column] for column in form} for row in rows]
    there = ", ".join(sorted(rows[0])) if rows else "none"
    raise DataError(f"client.trainer {name} reads rows with {_shown(forms)}; the task's rows have {there}")


def _shown(forms: Sequence[tuple[str, ...]]) -> str:
    return ", or ".join(" and ".join(form) for form in forms)
