"""`algorithm.robust`: rules by name, what is wrong with them, and who cannot have one."""

from __future__ import annotations

from typing import Any

import pytest

from fedtorch.algorithms import ALGORITHMS
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.config.load import digest, load, to_dict
from fedtorch.core.errors import ConfigError


def loaded(algorithm: dict[str, Any], **sections: Any) -> Any:
    return load({"task": {"name": "text2sql"}, "algorithm": algorithm, **sections})


def test_a_rule_has_all_its_fields_and_is_read_back() -> None:
    config = loaded({"name": "fedprox", "robust": "krum"})
    assert config.algorithm.robust == {"name": "krum", "bucket": 1, "bucket_seed": 0, "attackers": 1}
    assert load(to_dict(config)).algorithm == config.algorithm
    other = loaded({"name": "fedprox", "robust": {"name": "krum", "attackers": 2}})
    assert len({digest(config), digest(other), digest(loaded({"name": "fedprox"}))}) == 3


@pytest.mark.parametrize(
    ("robust", "message"),
    [
        ("medain", "algorithm.robust is `medain`.* there is no such rule; did you mean `median`"),
        ({"trim": 0.1}, "algorithm.robust.name is null"),
        ({"name": "trimmed_mean", "trim": 0.5}, "algorithm.robust.trim is 0.5 .*below 0.5"),
        ({"name": "krum", "atackers": 1}, "unknown key `algorithm.robust.atackers`.*did you mean `attackers`"),
        ("fedtorch.algorithms.fedavg:FedAvg", "is no Rule; derive it"),
        ({"name": "krum", "attackers": 2}, "per_round is 6 but algorithm.robust needs 7"),
        ({"name": "krum", "bucket": 3}, "per_round is 6 but algorithm.robust needs 5 updates in a round, each of 3"),
    ],
)
def test_what_is_wrong_is_said(robust: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded({"name": "fedavg", "robust": robust}, clients={"per_round": 6})


TAKE = {"fedavg", "fedopt", "fedprox", "ditto", "pfedme", "rolora", "fewfedweight", "metaweighting"}
NUMBERS = {"fedkseed", "decomfl"}  # whose server has no optimiser


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_who_is_no_weighted_sum_refuses_by_name(name: str) -> None:
    if name in TAKE | NUMBERS:
        server = {"optimizer": "none" if name in NUMBERS else "sgd"}
        assert loaded({"name": name, "robust": "median"}, server=server).algorithm.robust
        return
    # one that does not derive from FedAvg has no such key
    with pytest.raises(ConfigError, match=f"`{name}` .*no rule|unknown key `algorithm.robust`"):
        loaded({"name": name, "robust": "median"})


def test_a_rule_of_ones_own_is_applied() -> None:
    assert loaded({"name": "fedavg", "robust": "fedtorch.algorithms.robust.median:Median"}).algorithm == FedAvg(
        robust={"name": "fedtorch.algorithms.robust.median:Median", "bucket": 1, "bucket_seed": 0}
    )
