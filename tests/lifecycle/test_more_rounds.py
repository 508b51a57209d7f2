"""A run goes on with more rounds than it was begun with: the bits are those from the start, or a key forbids it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedtorch.config.load import load, run_digest, to_dict
from fedtorch.lifecycle.more_rounds import changes_that_forbid
from fedtorch.main import main as train

pytestmark = pytest.mark.long

CONFIG: dict[str, Any] = {
    "rounds": 2,
    "task": {
        "name": "toy:Saved",
        "clients": {"a": [1.0, 3.0, 4], "b": [0.5, -2.0, 6], "c": [1.5, 1.0, 5]},
        "start": [0.1, 0.2],
        "head": [0.5],
        "noise": 0.3,
    },
    "algorithm": {"name": "fedavg"},
    "client": {"optimizer": "sgd", "lr": 0.1, "batch_size": 2},
    "track": {"progress": "lines", "tensorboard": False},
}


RULE = """
from dataclasses import dataclass, replace
from fedtorch.algorithms.fedavg import FedAvg

@dataclass(frozen=True)
class Halving(FedAvg):
    @property
    def limits(self):
        return replace(super().limits, reads_num_rounds=True)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "halving.py").write_text(RULE)
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(CONFIG))


def run(name: str, *settings: str, resume: str = "auto") -> int:
    return train(["--config", "toy.yaml", "--resume", resume, "--set", f"run.name={name}", *settings])


def results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"runs/{name}/results.json").read_text())
    del found["traffic"]  # the best weights were sent at both ends
    return found


def scores(name: str) -> list[dict[str, Any]]:
    """Losses of all rounds and scores of all evaluations."""
    lines = [json.loads(line) for line in Path(f"runs/{name}/metrics.jsonl").read_text().splitlines()]
    kept = ("kind", "round", "client", "loss", "loss_mean", "weight", "metrics", "label", "split")
    wanted = ("client", "eval", "eval_total", "round")
    return [{key: line[key] for key in kept if key in line} for line in lines if line["kind"] in wanted]


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("algorithm={name: scaffold}", "clients.per_round=2"),
        ("algorithm={name: ditto, lam: 0.5}", "eval.best=per_client", "client.lr=2.6"),
        ("partition.private=[head]", "client.optimizer_state=keep", "client.optimizer=adam"),
        ("server={optimizer: adam, lr: 0.1}", "client={schedule: linear, warmup_ratio: 0.1}"),
        ("paradigm=local", "eval.patience=1", "client.lr=2.6"),
        ("eval.patience=1", "client.lr=2.6"),
        ("eval.every=0", "compare=[start, local]"),
        ("eval.every=2",),
        ("client.lr_over_rounds={schedule: constant}",),
        ("client.lr_over_rounds={min: 0.1}",),  # the rate itself
    ],
)
def test_more_rounds_go_on_to_the_bits_of_as_many_from_the_start(settings: tuple[str, ...]) -> None:
    assert run("begun", *settings) == run("begun", *settings, "rounds=5") == 0
    assert run("whole", *settings, "rounds=5") == 0
    assert results("begun") == results("whole")
    assert scores("begun") == scores("whole")
    for path in Path("runs/whole/model").rglob("*.safetensors"):
        assert (Path("runs/begun") / path.relative_to("runs/whole")).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (("client.schedule=linear", "client.schedule_span=run"), "client.schedule_span is run"),
        (("client.warmup_ratio=0.5", "client.schedule_span=run"), "client.schedule_span is run"),
        (
            ("client.schedule=cosine", "per_client={b: {schedule_span: run}}"),
            "per_client.b.schedule_span is run",
        ),
        (("client.lr_over_rounds={min: 0.01}",), "client.lr_over_rounds.schedule is cosine"),
        (("per_client={b: {lr_over_rounds: {schedule: linear}}}",), "per_client.b.lr_over_rounds.schedule is linear"),
        (("server={optimizer: adamw, lr: 0.1, schedule: linear}",), "server.schedule is linear"),
        (("server={optimizer: adamw, lr: 0.1, warmup_ratio: 0.5}",), "server.warmup_ratio is 0.5"),
        (("algorithm={name: 'halving:Halving'}",), "algorithm.name is halving:Halving"),
        (("eval.every=3",), "eval.every is 3"),
    ],
)
def test_where_their_number_entered_more_rounds_are_refused_with_the_key(
    settings: tuple[str, ...], key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("begun", *settings) == 0
    before = results("begun")
    assert run("begun", *settings, "rounds=5") == 8
    assert f"rounds was 2 and is now 5, but {key}" in capsys.readouterr().err
    assert results("begun") == before
    assert run("begun", *settings) == 0  # as it was


def test_noise_that_was_set_by_a_number_of_rounds_forbids_more_and_noise_that_was_given_does_not() -> None:
    promise = [
        "clients={sampling: poisson, rate: 0.5}",
        "eval.every=0",
        "privacy={kind: client, clip: 1.0, delta: 1.0e-5}",
    ]
    for given, said in (
        ("epsilon=4.0", "rounds was 2 and is now 5, but privacy.epsilon is 4.0"),
        ("noise_multiplier=2", ""),
    ):
        short, long = (load(Path("toy.yaml"), [*promise, f"privacy.{given}", f"rounds={n}"]) for n in (2, 5))
        found = changes_that_forbid(to_dict(short), to_dict(long), long, done=2)
        assert len(found) == bool(said) and all(
            "{} was {} and is now {}".format(*one).startswith(said) for one in found
        )


def test_disks_take_a_run_with_more_rounds_for_the_same_run() -> None:
    short, long, other = (load(Path("toy.yaml"), [setting]) for setting in ("rounds=2", "rounds=5", "client.lr=0.2"))
    assert run_digest(short) == run_digest(long) != run_digest(other)


def test_fewer_rounds_are_refused_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("begun") == 0
    assert run("begun", "rounds=1") == 8
    assert "rounds was 2 and is now 1" in capsys.readouterr().err


def test_what_else_differs_is_refused_beside_more_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("begun") == 0
    assert run("begun", "rounds=5", "client.lr=0.2") == 8
    said = capsys.readouterr().err
    assert "client.lr was 0.1 and is now 0.2" in said and "rounds was" not in said


def test_before_its_last_round_the_evaluation_of_a_shorter_run_forbids_nothing() -> None:
    assert run("begun", "rounds=4", "eval.every=3") == 0
    for folder in Path("runs/begun/checkpoints").glob("round_00000[34]"):
        (folder / "manifest.json").write_text("{}")  # as if it had been killed in round 3
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    assert run("begun", "rounds=7", "eval.every=3") == run("whole", "rounds=7", "eval.every=3") == 0
    assert results("begun") == results("whole")
