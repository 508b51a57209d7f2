"""Texts longer than a model reads: cut, or read in windows that overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.ranges import Whole
from fedtorch.models.padding import pad
from fedtorch.tasks.own import OwnTask


@dataclass(frozen=True)
class Window:
    """A text as a model reads it, or a part of one; with the tokens that the tokenizer adds."""

    ids: list[int]
    """tokens, `max_length` of them at most"""
    types: list[int] | None = None
    """which of two texts a token belongs to, for models that are told"""
    offsets: Sequence[tuple[int, int]] = ()
    """(start, end) of each token in the text's characters, (0, 0) of one that was added; where they were asked for"""


@dataclass(frozen=True, kw_only=True)
class LongTexts(OwnTask):
    """A task over texts that are read whole or in windows."""

    long: Literal["truncate", "windows"] = "truncate"
    """a text beyond `max_length`: cut as `truncate` says, or read in windows of `max_length` tokens"""
    stride: Whole | None = None
    """tokens that a window shares with the one before it, as in transformers; null: a quarter of `max_length`"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride is not None and self.long != "windows":
            raise ConfigError(f"task.stride is {self.stride}, which is for task.long: windows; set that or remove it")
        if self.long == "windows" and self.truncate != "right":
            raise ConfigError(
                f"task.truncate is {self.truncate} but task.long is windows, where nothing is cut; remove one of them"
            )

    def logits(self, model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
        """Logits of each row, or of each of its places."""
        raise NotImplementedError

    def build_model(self, seed: int) -> nn.Module:
        """The model; one for which a batch is its rows.

        Raises:
            ConfigError: padding changes what it says; it was tried on two texts.
        """
        model, name = super().build_model(seed), self.source_model.named
        ids = self.vocabulary(["a b c d e f", "a"], truncation=True, max_length=self.max_length).input_ids
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad():
                together = self.logits(model, padded(ids, self.vocabulary.pad_token_id or 0))[1]
                alone = self.logits(model, padded(ids[1:], 0))[0]
        except TypeError as error:
            raise ConfigError(
                f"task.model is {name}, which takes no attention mask ({error}); choose another"
            ) from error
        finally:
            model.train(was_training)
        if (together[: len(alone)] - alone).abs().max() > 1e-3 * alone.abs().max():
            raise ConfigError(f"task.model is {name}: padding changes what it says of a text; choose another")
        return model

    @property
    def cuts(self) -> bool:
        """Count rows that are longer than the model reads."""
        return self.long == "truncate"

    def encoded(self, *sides: Sequence[str], where: Sequence[str], offsets: bool = False) -> list[list[Window]]:
        """The windows of each text, or pair of texts; one each where they are cut. where: of each text, for messages.

        Raises:
            DataError: a text is longer than `max_length`, and `truncate` is `refuse`; or pairs were to be in windows.
            ConfigError: windows share more than they have.
        """
        vocabulary, side = self.vocabulary, "left" if self.truncate == "left" else "right"
        vocabulary.truncation_side = side
        options: dict[str, Any] = {} if self.truncate == "refuse" else {"truncation": True}
        options |= {"max_length": self.max_length} if options else {}
        if self.long == "windows":
            options |= {"stride": self._overlap(len(sides), where[0]), "return_overflowing_tokens": True}
        found = vocabulary(*map(list, sides), **options, **({"return_offsets_mapping": True} if offsets else {}))
        texts: list[list[Window]] = [[] for _ in sides[0]]
        owners = found.get("overflow_to_sample_mapping", range(len(texts)))
        for place, owner in enumerate(owners):
            ids = found["input_ids"][place]
            self.cut(ids, self.max_length, where[owner])
            types = found["token_type_ids"][place] if found.get("token_type_ids") else None
            texts[owner].append(Window(ids, types, found["offset_mapping"][place] if offsets else ()))
        return texts

    def _overlap(self, sides: int, where: str) -> int:
        if sides > 1:
            raise DataError(f"{where}: task.long is windows, but rows have two texts; set task.long to truncate")
        if not self.vocabulary.is_fast:
            raise ConfigError(
                f"task.long is windows, which {type(self.vocabulary).__name__} cannot make; set task.tokenizer to one "
                "that has a tokenizer.json"
            )
        overlap = self.max_length // 4 if self.stride is None else self.stride
        room = self.max_length - self.vocabulary.num_special_tokens_to_add()
        if overlap >= room:
            raise ConfigError(
                f"task.stride is {overlap} but windows of task.max_length {self.max_length} have {room} tokens of the "
                "text; lower task.stride"
            )
        return overlap


def padded(ids: Sequence[Sequence[int]], pad_id: int) -> dict[str, Tensor]:
    """input_ids, attention_mask (texts, longest), int64."""
    return {"input_ids": pad(ids, pad_id), "attention_mask": pad([[1] * len(row) for row in ids], 0)}


def best_windows(pieces: Sequence[Sequence[int]], windows: Sequence[Window]) -> list[int]:
    """Place of each word's piece among all windows' tokens laid end to end: where it has the most text about it.

    pieces: of each window, the place of each word's first piece, −1 where it has none. Context is the smaller of the
    tokens before and after it in the window, as in BERT's reading of SQuAD; of equal ones the first window counts, in
    which a word that two windows share begins.
    """
    starts, found = [0], []
    for window in windows:
        starts.append(starts[-1] + len(window.ids))
    for places in zip(*pieces, strict=True):
        choices = [
            (min(place, len(window.ids) - 1 - place), -number, starts[number] + place)
            for number, (place, window) in enumerate(zip(places, windows, strict=True))
            if place >= 0
        ]
        found.append(max(choices)[2] if choices else -1)
    return found


def split_up(values: Sequence[int], windows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Give each window its own tokens back, of those laid end to end."""
    each = iter(values)
    return [[next(each) for _ in window] for window in windows]
