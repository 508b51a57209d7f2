"""FewFedWeight with a real encoder-decoder: the same bits on two and three ranks, and when resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from ranks import run_ranks

from fedtorch.algorithms.fewfedweight import FewFedWeight
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import CheckpointConfig, ClientConfig
from fedtorch.core.errors import Interrupted
from fedtorch.data.synthetic.gym import prepare
from fedtorch.models.encoder_decoder import EncoderDecoder
from fedtorch.tasks.fewshot import FewShotTasks

pytestmark = pytest.mark.long

MODEL = EncoderDecoder(d_model=16, d_ff=32, num_heads=2, num_layers=1, max_positions=64, dropout=0.1)
CLIENT = ClientConfig(optimizer="adamw", lr=0.01, batch_size=4, optimizer_state="keep")


@pytest.fixture(scope="module")
def gym(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("gym") / "data"
    prepare(folder)
    return str(folder)


def config_of(gym: str, folder: str) -> Any:
    task = FewShotTasks(data=gym, model=MODEL, output_max_length=6, max_train=4, max_test=3)
    settings = {"client": CLIENT, "rounds": 3, "checkpoint": CheckpointConfig(every=1)}
    return make_config(Path(folder), task, FewFedWeight(), **settings)


def run_one(gym: str, folder: str, comm: Communicator | None = None) -> tuple[str, Any]:
    result = make_runner(config_of(gym, folder), comm).run()
    return result.digest, result.scores


def run_rank(gym: str, folder: str) -> tuple[str, Any]:
    with DistributedCommunicator.join(tuple(f"client{i}" for i in range(1, 5)), timeout_s=60) as comm:
        return run_one(gym, folder, comm)


@pytest.fixture(scope="module")
def alone(gym: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    return run_one(gym, str(tmp_path_factory.mktemp("alone")))


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 3])
def test_any_number_of_ranks_gives_the_bits_of_one_process(size: int, gym: str, alone: Any, tmp_path: Path) -> None:
    server, *_ = run_ranks(run_rank, size, gym, str(tmp_path))
    assert server == alone


def test_resumed_in_the_middle_gives_the_same_bits(gym: str, alone: Any, tmp_path: Path) -> None:
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > 50

    with pytest.raises(Interrupted):
        make_runner(config_of(gym, str(tmp_path)), stop=stop).run()
    runner = make_runner(config_of(gym, str(tmp_path)))
    found = runner.components.checkpoints.latest()
    assert found is not None and 0 < found.round < 3
    result = runner.run(found.round)
    assert (result.digest, result.scores) == alone


def test_labels_made_anew_are_identical(gym: str) -> None:
    task = FewShotTasks(data=gym, model=MODEL, output_max_length=6)
    rows = task.load("client2", "train")
    made = [task.label(task.build_model(seed).eval(), rows, batch_size=16, top_k=7) for seed in (0, 0, 1)]
    assert repr(made[0]) == repr(made[1]) != repr(made[2])
    assert torch.tensor([len(row.tokens) for row in made[0]]).max() <= 6
