"""Two runs whose clients differ by one: in exact integers the sums before noise differ by what that one may send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from factors import Regression
from harness import make_runner
from judged_rows import judge, pairs
from own_rows import BERT, classifier, completer, names, tagger, translator, weather, write_rows
from private_runs import private
from toy import Quadratic

from fedtorch.algorithms.adapters.rolora import RoLoRA
from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg, FedOpt
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.algorithms.pfedme import PFedMe
from fedtorch.config.find import shipped
from fedtorch.config.load import load
from fedtorch.config.schema import ClientConfig, Config, PartitionConfig
from fedtorch.core.client import Client
from fedtorch.core.settings import ServerConfig
from fedtorch.core.update import Report
from fedtorch.privacy.client_level import ClientLevel

pytestmark = pytest.mark.long

TOY = Quadratic(clients={f"c{i}": (1.0, 3.0 * i - 6, 3 + i) for i in range(5)}, start=(0.3, -0.7), noise=0.5,
                head=(0.1, 0.2, -0.4), double=False)  # fmt: skip
FACTORS = Regression({f"c{i}": (1.0 + i, (-1.0) ** i, 5 + i) for i in range(5)})
ADAM = ClientConfig(optimizer="adam", lr=0.05, batch_size=4)
KEPT = replace(ADAM, optimizer_state="keep")


def of_server(optimizer: Any, **settings: Any) -> dict[str, Any]:
    return {"server": ServerConfig(optimizer=optimizer, **settings)}


CASES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "fedavg": (FedAvg(weights="equal"), {"client": KEPT}),
    "fedprox": (FedProx(weights="equal", mu=0.1), {}),
    "ditto": (Ditto(weights="equal"), {}),
    "pfedme": (PFedMe(weights="equal"), {}),
    "fedper": (FedAvg(weights="equal"), {"partition": PartitionConfig(private=("head",))}),
    "freezing": (FedAvg(weights="equal"), {"partition": PartitionConfig(frozen=("head",))}),
    "lorar with public weights": (
        FedOpt(weights="equal"),
        {**of_server("sgd", momentum=0.9, lr=1.0), "client": replace(ADAM, optimizer="adafactor")},
    ),
    **{
        f"fedopt {name}": (FedOpt(weights="equal"), of_server(name, lr=0.1))
        for name in ("sgd", "adam", "yogi", "adagrad", "adamw")
    },
    "fedit": (FedAvg(weights="equal"), {"task": FACTORS}),
    "ffa": (FedAvg(weights="equal"), {"task": FACTORS, "partition": PartitionConfig(frozen=("*lora_A*",))}),
    "fedsa": (FedAvg(weights="equal"), {"task": FACTORS, "partition": PartitionConfig(private=("*lora_B*",))}),
    "rolora": (RoLoRA(weights="equal"), {"task": FACTORS}),
}


class Watched(ClientLevel):
    """Draws everybody, but in the last round not `without`; keeps what that one sent and the sum before noise."""

    without: str | None
    last: int
    whole: list[int]
    sent: list[int]

    @classmethod
    def of(cls, level: ClientLevel, last: int, without: str | None) -> Watched:
        watched = cls(level.terms, level.ledger)
        watched.without, watched.last, watched.sent = without, last, []
        return watched

    def draw(self, clients: Sequence[Client], round: int) -> list[Client]:
        return [client for client in clients if round != self.last or client.name != self.without]

    def outgoing(self, update: torch.Tensor, report: Report) -> Report:
        found = super().outgoing(update, report)
        self.sent = integers(update.double() * 2.0**self.exponent)  # the last client's, in the end
        return found

    def release(self, round: int, total: torch.Tensor, server: Any, places: Any) -> torch.Tensor:
        self.whole = integers(total)
        return super().release(round, total, server, places)


def integers(values: torch.Tensor) -> list[int]:
    assert torch.equal(values, values.round())
    return [int(value) for value in values]


def sums(config: Config, folder: Path) -> tuple[Watched, list[int]]:
    """The run with everybody, and the sum of the last round without the last client."""
    found = []
    for last in ("", list(config.task.manifest())[-1]):
        runner = make_runner(replace(config, run=replace(config.run, dir=str(folder / f"run{last}"))))
        level = runner.context.mechanism
        assert isinstance(level, ClientLevel)
        runner.context.mechanism = watched = Watched.of(level, config.rounds - 1, last or None)
        runner.run()
        found.append(watched)
    everybody, others = found
    return everybody, others.whole


def differ_by_no_more_than_the_clip(config: Config, folder: Path) -> None:
    everybody, others = sums(config, folder)
    difference = [one - other for one, other in zip(everybody.whole, others, strict=True)]
    assert difference == everybody.sent
    clip = Fraction(everybody._clip)
    assert 0 < sum(d * d for d in difference) <= clip**2 * Fraction(4) ** everybody.exponent


SIMULATED = {"simulate": True, "seed": 1}


@pytest.mark.parametrize("clip", [0.02, pytest.param(1e3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_one_client_changes_a_sum_by_what_it_sent_and_no_more(name: str, clip: float, tmp_path: Path) -> None:
    """A clip that all updates are longer than, and one that none is."""
    algorithm, changes = CASES[name]
    rounds = 2 if name == "rolora" or "server" in changes else 1
    settings = {"task": TOY, "client": ADAM, "rounds": rounds, **changes}
    config = private(tmp_path, algorithm, rate=1.0, privacy={"clip": clip, **SIMULATED}, **settings)
    differ_by_no_more_than_the_clip(config, tmp_path)


def own_tasks(folder: Path) -> Mapping[str, Any]:
    rows = [{"prompt": row["text"], "completion": row["label"], "home": row["home"]} for row in weather(18)]
    texts = [{"source": row["prompt"], "target": row["completion"], "home": row["home"]} for row in rows]
    said, named, asked, moved = (
        write_rows(folder / f"{kind}.jsonl", each)
        for kind, each in (("texts", weather(18)), ("names", names(18)), ("prompts", rows), ("pairs", texts))
    )
    return {
        "text_classification": classifier(said),
        "lora": classifier(said, model={**BERT, "adapter": {"kind": "lora", "r": 2}}),
        "fed-sb": classifier(said, model={**BERT, "adapter": {"kind": "sb", "r": 2}}),
        "token_classification": tagger(named),
        "causal_lm": completer(asked),
        "seq2seq": translator(moved),
        "preference": judge(write_rows(folder / "judged.jsonl", pairs(18, 3))),
    }


@pytest.mark.parametrize(
    "name", ["text_classification", "lora", "fed-sb", "token_classification", "causal_lm", "seq2seq", "preference"]
)
def test_the_same_of_rows_of_ones_own(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task = own_tasks(tmp_path)[name]
    config = private(tmp_path, rate=1.0, task=task, rounds=1, client=ADAM, privacy={"clip": 0.02, **SIMULATED})
    differ_by_no_more_than_the_clip(config, tmp_path)


@pytest.mark.slow
def test_the_same_of_fedmatchs_shared_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    promise = "privacy={kind: client, clip: 0.02, noise_multiplier: 1.0, delta: 1.0e-3, simulate: true, seed: 1}"
    public = [
        "clients={sampling: poisson, rate: 1.0}",
        "algorithm={name: fedavg, weights: equal}",
        "eval={every: 0, best: together, point: received, also_received: false, per_example: false}",
    ]
    few = ["task.max_train=4", "task.max_dev=2", "task.max_test=2", "rounds=1"]
    config = load([shipped() / "smoke" / "fedmatch.yaml"], [promise, *public, *few])
    assert config.partition.private
    differ_by_no_more_than_the_clip(config, tmp_path)
