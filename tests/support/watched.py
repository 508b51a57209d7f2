"""A private run of which the test sees whom each attempt at a round drew, and what noise was on what it released."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import make_runner

from fedtorch.config.schema import Config
from fedtorch.privacy.client_level import ClientLevel
from fedtorch.rounds.runner import Runner


class Watched(ClientLevel):
    """Keeps the cohorts, and the noises of what was released."""

    drawn: list[tuple[str, ...]]
    noises: list[torch.Tensor]
    meanwhile: Callable[[], object] | None = None
    """what happens once, while the first cohort trains"""

    def draw(self, clients: Any, round: int) -> Any:
        found = super().draw(clients, round)
        self.drawn.append(tuple(client.name for client in found))
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            meanwhile()
        return found

    def release(self, round: int, total: torch.Tensor, server: Any, places: Any) -> torch.Tensor | None:
        before = total.clone()
        if (found := super().release(round, total, server, places)) is not None:
            self.noises.append(found.double() * 2.0**self.exponent * self.terms.expected - before)
        return found


def watched(config: Config) -> tuple[Runner, Watched]:
    """A runner whose mechanism is watched."""
    runner = make_runner(config)
    rule = runner.context.mechanism
    assert isinstance(rule, ClientLevel)
    spy = Watched(rule.terms, rule.ledger, rule.masking)
    spy.drawn, spy.noises = [], []
    runner.context.mechanism = spy
    return runner, spy
