"""Talk to one decoder: a conversation by its chat template, a dialog of turns, or prompts one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers import PreTrainedTokenizerBase

from fedtorch.core.devices import CPU
from fedtorch.core.errors import ConfigError
from fedtorch.core.model_folder import model_folder
from fedtorch.core.seeds import seed_for, seed_torch
from fedtorch.models.auto import longest_input
from fedtorch.models.generation import new_tokens
from fedtorch.models.saved import load_saved
from fedtorch.text.chat import ASSISTANT, asked
from fedtorch.text.templates import filled, template_columns
from fedtorch.tracking.run_folder import Run

Form = Literal["messages", "turns", "prompt"]


@dataclass
class Decoder:
    """A causal language model that answers in the form that it was trained on."""

    model: Any
    """in eval mode"""
    vocabulary: PreTrainedTokenizerBase
    """its tokenizer, with the chat template that it needs for messages"""
    form: Form
    """what the model reads: all messages so far; all turns so far, between separators; or a prompt alone"""
    template: str | None
    """of prompts: with one column in braces; None: what is typed is the prompt"""
    positions: int
    """most tokens of what it reads and its answer"""
    max_new: int
    """most tokens of an answer"""
    beams: int = 1
    """of the search, where nothing is drawn"""
    temperature: float = 0.0
    """0: the likeliest words"""
    seed: int = 0
    """of the draws with a temperature"""
    said: list[Any] = field(default_factory=list)
    """messages, or tokens of turns"""
    turns: int = 0
    """answers given"""

    def begin(self) -> None:
        """Begin a new conversation."""
        self.said = []

    def size(self, text: str) -> int:
        """Tokens of what is read if this is said first."""
        return len(self._read([], text))

    def fits(self, text: str) -> bool:
        """Is there room for this, after all that was said, and for an answer?"""
        return len(self._read(self.said, text)) + self.max_new <= self.positions

    def reply(self, text: str) -> str:
        """Answer what is said, and remember both where the form has a memory."""
        ids = self._generated(self._read(self.said, text))
        answer = self.vocabulary.decode(ids, skip_special_tokens=True)
        self.turns += 1
        if self.form == "messages":
            self.said += [{"role": "user", "content": text}, {"role": ASSISTANT, "content": answer.strip()}]
        elif self.form == "turns":
            self.said += [self.vocabulary(text).input_ids, ids]
        return answer

    def _read(self, said: list[Any], text: str) -> list[int]:
        if self.form == "messages":
            return asked(self.vocabulary, [*said, {"role": "user", "content": text}])
        if self.form == "turns":
            separator = self.vocabulary.eos_token_id
            spoken = [*said, self.vocabulary(text).input_ids]
            return [separator, *(token for turn in spoken for token in (*turn, separator))]
        (column,) = template_columns(self.template) or [""]
        prompt = filled(self.template, {column: text}, column)
        return list(self.vocabulary(prompt, add_special_tokens=False).input_ids)

    @torch.inference_mode()
    def _generated(self, ids: list[int]) -> list[int]:
        inputs = torch.tensor([ids], device=self.model.device)
        search: dict[str, Any] = {"num_beams": self.beams, "do_sample": False}
        if self.temperature:
            seed_torch(seed_for(self.seed, "chat", self.turns), self.model.device)
            search = {"do_sample": True, "temperature": self.temperature, "top_k": 0}
        limits = {"max_new": self.max_new, "before": len(ids)}
        return new_tokens(self.model, inputs, torch.ones_like(inputs), self.vocabulary, **limits, **search)[0]


def open_decoder(
    run: Run,
    client: str | None,
    *,
    max_new: int | None,
    temperature: float,
    seed: int,
    device: torch.device = CPU,
) -> Decoder:
    """Open the model of a run, for `client` if clients have their own.

    max_new: None: as many tokens of an answer as the run generates.

    Raises:
        ConfigError: its prompts have several columns, no model, no such client, or an answer leaves no position.
    """
    form = _form(run)
    template = run.setting("task.template") if form == "prompt" else None
    if template and len(columns := template_columns(template)) != 1:
        raise ConfigError(
            f"{run.folder} has prompts of the columns {', '.join(columns) or 'of none'} (task.template), and what is "
            "typed is one; write the rows into a file for `fedtorch predict`"
        )
    model, vocabulary = load_saved(model_folder(run.folder, client))
    longest, limit = longest_input(model), int(run.setting("task.max_length"))
    most = max_new or int(run.setting("task.generate.max_new_tokens") or 40)
    positions = limit + most if longest is None else min(limit + most, longest)
    if most >= positions:
        raise ConfigError(
            f"--max-new is {most} but the model has {positions} positions for a prompt and its answer; lower it"
        )
    beams = int(run.setting("task.generate.num_beams") or 1)
    return Decoder(model.to(device), vocabulary, form, template, positions, most, beams, temperature, seed)


def can_decode(run: Run) -> bool:
    """Has the run one decoder, to which one can talk in one process?"""
    name = run.setting("task.name")
    return name == "causal_lm" or (name == "dialog" and run.setting("task.sides") == "one")


def _form(run: Run) -> Form:
    if run.setting("task.name") == "dialog":
        return "turns"
    return "messages" if run.setting("task.rows_are") == "messages" else "prompt"
