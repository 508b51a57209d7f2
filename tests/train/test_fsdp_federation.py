"""A federation of FSDP workers: two of two ranks equal one plain process; losses of ranks, resumes, a step within."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_runner
from ranks import expect_exit, run_ranks, start_ranks
from safetensors.torch import load_file
from torch import nn

pytest.importorskip("deepspeed")

from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.checkpoint.under_way import FOLDER
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import CheckpointConfig, ClientConfig, Config, EngineConfig, EvalConfig, SystemConfig
from fedtorch.core.errors import ConfigError
from fedtorch.setup.build import build
from fedtorch.setup.rules import check_module
from fedtorch.train.engine import Engine
from fedtorch.train.fsdp import FsdpEngine
from fedtorch.train.settings import TrainerConfig
from tests.train.test_deepspeed_federation import GOES_ON, Unlucky, alone, as_rank, statuses, surviving
from tests.train.test_deepspeed_ranks import Outcome, agree, federation, result

pytestmark = pytest.mark.processes
FSDP = EngineConfig(kind="fsdp")


def split(folder: Path, data: Path, sizes: int | tuple[int, ...] = 2, **changes: Any) -> Config:
    system = SystemConfig(ranks_per_worker=sizes)
    return federation(str(folder), str(data), **{"engine": FSDP, "system": system, **changes})


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    ("ranks", "sizes"), [(4, (2, 1)), pytest.param(5, 2, marks=pytest.mark.slow)], ids=["two-and-one", "two-and-two"]
)
def test_workers_of_two_ranks_with_different_steps_equal_one_process(
    ranks: int, sizes: int | tuple[int, ...], tmp_path: Path, tiny_data: Path
) -> None:
    """Clients of 12, 6 and 3 examples beside a server that splits nothing; states are kept from round to round."""
    expected = result(federation(str(tmp_path / "one"), str(tiny_data)))
    agree(run_ranks(as_rank, ranks, split(tmp_path / "many", tiny_data, sizes), timeout=240)[0], expected)


class Counted:
    """Steps that this rank's engine takes, which are counted from here on."""

    def __init__(self, kind: type[Engine]) -> None:
        self.steps, step = 0, kind.step

        def counting(engine: Engine, *args: Any, **kwargs: Any) -> Any:
            self.steps += 1
            return step(engine, *args, **kwargs)

        kind.step = counting  # type: ignore[method-assign]


def exported(config: Config) -> tuple[Outcome, int]:
    counted = Counted(FsdpEngine if config.system.ranks_per_worker != 1 else Engine)
    with DistributedCommunicator.join(tuple(config.task.manifest()), timeout_s=60) as comm:
        runner = make_runner(config, comm)
        latest = runner.components.checkpoints.latest()
        runner.run(None if latest is None else latest.round)
        runner.export(config.folder / "model")
        weights = runner.context.vectors.weights.tolist()
    return (weights, {}), counted.steps


@pytest.mark.timeout(280)
def test_a_run_goes_on_with_another_number_of_ranks_per_worker_and_writes_whole_weights(
    tmp_path: Path, tiny_data: Path
) -> None:
    """Kept optimisers too: after a round on one worker of two ranks, two workers of one rank, then one of three."""
    changes = {"eval": EvalConfig(every=0), "client": ClientConfig(lr=1e-3, batch_size=2, accumulation=6,
               optimizer_state="keep")}  # fmt: skip
    expected = result(federation(str(tmp_path / "one"), str(tiny_data), rounds=3, **changes))
    taken = []
    for rounds, ranks, sizes in ((1, 3, 2), (2, 3, 1), (3, 4, 3)):
        config = split(tmp_path / "many", tiny_data, sizes, rounds=rounds, **changes)
        (found, _), *others = run_ranks(exported, ranks, config, timeout=240)
        taken.append([steps for _, steps in others])
    assert taken[0] == [taken[2][0]] * 2 and sum(taken[1]) == taken[2][0] > 0  # of one round each
    assert torch.allclose(torch.tensor(found[0]), torch.tensor(expected[0]), atol=2e-5)
    written = load_file(config.folder / "model" / "model.safetensors")
    assert sum(tensor.numel() for tensor in written.values()) >= len(found[0])
    assert all(tensor.dtype == torch.float32 for tensor in written.values())


@pytest.mark.timeout(280)
def test_one_rank_has_the_bits_of_the_plain_engine(tmp_path: Path, tiny_data: Path) -> None:
    plain, fsdp = (
        result(federation(str(tmp_path / kind), str(tiny_data), engine=EngineConfig(kind=kind)))
        for kind in ("torch", "fsdp")
    )
    assert plain == fsdp
    offloaded = replace(FSDP, offload_parameters=True)
    agree(result(federation(str(tmp_path / "offloaded"), str(tiny_data), engine=offloaded)), plain)


