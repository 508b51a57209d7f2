"""A small torchrun for tests: ranks from the fork server, ended and started again when one of them fails."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch.distributed as dist
from ranks import Ranks, start_ranks

from fedtorch.main import main

TOY = """
run: {name: toy, dir: DIR}
rounds: 3
task:
  name: "toy:Quadratic"
  clients: {a: [1.0, 1.0, 6], b: [2.0, -1.0, 9], c: [0.5, 3.0, 5], d: [1.5, 0.2, 7]}
  start: [0.3, -0.7, 1.1]
  noise: 0.5
  dropout: 0.2
  double: false
algorithm: {name: fedavg}
server: {optimizer: adam, lr: 0.1}
clients: {per_round: 3}
client: {optimizer: adamw, lr: 0.1, batch_size: 4, optimizer_state: keep}
checkpoint: {every: 1}
track: {progress: "off", tensorboard: false}
"""
"""Ranks 1 and 2 of three train two clients each; every round trains, evaluates and saves clients on both of them."""

PHASES = ("init", "preflight", "broadcast", "train", "header", "payload", "aggregate", "evaluate", "checkpoint")


def at(phase: str, rank: int, kind: str = "kill", attempt: int = 0) -> str:
    """The fault in the second round's `phase`; what follows training comes when the round is counted already."""
    done = {"init": 0, "preflight": 0, "broadcast": 2, "evaluate": 2, "checkpoint": 2}.get(phase, 1)
    return f"{kind}:phase={phase},rank={rank},round={done},attempt={attempt}"


@dataclass
class Ended:
    """How a job ended. codes: of every attempt's ranks. recovery_s: from a rank's end to the next attempt's start."""

    folder: Path
    codes: list[list[int | None]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def code(self) -> int | None:
        """The first code that is not 0 of the last attempt."""
        return next((code for code in self.codes[-1] if code), 0)

    @property
    def digest(self) -> str:
        """Of the final state."""
        found: str = json.loads((self.folder / "results.json").read_text())["digest"]
        return found

    @property
    def status(self) -> dict[str, Any]:
        """status.json."""
        found: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        return found

    def log(self, rank: int) -> str:
        """What this rank has logged in all attempts."""
        return (self.folder / f"log.rank{rank}.txt").read_text()


def toy_config(folder: Path, **changes: str) -> Path:
    """A config file for a run in `folder`/run; changes: top-level sections to replace, as YAML."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = TOY.replace("DIR", str(folder / "run"))
    for section, text in changes.items():
        kept = [line for line in lines.splitlines() if not line.startswith(f"{section}:")]
        lines = "\n".join([*kept, f"{section}: {text}"])
    path = folder / "toy.yaml"
    path.write_text(lines + "\n")
    return path


def digest_alone(config: Path, *sets: str) -> str:
    """Digest of a run in one process that nobody disturbs. sets: changes of keys."""
    assert main(["--config", str(config), *(["--set", *sets] if sets else [])]) == 0
    return Ended(config.parent / "run").digest


def supervise(
    config: Path,
    size: int = 3,
    *,
    faults: str = "",
    max_restarts: int = 1,
    sets: Sequence[str] = ("system.timeout=20",),
    environ: dict[str, str] | None = None,
    grace_s: float = 25.0,
    timeout: float = 90.0,
    stuck: Sequence[int] = (),
    agent: dist.TCPStore | None = None,
) -> Ended:
    """Run a config on `size` ranks as torchrun does: the first rank to fail ends all, then all are started again.

    agent: the launcher's store, where an earlier job has left its keys; by default a new one.
    stuck: ranks that cannot end by themselves; killed as soon as the others have ended.
    A stopped rank fails nobody until the others end. Code 75 is started again too, as torchrun would.
    """
    agent = agent or new_store()
    ended, give_up_at = Ended(config.parent / "run"), time.monotonic() + timeout
    for attempt in range(max_restarts + 1):
        variables = {
            "MASTER_PORT": str(agent.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
            "FEDTORCH_JOB_SECRET": "known to all ranks of the test",
            "FEDTORCH_TESTING": "1",
            "FEDTORCH_FAULTS": faults,
        }
        started = time.monotonic()
        words = ["--config", str(config), "--set", *sets]
        ranks = start_ranks(as_rank, size, words, environ={**variables, **(environ or {})})
        ended.codes.append(_end_together(ranks, grace_s, give_up_at, stuck))
        ended.seconds.append(time.monotonic() - started)
        if not any(ended.codes[-1]):
            break
    return ended


def new_store() -> dist.TCPStore:
    """A store such as torchrun's agent hosts."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def _end_together(ranks: Ranks, grace_s: float, give_up_at: float, stuck: Sequence[int]) -> list[int | None]:
    """The exit codes, once all have ended; when one fails, the others get SIGTERM and, after `grace_s`, SIGKILL."""
    living = {process.sentinel: process for process in ranks.processes}
    hopeless = [ranks.processes[rank] for rank in stuck]
    kill_at = give_up_at
    is_ending = False
    while living:
        for sentinel in wait(list(living), timeout=max(0.0, kill_at - time.monotonic())):
            process = living.pop(sentinel)  # type: ignore[call-overload]
            process.join()
            if process.exitcode and not is_ending:
                is_ending, kill_at = True, time.monotonic() + grace_s
                for other in living.values():
                    _send(other.pid, signal.SIGTERM)
        if all(process in hopeless for process in living.values()):
            kill_at = time.monotonic()
        if time.monotonic() >= kill_at:
            for process in living.values():
                process.kill()
            kill_at += 5
    for pipe in ranks.pipes:
        pipe.close()
    return [process.exitcode for process in ranks.processes]


def _send(pid: int | None, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid or 0, number)


def as_rank(words: list[str]) -> None:
    """What each rank runs."""
    from fedtorch.main import main

    if code := main(words):
        sys.exit(code)
