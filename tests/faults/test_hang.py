"""A rank that hangs is named by all others within the deadline and five seconds, with what it was doing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from supervisor import PHASES, Ended, at, supervise, toy_config

pytestmark = pytest.mark.processes

TIMEOUT_S = 6
CASES = [("payload", 1)]
OTHERS = [(phase, victim) for phase in PHASES for victim in (0, 1, 2) if (phase, victim) not in CASES]


def hang(folder: Path, faults: str, victim: int) -> Ended:
    sets = (f"system.timeout={TIMEOUT_S}",)
    return supervise(toy_config(folder), faults=faults, sets=sets, max_restarts=0, grace_s=10, stuck=(victim,))


def diagnoses(ended: Ended, victim: int) -> list[re.Match[str]]:
    """What each of the others said of the culprit; each must name it and nobody else."""
    found = []
    for rank in {0, 1, 2} - {victim}:
        assert ended.codes[0][rank] == 7, ended.codes
        log = ended.log(rank)
        error = [line for line in log.splitlines() if line.startswith("fedtorch.core.errors.DeadlineError: ")]
        assert len(error) == 1, log
        assert re.findall(r"rank (\d)[^;:]* gave no sign of life for", error[0]) == [str(victim)]
        match = re.search(r"for (\d+) s", error[0])
        assert match and int(match[1]) <= TIMEOUT_S + 5
        found.append(match)
    return found


@pytest.mark.parametrize(
    ("phase", "victim"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)]
)
def test_a_stopped_rank_is_named_by_all_others(phase: str, victim: int, tmp_path: Path) -> None:
    ended = hang(tmp_path, at(phase, victim, "stop"), victim)
    assert len(diagnoses(ended, victim)) == 2
    assert "its process is stopped" in ended.log(0 if victim else 1)


def test_a_dead_loop_is_named_with_client_and_phase_and_its_stack_is_in_its_log(tmp_path: Path) -> None:
    ended = hang(tmp_path, "hang:phase=train,rank=1,round=1,step=2", 1)
    assert len(diagnoses(ended, 1)) == 2
    assert re.search(r"rank 1 gave no sign of life for \d+ s: client `\w`, round 1, phase train, step \d", ended.log(0))
    stack = ended.log(1)
    assert "Timeout (0:00:05" in stack and re.search(r'faults.py", line \d+ in _happen', stack)
