"""Which ESIM (Chen et al. 2017, "Enhanced LSTM for Natural Language Inference"), the sequential model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedtorch.core.ranges import BelowOne, Count
from fedtorch.models.networks.esim import EsimNetwork
from fedtorch.models.networks.scoring import Scorer
from fedtorch.models.word_model import WordModel, word_table
from fedtorch.text.words import Words


@dataclass(frozen=True)
class Esim(WordModel):
    """ESIM: two bidirectional LSTMs with soft alignment between them. Sizes and dropout are its paper's."""

    name: Literal["esim"] = "esim"
    """esim"""
    hidden: Count = 300
    """width of each direction of the LSTMs and of the projection"""
    dropout: BelowOne = 0.5
    """dropout rate before every linear map"""

    def network(self, vocabulary: Words) -> Scorer:
        """The network, drawn from torch's generator."""
        return EsimNetwork(self, word_table(vocabulary, self.embedding))
