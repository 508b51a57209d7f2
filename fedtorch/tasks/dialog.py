"""Dialogs between a user and an assistant (the FedAssistant paper): two GPT-2s or one, evaluated by perplexity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.ranges import Count
from fedtorch.data.dialogs import ASSISTANT, USER
from fedtorch.data.folder import read_rows
from fedtorch.metrics.perplexity import OWN, OWN_ASSISTANT, of_domain, table
from fedtorch.models.adapters.saved import bases_elsewhere
from fedtorch.models.gpt2 import RANDOM, GPT2Model
from fedtorch.models.link import Peer
from fedtorch.models.side import KvDtype, KvGrad, KvTransfer, Passing
from fedtorch.models.t5 import save_pretrained
from fedtorch.models.turns import Turn, collate_turns, collate_whole, fit, lengths
from fedtorch.models.two_side import Losses, OneModel, TwoSide
from fedtorch.tasks.base import Scores
from fedtorch.tasks.prepared import Prepared
from fedtorch.text.gpt2_bpe import load_bpe
from fedtorch.train.pinned_copy import to_device

SIDES = {USER: 0, ASSISTANT: 1}
EVERY = "test_all"


class Example(NamedTuple):
    """A dialog."""

    turns: list[Turn]
    """(speaker, token ids) of each, in order"""
    domain: int
    """place of its client in the manifest"""
    is_own: bool = True
    """is it the own one of the client whose model is evaluated?"""


@dataclass(frozen=True)
class Dialog(Prepared):
    """Domains as clients. Beside `train`, `dev` and `test` there is the split `test_all`: the test dialogs of all
    clients, so that each client's model is evaluated on every domain (the paper's column All).
    """

    reads_other_clients: ClassVar[bool] = True  # `test_all`
    main_metric: ClassVar[str] = OWN
    evaluates_loss: ClassVar[bool] = False
    synthetic_folder: ClassVar[str] = "synthetic_dialog"

    model: GPT2Model = field(default_factory=GPT2Model)
    """which GPT-2; both sides start from the same weights"""
    sides: Literal["two", "one"] = "two"
    """two: a model for the user and one for the assistant; one: a model for both (GPT_local, GPT_all)"""
    kv_grad: KvGrad = "detached"
    """where gradients flow into earlier keys and values: nowhere, into the same side's own, or through to the other"""
    kv_transfer: KvTransfer = "increment"
    """what a side sends: the newest keys and values, or all of them each time (the paper's words)"""
    kv_dtype: KvDtype = "model"
    """dtype of keys and values on the way; model: the model's own"""
    predict_first: bool = True
    """is the first word of a turn predicted? (ARDM does not)"""
    max_length: Count = 1024
    """most tokens of a dialog, separators included; longer ones are cut at the last whole turn"""
    tokenizer: str | None = None
    """folder, hub name or `hub:NAME`; null: the model's own, or for `gpt2-random` the one beside the data"""

    def __post_init__(self) -> None:
        if self.sides == "one" and self.passing != Passing():
            raise ConfigError("task.sides is one, which passes nothing; remove task.kv_grad, kv_transfer and kv_dtype")
        if self.model.name == RANDOM and self.model.positions < self.max_length:
            raise ConfigError(
                f"task.max_length is {self.max_length} but task.model.positions is {self.model.positions}; set the "
                "former to at most the latter"
            )
        if self.max_length < 4:
            raise ConfigError(f"task.max_length is {self.max_length}; two turns of a word and a separator need 4")

    @property
    def whole_passes(self) -> bool:
        """Two models take turns as the dialogs do; with `through` gradients are taken turn by turn."""
        return self.sides == "two"

    @property
    def passing(self) -> Passing:
        """How keys and values pass between the sides."""
        return Passing(self.kv_grad, self.kv_transfer, self.kv_dtype)

    def make_synthetic(self, folder: Path) -> None:
        """Six clients with made-up dialogs."""
        from fedtorch.data.synthetic.dialogs import prepare

        prepare(folder)

    @cached_property
    def vocabulary(self) -> PreTrainedTokenizerBase:
        """The tokenizer, checked to be a working one."""
        key, name = self.tokenizer_named(self.tokenizer, None if self.model.name == RANDOM else self.model.name)
        return load_bpe(name, key=key)

    @property
    def separator(self) -> int:
        """The token before and after every turn."""
        return int(self.vocabulary.eos_token_id)

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """Dialogs per client and split after sub-sampling."""
        sizes = super().manifest()
        every = sum(splits.get("test", 0) for splits in sizes.values())
        return {client: {**splits, EVERY: every} for client, splits in sizes.items()}

    def check(self, client: str) -> None:
        """Read the client's own dialogs."""
        for split in self.prepared["clients"][client]["splits"]:
            self._dialogs(client, split)

    def load(self, client: str, split: str) -> list[Example]:
        """Tokenised dialogs, cut to `max_length`; those of `test_all` say whose they are."""
        places = {name: place for place, name in enumerate(self.prepared["clients"])}
        if split == EVERY:
            return [
                Example(turns, place, name == client)
                for name, place in places.items()
                for turns in (self._tokenised(name, "test") if self.manifest()[name].get("test") else [])
            ]
        return [Example(turns, places[client]) for turns in self._tokenised(client, split)]

    def build_model(self, seed: int) -> nn.Module:
        """`TwoSide` or `OneModel`; all start from the same GPT-2.

        Raises:
            ConfigError: the model has fewer positions than `max_length`.
        """
        first = self.model.build(seed, self.vocabulary)
        if first.config.n_positions < self.max_length:
            raise ConfigError(
                f"task.max_length is {self.max_length} but {self.model.name} has {first.config.n_positions} positions; "
                "set the former to at most the latter"
            )
        if self.sides == "one":
            return OneModel(first)
        second = self.model.build(seed, self.vocabulary)
        second.load_state_dict(first.state_dict())  # rows added to an embedding are drawn at random
        return TwoSide(first, second, self.passing)

    def parameter_owners(self, model: nn.Module, ranks: int) -> Mapping[str, int]:
        """The first rank computes the assistant's model, the second one the user's."""
        if ranks != 2 or not isinstance(model, TwoSide):
            raise ConfigError(
                f"system.ranks_per_worker is {ranks} and task.sides is {self.sides}; a user and an assistant rank are "
                "two, and need task.sides two: set system.ranks_per_worker to 2, or with task.sides one to 1"
            )
        sides = {"user": 0, "assistant": 1}
        return {
            name: rank
            for rank in range(ranks)
            for name, _ in model.named_parameters()
            if sides[name.split(".")[0]] == model.side_of_rank(rank)
        }

    def passes_together(self, ranks: int) -> bool:
        """Two ranks are a user and an assistant rank here too; more of them share the dialogs."""
        return self.sides == "two" and ranks == 2

    def join(self, model: nn.Module, worker: Peer | None) -> None:
        """Keys and values cross between this rank and the other one of its worker, or inside this process."""
        assert isinstance(model, TwoSide)
        model.join(worker)

    def collate(self, examples: Sequence[Example], train: bool) -> dict[str, Any]:
        """Make a batch, by `collate_turns` or `collate_whole`."""
        collate = collate_turns if self.sides == "two" else collate_whole
        return collate([example.turns for example in examples], self.separator, predict_first=self.predict_first)

    def example_lengths(self, examples: Sequence[Example]) -> list[tuple[int, ...]]:
        """Length of each turn, or with one model of each dialog."""
        return lengths([example.turns for example in examples], each=self.sides == "two")

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, int]:
        """(sum, number) over all tokens of both sides.

        With `detached` and `own`, where two models share nothing, each learns from the mean over its own tokens: the
        gradient is that of the sum of both means, though the value is the mean over all tokens.
        """
        losses: Losses = model(batch["groups"], batch["size"])
        user, assistant = losses.tokens
        if self.sides == "one" or self.kv_grad == "through":
            return losses.sums.sum(), user + assistant
        counts = losses.sums.new_tensor([max(1, user), max(1, assistant)])
        means = (losses.sums / counts).sum() * (user + assistant)
        return means + (losses.sums.sum() - means).detach(), user + assistant

    def predict(self, model: nn.Module, examples: Sequence[Example], batch_size: int) -> list[tuple[float, ...]]:
        """Per dialog the log-likelihood of the user's and the assistant's tokens, and their numbers."""
        device = next(model.parameters()).device
        outputs: list[tuple[float, ...]] = []
        before = model.traffic if isinstance(model, TwoSide) else None
        if isinstance(model, TwoSide):
            model.take_traffic()
        for start in range(0, len(examples), batch_size):
            batch = self.collate(examples[start : start + batch_size], False)
            losses: Losses = model(to_device(batch["groups"], device), batch["size"])
            outputs += map(tuple, torch.cat([-losses.rows, losses.row_tokens.double()], dim=1).tolist())
        if isinstance(model, TwoSide) and before is not None:
            model.traffic = before  # a round's traffic is that of its training
        return outputs

    def score(self, examples: Sequence[Example], predictions: Sequence[tuple[float, ...]]) -> Scores:
        """Log-likelihood per token of both sides and of the assistant's: of the client's own dialogs, and per domain.

        `dialog_perplexity` is summed over the client's own dialogs.
        """
        totals: dict[str, list[float]] = {OWN: [0.0, 0], OWN_ASSISTANT: [0.0, 0], "dialog_perplexity": [0.0, 0]}
        for example, (user, assistant, user_tokens, assistant_tokens) in zip(examples, predictions, strict=True):
            pairs = {
                OWN: (user + assistant, user_tokens + assistant_tokens),
                OWN_ASSISTANT: (assistant, assistant_tokens),
            }
            for metric, (total, tokens) in pairs.items():
                names = [metric] if example.is_own else []
                for name in [*names, of_domain(metric, example.domain)]:
                    sums = totals.setdefault(name, [0.0, 0])
                    sums[0] += total
                    sums[1] += tokens
            if example.is_own:
                total, tokens = pairs[OWN]
                totals["dialog_perplexity"][0] += math.exp(min(700.0, -total / max(1, tokens)))
                totals["dialog_perplexity"][1] += 1
        return {name: (total, int(tokens)) for name, (total, tokens) in totals.items()}

    def metrics(self) -> tuple[str, ...]:
        """Metrics that a best model can be chosen by."""
        return (OWN, OWN_ASSISTANT)

    def summary(self, scores: Mapping[str, Scores]) -> dict[str, Any]:
        """Perplexity per domain, of the assistant's turns (`_A` in the paper), and All."""
        return table(scores, list(self.prepared["clients"]))

    def pop_counters(self, model: nn.Module) -> dict[str, float]:
        """Bytes of keys and values that crossed between the sides since the last call."""
        if not isinstance(model, TwoSide):
            return {}
        traffic = model.take_traffic()
        return {
            "kv_bytes": traffic.data_bytes,
            "kv_overhead_bytes": traffic.overhead_bytes,
            "kv_physical_bytes": traffic.physical_bytes,
        }

    def unsaved(self, model: nn.Module) -> list[str]:
        """An adapter's base."""
        return bases_elsewhere(model)

    def save_model(self, model: nn.Module, folder: Path) -> None:
        """`save_pretrained` of each model with the tokenizer: `user` and `assistant`, each from its rank; or one."""
        if isinstance(model, TwoSide):
            for name, side in SIDES.items():
                if side in model.here:
                    save_pretrained(model.get_submodule(name), self.vocabulary, folder / name)
        elif isinstance(model, OneModel):
            save_pretrained(model.model, self.vocabulary, folder)

    def record(self) -> dict[str, Any]:
        """How the data were made."""
        return {"data": self.prepared.get("record", {}), "vocabulary": len(self.vocabulary)}

    def _tokenised(self, client: str, split: str) -> list[list[Turn]]:
        dialogs = self._dialogs(client, split)
        texts = [text for turns in dialogs for _, text in turns]
        ids = iter(self.vocabulary(texts).input_ids if texts else [])
        return [fit([(SIDES[side], next(ids)) for side, _ in turns], self.max_length) for turns in dialogs]

    def _dialogs(self, client: str, split: str) -> list[list[list[str]]]:
        """The picked dialogs of a client.

        Raises:
            DataError: a row is no dialog between both sides; names the row, not its text.
        """
        rows = [row["turns"] for row in read_rows(self.folder, client, split, fields={"turns": list})]
        for place, turns in enumerate(rows, start=1):
            is_whole = all(
                isinstance(turn, list) and len(turn) == 2 and turn[0] in [*SIDES] and isinstance(turn[1], str)
                for turn in turns
            )
            if not is_whole or len({turn[0] for turn in turns}) < 2:
                problem = "only one side speaks" if is_whole else "a turn is not [side, text]"
                raise DataError(
                    f"{self.folder}: client {client}, split {split}, dialog {place}: {problem}; expected turns of "
                    "`user` and `assistant`; prepare the data again"
                )
        return [rows[i] for i in self.picked(client, split, len(rows))]
