"""Teachers, personal models, pseudo labels and sent gradients under DeepSpeed and FSDP: two ranks equal one process."""

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
from fedtorch.core.mechanism import RoundFacts
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
GPT2 += ("task.model.heads=2", "task.model.positions=96", "task.max_length=96", *FEW)
ROWS = (*GPT2, "rounds=2", "client.lr=1e-3", "client.max_grad_norm=0.5", "client.no_decay=[]")
SENT = (*ROWS, "server.lr=1e-3", "server.no_decay=[]")
SINGLE = (*ROWS, "client.steps=2", "task.model.dropout=0")  # dialogs are shared out: every rank has its own dropout
ALL_ROWS = {path.stem: path for path in sorted((CONFIGS / "fedassistant" / "rows").glob("*.yaml"))}
CASES |= {name: (f"fedassistant/rows/{name}", SINGLE if name.startswith("gpt_") else SENT) for name in ALL_ROWS}
DIALOGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "through": ("smoke/feda", FEW),
    "through_again": ("smoke/feda", FEW),
    "own_again": ("smoke/feda", (*FEW, "task.kv_grad=own")),
    "through_both": ("smoke/feda", (*FEW, "partition.private=[]", "client.weight_decay=0.1")),
    "own": ("smoke/feda", (*FEW, "task.kv_grad=own", "task.kv_transfer=full")),
    "delta": (
        "smoke/feda_top50",
        (
            *FEW,
            "algorithm.payload=delta",
            "client.steps=2",
            "server.optimizer=sgd",
            "server.beta2=0.99",
            "algorithm.exchange=star",
        ),
    ),
}
CASES |= DIALOGS


@dataclass
class Notes:
    """In place of a tracker: what clients report; none may fail unnoticed."""

    reports: list[dict[str, float]] = field(default_factory=list)

    def round(self, round: int, facts: RoundFacts) -> None:
        reports = facts.reports or ()
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
    # the initial weights are kept, as for a later run with the engine
    tracker = notes if comm is None or comm.rank == 0 else None
    runner = make_runner(config, comm, tracker=tracker, is_engine_shared=True)
    runner.run()
    context = runner.context
    kept = {
        f"{name}/{key}": tensor.double().flatten().tolist()
        for name in context.store.clients()
        for key, tensor in context.store.get(name).tensors.items()
        if "optimizer" not in key and tensor.is_floating_point()
    }
    first, last = context.components.engine.initial_shared, context.vectors.weights
    return {"first": first.tolist(), "last": last.tolist(), **kept}, notes.reports


def config_of(name: str, folder: Path, *settings: str) -> Config:
    file, own = CASES[name]
    common = (*HALVES, f"run.dir={folder}", "run.name=x", "track.tensorboard=false")
    if name in ALL_ROWS or name in DIALOGS:
        common = tuple(key for key in common if "per_round" not in key)
    return load([file], [*common, *own, *settings])


def as_rank(folder: str, configs: list[Config], num_ranks: int) -> list[Outcome]:
    os.chdir(folder)
    names = dict.fromkeys(name for config in configs for name in build(config, num_ranks=num_ranks, rank=0).names)
    with DistributedCommunicator.join(tuple(names), timeout_s=200) as comm:
        return [outcome(config, comm) for config in configs]


def agree(name: str, found: Mapping[str, Sequence[float]], expected: Weights) -> None:
    """Within 10⁻³ of the way that the weights went.

    Of what a selection chose, all but one in twenty: rounding takes numbers of nearly the same size across its border.
    """
    assert set(found) == set(expected), name
    for key, values in expected.items():
        one, other = torch.tensor(found[key]).double(), torch.tensor(values).double()
        start = torch.tensor(expected["first"]).double()
        way = (other - start).norm() if key in ("last",) or key.endswith("personal") else other.norm()
        apart = (one - other).abs().sort().values
        if name == "delta" and (key == "last" or key.endswith("residual")):
            sent = int((torch.tensor(expected["last"]).double() != start).sum())
            assert 0 < sent < len(start) / 20
            apart = apart[: len(apart) - sent // 20]
        assert float(apart.norm()) <= 1e-3 * float(way), (name, key)


def reported_alike(name: str, one: dict[str, float], other: dict[str, float], *, crosses: bool) -> None:
    """Numbers within 10⁻³, bytes to the byte. crosses: do keys and values leave a process?"""
    crossed = one["kv_bytes"] + one["kv_overhead_bytes"] if crosses else other.get("kv_physical_bytes", 0)
    other = {**other, **({"kv_physical_bytes": crossed} if "kv_bytes" in other else {})}
    counts = [key for key in other if key.endswith("_bytes")]
    assert {key: one[key] for key in counts} == {key: other[key] for key in counts}, name
    assert one == pytest.approx(other, rel=1e-3, abs=1e-6), name


def equal_one_process(
    names: Sequence[str], stage: int | str, folder: Path, *settings: str, workers: Sequence[int] = (2,)
) -> None:
    os.chdir(folder)
    expected = {name: outcome(config_of(name, folder / "one" / name, *settings)) for name in names}
    kind = ("engine.kind=fsdp",) if stage == "fsdp" else ("engine.kind=deepspeed", f"engine.stage={stage}")
    split = (*kind, f"system.ranks_per_worker={list(workers)}")
    again = {name: ("engine.activation_checkpointing=true",) if name.endswith("_again") else () for name in names}
    configs = [config_of(name, folder / "many" / name, *settings, *split, *again[name]) for name in names]
    size = 1 + sum(workers)
    server, *others = run_ranks(as_rank, size, str(folder), configs, size, timeout=900)
    leaders = [others[sum(workers[:place])] for place in range(len(workers))]
    for place, name in enumerate(names):
        weights, reports = server[place]
        kept = {key: value for leader in leaders for key, value in leader[place][0].items()}
        agree(name, {**kept, "last": weights["last"]}, expected[name][0])
        for one, other in zip(reports, expected[name][1], strict=True):
            reported_alike(name, one, other, crosses="kv_bytes" in other and workers[0] == 2)


@pytest.mark.long
@pytest.mark.timeout(280)
def test_a_teacher_in_stage_3_equals_that_of_the_plain_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain, zero = (
        outcome(config_of("parsing", tmp_path / kind, "rounds=1", "client.epochs=1", f"engine.kind={kind}", *stage))
        for kind, stage in (("torch", ()), ("deepspeed", ("engine.stage=3",)))
    )
    agree("parsing", zero[0], plain[0])
    for one, other in zip(zero[1], plain[1], strict=True):
        reported_alike("parsing", one, other, crosses=False)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_teacher_and_a_pair_of_ranks_in_stage_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    equal_one_process(["parsing", "through_again"], 3, tmp_path)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stage", [1, 2, 3, "fsdp"])
@pytest.mark.parametrize("kind", ["parsing", "ditto", "pfedme", "ffw", "silo", "meta", "feda", "gpt", "through"])
def test_every_row_of_every_kind(kind: str, stage: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    also = {"through": ("own", "delta")}.get(kind, ())
    equal_one_process([name for name in CASES if name.startswith((kind, *also))], stage, tmp_path)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stage", [1, 2, 3, "fsdp"])
def test_every_row_of_fedassistant_on_two_pairs_of_ranks(
    stage: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    equal_one_process([*ALL_ROWS, *DIALOGS], stage, tmp_path, workers=(2, 2))


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", [1, 3, "fsdp"])
def test_three_ranks_share_dialogs(stage: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ("client.accumulation=3", "task.model.dropout=0")
    equal_one_process([*DIALOGS], stage, tmp_path, *settings, workers=(3,))
