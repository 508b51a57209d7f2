"""SIGKILL of a worker or of the server in every phase of a round: the run starts again and ends with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervisor import PHASES, at, new_store, supervise, toy_config

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", [2, 0], ids=["worker", "server"])
def test_a_rank_killed_in_any_phase_costs_at_most_a_round(
    phase: str, victim: int, undisturbed: str, tmp_path: Path
) -> None:
    ended = supervise(toy_config(tmp_path), faults=at(phase, victim))
    assert ended.codes[0][victim] == -9 and len(ended.codes) == 2 and ended.code == 0, ended.codes
    assert ended.digest == undisturbed
    log = ended.log(0)
    if phase not in ("init", "preflight"):
        assert "resuming after round 1 " in log
    if victim:
        assert "the process of rank 2 is gone" in log


@pytest.mark.parametrize("where", ["client=b", "rank=0,step=1"], ids=["between clients", "before the server's files"])
def test_a_checkpoint_that_a_kill_leaves_unfinished_does_not_exist(
    where: str, undisturbed: str, tmp_path: Path
) -> None:
    ended = supervise(toy_config(tmp_path), faults=f"kill:phase=checkpoint,round=2,attempt=0,{where}")
    assert ended.codes[0].count(-9) == 1 and ended.code == 0
    assert "resuming after round 1 " in ended.log(0) and ended.digest == undisturbed
    assert not list((tmp_path / "run" / "checkpoints").rglob("*.partial"))


@pytest.mark.parametrize("second", ["restore", "init", "train"])
def test_a_second_kill_while_it_resumes_or_in_the_next_round_changes_nothing(
    second: str, undisturbed: str, tmp_path: Path
) -> None:
    done = {"init": 0}.get(second, 1)
    faults = f"{at('train', 1)};kill:phase={second},rank=2,round={done},attempt=1"
    ended = supervise(toy_config(tmp_path), faults=faults, max_restarts=2)
    assert [codes.count(-9) for codes in ended.codes] == [1, 1, 0]
    assert ended.digest == undisturbed


@pytest.mark.parametrize("victim", [1, 0], ids=["worker", "server"])
def test_when_the_restarts_are_used_up_the_status_says_so(victim: int, tmp_path: Path) -> None:
    ended = supervise(toy_config(tmp_path), faults=f"kill:phase=train,rank={victim},round=1")
    assert [codes[victim] for codes in ended.codes] == [-9, -9]
    assert [codes[2] for codes in ended.codes] == [7, 9]
    assert ended.status["code"] == 9 and "last of 1 restarts" in ended.status["reason"]
    who = "rank 1" if victim else "rank 0 (the server)"
    assert f"the process of {who} is gone, killed or out of memory" in ended.status["reason"]


def test_the_loss_of_a_node_though_no_launcher_has_counted_a_restart(undisturbed: str, tmp_path: Path) -> None:
    """Two nodes of two ranks; the second is lost and replaced, and all start again on the same store, count 0."""
    config, agent, nodes = toy_config(tmp_path), new_store(), {"GROUP_WORLD_SIZE": "2"}
    faults = f"{at('train', 2)};{at('train', 3)}"
    lost = supervise(config, 4, faults=faults, max_restarts=0, agent=agent, environ=nodes)
    assert lost.codes[0][:2] == [7, 7] and -9 in lost.codes[0][2:]
    ended = supervise(config, 4, max_restarts=0, agent=agent, environ=nodes)
    assert ended.codes == [[0, 0, 0, 0]] and ended.digest == undisturbed
    assert "resuming after round 1 " in ended.log(0)


def test_fewer_ranks_go_on_to_the_same_bits(undisturbed: str, tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    supervise(config, 5, faults=at("payload", 3), max_restarts=0)
    ended = supervise(config, 2)
    assert ended.codes == [[0, 0]] and ended.digest == undisturbed
    assert "resuming after round 1 " in ended.log(0)
