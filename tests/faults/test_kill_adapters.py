"""SIGKILL where the server's stack is on its way or on disk: the run ends with the same bits, the base's too."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervisor import PHASES, at, digest_alone, supervise

CONFIG = """
run: {name: toy, dir: DIR}
rounds: 3
task: {name: "factors:Regression", clients: {a: [1.0, 1.0, 6], b: [2.0, -1.0, 9], c: [0.5, 3.0, 5]}}
algorithm: {name: flora, ranks: {b: 1}, added_rank: 3}
client: {optimizer: adamw, lr: 0.1, batch_size: 4, optimizer_state: keep}
checkpoint: {every: 1}
track: {progress: "off", tensorboard: false}
"""
"""Five ranks join the base in a round, which is cut to three after the second."""

BEFORE_ROUNDS = ("init", "preflight")
QUICK = [("broadcast", 2), ("broadcast", 0), ("checkpoint", 0)]


def config_of(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy.yaml").write_text(CONFIG.replace("DIR", str(folder / "run")))
    return folder / "toy.yaml"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    return digest_alone(config_of(tmp_path_factory.mktemp("alone")))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("phase", "victim"),
    [
        pytest.param(phase, victim, marks=() if (phase, victim) in QUICK else pytest.mark.slow)
        for phase in PHASES
        if phase not in BEFORE_ROUNDS
        for victim in (2, 0)
    ],
)
def test_a_kill_in_any_phase_leaves_base_and_factors_as_they_would_be(
    phase: str, victim: int, alone: str, tmp_path: Path
) -> None:
    ended = supervise(config_of(tmp_path), faults=at(phase, victim))
    assert ended.codes[0][victim] == -9 and len(ended.codes) == 2 and ended.code == 0, ended.codes
    assert ended.digest == alone and "resuming after round" in ended.log(0)
