"""Common part of models over whole words: building, batches, saving, and small steps of their networks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import Count
from fedtorch.models.networks.scoring import Head, Scorer
from fedtorch.models.pretrained import copy_networks, in_own_memory
from fedtorch.text.words import FILE, PADDING, UNKNOWN, Words, read_vectors, read_words

Pair = tuple[list[int], list[int]]
WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"


@dataclass(frozen=True)
class WordModel:
    """Common part of RE2 and ESIM; a subclass names the network."""

    name: str = ""
    """the subclass's"""
    embedding: Count = 300
    """width of the word vectors"""
    vectors: str | None = None
    """GloVe text file (a word and its numbers a line); null: random vectors"""
    fix_embeddings: bool | None = None
    """leave the word vectors as they are; null: those from a file only"""
    head: Head = "scalar"
    """scalar: the score is a number; two_class: the probability of class 1 of two logits"""

    def tokenizer(self, folder: Path) -> Words:
        """The words in `<folder>/words.txt`, where `folder` holds the prepared data."""
        return read_words(folder)

    def network(self, vocabulary: Words) -> Scorer:
        """The untrained network, its embedding called `embedding`, drawn from torch's generator."""
        raise NotImplementedError

    def build(self, seed: int, vocabulary: Words) -> Scorer:
        """The model in fp32: random word vectors N(0, 0.05), those in the file put over them; padding's is 0.

        Raises:
            ConfigError, DataError: the file with word vectors cannot be used: see `read_vectors`.
        """
        torch.default_generator.manual_seed(seed)
        model = self.network(vocabulary)
        table = model.get_parameter("embedding.weight")
        with torch.no_grad():
            table.normal_(0.0, 0.05)
            table[PADDING] = 0.0
            if self.vectors is not None:
                vectors = read_vectors(self.vectors, self.embedding, vocabulary)
                table[vectors.found] = vectors.rows
        table.requires_grad_(not self.fixed)
        return model

    @property
    def fixed(self) -> bool:
        """Whether the word vectors stay as they are."""
        return self.vectors is not None if self.fix_embeddings is None else self.fix_embeddings

    def encode(self, vocabulary: Words, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Ids of the first `max_length` words of each text, lower-cased, split at white space.

        A text without words is one unknown word.
        """
        ids = [[vocabulary.ids.get(word, UNKNOWN) for word in text.lower().split()[:max_length]] for text in texts]
        return [row or [UNKNOWN] for row in ids]

    def collate(self, vocabulary: Words, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """question_ids, answer_ids (int64) and question_mask, answer_mask (bool, True on words): (pairs, longest)."""
        batch: dict[str, Tensor] = {}
        for name, rows in (("question", [pair[0] for pair in pairs]), ("answer", [pair[1] for pair in pairs])):
            longest = max(map(len, rows))
            ids = torch.tensor([[*row, *[PADDING] * (longest - len(row))] for row in rows])
            batch |= {f"{name}_ids": ids, f"{name}_mask": ids != PADDING}
        return batch

    def longest(self, question_max: int, answer_max: int) -> int:
        """Words of the longest pair; these models have no limit."""
        return question_max + answer_max

    def save(self, model: Scorer, vocabulary: Words, folder: Path) -> None:
        """Write the model so that `load(folder)` gives it back to the bit."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text("".join(f"{word}\n" for word in vocabulary.words), encoding="utf-8")
        (folder / DESCRIPTION).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        save_file(in_own_memory(dict(model.named_parameters())), folder / WEIGHTS)
        copy_networks(folder)

    @classmethod
    def load(cls, folder: Path | str) -> Scorer:
        """The model that `save` wrote, in eval mode; `tokenizer(folder)` gives its words.

        Raises:
            ConfigError: the folder is not one that `save` wrote for this kind of model.
        """
        folder = Path(folder)
        try:
            settings = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
            weights = load_file(folder / WEIGHTS)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder} holds no model that `save` wrote ({type(error).__name__})") from error
        if set(settings) != {field.name for field in fields(cls)} or settings["name"] != cls.name:
            raise ConfigError(f"{folder / DESCRIPTION} describes no {cls.__name__}, or one of another version")
        model = replace(cls(**settings), vectors=None).build(0, read_words(folder))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
        return model.train(False)

    def record(self, vocabulary: Words) -> dict[str, Any]:
        """Where the word vectors come from, and for how many of the words."""
        if self.vectors is None:
            return {"word_vectors": "random", "words": len(vocabulary.words), "coverage": 0.0}
        found = len(read_vectors(self.vectors, self.embedding, vocabulary).found)
        coverage = round(found / len(vocabulary.words), 4)
        return {"word_vectors": Path(self.vectors).name, "words": len(vocabulary.words), "coverage": coverage}


def word_table(vocabulary: Words, width: int) -> nn.Embedding:
    """The embedding of words; padding gets no gradient."""
    return nn.Embedding(len(vocabulary), width, padding_idx=PADDING)
