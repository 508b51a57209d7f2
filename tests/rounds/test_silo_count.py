"""With updates of fewer silos than `clients.min_silos` a round takes no step: of one alone the sum is its update."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from harness import make_config
from toy import Quadratic

from fedtorch.config.schema import ClientsConfig, Config
from fedtorch.core.errors import ConfigError

TASK = Quadratic(clients={"a": (1.0, 0.0, 4), "b": (2.0, 0.0, 4), "c": (3.0, 0.0, 4)})


def config(fewest: int | None, **pinned: int) -> Config:
    base = make_config(Path("run"), TASK)
    system = replace(base.system, placement="pinned", pinned=pinned)
    return replace(base, system=system, clients=ClientsConfig(min_silos=fewest))


def test_silos_are_counted_not_clients() -> None:
    two = config(2, a=1, b=1, c=2)
    assert not two.has_silos(["a", "b"]) and two.has_silos(["a", "c"]) and not two.has_silos([])
    assert config(None, a=1, b=1, c=2).has_silos([])


def test_a_least_number_that_no_round_can_reach_is_refused() -> None:
    with pytest.raises(ConfigError, match="clients.min_silos is 3 .* system.pinned gives clients to 2 ranks"):
        config(3, a=1, b=1, c=2)
    with pytest.raises(ConfigError, match="clients.per_round is 1, so no round could count"):
        ClientsConfig(min_silos=2, per_round=1)
