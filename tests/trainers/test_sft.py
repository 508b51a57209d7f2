"""TRL's SFTTrainer as a client: the bits of a script without this package, nothing sent, nothing left."""

from __future__ import annotations

import copy
import gc
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_runner
from own_rows import classifier, names, tagger, weather, write_rows
from record_rows import vocabulary
from trained_otherwise import ARGS, as_a_script, config_of, job_of, runner_of, task_of, weights

from fedtorch.core.errors import ConfigError
from fedtorch.core.seeds import seed_for
from fedtorch.setup.build import build
from fedtorch.train.attacks.settings import AttackConfig
from fedtorch.train.settings import ClientConfig, TrainerConfig

pytest.importorskip("trl")
SFT = TrainerConfig("trl.SFT", ARGS)


@as_a_script()
def by_script(model: Any, rows: list[dict[str, Any]], tokenizer: Any, seed: int, folder: Path) -> None:
    """What a user's own script does."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    seed &= 0xFFFFFFFF
    args = SFTConfig(
        output_dir=str(folder), max_steps=3, seed=seed, data_seed=seed, use_cpu=True, report_to="none", bf16=False,
        gradient_checkpointing=False, save_strategy="no", disable_tqdm=True, **ARGS,
    )  # fmt: skip
    SFTTrainer(model=model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer).train()


def test_one_client_has_the_bits_of_a_script_without_this_package(tmp_path: Path) -> None:
    job = job_of(runner_of(tmp_path, SFT))
    job.train(job.received["weights"])
    found = weights(job.engine.module)

    other = runner_of(tmp_path / "other", SFT, task=task_of(tmp_path))
    task, module = other.context.components.training, other.context.components.engine.module
    rows = [{name: row[name] for name in ("prompt", "completion")} for row in task.raw_rows("north", "train")]
    seed = seed_for(other.context.config.run.seed, "trainer", "north", 0)
    by_script(module, rows, copy.deepcopy(task.vocabulary), seed, tmp_path / "out")
    assert torch.equal(found, weights(module))


def test_twenty_rounds_leave_memory_attributes_and_disk_as_they_were(tmp_path: Path) -> None:
    runner = runner_of(tmp_path, TrainerConfig("trl.SFT", {**ARGS, "max_length": 24}))
    job = job_of(runner)
    module, vocabulary = job.engine.module, job.task.vocabulary  # type: ignore[attr-defined]
    job.train(job.received["weights"])

    def seen() -> tuple[Any, ...]:
        gc.collect()
        tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
        attributes = {name: sorted(vars(part)) for name, part in module.named_modules()}
        tokens = vocabulary.special_tokens_map, len(vocabulary)
        return len(tensors), sum(t.numel() for t in tensors), attributes, module.config.to_dict(), tokens

    before = seen()
    for _ in range(20):
        job.train(job.received["weights"])
    assert seen() == before


def test_no_message_goes_to_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.utils import _telemetry

    begun: list[Any] = []
    monkeypatch.setattr(_telemetry, "_start_telemetry_thread", lambda: begun.append(threading.current_thread()))
    job = job_of(runner_of(tmp_path, SFT))
    job.train(job.received["weights"])
    assert not begun


def test_no_row_is_on_disk_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = tmp_path / "held"
    held.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(held))
    monkeypatch.setenv("HF_HOME", str(held))
    task = task_of(tmp_path)
    job = job_of(runner_of(tmp_path / "run", SFT, task=task))
    job.train(job.received["weights"])
    assert not [path for path in held.rglob("*") if path.is_file()]
    assert os.environ["HF_HOME"] == str(held)


def test_rows_and_models_that_it_cannot_read_are_named_before_anything_is_trained(tmp_path: Path) -> None:
    classes = classifier(write_rows(tmp_path / "weather.jsonl", weather()))
    with pytest.raises(ConfigError, match="trains decoders, but the model of task is a BertForSequenceClassification"):
        runner_of(tmp_path, SFT, task=classes)
    words = tagger(write_rows(tmp_path / "names.jsonl", names()))
    with pytest.raises(ConfigError, match="reads rows with messages and tools, or messages, or prompt"):
        runner_of(tmp_path, SFT, task=words)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"output_dir": "here"}, "output_dir is here but it is not the user's to set: a client leaves no files"),
        ({"save_steps": 5}, "save_steps"),
        ({"max_steps": 5}, "set client.steps"),
        ({"seed": 1}, "run.seed"),
        ({"ddp_backend": "gloo"}, "trained by one process"),
        ({"learnig_rate": 1}, "did you mean `learning_rate`"),
        ({"lr_scheduler_type": "nothing"}, "is refused by trl.SFT"),
        ({"precompute_ref_log_probs": True}, "the start model is passed"),
    ],
)
def test_arguments_that_are_not_the_users_are_refused(tmp_path: Path, args: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        runner_of(tmp_path, TrainerConfig("trl.SFT", args))


def test_without_trl_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtorch.core.extras.find_spec", lambda package: None if package == "trl" else package)
    with pytest.raises(ConfigError, match=r"needs trl, which is not installed; pip install 'fedtorch-nlp\[trl\]'"):
        runner_of(tmp_path, SFT)


def test_it_also_trains_on_the_rows_of_all_clients_at_once(tmp_path: Path) -> None:
    runner = make_runner(config_of(tmp_path, SFT, rounds=1, paradigm="centralized"))
    assert [(report.client, report.status) for report in runner.trainer.train_cohort()] == [("all", "ok")]


def test_attacks_on_updates_are_possible_and_those_on_tokenised_rows_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    attack = AttackConfig(kind="signflip", clients=("north",))
    runner = make_runner(config_of(tmp_path, SFT, rounds=1, attack=attack))
    plain = make_runner(config_of(tmp_path / "plain", SFT, rounds=1, task=task_of(tmp_path)))
    runner.run(), plain.run()
    moved = [each.context.server.tensors["weights"] for each in (runner, plain)]
    assert not torch.equal(*moved)
    with pytest.raises(ConfigError, match="attack.kind is labelflip, which changes tokenised examples"):
        runner_of(tmp_path, SFT, attack=replace(attack, kind="labelflip"))


@pytest.mark.parametrize("key", ["eos_token", "pad_token"])
def test_a_token_that_the_tokenizer_lacks_is_refused_before_anything_is_trained(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=f"client.trainer.args.{key} is <nowhere> but the tokenizer of task.model"):
        runner_of(tmp_path, TrainerConfig("trl.SFT", {**ARGS, key: "<nowhere>"}))


def test_ranks_compare_the_versions_that_the_arithmetic_depends_on(tmp_path: Path) -> None:
    import trl

    config = config_of(tmp_path, SFT)
    facts = build(config, num_ranks=1, rank=0).facts()
    assert facts["trl"] == trl.__version__ and facts["accelerate"]
    native = replace(config, client=ClientConfig())
    assert not {"trl", "accelerate"} & {*build(native, num_ranks=1, rank=0).facts()}


def test_a_tokenizer_that_adds_tokens_is_said_without_a_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = job_of(runner_of(tmp_path, SFT))  # of a random model, whose tokenizer adds an end token
    assert "the tokenizer adds tokens of its own" in caplog.text
    caplog.clear()
    job.train(job.received["weights"])
    assert not [record for record in caplog.records if record.name.startswith("trl")]
    caplog.clear()
    runner_of(tmp_path / "plain", SFT, task=replace(task_of(tmp_path), tokenizer=str(vocabulary(tmp_path / "words"))))
    assert "adds tokens" not in caplog.text
