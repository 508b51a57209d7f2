"""Teachers, personal models, pseudo labels and sent gradients under DeepSpeed: two ranks equal one process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_runner
from ranks import run_ranks

pytest.importorskip("deepspeed")

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.find import shipped
from fedtorch.config.load import load
from fedtorch.config.schema import Config
from fedtorch.core.update import Report
from fedtorch.setup.build import build

CONFIGS = shipped()
HALVES = ("client.batch_size=2", "client.accumulation=2", "eval.every=0", "clients.per_round=2")
FEW = ("task.max_train=4", "task.max_dev=2", "task.max_test=2")
T5 = (*FEW, "task.model.dropout=0", "client.optimizer=sgd", "client.lr=0.1")
PARSING = ("task.server_labelled=4", "task.client_size=[3,6]", "task.max_dev=2", "task.max_test=2", "client.epochs=2")
PARSING += (
    "per_client.server.optimizer=sgd",
    "algorithm.student.init=persistent",
    "task.encoder.dropout=0",
    "task.head_dropout=0",
)
GYM = (*FEW, "task.model.dropout=0", "client.optimizer=sgd", "client.schedule=constant", "client.warmup_ratio=0")
GYM += ("client.max_grad_norm=null", "client.lr=0.1", "client.weight_decay=0", "clients.min=1")
META = (*GYM, "algorithm.name=metaweighting", "algorithm.weights=size")
FFW = "fewfedweight/small/smoke_ffw_full"

CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "parsing": ("smoke/fedparsing", PARSING),
    "parsing_step": ("smoke/fedparsing", (*PARSING, "algorithm.teacher.every=step", "algorithm.teacher.scope=full")),
    "parsing_hard": (
        "smoke/fedparsing",
        (*PARSING, "algorithm.consistency.type=hard", "algorithm.group=fedparsing", "task.batch_unit=question"),
    ),
    "parsing_decoder": (
        "smoke/fedparsing",
        (*PARSING, "algorithm.train_encoder=false", "client.weight_decay=0.1", "client.max_grad_norm=0.01"),
    ),
    "ditto": ("smoke/ditto", T5),
    "ditto_simplified": ("smoke/ditto", (*T5, "algorithm.form=simplified")),
    "pfedme": ("smoke/pfedme", (*T5, "algorithm.inner_steps=2")),
    "ffw": (FFW, GYM),
    "ffw_client_energy": (FFW, (*GYM, "algorithm.energy_from=client")),
    "silo": (FFW, (*GYM, "algorithm.name=silo_augmented")),
    "meta": (FFW, META),
    "meta_eps": (FFW, (*META, "algorithm.meta_eps_init=1")),
}

GPT2 = ("task.data=synthetic", "task.model.name=gpt2-random", "task.model.width=16", "task.model.layers=1")
GPT2 += ("task.model.heads=2", "task.model.positions=96", "task.max_length=96", *FEW, "task.model.dropout=0")
ROWS = (*GPT2, "rounds=2", "client.lr=1e-3", "client.max_grad_norm=0.5", "client.no_decay=[]")
SENT = (*ROWS, "server.lr=1e-3", "server.no_decay=[]")
SINGLE = (*ROWS, "client.steps=2")
ALL_ROWS = {path.stem: path for path in sorted((CONFIGS / "fedassistant" / "rows").glob("*.yaml"))}
CASES |= {name: (f"fedassistant/rows/{name}", SINGLE if name.startswith("gpt_") else SENT) for name in ALL_ROWS}
CASES |= {
    "through": ("smoke/feda", (*FEW, "task.model.dropout=0")),
    "through_both": ("smoke/feda", (*FEW, "task.model.dropout=0", "partition.private=[]", "client.weight_decay=0.1")),
    "own": ("smoke/feda", (*FEW, "task.model.dropout=0", "task.kv_grad=own", "task.kv_transfer=full")),
    "delta": (
        "smoke/feda_top50",
        (
            *FEW,
            "task.model.dropout=0",
            "algorithm.payload=delta",
            "client.steps=2",
            "server.optimizer=sgd",
            "server.beta2=0.99",
            "algorithm.exchange=star",
        ),
    ),
}


@dataclass
class Notes:
    """In place of a tracker: what clients report; none may fail unnoticed."""

    reports: list[dict[str, float]] = field(default_factory=list)

    def round(self, round: int, reports: Sequence[Report], *_: Any) -> None:
        assert {report.status for report in reports} == {"ok"}
        for report in sorted(reports, key=lambda report: report.client):
            numbers = {key: value for key, value in report.extra.items() if not key.endswith("_s")}
            self.reports.append({**numbers, "first": report.loss_first, "last": report.loss_last})

    def evaluation(self, *_: Any, **__: Any) -> None: ...

    def examples(self, *_: Any, **__: Any) -> None: ...

    def working(self, text: str) -> None: ...

    def end(self, *_: Any) -> None: ...


Weights = dict[str, list[float]]
Outcome = tuple[Weights, list[dict[str, float]]]


def outcome(config: Config, comm: Any = None) -> Outcome:
    """The first and last weights and what clients keep but for optimisers; and what they reported."""
    notes = Notes()
    runner = make_runner(config, comm, tracker=notes if comm is None or comm.rank == 0 else None)
    runner.run()
    context = runner.context
    kept = {
        f"{name}/{key}": tensor.double().flatten().tolist()
        for name in context.store.clients()
        for key, tensor in context.store.get(name).tensors.items()
        if "optimizer" not in key and tensor.is_floating_point()
    }
    first, last = context.components.engine.initial_shared, context.shared
    return {"first": first.tolist(), "last": last.tolist(), **kept}, notes.reports


def config_of(name: str, folder: Path, *settings: str) -> Config:
    file, own = CASES[name]
    common = (*HALVES, f"run.dir={folder}", "run.name=x", "track.tensorboard=false")
    if ALL_ROWS.get(name) or name in ("through", "through_both", "own", "delta"):
        common = tuple(key for key in common if "per_round" not in key)
    return load([file], [*common, *own, *settings])


def as_rank(folder: str, configs: list[Config]) -> list[Outcome]:
    os.chdir(folder)
    names = dict.fromkeys(name for config in configs for name in build(config, num_ranks=3, rank=0).names)
    with DistributedCommunicator.join(tuple(names), timeout_s=60) as comm:
        return [outcome(config, comm) for config in configs]


def agree(name: str, found: Mapping[str, Sequence[float]], expected: Weights) -> None:
    """Within 10⁻³ of the way that the weights went."""
    assert set(found) == set(expected), name
    for key, values in expected.items():
        one, other = torch.tensor(found[key]).double(), torch.tensor(values).double()
        start = torch.tensor(expected["first"]).double()
        way = (other - start).norm() if key in ("last",) or key.endswith("personal") else other.norm()
        assert float((one - other).norm()) <= 1e-3 * float(way), (name, key)


def equal_one_process(names: Sequence[str], stage: int, folder: Path) -> None:
    os.chdir(folder)
    expected = {name: outcome(config_of(name, folder / "one" / name)) for name in names}
    zero = ("engine.kind=deepspeed", f"engine.stage={stage}", "system.ranks_per_worker=2")
    configs = [config_of(name, folder / "many" / name, *zero) for name in names]
    server, leader, _ = run_ranks(as_rank, 3, str(folder), configs, timeout=500)
    for name, (weights, reports), (kept, _) in zip(names, server, leader, strict=True):
        agree(name, {**kept, "last": weights["last"]}, expected[name][0])
        for one, other in zip(reports, expected[name][1], strict=True):
            assert one == pytest.approx(other, rel=1e-3, abs=1e-6), name


@pytest.mark.timeout(280)
def test_a_teacher_and_two_sides_of_a_dialog_in_stage_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    equal_one_process(["parsing", "through"], 3, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("kind", ["parsing", "ditto", "pfedme", "ffw", "silo", "meta", "feda", "gpt", "through"])
def test_every_row_of_every_kind(kind: str, stage: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    also = {"through": ("own", "delta")}.get(kind, ())
    equal_one_process([name for name in CASES if name.startswith((kind, *also))], stage, tmp_path)
