"""A function of the user's as a client's trainer: what it is told, what it may keep, what becomes of its mistakes."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_runner
from trained_otherwise import config_of, job_of, runner_of, task_of

from fedtorch.config.schema import CheckpointConfig
from fedtorch.core.client import ClientState
from fedtorch.core.errors import ConfigError, FedtorchError, UpdateError
from fedtorch.train.settings import TrainerConfig


def named(name: str, **changes: Any) -> TrainerConfig:
    return TrainerConfig(f"trainers_of_tests:{name}", **changes)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def test_it_trains_in_place_and_its_numbers_are_the_reports(tmp_path: Path) -> None:
    runner = runner_of(tmp_path, named("sgd", args={"lr": 0.5}))
    state = ClientState()
    job = job_of(runner, state=state)
    curve = job.train(job.received["weights"])
    assert len(curve) == 3 and len(set(curve.losses)) == 1 and curve.numbers() == {"trainer_rounds": 1.0}
    assert not torch.equal(job.engine.snapshot(), job.received["weights"])
    assert state.numbers == {"trainer/rounds": 1} and set(state.tensors) == {"trainer/last"}


def test_what_it_keeps_is_there_in_the_next_round_and_after_a_resume(tmp_path: Path) -> None:
    config = config_of(tmp_path, named("sgd"), rounds=3, checkpoint=CheckpointConfig(every=1))
    runner = make_runner(config)
    whole = runner.run()
    assert runner.context.store.get("south").numbers["trainer/rounds"] == 3

    parts = replace(config_of(tmp_path / "parts", named("sgd"), task=config.task), rounds=2)
    parts = replace(parts, checkpoint=CheckpointConfig(every=1))
    make_runner(parts).run()
    gone_on = make_runner(replace(parts, rounds=3))
    found = gone_on.run(resume=2)
    assert gone_on.context.store.get("south").numbers["trainer/rounds"] == 3
    assert found.digest == whole.digest


def test_steps_without_a_loss_are_counted(tmp_path: Path) -> None:
    job = job_of(runner_of(tmp_path, named("nothing_told")))
    curve = job.train(job.received["weights"])
    assert (len(curve), curve.losses) == (1, ())


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("raises", "failed:KeyError"),
        ("exits", "failed:SystemExit"),
        ("resizes", "failed:UpdateError"),
        ("casts", "failed:UpdateError"),
        ("adds", "failed:UpdateError"),
    ],
)
def test_one_that_fails_is_named_and_the_others_go_on(tmp_path: Path, name: str, status: str) -> None:
    runner = make_runner(config_of(tmp_path, named(name), rounds=1))
    reports = {report.client: report for report in runner.trainer.train_cohort()}
    assert reports["north"].status == status
    assert reports["south"].status == reports["west"].status == "ok"

    alone = make_runner(config_of(tmp_path / "alone", named("sgd"), rounds=1, task=task_of(tmp_path)))
    others = {report.client: report for report in alone.trainer.train_cohort()}
    assert all(others[client].norm == reports[client].norm for client in ("south", "west"))


def test_numbers_that_are_none_are_refused_by_the_server(tmp_path: Path) -> None:
    runner = make_runner(config_of(tmp_path, named("not_finite"), rounds=1))
    runner.run()
    assert torch.isfinite(runner.context.server.tensors["weights"]).all()


@pytest.mark.parametrize("name", ["tells_text", "keeps_text"])
def test_texts_do_not_leave(tmp_path: Path, name: str) -> None:
    job = job_of(runner_of(tmp_path, named(name)))
    with pytest.raises(UpdateError, match="note") as caught:
        job.train(job.received["weights"])
    assert "secret" not in str(caught.value)


def test_whatever_it_leaves_is_put_back(tmp_path: Path) -> None:
    runner = runner_of(tmp_path, named("leaves_things"))
    plain = runner_of(tmp_path / "plain", named("sgd"), task=task_of(tmp_path))
    job, other = job_of(runner), job_of(plain)
    folder, environment = os.getcwd(), dict(os.environ)
    modes = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    for one in (job, other):
        one.train(one.received["weights"])
    assert torch.equal(job.engine.snapshot(), other.engine.snapshot())
    assert (os.getcwd(), dict(os.environ)) == (folder, environment)
    assert (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()) == modes
    module = job.engine.module
    assert not module._forward_hooks and not hasattr(module, "note")
    assert {part.p for part in module.modules() if isinstance(part, torch.nn.Dropout)} == {0.1}
    assert module.config.to_dict() == other.engine.module.config.to_dict()
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_torchruns_variables_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "nowhere"}.items():
        monkeypatch.setenv(name, value)
    job = job_of(runner_of(tmp_path, named("sees_ranks")))
    assert job.train(job.received["weights"]).numbers() == {"trainer_variables": 0.0}
    assert os.environ["MASTER_ADDR"] == "nowhere"


@pytest.mark.long
def test_a_thread_that_is_left_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = job_of(runner_of(tmp_path, named("leaves_a_thread")))
    with caplog.at_level(logging.WARNING):
        job.train(job.received["weights"])
    assert "left-by-a-test" in caplog.text


def test_check_finds_what_remembers_and_passes_what_does_not(tmp_path: Path) -> None:
    runner = make_runner(config_of(tmp_path, named("remembers", check=True), rounds=1))
    with pytest.raises(FedtorchError, match=r"client north was trained twice .* differ, first in `"):
        runner.trainer.train_cohort()
    checked = make_runner(config_of(tmp_path / "a", named("sgd", check=True), rounds=1, task=task_of(tmp_path)))
    plain = make_runner(config_of(tmp_path / "b", named("sgd"), rounds=1, task=task_of(tmp_path)))
    assert checked.run().digest == plain.run().digest


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        ("transfromers", "did you mean `transformers`"),
        ("trainers_of_tests:missing", "importing `trainers_of_tests:missing` failed"),
        ("trainers_of_tests:two_arguments", r"cannot be called as train\(model, rows, context\)"),
        ("trl.PPO", "did you mean `trl."),
    ],
)
def test_what_is_no_trainer_is_refused(tmp_path: Path, trainer: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        runner_of(tmp_path, trainer)


def test_its_state_may_have_any_names_and_numbers_when_a_run_is_resumed(tmp_path: Path) -> None:
    config = config_of(tmp_path, named("keeps_all_kinds"), checkpoint=CheckpointConfig(every=1))
    make_runner(replace(config, rounds=1)).run()
    runner = make_runner(config)
    runner.run(resume=1)
    numbers = runner.context.store.get("south").numbers
    assert (numbers["trainer/steps"], numbers["trainer/seen"]) == (-1, 1)


@pytest.mark.parametrize("name", ["keeps_sparse", "keeps_too_large"])
def test_what_no_checkpoint_holds_is_refused_where_it_is_kept(tmp_path: Path, name: str) -> None:
    job = job_of(runner_of(tmp_path, named(name)))
    with pytest.raises(UpdateError, match="context.state takes .* and `m` is"):
        job.train(job.received["weights"])
