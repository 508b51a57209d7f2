"""Workers killed in all four rounds of a secure sum, under our own launcher: the others have the plain sum's bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from supervisor import Ended, toy_config

from fedtorch.comm.sums.masked import PHASES
from fedtorch.main import main

pytest.importorskip("cryptography")

ROOT = Path(__file__).parents[2]
RANKS = 6
PLAIN = ["privacy.clip=0.5", "system.sum_scale=public"]
SETS = ["algorithm={name: fedavg, weights: equal}", "clients.per_round=all", "client.optimizer_state=reset",
        "clients.on_loss=continue", "eval.every=0", "rounds=4"]  # fmt: skip
NAMES = "abcdefgh"
PATTERNS = {
    **{f"one in {phase}": {2: (phase, 1)} for phase in PHASES},
    "two in one round, before and after the parts": {1: (PHASES[1], 1), 3: (PHASES[3], 1)},
    "two in rounds that follow each other": {4: (PHASES[0], 1), 5: (PHASES[2], 2)},
    "two together": {2: (PHASES[2], 2), 3: (PHASES[2], 2)},
    "two of the last step": {1: (PHASES[3], 2), 5: (PHASES[3], 2)},
}
"""What it is -> rank -> (step, rounds done) in which it dies; three of five workers are left, as it takes."""


def config(folder: Path) -> Path:
    clients = ", ".join(f"{name}: [{0.5 + i / 4}, {i - 3.0}, {5 + i}]" for i, name in enumerate(NAMES))
    task = f'{{name: "toy:Quadratic", clients: {{{clients}}}, start: [0.3, -0.7, 1.1], noise: 0.5, double: false}}'
    path = toy_config(folder)
    head, _, rest = path.read_text().partition("task:\n")
    path.write_text(f"{head}task: {task}\n{rest[rest.index('algorithm:') :]}")
    return path


def launched(path: Path, faults: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}", "FEDTORCH_TESTING": "1"}
    environ["FEDTORCH_FAULTS"] = faults
    secure = "privacy={clip: 0.5, secure_sum: {threshold: 0.6}}"
    words = ["--config", str(path), "--ranks", str(RANKS), "--set", "system.timeout=60", *SETS, secure]
    command = [sys.executable, "-m", "launchers.local", *words]
    return subprocess.run(command, env=environ, cwd=path.parent, capture_output=True, text=True, timeout=380)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_others_go_on_to_the_bits_of_the_plain_sum(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one process, in which the clients of a dead worker fail: where its part had arrived from the next round on."""
    victims = PATTERNS[pattern]
    kills = (f"kill:phase={phase},rank={rank},round={done}" for rank, (phase, done) in victims.items())
    path = config(tmp_path)
    done = launched(path, ";".join(kills))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "restart 1" not in done.stderr
    run, fails = tmp_path / "run", list[str]()
    opened = [json.loads(line) for line in (run / "privacy" / "openings.jsonl").read_text().splitlines()]
    assert [line["round"] for line in opened] == [0, 1, 2, 3]  # each sum once
    counted = {name: sum(name in line["clients"] for line in opened) for name in NAMES}
    lost = {name for name, rounds in counted.items() if rounds < 4}
    assert set(json.loads((run / "results.json").read_text())["lost"]) == lost
    # a part that had arrived is in its round's sum; a worker hosts one or two of the eight clients
    expected = [round + (phase == PHASES[3]) for phase, round in victims.values()]
    assert {counted[name] for name in lost} == {*expected} and len(victims) <= len(lost) <= 2 * len(victims)
    for name, rounds in counted.items():
        fails += [f"raise:client={name},round={number}" for number in range(rounds, 4)]
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    monkeypatch.setenv("FEDTORCH_FAULTS", ";".join(fails))
    assert main(["--config", str(path), "--set", *SETS, *PLAIN, f"run.dir={tmp_path / 'alone'}"]) == 0
    assert Ended(run).digest == Ended(tmp_path / "alone").digest
