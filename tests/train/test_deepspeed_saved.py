"""A worker of two DeepSpeed ranks is killed within a round, and goes on with the bits of one that was not."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import make_runner
from ranks import run_ranks, start_ranks

from tests.train.test_deepspeed_ranks import federation

pytest.importorskip("deepspeed")

from fedtorch.checkpoint.under_way import FOLDER
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import CheckpointConfig, Config, EngineConfig, SystemConfig
from fedtorch.train.deepspeed import DeepSpeedEngine


def counted(config: Config) -> tuple[str, int]:
    """The digest, and the steps that this rank took."""
    taken, step = 0, DeepSpeedEngine.step

    def counting(self: DeepSpeedEngine, *args: object, **kwargs: object) -> object:
        nonlocal taken
        taken += 1
        return step(self, *args, **kwargs)  # type: ignore[arg-type]

    DeepSpeedEngine.step = counting  # type: ignore[assignment, method-assign]
    with DistributedCommunicator.join(tuple(config.task.manifest()), timeout_s=60) as comm:
        return make_runner(config, comm).run().digest, taken


@pytest.mark.processes
@pytest.mark.timeout(280)
@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_worker_of_two_ranks_goes_on_within_a_round(stage: int, tmp_path: Path, tiny_data: Path) -> None:
    engine = EngineConfig(kind="deepspeed", stage=stage, precision="bf16")
    system = SystemConfig(ranks_per_worker=2)

    def config_of(name: str) -> Config:
        saving = CheckpointConfig(every_steps=1)
        folder, data = str(tmp_path / name), str(tiny_data)
        return federation(folder, data, engine=engine, system=system, rounds=1, checkpoint=saving)

    whole = run_ranks(counted, 3, config_of("whole"), timeout=240)
    config = config_of("killed")
    environ = {"FEDTORCH_TESTING": "1", "FEDTORCH_FAULTS": "kill:rank=2,phase=train,client=north,step=3"}
    assert start_ranks(counted, 3, config, environ=environ).join(240)[2].exit_code == -9
    kept = sorted(path.name for path in (config.folder / FOLDER).iterdir())
    sizes = {name: (config.folder / FOLDER / name).stat().st_size for name in kept}
    lead, other = ([size for name, size in sizes.items() if f"-part{part}-" in name] for part in (0, 1))
    assert len(lead) == len(other) > 0 and max(other) < min(lead)  # of what both have only one rank writes
    again = run_ranks(counted, 3, config, timeout=240)
    assert again[0][0] == whole[0][0] and again[1] == again[2]
    assert again[1][1] == whole[1][1] - 2  # of the killed client two steps were saved
