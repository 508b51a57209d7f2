"""What a run of `paradigm: stats` refuses once it is known how many ranks there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from own_rows import BERT, CLIENTS, weather, write_rows

from fedtorch.config import load as yaml_config
from fedtorch.core.errors import ConfigError
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules import check_plan, counting

pytest.importorskip("cryptography")
SHARED = {"epsilon": 4.0, "noise_at": "shared"}


def plan(folder: Path, ranks: int = 4, clients: tuple[str, ...] = CLIENTS, **changes: Any) -> Plan:
    source = write_rows(folder / "rows.jsonl", weather(18, clients))
    data = {"source": source, "clients": {"by": "home"}, "labels": ["good", "bad"]}
    task = {"name": "text_classification", "model": BERT, "data": data}
    system = {"server_works": changes.pop("server_works", False)}
    config = {"task": task, "paradigm": "stats", "system": system, **changes}
    return Plan.of(yaml_config.load(config), ranks)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def masked(threshold: float = 1.0, colluders: int = 1) -> dict[str, Any]:
    return {"clip": 1.0, "secure_sum": {"threshold": threshold}, "colluders": colluders}


@pytest.mark.long
def test_shares_of_noise_need_silos_that_keep_theirs(tmp_path: Path) -> None:
    check_plan(plan(tmp_path, stats={"privacy": SHARED}, privacy=masked()), (counting.SUBJECT,))
    with pytest.raises(ConfigError, match="colluders is 3 but a sum is opened with 3 parts.*colluders to 2 or less"):
        counting.enough_shares_are_honest(plan(tmp_path, stats={"privacy": SHARED}, privacy=masked(colluders=3)))
    with pytest.raises(ConfigError, match="there are 4 workers for 3 silos.*start 4 ranks"):
        counting.enough_shares_are_honest(plan(tmp_path, 5, stats={"privacy": SHARED}, privacy=masked()))
    counting.enough_shares_are_honest(plan(tmp_path, 5, privacy=masked()))  # without noise nobody's share is missing


def test_the_noise_that_each_share_has_follows_from_those_who_keep_theirs(tmp_path: Path) -> None:
    one = plan(tmp_path, stats={"privacy": SHARED}, privacy=masked()).algorithm.rule.noise  # type: ignore[attr-defined]
    assert one.honest == 2
    two = plan(tmp_path, stats={"privacy": {"epsilon": 4.0}}).algorithm.rule.noise  # type: ignore[attr-defined]
    assert two.honest is None and two.multiplier == pytest.approx(one.multiplier)


def test_a_server_counts_no_rows_that_noise_hides_from_it(tmp_path: Path) -> None:
    private = {"privacy": {"epsilon": 4.0}}
    with pytest.raises(ConfigError, match="system.server_works is true: the server would hold rows of a silo"):
        counting.the_server_has_no_rows(plan(tmp_path, 2, server_works=True, stats=private))
    counting.the_server_has_no_rows(plan(tmp_path, 1, server_works=True, stats=private))
    counting.the_server_has_no_rows(plan(tmp_path, server_works=True))


def test_digests_of_rows_go_to_the_server_alone(tmp_path: Path) -> None:
    recur = {"recur": {"key": "key"}}
    counting.digests_stay_with_the_server(plan(tmp_path, stats=recur))
    counting.digests_stay_with_the_server(plan(tmp_path, 3, ("north", "south"), stats=recur))
    with pytest.raises(ConfigError, match="there is one client, whose rows recur nowhere"):
        counting.digests_stay_with_the_server(plan(tmp_path, 1, ("north",), stats=recur))
    with pytest.raises(ConfigError, match="trust.verify is too, with which silos see all"):
        trust = {"members": "members.yaml", "key": "own.key", "verify": "all"}
        counting.digests_stay_with_the_server(plan(tmp_path, stats=recur, trust=trust))


def test_a_vector_of_counts_has_an_end(tmp_path: Path) -> None:
    counting.the_numbers_fit(plan(tmp_path, stats={"words": {"longest": 15, "width": 16384}}))
    with pytest.raises(ConfigError, match="numbers, 67108864 at most"):
        check_plan(plan(tmp_path, stats={"words": {"longest": 16, "width": 16384}}))
    with pytest.raises(ConfigError, match="numbers, 67108864 at most"):
        counting.the_numbers_fit(plan(tmp_path, stats={"words": {"longest": 16, "width": 16384}}))
