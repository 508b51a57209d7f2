"""Which RE2 (Yang et al. 2019, "Simple and Effective Text Matching with Richer Alignment Features")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import BelowOne, Count, Layers
from fedtorch.models.networks.re2 import Re2Network
from fedtorch.models.networks.scoring import Scorer
from fedtorch.models.word_model import WordModel, word_table
from fedtorch.text.words import Words


@dataclass(frozen=True)
class Re2(WordModel):
    """RE2: blocks of convolutional encoder, alignment and fusion, joined by augmented residual connections."""

    name: Literal["re2"] = "re2"
    """re2"""
    hidden: Count = 150
    """width of encoders and blocks; 200 in the network that FedMatch's release prints"""
    blocks: Layers = 2
    """blocks of encoder, alignment and fusion"""
    layers: Layers = 2
    """convolutions in each encoder; 3 in the network that FedMatch's release prints"""
    kernel: Count = 3
    """words under a convolution, an odd number"""
    dropout: BelowOne = 0.2
    """dropout rate"""

    def __post_init__(self) -> None:
        if self.kernel % 2 == 0:
            raise ConfigError(
                f"model.kernel is {self.kernel}; set it to an odd number, so that words keep their places"
            )

    def network(self, vocabulary: Words) -> Scorer:
        """The network, drawn from torch's generator."""
        return Re2Network(self, word_table(vocabulary, self.embedding))
