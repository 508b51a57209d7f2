"""Two continuations of one run: a copied folder, a restored backup, a shortened ledger. Never one noise on two sums."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import torch
from harness import SGD, make_runner
from private_runs import TASK, private
from watched import Watched, watched

from fedtorch.config.schema import CheckpointConfig, Config
from fedtorch.core.errors import BudgetError, CheckpointError
from fedtorch.core.server import ServerState
from fedtorch.privacy.accounting import Accountant
from fedtorch.privacy.client_level import ClientLevel, PrivacyTerms
from fedtorch.privacy.data_ledger import DataLedger, epsilon_of
from fedtorch.privacy.ledger import Ledger
from fedtorch.privacy.settings import PrivacyConfig
from fedtorch.rounds.runner import Result
from fedtorch.setup.build import build
from fedtorch.setup.mechanism import make_mechanism


def begun(folder: Path, rounds: int = 2) -> Config:
    """A run of so many rounds, whose folder has all its checkpoints; its data's releases are counted in one file."""
    config = private(
        folder / "run",
        rate=0.5,
        rounds=rounds,
        task=replace(TASK, width=20),
        privacy={"ledger": str(folder / "ledger")},
    )
    config = replace(config, checkpoint=CheckpointConfig(every=1, keep=9))
    make_runner(config).run()
    return replace(config, rounds=4)


def copied(config: Config, name: str, lr: float = 0.1) -> Config:
    """A copy of the run's folder, and the config with which it goes on there."""
    folder = config.folder.with_name(name)
    shutil.copytree(config.folder, folder)
    return replace(config, run=replace(config.run, dir=str(folder)), client=replace(SGD, lr=lr))


def attempts(config: Config) -> list[tuple[int, int]]:
    return [(r.round, r.attempt) for r in Ledger.open(config.folder / "privacy").releases]


def counted(config: Config) -> set[tuple[int, int]]:
    """What the ledger of the data has of the only run that it knows."""
    (known,) = DataLedger(Path(str(config.privacy.ledger))).runs().values()
    assert known.spent == {1: len(known.releases)}  # each with a draw of its own
    return set(known.releases)


def go_on(config: Config, resume: int = 2) -> tuple[Result, Watched]:
    runner, spy = watched(config)
    return runner.run(resume=resume), spy


def no_noise_twice(*noises: torch.Tensor) -> bool:
    """Where it is the same, the difference is what float32 lacks, some 10^-7 of it; else as large as itself."""
    return all(float((one - other).norm() / one.norm()) > 0.1 for one, other in combinations(noises, 2))


ALL = {(round, 0) for round in range(4)}


def test_a_copy_that_goes_on_with_another_sum_takes_the_next_attempts_and_all_are_counted(tmp_path: Path) -> None:
    config = begun(tmp_path)
    copy = copied(config, "copy", lr=0.2)
    _, first = go_on(config)
    result, second = go_on(copy)
    assert counted(config) == set(attempts(copy)) == ALL | {(2, 1), (3, 1)}
    assert result.privacy["releases"] == 6
    assert no_noise_twice(*first.noises, *second.noises) and len(second.noises) == 2
    assert second.drawn[0] == first.drawn[0] and len({*first.drawn, *second.drawn}) == 4  # two of its own
    total = epsilon_of(DataLedger(tmp_path / "ledger").runs().values())
    assert total == pytest.approx(Accountant(0.5, 1.0, 1e-3).epsilon(6), abs=1e-9)
    assert set(attempts(config)) == ALL  # it learns of the others when it goes on
    make_runner(config)
    assert set(attempts(config)) == counted(config)


def test_a_copy_that_goes_on_to_the_same_sums_has_the_same_bits_and_costs_nothing(tmp_path: Path) -> None:
    config = begun(tmp_path)
    copy = copied(config, "copy")
    first, again = go_on(config)[0], go_on(copy)[0]
    assert first.digest == again.digest and again.privacy["releases"] == 4 and counted(config) == ALL


def test_of_two_that_go_on_at_once_whoever_is_first_has_the_attempt(tmp_path: Path) -> None:
    """While the copy trains with the cohort of round 3, the run releases its sum of that round."""
    config = begun(tmp_path)
    runner, slow = watched(copied(config, "copy", lr=0.2))
    quick: list[Watched] = []
    slow.meanwhile = lambda: quick.append(go_on(config)[1])
    result = runner.run(resume=2)
    assert result.rounds == 4 and counted(config) == ALL | {(2, 1), (3, 1)}
    assert no_noise_twice(*quick[0].noises, *slow.noises) and len(slow.noises) == 2


def test_of_two_that_do_a_round_again_at_once_each_has_an_attempt_of_its_own(tmp_path: Path) -> None:
    config = begun(tmp_path, rounds=3)
    one, other = copied(config, "one", lr=0.2), copied(config, "other", lr=0.3)
    runner, slow = watched(one)
    quick: list[Watched] = []
    slow.meanwhile = lambda: quick.append(go_on(other)[1])
    runner.run(resume=2)
    assert counted(config) == ALL | {(2, 1), (2, 2), (3, 1)}
    assert no_noise_twice(*quick[0].noises, *slow.noises)


