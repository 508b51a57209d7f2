"""TRL's DPO and KTO as clients: the reference is the run's start model, in every round, and no second adapter stays."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from own_rows import GPT2, own, write_rows
from record_rows import vocabulary
from trained_otherwise import as_a_script, job_of, runner_of, weights

from fedtorch.core.errors import ConfigError
from fedtorch.core.seeds import seed_for
from fedtorch.tasks.preference import Preference
from fedtorch.train.settings import TrainerConfig

pytest.importorskip("trl")
ARGS: dict[str, Any] = {"per_device_train_batch_size": 4, "learning_rate": 5e-2, "lr_scheduler_type": "constant"}
DPO, KTO = TrainerConfig("trl.DPO", ARGS), TrainerConfig("trl.KTO", ARGS)
LORA = {**GPT2, "adapter": {"kind": "lora", "r": 2, "targets": ["c_attn"]}}
CLIENTS = ("north", "south", "west")


def pairs(size: int = 30) -> list[dict[str, Any]]:
    words = ("sun", "rain", "warm", "cold", "storm")
    return [
        {"prompt": f"{words[i % 5]} is", "chosen": f" {words[i % 4]} {words[i % 2]}",
         "rejected": f" {words[(i + 1) % 4]}",
         "home": CLIENTS[i % 3]}
        for i in range(size)
    ]  # fmt: skip


def verdicts(size: int = 30) -> list[dict[str, Any]]:
    return [
        {"prompt": row["prompt"], "completion": row["chosen"], "label": bool(i % 2), "home": row["home"]}
        for i, row in enumerate(pairs(size))
    ]


def task_of(folder: Path, kind: str = "dpo", model: Any = GPT2) -> Preference:
    rows = verdicts() if kind == "kto" else pairs()
    source = write_rows(folder / f"{kind}.jsonl", rows)
    return Preference(data=own(source), model=model, max_length=48, kind=kind)  # type: ignore[arg-type]


@as_a_script()
def by_script(model: Any, ref_model: Any, rows: Any, tokenizer: Any, seed: int, folder: Path) -> list[dict[str, Any]]:
    """What a user's own script does, with a reference of its own."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    seed &= 0xFFFFFFFF
    args = DPOConfig(
        output_dir=str(folder), max_steps=3, seed=seed, data_seed=seed, use_cpu=True, report_to="none", bf16=False,
        gradient_checkpointing=False, save_strategy="no", disable_tqdm=True, logging_steps=1, **ARGS,
    )  # fmt: skip
    trainer = DPOTrainer(
        model=model, ref_model=ref_model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    trainer.train()
    found: list[dict[str, Any]] = trainer.state.log_history
    return found


@pytest.mark.long
@pytest.mark.parametrize("model", [GPT2, LORA], ids=["whole", "lora"])
def test_the_reference_is_the_start_model_in_the_second_round_too(tmp_path: Path, model: Any) -> None:
    runner = runner_of(tmp_path, DPO, task=task_of(tmp_path, model=model))
    job = job_of(runner)
    first = job.train(job.received["weights"])
    assert first.losses[0] == pytest.approx(math.log(2), abs=1e-6) and first.losses[-1] < first.losses[0]
    moved = job.engine.snapshot()
    again = job_of(runner, round=1)
    second = again.train(moved)
    assert abs(second.losses[0] - math.log(2)) > 1e-3
    found = weights(job.engine.module)

    other = runner_of(tmp_path / "other", DPO, task=task_of(tmp_path, model=model))
    engine, task = other.context.components.engine, other.context.components.training
    reference = copy.deepcopy(engine.module).eval().requires_grad_(False)
    engine.load(moved)
    rows = [{name: row[name] for name in ("prompt", "chosen", "rejected")} for row in task.raw_rows("north", "train")]
    seed = seed_for(other.context.config.run.seed, "trainer", "north", 1)
    by_script(engine.module, reference, rows, copy.deepcopy(task.vocabulary), seed, tmp_path / "out")
    assert torch.equal(found, weights(engine.module))


def test_its_figures_are_in_the_report(tmp_path: Path) -> None:
    job = job_of(runner_of(tmp_path, DPO, task=task_of(tmp_path)))
    told = job.train(job.received["weights"]).numbers()
    assert {"trainer_rewards_accuracies", "trainer_rewards_margins"} <= set(told)


def test_with_the_rounds_reference_every_round_begins_at_the_logarithm_of_two(tmp_path: Path) -> None:
    from dataclasses import replace

    runner = runner_of(tmp_path, DPO, task=replace(task_of(tmp_path), reference="round"))
    job = job_of(runner)
    job.train(job.received["weights"])
    again = job_of(runner, round=1)
    assert again.train(job.engine.snapshot()).losses[0] == pytest.approx(math.log(2), abs=1e-6)


def test_no_parameter_and_no_adapter_is_left(tmp_path: Path) -> None:
    job = job_of(runner_of(tmp_path, DPO, task=task_of(tmp_path, model=LORA)))
    module = job.engine.module
    before = [(name, parameter.data_ptr()) for name, parameter in module.named_parameters()]
    for _ in range(3):
        job.train(job.received["weights"])
    assert [(name, parameter.data_ptr()) for name, parameter in module.named_parameters()] == before
    assert not any("ref" in name.split(".") for name, _ in before)


def test_kto_begins_at_a_half(tmp_path: Path) -> None:
    job = job_of(runner_of(tmp_path, KTO, task=task_of(tmp_path, "kto")))
    curve = job.train(job.received["weights"])
    assert curve.losses[0] == pytest.approx(0.5, abs=1e-6) and len(curve) == 3


def test_the_native_task_and_trl_take_the_same_steps(tmp_path: Path) -> None:
    """One full batch of plain SGD: the same gradient, so weights that differ in the last places alone."""
    from dataclasses import replace

    from fedtorch.train.settings import ClientConfig

    words = str(vocabulary(tmp_path / "words"))  # whose tokens do not depend on what stands beside them
    args = {"per_device_train_batch_size": 100, "learning_rate": 0.1, "optim": "sgd", "max_grad_norm": 0.0}
    trainer = TrainerConfig("trl.DPO", {**args, "lr_scheduler_type": "constant"})
    task = replace(task_of(tmp_path), tokenizer=words)
    runner = runner_of(tmp_path, trainer, task=task, client={"steps": 2})
    job = job_of(runner)
    theirs = job.train(job.received["weights"])
    found = job.engine.snapshot()

    native = runner_of(tmp_path / "native", trainer, task=task, client={"steps": 2})
    examples = native.trainer._referred("north", None, lambda n: None)
    plain = replace(
        job_of(native),
        trainer=None,
        examples=examples,
        hp=ClientConfig(optimizer="sgd", lr=0.1, batch_size=100, steps=2),
    )
    ours = plain.train(job.received["weights"])
    assert torch.allclose(found, plain.engine.snapshot(), rtol=0, atol=1e-6)
    assert theirs.losses == pytest.approx(ours.losses, abs=2e-6)


@pytest.mark.parametrize(("trainer", "kind"), [(DPO, "kto"), (KTO, "dpo")])
def test_rows_of_the_other_kind_are_refused(tmp_path: Path, trainer: TrainerConfig, kind: str) -> None:
    with pytest.raises(ConfigError, match="reads rows with prompt and"):
        runner_of(tmp_path, trainer, task=task_of(tmp_path, kind))


@pytest.mark.parametrize(("reference", "begins_anew"), [("start", False), ("round", True)])
def test_all_rows_together_are_trained_too(tmp_path: Path, reference: str, begins_anew: bool) -> None:
    from dataclasses import replace

    task = replace(task_of(tmp_path), reference=reference)  # type: ignore[arg-type]
    runner = runner_of(tmp_path, DPO, task=task, paradigm="centralized")
    job = job_of(runner, "all")
    first = job.train(job.received["weights"])
    assert len(job.examples) == sum(sizes["train"] for sizes in task.manifest().values())
    assert first.losses[0] == pytest.approx(math.log(2), abs=1e-6)
    again = job_of(runner, "all", round=1).train(job.engine.snapshot())
    assert (abs(again.losses[0] - math.log(2)) < 1e-6) == begins_anew


def test_older_names_that_the_libraries_tell_each_other_of_are_not_said_in_every_round(tmp_path: Path) -> None:
    import warnings

    job = job_of(runner_of(tmp_path, DPO, task=task_of(tmp_path, model=LORA)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", FutureWarning)
        job.train(job.received["weights"])
    assert [str(one.message) for one in said if one.category is FutureWarning] == []
