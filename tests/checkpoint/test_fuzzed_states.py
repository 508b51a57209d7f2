"""Files of checkpoints changed at random and resealed: the run goes on, or is refused with 8."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing import ODD, cases, only_named_errors, spoilt
from harness import make_runner
from hypothesis import given
from hypothesis import strategies as st
from resealed import RUNS, Content, change_file, config_of, of_client, reseal

from fedtorch.core.errors import QuorumError
from fedtorch.rounds.checkpointing import restore

DTYPES = [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.bool, torch.uint8]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind of run -> its folder, with the checkpoint of the second round."""
    made = {}
    for kind in RUNS:
        made[kind] = tmp_path_factory.mktemp(kind)
        make_runner(config_of(kind, made[kind])).run()
        shutil.rmtree(made[kind] / "checkpoints" / "round_000003")
        shutil.rmtree(made[kind] / "checkpoints" / "round_000001")
    return made


def change(draw: st.DrawFn, content: Content) -> None:
    """One tensor replaced, removed, renamed, added, cut or cast; or the numbers and marks beside them."""
    names = sorted(content.tensors)
    kind = draw(st.sampled_from(["dtype", "shape", "remove", "rename", "add", "values", "numbers", "numbers"]))
    if kind == "numbers" or not names:
        content.state = spoilt(draw, content.state) if draw(st.integers(0, 3)) else content.state
        if not isinstance(content.state, dict):
            content.state = {"numbers": draw(ODD)}
        return
    name = draw(st.sampled_from(names))
    tensor = content.tensors[name]
    if kind == "dtype":
        content.tensors[name] = tensor.to(draw(st.sampled_from(DTYPES)))
    elif kind == "shape":
        shapes = [torch.zeros(0), torch.zeros(()), torch.zeros(7), tensor.flatten()[:1].clone(), tensor.reshape(1, -1)]
        content.tensors[name] = draw(st.sampled_from(shapes)).contiguous().clone()
    elif kind == "remove":
        del content.tensors[name]
    elif kind == "rename":
        content.tensors[draw(st.sampled_from([*names, "x", "train/optimizer/x/step", "momentum", "best"]))] = (
            content.tensors.pop(name)
        )
    elif kind == "add":
        content.tensors[draw(st.sampled_from(["x", "server/x", "train/optimizer/w/x", "best"]))] = torch.ones(2)
    else:
        value = draw(st.sampled_from([float("nan"), float("inf"), -1.0, 0.0]))
        content.tensors[name] = torch.full_like(
            tensor, value if tensor.is_floating_point() else draw(st.integers(0, 1))
        )


def try_states(draw: st.DrawFn, whole: dict[str, Path], folder: Path) -> None:
    kind = draw(st.sampled_from(sorted(RUNS)))
    root = folder / kind / "checkpoints"
    shutil.rmtree(folder / kind, ignore_errors=True)
    shutil.copytree(whole[kind], folder / kind)
    files = [root / "round_000002" / "server.safetensors"]
    files += [of_client(root, client) for client in "ab" if list((root / "clients").glob(f"{client}-*-r000002*"))]
    path = draw(st.sampled_from(files))
    for _ in range(draw(st.integers(1, 2))):
        change_file(path, lambda content: change(draw, content))
    reseal(root)
    with only_named_errors(), suppress(QuorumError):  # clients that have diverged fail, as they would without a restart
        runner = make_runner(config_of(kind, folder / kind))
        found = runner.components.checkpoints.latest()
        assert found is not None
        runner._share_initial_weights()
        restore(runner.context, found.round)
        runner._one_round()


@cases(50)
@given(data=st.data())
def test_a_resealed_state_is_gone_on_from_or_refused(data: Any, whole: dict[str, Path], tmp_path: Path) -> None:
    try_states(data.draw, whole, tmp_path)


@cases(10_000)
@given(data=st.data())
def test_ten_thousand_resealed_states_are_gone_on_from_or_refused(
    data: Any, whole: dict[str, Path], tmp_path: Path
) -> None:
    try_states(data.draw, whole, tmp_path)