# --- errors and losses


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_pass_that_fails_on_one_rank_ends_the_run(tmp_path: Path, tiny_data: Path) -> None:
    config = split(tmp_path, tiny_data, eval=EvalConfig(every=0))
    outcomes = expect_exit(statuses, 3, replace(config, task=Unlucky(**vars(config.task))), timeout=240)
    assert all(outcome.error and "still running" not in outcome.error for outcome in outcomes)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_others_go_on_without_a_worker_of_which_a_rank_was_killed(tmp_path: Path, tiny_data: Path) -> None:
    changes: dict[str, Any] = {"clients": GOES_ON, "rounds": 3}
    config = split(tmp_path / "many", tiny_data, **changes)
    environ = {"FEDTORCH_TESTING": "1", "FEDTORCH_FAULTS": "kill:rank=2,round=1,phase=train,step=1"}
    outcomes = start_ranks(surviving, 5, config, environ=environ).join(300)
    assert [outcomes[rank].exit_code for rank in (0, 2, 3, 4)] == [0, -9, 0, 0], [each.error for each in outcomes]
    found, lost = outcomes[0].result
    assert set(lost.values()) == {2} and 0 < len(lost) < 3
    agree(found, alone(federation(str(tmp_path / "one"), str(tiny_data), **changes), lost))


def digest_and_steps(config: Config) -> tuple[str, int]:
    counted = Counted(FsdpEngine)
    with DistributedCommunicator.join(tuple(config.task.manifest()), timeout_s=60) as comm:
        return make_runner(config, comm).run().digest, counted.steps


@pytest.mark.timeout(280)
def test_a_worker_that_was_killed_goes_on_within_a_round_and_repeats_its_bits(tmp_path: Path, tiny_data: Path) -> None:
    def config_of(name: str) -> Config:
        engine, saving = replace(FSDP, precision="bf16"), CheckpointConfig(every_steps=1)
        return split(tmp_path / name, tiny_data, engine=engine, rounds=1, checkpoint=saving)

    whole = run_ranks(digest_and_steps, 3, config_of("whole"), timeout=240)
    config = config_of("killed")
    environ = {"FEDTORCH_TESTING": "1", "FEDTORCH_FAULTS": "kill:rank=2,phase=train,client=north,step=3"}
    assert start_ranks(digest_and_steps, 3, config, environ=environ).join(240)[2].exit_code == -9
    kept = [path.name for path in (config.folder / FOLDER).iterdir()]
    assert sum("-part0-" in name for name in kept) == sum("-part1-" in name for name in kept) > 0
    again = run_ranks(digest_and_steps, 3, config, timeout=240)
    assert again[0][0] == whole[0][0] and again[1] == again[2]
    assert again[1][1] == whole[1][1] - 2  # of the killed client two steps were saved


# --- what is refused, before any group is made

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"algorithm": Scaffold(option="I"), "client": ClientConfig(optimizer="sgd")}, "engine.kind is fsdp but algorithm"),
    (
        {"client": ClientConfig(optimizer="muon", accumulation=2)},
        "muon, which needs whole matrices, but engine.kind is fsdp",
    ),
    ({"client": ClientConfig(accumulation=3)}, "multiple of 2"),
    (
        {"client": ClientConfig(trainer=TrainerConfig("transformers"), steps=1), "system": SystemConfig()},
        "engine.kind is fsdp",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_fsdp_cannot_do_is_refused(changes: dict[str, Any], message: str, tmp_path: Path, tiny_data: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        build(split(tmp_path, tiny_data, **changes), num_ranks=3, rank=0)


def test_clients_may_have_optimisers_of_several_kinds(tmp_path: Path, tiny_data: Path) -> None:
    """Where DeepSpeed has one for all clients."""
    build(split(tmp_path, tiny_data, per_client={"north": {"optimizer": "sgd"}}), num_ranks=3, rank=0)


class Scalar(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones((), **options))


@pytest.mark.parametrize(
    ("module", "message"),
    [(Scalar(), "`temperature` is a single number"), (nn.Linear(2, 2).bfloat16(), "`weight` is not fp32")],
)
def test_parameters_that_cannot_be_shared_out_are_refused(
    module: nn.Module, message: str, tmp_path: Path, tiny_data: Path
) -> None:
    config = split(tmp_path, tiny_data)
    with pytest.raises(ConfigError, match=message):
        check_module(config, module)
    check_module(config, module.requires_grad_(False))


CONTRADICTIONS = [
    ({"stage": 2}, "engine.stage is 2 but engine.kind is fsdp"),
    ({"offload_optimizer": True}, "engine.offload_optimizer is true but engine.kind is fsdp"),
]


@pytest.mark.parametrize(("keys", "message"), CONTRADICTIONS, ids=[message for _, message in CONTRADICTIONS])
def test_keys_of_deepspeed_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(kind="fsdp", **keys)
