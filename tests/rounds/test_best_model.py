"""The best model by hand: ties, gaps, patience, and what is kept of whose model; under the words of old checkpoints."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fedtorch.comm.wire import packet_to_report, report_to_packet
from fedtorch.config.schema import Ties
from fedtorch.core import state_keys
from fedtorch.core.client import ClientState
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report
from fedtorch.rounds.best_model import BestModel, Standing, standing

NAN = math.nan


def offered(ties: Ties, *found: tuple[float, float]) -> tuple[list[int], BestModel]:
    """Rounds (from 1) that were the best when they were offered, each as (score, loss)."""
    best = BestModel(ClientState())
    rounds = [round for round, each in enumerate(found, 1) if best.offer(Standing(*each), round, ties=ties)]
    return rounds, best


def test_a_higher_score_is_the_best_whatever_the_loss_and_nan_never_is() -> None:
    for ties in ("loss", "later", "earlier"):
        rounds, best = offered(ties, (NAN, 0.1), (0.5, 0.2), (0.4, 0.1), (0.7, 9.0), (NAN, 0.0))
        assert rounds == [2, 4] and best.round == 4 and not best.has_stopped
        loss = {"best_loss": 9.0} if ties == "loss" else {}
        assert best.state.numbers == {"evaluations_without_gain": 1, "best_score": 0.7, "best_round": 4, **loss}


def test_of_equal_scores_the_lower_loss_is_the_best_and_then_the_later_round() -> None:
    losses = [(0.0, 5.2), (0.0, 5.4), (0.0, 3.6), (0.0, 3.6), (0.0, 4.0)]
    rounds, best = offered("loss", *losses)
    assert rounds == [1, 3, 4] and best.round == 4 and best.without_gain == 2  # round 4 is as good, and no gain
    assert offered("later", *losses)[0] == [1, 2, 3, 4, 5]
    assert offered("earlier", *losses)[0] == [1]


def test_without_a_loss_ties_go_to_the_later_round_and_a_loss_is_better_than_none() -> None:
    rounds, best = offered("loss", (1.0, NAN), (1.0, NAN), (1.0, 2.0), (1.0, NAN), (1.0, math.inf))
    assert rounds == [1, 2, 3] and best.state.numbers["best_loss"] == 2.0
    rounds, best = offered("loss", (1.0, 2.0), (2.0, NAN))
    assert rounds == [1, 2] and "best_loss" not in best.state.numbers


def test_where_the_loss_decides_less_is_better() -> None:
    assert standing("loss", {"loss": 2.0, "accuracy": 0.5}) == Standing(-2.0, 2.0)
    assert standing("accuracy", {"loss": 2.0, "accuracy": 0.5}) == Standing(0.5, 2.0)
    assert math.isnan(standing("accuracy", {"loss": 2.0}).score)


def test_patience_counts_evaluations_in_a_row_and_a_stop_stays() -> None:
    best = BestModel(ServerState({}))
    stops = []
    for round, score in enumerate([1.0, 0.0, 2.0, 1.0, 1.0, 3.0]):
        best.offer(Standing(score), round, 2)
        stops.append(best.has_stopped)
    assert stops == [False, False, False, False, True, True]
    assert best.state.numbers["stopped"] == 1 and best.without_gain == 0


def test_patience_goes_on_while_the_loss_of_equal_scores_falls_and_ends_when_nothing_changes() -> None:
    best = BestModel(ServerState({}))
    for round, loss in enumerate([5.0, 4.0, 3.0, 3.0]):
        best.offer(Standing(0.0, loss), round, 2)
    assert best.without_gain == 1 and not best.has_stopped
    best.offer(Standing(0.0, 3.0), 4, 2)
    assert best.has_stopped and best.round == 4


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
    message = report_to_packet(report, 0)
    assert "draws" not in "".join(message.numbers)
    assert packet_to_report(message, ["a"]) == replace(report, draws=1)
    assert report.numbers().get("draws", 1) == draws and list(report.numbers())[-1] in ("penalty", "draws")
