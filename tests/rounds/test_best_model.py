"""The best model by hand: ties, gaps, patience, and what is kept of whose model; under the words of old checkpoints."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fedtorch.comm.wire import message_to_report, report_to_message
from fedtorch.core import state_keys
from fedtorch.core.client import ClientState
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report
from fedtorch.rounds.best_model import BestModel


def test_ties_go_to_the_earlier_round_and_nan_is_never_the_best() -> None:
    best = BestModel(ClientState())
    offers = [(math.nan, 1), (0.5, 2), (0.5, 3), (0.7, 4), (math.nan, 5)]
    assert [best.offer(score, round, None) for score, round in offers] == [False, True, False, True, False]
    assert best.state.numbers == {"evaluations_without_gain": 1, "best_score": 0.7, "best_round": 4}
    assert best.round == 4 and not best.has_stopped


def test_patience_counts_evaluations_in_a_row_and_a_stop_stays() -> None:
    best = BestModel(ServerState({}))
    stops = []
    for round, score in enumerate([1.0, 0.0, 2.0, 1.0, 1.0, 3.0]):
        best.offer(score, round, 2)
        stops.append(best.has_stopped)
    assert stops == [False, False, False, False, True, True]
    assert best.state.numbers["stopped"] == 1 and best.without_gain == 0


def test_the_servers_best_weights_are_a_copy_in_the_same_memory() -> None:
    weights = torch.tensor([1.0, 2.0])
    best = BestModel(ServerState({"weights": weights}))
    assert best.server_weights is None and best.round is None
    best.keep_server_weights(weights)
    kept = best.state.tensors["best"]
    weights.fill_(9.0)
    assert kept.tolist() == [1.0, 2.0]
    best.keep_server_weights(weights)
    assert best.server_weights is kept and kept.tolist() == [9.0, 9.0]


def test_of_a_client_its_own_parts_are_kept_and_earlier_ones_go() -> None:
    state, received, mine = ClientState(), torch.zeros(2), torch.ones(2)
    best = BestModel(state)
    assert not best.has_client_model and best.client_weights(received, mine) is mine
    best.keep_client_model(mine, torch.full((1,), 5.0))
    assert set(state.tensors) == {"best/weights", "best/private"} and state.numbers == {"best/is_received": 0}
    assert best.client_weights(received, received) is mine and best.client_private(None) is not None
    best.keep_client_model(None, None)
    assert state.tensors == {} and state.numbers == {"best/is_received": 1}
    assert best.client_weights(received, mine) is received and best.client_private(mine) is mine


def test_the_words_of_saved_state_are_all_different_where_they_lie_together() -> None:
    words = {name: value for name, value in vars(state_keys).items() if name.isupper() and isinstance(value, str)}
    assert len(set(words.values())) == len(words)
    assert words["NOT_EVALUATED"] == "unjudged" and words["BEST_IS_RECEIVED"] == "best/is_received"


@pytest.mark.parametrize("draws", [1, 3])
def test_how_often_a_client_was_drawn_is_recorded_where_it_is_several_times_and_never_travels(draws: int) -> None:
    report = Report("a", draws=draws, extra={"penalty": 0.5})
    message = report_to_message(report, 0)
    assert "draws" not in "".join(message.numbers)
    assert message_to_report(message, ["a"]) == replace(report, draws=1)
    assert report.numbers().get("draws", 1) == draws and list(report.numbers())[-1] in ("penalty", "draws")