@pytest.mark.parametrize("lr", [0.1, 0.2], ids=["same sums", "other sums"])
def test_a_backup_that_is_brought_back_knows_what_was_released_since(lr: float, tmp_path: Path) -> None:
    config = begun(tmp_path)
    shutil.copytree(config.folder, tmp_path / "backup")
    whole, first = go_on(config)
    shutil.rmtree(config.folder)
    shutil.copytree(tmp_path / "backup", config.folder)
    assert len(attempts(config)) == 2
    result, second = go_on(replace(config, client=replace(SGD, lr=lr)))
    more = set() if lr == 0.1 else {(2, 1), (3, 1)}
    assert counted(config) == set(attempts(config)) == ALL | more
    assert (result.digest == whole.digest) == (lr == 0.1)
    assert no_noise_twice(*first.noises, *(second.noises if more else ()))


def test_a_ledger_cut_short_together_with_the_last_checkpoints_is_made_whole(tmp_path: Path) -> None:
    config = begun(tmp_path)
    _, first = go_on(config)
    path = config.folder / "privacy" / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    for name in ("round_000003", "round_000004"):
        shutil.rmtree(config.folder / "checkpoints" / name)
    assert attempts(config) == [(0, 0), (1, 0)]
    _, second = go_on(replace(config, client=replace(SGD, lr=0.2)))
    assert set(attempts(config)) == counted(config) == ALL | {(2, 1), (3, 1)}
    assert no_noise_twice(*first.noises, *second.noises)


def test_the_releases_of_a_copy_count_for_the_budget(tmp_path: Path) -> None:
    config = begun(tmp_path)
    copy = copied(config, "copy", lr=0.2)
    go_on(config)
    account = Accountant(0.5, 1.0, 1e-3)
    limit = (account.epsilon(4) + account.epsilon(5)) / 2
    runner, _ = watched(replace(copy, privacy=replace(copy.privacy, max_epsilon=limit)))
    with pytest.raises(BudgetError, match="round 3 would be release 5 "):
        runner.run(resume=2)
    assert counted(config) == ALL and runner.context.round == 2


def test_what_a_copy_releases_meanwhile_counts_before_a_round_is_drawn(tmp_path: Path) -> None:
    """Both have begun; the copy has four sums of round 1 released before the run comes to round 2."""
    terms = {"rate": 0.5, "clients": 20, "noise_multiplier": 1.0, "delta": 1e-3}
    own = Ledger.begin(tmp_path / "a" / "privacy", terms)
    own.attach(DataLedger(tmp_path / "ledger"), tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    other = Ledger.open(tmp_path / "b" / "privacy")
    other.attach(DataLedger(tmp_path / "ledger"), tmp_path / "b")
    limit = (Accountant(0.5, 1.0, 1e-3).epsilon(4) + Accountant(0.5, 1.0, 1e-3).epsilon(5)) / 2
    settings = PrivacyConfig("client", clip=0.5, noise_multiplier=1.0, delta=1e-3, max_epsilon=limit)
    rule = ClientLevel(PrivacyTerms(0.5, 20, 1.0, settings), own)
    rule.begin(0, ServerState({}))
    for attempt in range(4):
        assert other.enter(0, attempt, str(attempt))
        if attempt < 3:
            other.renew(0)
    with pytest.raises(BudgetError, match="round 2 would be release 5 "):
        rule.begin(1, ServerState({}))


def unledgered(folder: Path) -> Config:
    config = private(folder / "run", rounds=2, task=replace(TASK, width=20))
    config = replace(config, checkpoint=CheckpointConfig(every=1, keep=9))
    make_runner(config).run()
    return replace(config, rounds=4)


def test_without_a_ledger_of_the_data_a_copy_beside_its_original_is_refused(tmp_path: Path) -> None:
    config = unledgered(tmp_path)
    copy = copied(config, "copy")
    with pytest.raises(CheckpointError, match=r"copy is a copy of the run in .*run, with its key, .* key of its own"):
        make_runner(copy)
    assert go_on(config)[0].rounds == 4  # the original
    shutil.rmtree(config.folder)
    assert go_on(copy)[0].rounds == 4  # it was moved, then
    (tmp_path / "link").symlink_to(copy.folder)
    make_runner(replace(copy, run=replace(copy.run, dir=str(tmp_path / "link"))))


def test_without_a_ledger_of_the_data_a_copy_may_go_on_with_a_key_of_its_own(tmp_path: Path) -> None:
    config = unledgered(tmp_path)
    copied(config, "copy")
    built = build(replace(config, run=replace(config.run, dir=str(tmp_path / "own"))), num_ranks=1, rank=0)
    source = str(tmp_path / "copy" / "checkpoints" / "round_000002")
    rule = make_mechanism(built, is_server=True, start=2, resume=source)
    assert isinstance(rule, ClientLevel) and rule.ledger is not None
    assert rule.ledger.key != Ledger.open(config.folder / "privacy").key and len(rule.ledger.releases) == 2
