"""A run of which every client keeps a state, on hosts of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from hosts import Network
from supervisor import TOY
from torch import nn
from toy import Point, Quadratic

DITTO = TOY.replace("algorithm: {name: fedavg}", "algorithm: {name: ditto, lam: 0.5}").replace(
    "toy:Quadratic", "silos:Saved"
)
WHERE = ["a", "a", "b", "b"]  # rank -> host: the server and one worker, two workers


@dataclass(frozen=True)
class Saved(Quadratic):
    """Its models can be written."""

    def save_model(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, Point)
        folder.mkdir(parents=True)
        (folder / "w.json").write_text(json.dumps(model.w.tolist()))


def write_config(hosts: Network, *settings: str) -> list[str]:
    """Words for `fedtorch.main`; the run's folder is called the same on every host."""
    path = hosts.root / "toy.yaml"
    path.write_text(DITTO.replace("DIR", str(hosts.disk / "run")))
    return ["--config", str(path), "--set", "system.timeout=8", *settings]


def gate(hosts: Network, round: int) -> tuple[str, Path]:
    """A fault by which every rank waits in a round's training, and the file that lets them go on.

    round: done before it. A rank is silent meanwhile, so `system.timeout` must be longer than the wait.
    """
    path = hosts.root / f"gate-{round}"
    return f"wait:round={round},phase=train,file={path}", path


def digest(run: Path) -> str:
    found: str = json.loads((run / "results.json").read_text())["digest"]
    return found


def run(hosts: Network, words: list[str], faults: str = "") -> list[int | None]:
    """The ranks' exit codes."""
    environ = {"FEDTORCH_FAULTS": faults}
    return [outcome.exit_code for outcome in hosts.start(WHERE, words, environ).join()]
