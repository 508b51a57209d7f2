"""What a private plan needs and says before it begins: noise, a table of epsilon, whose rows are scored, masks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from harness import make_config
from private_runs import TASK, private
from toy import Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.config.schema import EvalConfig, SystemConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.mechanism import Mechanism
from fedtorch.planning.promise import describe_private
from fedtorch.privacy.ledger import FOLDER
from fedtorch.privacy.public_sum import PublicSum
from fedtorch.privacy.settings import PrivacyConfig, SecureSum
from fedtorch.setup.data_ledger import data_ledger
from fedtorch.setup.mechanism import OPENINGS, make_masking, make_plain, noise_of
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules import check_plan, sums
from fedtorch.setup.rules.privacy import nobody_is_evaluated
from fedtorch.tasks.base import Task
from fedtorch.tasks.prepared import Prepared

pytestmark = pytest.mark.usefixtures("exact_accounts")


def test_the_noise_for_an_epsilon_is_the_least_for_all_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, float, int, float]] = []

    def least(epsilon: float, rate: float, releases: int, delta: float) -> float:
        asked.append((epsilon, rate, releases, delta))
        return 2.5

    monkeypatch.setattr("fedtorch.setup.mechanism.least_noise", least)  # which takes seconds
    wanted = {"noise_multiplier": None, "epsilon": 5.0}
    for rounds in (3, 0):
        assert noise_of(Plan.of(private(tmp_path, rate=0.3, rounds=rounds, privacy=wanted), 1)) == 2.5
    assert asked == [(5.0, 0.3, 3, 1e-3), (5.0, 0.3, 1, 1e-3)]
    assert noise_of(Plan.of(private(tmp_path), 1)) == 1.0 and len(asked) == 2


@pytest.mark.long
def test_epsilon_is_told_at_round_numbers_up_to_the_last_round(tmp_path: Path) -> None:
    for rounds, told in ((60, [1, 2, 5, 10, 20, 50, 60]), (2, [1, 2]), (0, [1])):
        said = describe_private(Plan.of(private(tmp_path, rounds=rounds), 1))
        lines = [line.split() for line in said.splitlines() if line.split()[0].isdigit()]
        assert [int(count) for count, _ in lines] == told
        epsilons = [float(epsilon) for _, epsilon in lines]
        assert epsilons == sorted(epsilons) and epsilons[0] > 0
    assert describe_private(Plan.of(make_config(tmp_path, TASK), 1)) == ""


class Unowned(Quadratic):
    """With rows of dev that belong to nobody who trains."""

    def manifest(self) -> dict[str, dict[str, int]]:
        """The clients, and them."""
        return {**{name: {"train": 3} for name in self.clients}, "nobody": {"dev": 2}}


def test_patience_waits_for_scores_of_rows_without_an_owner(tmp_path: Path) -> None:
    asked = EvalConfig(every=1, patience=3)
    nobody_is_evaluated(Plan.of(private(tmp_path), 1))
    nobody_is_evaluated(Plan.of(private(tmp_path, eval=asked, task=Unowned(clients=TASK.clients)), 1))
    nobody_is_evaluated(Plan.of(private(tmp_path, eval=asked, privacy={"reveal": ("scores",)}), 1))
    with pytest.raises(ConfigError, match="eval.patience is 3: the run would end by scores of clients that train"):
        nobody_is_evaluated(Plan.of(private(tmp_path, eval=asked), 1))
    per_example = replace(asked, patience=None, per_example=True)
    with pytest.raises(ConfigError, match="eval.per_example is true, which shows how clients' own data fit"):
        nobody_is_evaluated(Plan.of(private(tmp_path, eval=per_example), 1))


def test_a_sum_at_a_public_scale_needs_a_clip_and_a_clip_needs_a_use(tmp_path: Path) -> None:
    def plan(clip: float | None, scale: str, **changes: object) -> Plan:
        privacy = PrivacyConfig(clip=clip, **changes)  # type: ignore[arg-type]
        system = SystemConfig(sum_scale=scale)  # type: ignore[arg-type]
        return Plan.of(make_config(tmp_path, TASK, FedAvg(weights="equal"), privacy=privacy, system=system), 5)

    def check(of: Plan) -> None:
        check_plan(of, (sums.CLIP, sums.PUBLIC))

    check(plan(None, "reports"))
    check(plan(0.5, "public"))
    check(plan(0.5, "reports", secure_sum=SecureSum()))
    with pytest.raises(ConfigError, match="privacy.clip is set but privacy.kind is none"):
        check(plan(0.5, "reports"))
    with pytest.raises(ConfigError, match="system.sum_scale is public but privacy.clip, which it follows from, is not"):
        check(plan(None, "public"))
    assert type(make_plain(plan(None, "reports"), is_server=True, is_new=True)) is Mechanism
    assert isinstance(make_plain(plan(0.5, "public"), is_server=True, is_new=True), PublicSum)
    assert make_masking(plan(0.5, "public"), is_server=True) is None


def test_openings_of_an_earlier_run_go_where_a_server_begins_anew(tmp_path: Path) -> None:
    privacy = PrivacyConfig(clip=0.5, secure_sum=SecureSum())
    plan = Plan.of(make_config(tmp_path, TASK, FedAvg(weights="equal"), privacy=privacy), 5)
    path = plan.config.folder / FOLDER / OPENINGS
    assert make_masking(plan, is_server=True, is_new=True) is not None  # there is none
    path.parent.mkdir(parents=True)
    for is_server, is_new, stays in (
        (True, False, True),
        (False, True, True),
        (False, False, True),
        (True, True, False),
    ):
        path.write_text("")
        make_masking(plan, is_server=is_server, is_new=is_new)
        assert path.exists() == stays


def test_releases_are_counted_beside_prepared_data_here_or_where_the_config_says(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    entry = {"splits": {"train": {"examples": 3}}}
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "name": "x", "clients": {"a": entry}, "record": {}}))
    prepared = Prepared(data=str(folder))

    def ledger(task: Task = prepared, system: SystemConfig | None = None, **privacy: object) -> Path | None:
        plan = Plan.of(private(tmp_path, task=task, privacy=privacy), 1)
        found = data_ledger(replace(plan, config=replace(plan.config, system=system or plan.config.system)))
        return None if found is None else found.path

    assert ledger() == tmp_path / "rows.privacy.jsonl"
    assert ledger(ledger=str(tmp_path / "own.jsonl")) == tmp_path / "own.jsonl"
    assert ledger(simulate=True, seed=1) is None  # where nothing is promised
    assert data_ledger(Plan.of(make_config(tmp_path, prepared), 1)) is None
    assert ledger(TASK) is None  # whose data lie nowhere
    assert ledger(system=SystemConfig(placement="pinned", pinned={"a": 0})) is None  # nor do they lie here
