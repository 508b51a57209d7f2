"""A kill within a round repeats at most n steps of the client under way, and no other client's; the same bits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from supervisor import Ended, digest_alone, supervise, toy_config

from fedtorch.checkpoint.under_way import FOLDER
from fedtorch.main import main

CLIENT = "{optimizer: adamw, lr: 0.1, batch_size: 4, optimizer_state: keep, steps: 12, schedule: cosine}"
FEDA = Path(__file__).parents[2] / "configs" / "smoke" / "feda.yaml"
EVERY = 4
CHECKPOINT = f"{{every_steps: {EVERY}}}"


def config_of(folder: Path, **changes: str) -> Path:
    return toy_config(folder, **{"client": CLIENT, "checkpoint": CHECKPOINT, **changes})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of a run that saves nothing inside a round, in one process."""
    return digest_alone(config_of(tmp_path_factory.mktemp("whole"), checkpoint="{}"))


def gone_on(ended: Ended) -> dict[str, int]:
    """Client -> the step that it went on after."""
    logs = "".join(path.read_text() for path in sorted(ended.folder.glob("log.rank*.txt")))
    return {name: int(step) for name, step in re.findall(r"client (\w+) goes on after step (\d+) of round", logs)}


def killed(step: int, client: str = "b", phase: str = "train", round: int = 1) -> str:
    return f"kill:phase={phase},client={client},step={step},round={round},attempt=0"


def test_saves_change_no_bit_and_leave_nothing_behind(whole: str, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert main(["--config", str(config)]) == 0
    assert Ended(tmp_path / "run").digest == whole and not (tmp_path / "run" / FOLDER).exists()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("step", "phase"),
    [(1, "train"), (EVERY, "train"), (EVERY + 1, "train"), (11, "train"), (12, "train"), (2 * EVERY, "save")],
)
def test_at_most_n_steps_are_repeated(step: int, phase: str, whole: str, tmp_path: Path) -> None:
    ended = supervise(config_of(tmp_path), faults=killed(step, phase=phase))
    assert ended.code == 0 and ended.digest == whole
    after = gone_on(ended)
    assert 0 < step - after.get("b", 0) <= EVERY and after.get("b", 0) % EVERY == 0
    assert not (tmp_path / "run" / FOLDER).exists()


@pytest.mark.processes
def test_in_the_first_round_too_and_on_other_ranks(whole: str, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    supervise(config, 3, faults=killed(10, round=0), max_restarts=0)
    ended = supervise(config, 2)
    assert ended.code == 0 and ended.digest == whole and gone_on(ended)["b"] == 8


@pytest.mark.processes
def test_a_signal_loses_no_step(whole: str, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    stopped = supervise(config, faults=killed(7).replace("kill", "term"), max_restarts=0)
    assert 75 in stopped.codes[0]
    ended = supervise(config)
    assert ended.code == 0 and ended.digest == whole and 7 <= gone_on(ended)["b"] <= 12  # as soon as it is noticed


@pytest.mark.processes
def test_a_run_that_is_begun_anew_takes_nothing_up(whole: str, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    supervise(config, faults=killed(10, round=0), max_restarts=0)
    assert list((tmp_path / "run" / FOLDER).iterdir())
    assert main(["--config", str(config), "--resume", "never"]) == 0
    ended = Ended(tmp_path / "run")
    assert ended.digest == whole and not gone_on(ended)


@pytest.mark.processes
def test_two_ranks_that_hold_unlike_parts_of_a_model(tmp_path: Path) -> None:
    settings = ["rounds=1", "client.steps=4", "algorithm.payload=delta", "system.ranks_per_worker=2"]
    configs = {}
    for name in ("plain", "killed"):
        (tmp_path / name).mkdir()
        configs[name] = tmp_path / name / "pair.yaml"
        configs[name].write_text(f"base: [{FEDA}]\nrun: {{name: pair, dir: {tmp_path / name / 'run'}}}\n")
    whole = supervise(configs["plain"], sets=settings)
    saving = [*settings, "checkpoint.every_steps=1"]
    ended = supervise(configs["killed"], faults="kill:phase=train,rank=2,step=3,attempt=0", sets=saving)
    assert ended.code == 0 and ended.digest == whole.digest
    assert [ended.log(rank).count("goes on after step 2 of round 1") for rank in (1, 2)] == [1, 1]
