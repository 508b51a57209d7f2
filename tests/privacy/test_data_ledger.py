"""The ledger beside the data: every run on them adds up, whatever became of it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import make_runner
from own_rows import classifier, weather, write_rows
from private_runs import private

from fedtorch.cli.__main__ import main
from fedtorch.config.schema import Config
from fedtorch.core.errors import CheckpointError, ConfigError
from fedtorch.planning.promise import describe_private
from fedtorch.privacy.accounting import Accountant
from fedtorch.privacy.data_ledger import DataLedger, KnownRun, epsilon_of
from fedtorch.privacy.ledger import Ledger
from fedtorch.privacy.release import Release
from fedtorch.privacy.settings import PrivacyConfig
from fedtorch.report.privacy import privacy_markdown
from fedtorch.setup.build import build
from fedtorch.setup.mechanism import make_mechanism
from fedtorch.setup.privacy_cost import cost_of

pytestmark = pytest.mark.long

TERMS = {"rate": 0.5, "clients": 20, "noise_multiplier": 3.0, "delta": 1e-3}
DELTA = 1e-2


def own(folder: Path, name: str, rounds: int = 2) -> Config:
    """A config over rows in `folder`."""
    task = classifier(str(folder / "rows.jsonl"))
    terms = {"delta": DELTA, "noise_multiplier": 3.0}
    return private(folder / name, rate=0.5, task=task, rounds=rounds, privacy=terms)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", weather(36))
    return tmp_path


def ledger_of(config: Config) -> DataLedger:
    path = Path(str(config.task.folder.resolve()) + ".privacy.jsonl")
    return DataLedger(path)


def test_every_run_on_the_data_adds_up_also_one_that_repeats_another_or_is_gone(folder: Path) -> None:
    first = own(folder, "first")
    make_runner(first).run()
    shutil.rmtree(first.folder)
    make_runner(first).run()
    make_runner(own(folder, "second", rounds=3)).run()
    ledger = ledger_of(first)
    assert ledger.path.stat().st_mode & 0o777 == 0o600
    assert sorted(len(run.releases) for run in ledger.runs().values()) == [2, 2, 3]
    total = epsilon_of(ledger.runs().values())
    assert total == pytest.approx(Accountant(0.5, 3.0, DELTA).epsilon(7), abs=1e-9)
    *_, last = privacy_markdown([folder / "second"]).splitlines()
    assert last == f"| **all 3 in {ledger.path}** | 7 |  |  |  | {DELTA:g} | {total:.4f} |"
    assert privacy_markdown([], [ledger.path]).splitlines()[-1] == last
    said = describe_private(build(own(folder, "third", rounds=4), num_ranks=1, rank=0))
    assert f"{ledger.path} has 7 releases of 3 runs" in said
    assert f"epsilon {Accountant(0.5, 3.0, DELTA).epsilon(11):.4f}" in said


def test_a_run_says_at_its_end_what_all_on_its_data_have_come_to(folder: Path) -> None:
    make_runner(own(folder, "first")).run()
    runner = make_runner(own(folder, "second"))
    said = runner.run().privacy
    total = Accountant(0.5, 3.0, DELTA).epsilon(4)
    assert said["data"] == {"runs": 2, "releases": 4, "epsilon": pytest.approx(total, abs=1e-9), "delta": DELTA}
    assert said["epsilon"] == Accountant(0.5, 3.0, DELTA).epsilon(2) < total
    ledger_of(own(folder, "second")).path.write_text("damaged after the last round\n")
    assert runner.context.mechanism.summary(runner.context.server)["data"] == said["data"]
    assert make_runner(private(folder / "toy")).run().privacy["data"] is None


def test_a_run_that_goes_on_is_counted_once(folder: Path) -> None:
    config = own(folder, "run", rounds=3)
    make_runner(replace(config, checkpoint=replace(config.checkpoint, every=1, keep=3))).run()
    make_runner(config).run(resume=1)
    (known,) = ledger_of(config).runs().values()
    assert set(known.releases) == {(0, 0), (1, 0), (2, 0)} and known.folder == str(config.folder)


def cut(path: Path, keep: int) -> None:
    """All lines but the last ones."""
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:keep]))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: path.unlink(), "is gone, though this run was entered there; bring it back from a backup"),
        (lambda path: path.write_text(""), "has lost the line of this run; bring it back"),
        (lambda path: cut(path, 2), "lacks the release of round 2, attempt 0, of this run; bring it back"),
        (lambda path: path.write_text(path.read_text().replace("3.0", "9.0")), "was edited: line 1 does not follow"),
        (lambda path: path.write_text(path.read_text().replace('"round": 1', '"round": 5')), "edited: line 3 does not"),
    ],
    ids=["deleted", "emptied", "cut short", "z", "round"],
)
def test_a_ledger_that_was_changed_meanwhile_is_refused(folder: Path, change: Any, reason: str) -> None:
    config = own(folder, "run")
    make_runner(config).run()
    path = ledger_of(config).path
    change(path)
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(CheckpointError, match=reason):
        make_runner(config)
    assert before == (path.read_bytes() if path.exists() else None)


def test_a_ledger_that_is_lost_for_good_is_made_again_where_that_is_asked_for(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = own(folder, "run")
    make_runner(config).run()
    ledger_of(config).path.unlink()
    make_mechanism(build(config, num_ranks=1, rank=0), is_server=True, start=2, resume="force")
    (known,) = ledger_of(config).runs().values()
    assert set(known.releases) == {(0, 0), (1, 0)} and known.spent == {1: 2}
    assert "what other runs released of these data is counted there no more" in caplog.text


def test_z_that_was_edited_with_its_chain_is_another_one_than_the_run_s_own(folder: Path) -> None:
    """As who does it on purpose would."""
    config = own(folder, "run")
    make_runner(config).run()
    path = ledger_of(config).path
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.unlink()
    for line in lines:
        line.pop("chain")
    lines[0]["noise_multiplier"] = 9.0
    forged = DataLedger(path)
    with forged._locked(os.O_CREAT):
        forged._append(lines)
    with pytest.raises(CheckpointError, match=r"says that noise_multiplier of this run is 9.0, its own ledger 3.0"):
        make_runner(config)


@pytest.mark.parametrize("change", ["deleted", "edited"])
def test_a_ledger_that_is_changed_while_a_run_goes_on_ends_it_before_anything_leaves(
    tmp_path: Path, change: str
) -> None:
    own = Ledger.begin(tmp_path / "run" / "privacy", TERMS)
    own.attach(DataLedger(path := tmp_path / "d.privacy.jsonl"), tmp_path / "run")
    assert own.enter(0, 0, "a")
    releases = own.releases
    if change == "deleted":
        path.unlink()
    else:
        path.write_text(path.read_text().replace('"rate": 0.5', '"rate": 0.1'))
    for leave in (lambda: own.enter(1, 0, "a"), lambda: own.renew(0), own.refresh):
        with pytest.raises(CheckpointError, match=r"is gone, so|was edited: line 1|cannot be read"):
            leave()
    assert own.releases == releases == Ledger.open(tmp_path / "run" / "privacy").releases
    assert path.exists() == (change == "edited")


def test_another_ledger_in_mid_run_is_refused_but_not_one_that_was_moved_with_the_data(folder: Path) -> None:
    config = own(folder, "run")
    make_runner(config).run()
    other = replace(config, privacy=replace(config.privacy, ledger=str(folder / "other.jsonl")))
    with pytest.raises(
        CheckpointError, match=r"counted in .*\.privacy\.jsonl, but privacy.ledger, .* leads to .*other"
    ):
        make_runner(other)
    assert not (folder / "other.jsonl").exists()
    shutil.copy(ledger_of(config).path, folder / "other.jsonl")
    with pytest.raises(CheckpointError, match="set privacy.ledger to the former"):
        make_runner(other)
    shutil.move(ledger_of(config).path, folder / "other.jsonl")
    make_runner(other)
    assert Ledger.open(config.folder / "privacy").terms["data_ledger"] == str(folder / "other.jsonl")
    make_runner(other)


def test_a_ledger_that_is_taken_out_of_the_config_in_mid_run_is_refused(folder: Path) -> None:
    config = private(folder / "toy", privacy={"ledger": str(folder / "mine.jsonl")})
    make_runner(config).run()
    with pytest.raises(CheckpointError, match=r"counted in .*mine.jsonl, but .* leads to no ledger; set"):
        make_runner(replace(config, privacy=replace(config.privacy, ledger=None)))


def test_a_run_without_a_ledger_of_its_data_may_be_given_one(folder: Path) -> None:
    config = private(folder / "toy")
    make_runner(config).run()
    named = replace(config, privacy=replace(config.privacy, ledger=str(folder / "mine.jsonl")))
    make_runner(named)
    (known,) = DataLedger(folder / "mine.jsonl").runs().values()
    assert set(known.releases) == {(0, 0), (1, 0), (2, 0)}
    (folder / "mine.jsonl").unlink()
    with pytest.raises(CheckpointError, match="is gone, though this run was entered there"):
        make_runner(named)


def test_lines_of_an_earlier_version_count_and_their_attempts_share_a_cohort(folder: Path) -> None:
    path = folder / "d.privacy.jsonl"
    lines = [{"run": "a", "folder": "x", **TERMS}, *({"run": "a", "round": 0, "attempt": each} for each in range(3))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    path.chmod(0o600)
    ledger = DataLedger(path)
    assert ledger.runs()["a"].spent == {3: 1}
    assert epsilon_of(ledger.runs().values()) == pytest.approx(Accountant(0.5, 3**0.5, 1e-3).epsilon(1))
    assert not ledger.enter("a", Release(0, 2, "x", 2))  # nobody knows what was released
    assert ledger.renew("a", 0, 1) == Release(0, 3, "", 3) and ledger.enter("a", Release(0, 3, "x", 3))
    assert ledger.runs()["a"].spent == DataLedger(path).runs()["a"].spent == {3: 1, 1: 1}
    edited = path.read_text().replace('"attempt": 1}', '"attempt": 0}')
    path.write_text(edited)
    with pytest.raises(CheckpointError, match="was edited: line 5"):  # the first that knows of the lines before it
        ledger.runs()


def test_a_simulation_and_data_that_lie_nowhere_have_none(folder: Path) -> None:
    config = own(folder, "run")
    promise = replace(config.privacy, simulate=True, seed=1)
    make_runner(replace(config, privacy=promise)).run()
    make_runner(private(folder / "toy")).run()
    assert not list(folder.rglob("*.privacy.jsonl"))
    with pytest.raises(ConfigError, match=r"privacy.ledger is set but privacy.simulate is true"):
        replace(promise, ledger="x")
    make_runner(private(folder / "named", privacy={"ledger": str(folder / "mine.jsonl")})).run()
    assert len(DataLedger(folder / "mine.jsonl").runs()) == 1


def test_what_others_may_read_or_nobody_can_write_ends_the_run_before_anything_is_released(folder: Path) -> None:
    config = own(folder, "run")
    make_runner(config).run()
    path = ledger_of(config).path
    os.chmod(path, 0o644)
    with pytest.raises(CheckpointError, match=r"has mode 0644, .*chmod 600 .*privacy.ledger"):
        make_runner(own(folder, "second"))
    path.unlink()
    path.mkdir(mode=0o700)
    with pytest.raises(CheckpointError, match="is no regular file"):
        make_runner(own(folder, "third"))
    (folder / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be written"):
        make_runner(private(folder / "toy", privacy={"ledger": str(folder / "file" / "ledger.jsonl")}))


def test_a_line_that_was_not_finished_is_no_release_and_one_that_is_damaged_is_named(tmp_path: Path) -> None:
    ledger = DataLedger(tmp_path / "d.privacy.jsonl")
    ledger.begin("a", TERMS, tmp_path, [Release(0, 0, "x")], is_known=False)
    with ledger.path.open("ab") as file:
        file.write(b'{"run": "a", "rou')
    assert set(ledger.runs()["a"].releases) == {(0, 0)}
    assert ledger.enter("a", Release(1, 0, "x")) and ledger.enter("a", Release(1, 0, "x"))
    assert set(ledger.runs()["a"].releases) == set(DataLedger(ledger.path).runs()["a"].releases) == {(0, 0), (1, 0)}
    with ledger.path.open("ab") as file:
        file.write(b"[]\n")
    with pytest.raises(CheckpointError, match="is damaged"):
        ledger.runs()


def test_a_line_waits_for_another_run_that_writes(tmp_path: Path) -> None:
    ledger = DataLedger(tmp_path / "d.privacy.jsonl")
    ledger.begin("a", TERMS, tmp_path, [], is_known=False)
    writes = threading.Thread(target=ledger.enter, args=("a", Release(0, 0, "x")), daemon=True)
    with ledger.path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        writes.start()
        writes.join(0.1)
        assert writes.is_alive()
    writes.join(5)
    assert set(ledger.runs()["a"].releases) == {(0, 0)}


def test_a_line_of_each_run_says_at_which_delta_and_the_least_counts() -> None:
    runs = [KnownRun("", 1.0, 20, 4.0, delta, {(0, 0): Release(0, 0, "x")}) for delta in (1e-2, 1e-3, 1e-2)]
    expected = {count: Accountant(1.0, 4.0, 1e-3).epsilon(count) for count in (3, 5)}
    assert epsilon_of(runs) == pytest.approx(expected[3], abs=1e-9)
    assert epsilon_of(runs, [(1.0, 4.0, 2)], 1e-2) == pytest.approx(expected[5], abs=1e-9)


def test_a_disk_that_refuses_the_ledger_of_the_data_keeps_the_sum_here(tmp_path: Path) -> None:
    own = Ledger.begin(tmp_path / "run" / "privacy", TERMS)
    own.attach(DataLedger(tmp_path / "d.privacy.jsonl"), tmp_path / "run")
    (tmp_path / "d.privacy.jsonl").unlink()
    (tmp_path / "d.privacy.jsonl").mkdir()
    with pytest.raises(CheckpointError, match="cannot be written"):
        own.enter(0, 0, "a")
    assert own.releases == []


def test_runs_that_are_to_begin_are_told_their_cost_together(folder: Path) -> None:
    configs = [own(folder, name, rounds=2) for name in "abc"]
    make_runner(configs[0]).run()
    (line,) = cost_of([*configs, replace(configs[0], privacy=PrivacyConfig())])
    account = Accountant(0.5, 3.0, DELTA)
    assert f"3 runs on the data of {ledger_of(configs[0]).path} will cost epsilon {account.epsilon(4):.4f}" in line
    assert f"with the 2 releases of 1 runs before, epsilon {account.epsilon(6):.4f}" in line
    assert cost_of([replace(configs[0], privacy=PrivacyConfig())]) == []


def test_a_sweep_says_what_it_will_cost_before_it_starts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "own.yaml").write_text(
        json.dumps(
            {
                "rounds": 3,
                "task": {
                    "name": "text_classification",
                    "model": {"random": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                              "intermediate_size": 16},
                    "data": {"source": "rows.jsonl", "clients": {"by": "home"}, "tokenizer_size": 270},
                },
                "algorithm": {"name": "fedavg", "weights": "equal"},
                "clients": {"sampling": "poisson", "rate": 0.5},
                "eval": {"every": 0},
                "privacy": {"kind": "client", "clip": 0.1, "noise_multiplier": 3.0, "delta": DELTA},
            }
        )
    )  # fmt: skip
    words = ["--config", "own.yaml", "--grid", "privacy.noise_multiplier=3,4", "--seeds", "0", "1", "--dir", "sweep"]
    assert main(["sweep", "run", *words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "4 runs on the data of" in said and "12 releases at delta 0.01" in said
    total = epsilon_of([], [(0.5, 3.0, 6), (0.5, 4.0, 6)], DELTA)
    assert f"will cost epsilon {total:.4f} together" in said
