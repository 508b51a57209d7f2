"""The best model so far: which round it is of, what is kept of it, and whether to go on looking for a better one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedtorch.config.schema import Ties
from fedtorch.core import state_keys as keys
from fedtorch.core.client import ClientState
from fedtorch.core.scores import LOSS
from fedtorch.core.server import ServerState

NOTHING: Mapping[str, Tensor] = {}


class Standing(NamedTuple):
    """How good a model is, as far as an evaluation tells."""

    score: float
    """more is better; NaN: nothing counts"""
    loss: float = math.nan
    """mean on the same examples; NaN: not measured"""


def standing(metric: str, means: Mapping[str, float]) -> Standing:
    """That of a model with these means, where `metric` decides; less loss is better, so its sign is turned."""
    value = means.get(metric, math.nan)
    return Standing(-value if metric == LOSS else value, means.get(LOSS, math.nan))


class BestModel:
    """The best model in the state of the server, for one that all clients share, or of a client, for its own.

    A later model replaces an earlier one if its score is higher. Of equal scores `ties` decides, see `eval.ties`.
    `patience` evaluations in a row without gain set `has_stopped`.

    Of the server's model the weights are kept. Of a client's: its private weights, and its shared ones unless they are
    the server's best.
    """

    def __init__(self, state: ServerState | ClientState) -> None:
        self.state = state

    def offer(self, found: Standing, round: int, patience: int | None = None, ties: Ties = "loss") -> bool:
        """Is this the best model so far? One whose score is NaN never is.

        A higher score is a gain, and with `ties: loss` an equal one with a lower loss; a model that is only as good as
        the best one may replace it, and is no gain.
        """
        numbers, best = self.state.numbers, self._best
        is_gain = found.score > best.score
        is_best = is_gain
        if found.score == best.score:
            is_gain = ties == "loss" and (found.loss < best.loss or (math.isnan(best.loss) and found.loss < math.inf))
            is_worse = found.loss > best.loss or (math.isnan(found.loss) and not math.isnan(best.loss))
            is_best = is_gain or ties == "later" or (ties == "loss" and not is_worse)
        if is_best:
            numbers.update({keys.BEST_SCORE: found.score, keys.BEST_ROUND: round})
            numbers.pop(keys.BEST_LOSS, None)
            if ties == "loss" and not math.isnan(found.loss):
                numbers[keys.BEST_LOSS] = found.loss
        numbers[keys.WITHOUT_GAIN] = 0 if is_gain else self.without_gain + 1
        if patience is not None and self.without_gain >= patience:
            self.stop()
        return is_best

    @property
    def _best(self) -> Standing:
        numbers = self.state.numbers
        return Standing(numbers.get(keys.BEST_SCORE, -math.inf), numbers.get(keys.BEST_LOSS, math.nan))

    @property
    def round(self) -> int | None:
        """The best round, as rounds done; None before there is one."""
        round = self.state.numbers.get(keys.BEST_ROUND)
        return None if round is None else int(round)

    def note_round(self, round: int) -> None:
        """That round is the best one, as the server says."""
        self.state.numbers[keys.BEST_ROUND] = round

    @property
    def without_gain(self) -> int:
        """Evaluations since the best one."""
        return int(self.state.numbers.get(keys.WITHOUT_GAIN, 0))

    @property
    def has_stopped(self) -> bool:
        """Was `stop` called? It stays so, whatever scores follow."""
        return bool(self.state.numbers.get(keys.STOPPED, 0))

    def stop(self) -> None:
        """No more training: of the run, or of the client alone."""
        self.state.numbers[keys.STOPPED] = 1

    def keep_server_weights(self, weights: Tensor, varying: Mapping[str, Tensor] = NOTHING) -> None:
        """Copy the present weights, flat, or what they follow from.

        varying: vectors that belong to them, which are never changed in place.
        """
        self.state.tensors.setdefault(keys.BEST, torch.empty_like(weights)).copy_(weights)
        self.state.tensors.update({keys.best(name): vector for name, vector in varying.items()})

    @property
    def server_weights(self) -> Tensor | None:
        """The server's best weights, or what they follow from, flat; None before there are any."""
        return self.state.tensors.get(keys.BEST)

    def server_varying(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The vectors that belong to the server's best weights; those that were empty are missing."""
        return {name: self.state.tensors[key] for name in names if (key := keys.best(name)) in self.state.tensors}

    def keep_client_model(self, weights: Tensor | None, private: Tensor | None) -> None:
        """Put a client's model into its state in place of an earlier best one; the tensors are not to be changed.

        weights: flat shared ones; None: the server keeps them.
        """
        for name in (keys.BEST_WEIGHTS, keys.BEST_PRIVATE):
            self.state.tensors.pop(name, None)
        if weights is not None:
            self.state.tensors[keys.BEST_WEIGHTS] = weights
        if private is not None:
            self.state.tensors[keys.BEST_PRIVATE] = private
        self.state.numbers[keys.BEST_IS_RECEIVED] = int(weights is None)

    @property
    def has_client_model(self) -> bool:
        """Was a model of this client ever kept?"""
        return keys.BEST_IS_RECEIVED in self.state.numbers

    def client_weights(self, received: Tensor, otherwise: Tensor) -> Tensor:
        """The client's best shared weights; received: the server's best; otherwise: if no model was kept."""
        if self.state.numbers.get(keys.BEST_IS_RECEIVED):
            return received
        return self.state.tensors.get(keys.BEST_WEIGHTS, otherwise)

    def client_private(self, otherwise: Tensor | None) -> Tensor | None:
        """The client's best private weights; otherwise: if none were kept."""
        return self.state.tensors.get(keys.BEST_PRIVATE, otherwise)
