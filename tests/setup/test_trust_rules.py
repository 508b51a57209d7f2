"""What a run of parties with keys of their own refuses, each rule by itself and in a dry run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harness import make_config
from toy import Quadratic

from fedtorch.config.schema import Config, SystemConfig, TrustConfig
from fedtorch.core.errors import ConfigError
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules import trust

PINNED: dict[str, Any] = {"placement": "pinned", "pinned_to": "rank", "pinned": {"a": 1, "b": 2}}


def plan(**system: Any) -> Plan:
    config = make_config(Path("run"), Quadratic(clients={"a": (1.0, 0.0, 4), "b": (1.0, 0.0, 4)}))
    config = replace(config, system=SystemConfig(**{**PINNED, **system}), trust=TrustConfig("members.yaml"))
    return cast(Plan, SimpleNamespace(config=config))


def test_pinned_ranks_whose_updates_wait_may_sign() -> None:
    trust.each_party_is_one_rank(plan())
    trust.updates_wait_until_all_have_signed(plan())
    trust.updates_wait_until_all_have_signed(plan(sum_scale="public"))


@pytest.mark.parametrize(
    ("system", "said"),
    [
        ({"placement": "balanced", "pinned": {}}, "placement is balanced and pinned_to"),
        ({"pinned_to": "node"}, "pinned_to node, with 1 ranks"),
        ({"ranks_per_worker": 2}, "pinned_to rank, with 2 ranks per worker"),
    ],
)
def test_a_party_is_one_rank(system: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        trust.each_party_is_one_rank(plan(**system))


def test_sums_that_begin_early_are_refused() -> None:
    with pytest.raises(ConfigError, match="system.sum_scale is previous.*set system.sum_scale to reports"):
        trust.updates_wait_until_all_have_signed(plan(sum_scale="previous"))


def test_the_rules_are_for_parties_alone() -> None:
    config: Config = plan().config
    for settings, applies in ((TrustConfig(), False), (TrustConfig("members.yaml"), True)):
        of = cast(Plan, SimpleNamespace(config=replace(config, trust=settings)))
        assert trust.SUBJECT.applies(of) is applies
