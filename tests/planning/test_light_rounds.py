"""Whole rounds of light ranks, and what follows from how long they took."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from fedtorch.planning.cost_model import Constants
from fedtorch.planning.light_rounds import LightRounds, measure, with_rounds
from fedtorch.planning.probe import REPEAT, timed

KNOWN = replace(
    Constants(2, *[0.0] * 18, 0), meeting_s=1.0, meeting_rank_s=0.5, header_s=2.0, header_rank_s=0.25, round_s=9.0
)
FEW = 2 * 1 + 3.5 * 2 + 2 * (0.5 + 0.125 + 0.25) + 3  # meetings, headers; two clients, each with its report; the rest
MORE = FEW + 32 * (0.5 + 0.125 + 0.25)
# of 16 ranks the clients share two cores
MANY = 2 * (1 + 14 * 0.5) + 3.5 * (2 + 14 * 0.25) + 30 * (0.5 + 0.125) / 2 + 30 * 0.25 + 3 + 14 * 0.75


def rounds(few: float, more: float, many: float, busy: float) -> LightRounds:
    """busy: processor seconds of a client more. What the server says of itself counts nowhere."""
    said: list[list[dict[str, Any]]] = [
        [{"rank": 0, "round": (1e3, 1e3)}, {"rank": 1, "round": (wall, spent)}]
        for wall, spent in ((few, 1.0), (more, 1.0 + 32 * busy), (many, 1.0))
    ]
    return LightRounds(*said, step_s=0.5)


def test_what_rounds_take_longer_than_is_known_of_them() -> None:
    found = with_rounds(KNOWN, rounds(FEW, MORE, MANY, busy=0.5 + 0.125))
    assert (found.client_round_s, found.report_s) == pytest.approx((0.125, 0.25))
    assert (found.round_s, found.round_rank_s) == pytest.approx((3.0, 0.75))
    assert replace(found, client_round_s=0.0, report_s=0.0, round_s=9.0, round_rank_s=0.0) == KNOWN


def test_nothing_takes_less_than_no_time() -> None:
    found = with_rounds(KNOWN, rounds(1.0, 0.5, 1.0, busy=0.1))
    assert (found.client_round_s, found.report_s, found.round_s, found.round_rank_s) == (0, 0, 0, 0)


@pytest.mark.processes
def test_the_server_waits_for_a_light_worker_whose_pause_is_in_none_of_its_figures() -> None:
    server, worker = measure(2, 1)
    assert (server["rank"], worker["rank"]) == (0, 1)
    assert 0 < worker["round"][0] < server["round"][0] - 0.003, "the server waits for the pause, of 10 ms and more"
    assert 0 < worker["round"][1] < server["round"][0]


@pytest.mark.parametrize(("slow", "is_slow"), [(REPEAT // 2, False), (REPEAT // 2 + 1, True)])
def test_of_several_tries_the_middle_one_counts(slow: int, is_slow: bool) -> None:
    left = iter([0.0] + [0.05] * slow + [0.0] * (REPEAT - slow))
    assert (timed(lambda: time.sleep(next(left)))[0] >= 0.05) is is_slow
