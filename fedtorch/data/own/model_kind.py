"""Abilities of a model that is to be used, from its configuration: nothing of it is built."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtorch.core.errors import ConfigError
from fedtorch.data.own.guessed import Guess

HEADS = {
    "text_classification": "SEQUENCE_CLASSIFICATION",
    "token_classification": "TOKEN_CLASSIFICATION",
    "seq2seq": "SEQ_TO_SEQ_CAUSAL_LM",
    "causal_lm": "CAUSAL_LM",
    "preference": "CAUSAL_LM",
    "reward": "SEQUENCE_CLASSIFICATION",
}
"""Task -> the part of a name in transformers that has the architectures with its head."""


@dataclass(frozen=True)
class ModelKind:
    """Facts of a model's files that the config depends on."""

    kind: str = ""
    """`model_type`; empty: nothing is known"""
    tasks: frozenset[str] = frozenset(HEADS)
    """those that it has, or can be given, a head for"""
    positions: int | None = None
    """tokens that it has positions for; None: not known"""
    has_chat_template: bool | None = None
    """does its tokenizer bring one? None: not known"""

    @classmethod
    def of(cls, name: str) -> ModelKind:
        """From a folder, or a model in the local hub cache; nothing is known of one that is still to be downloaded.

        Raises:
            ConfigError: there is no such model.
        """
        if name.startswith("hub:"):
            return cls()
        from fedtorch.text.model_files import check_folder
        from fedtorch.text.pretrained import located  # imports transformers

        folder = Path(located(name, key="--model"))
        check_folder(folder)
        config = _read(folder / "config.json")
        if config is None:
            raise ConfigError(f"--model: {folder / 'config.json'} cannot be read; give a model's folder")
        positions = config.get("max_position_embeddings") or config.get("n_positions")
        kind = str(config.get("model_type", ""))
        if kind in ("roberta", "xlm-roberta", "camembert") and isinstance(positions, int):
            positions -= 2  # which are for padding
        return cls(kind, _tasks(kind, config), positions if isinstance(positions, int) else None, _has_template(folder))

    def fit(self, found: Guess, wanted: str | None) -> None:
        """Let a guess take the task that the model can do; wanted: the one that the user named.

        Raises:
            ConfigError: it can do none that the columns allow.
        """
        other = {"causal_lm": "seq2seq", "seq2seq": "causal_lm"}.get(found.task, "")
        roles = {"seq2seq": ("source", "target"), "causal_lm": ("prompt", "completion")}.get(other, ())
        is_pair = len(found.roles) == 2 and {"target", "completion"} & found.roles.keys()
        can_swap = is_pair and other in self.tasks and wanted is None
        if (
            self.kind
            and can_swap
            and (found.task not in self.tasks or (other == "seq2seq" and "seq2seq" in self.tasks))
        ):
            found.task, found.roles = other, dict(zip(roles, found.roles.values(), strict=True))
            why = "an encoder with a decoder" if other == "seq2seq" else "a decoder without an encoder beside it"
            found.why.append((other, f"the model is a {self.kind}, {why}"))
        elif found.task not in self.tasks:
            can = ", ".join(task for task in HEADS if task in self.tasks)
            raise ConfigError(
                f"--model is a {self.kind}, which cannot do {found.task}, what the columns "
                f"{', '.join(f'`{name}`' for name in found.roles.values())} are for; give another model, or "
                f"another task with --task and its columns with --text and --label ({can})"
            )


def _tasks(kind: str, config: dict[str, Any]) -> frozenset[str]:
    """The tasks that transformers has a class for; an encoder is none that continues texts, unless it is told so."""
    from transformers.models.auto import modeling_auto

    names = {task: getattr(modeling_auto, f"MODEL_FOR_{part}_MAPPING_NAMES") for task, part in HEADS.items()}
    found = {task for task, kinds in names.items() if kind in kinds}
    is_encoder = kind in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.get("is_decoder")
    if is_encoder or config.get("is_encoder_decoder", "seq2seq" in found):
        found -= {"causal_lm", "preference"}
    return frozenset(found or HEADS)  # an architecture of its own: the run tells


def _has_template(folder: Path) -> bool:
    settings = _read(folder / "tokenizer_config.json") or {}
    others = ("chat_template.jinja", "chat_template.json")
    return bool(settings.get("chat_template")) or any((folder / name).is_file() for name in others)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
