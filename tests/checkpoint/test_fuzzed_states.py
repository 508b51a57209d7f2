"""Files of checkpoints changed at random and resealed: the run goes on, or is refused with 8."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing import ODD, cases, only_named_errors, spoilt
from harness import make_runner
from hypothesis import given
from hypothesis import strategies as st
from resealed import RUNS, Change, Content, change_file, config_of, of_client, reseal

from fedtorch.core.errors import CheckpointError, QuorumError
from fedtorch.rounds.checkpointing import restore

DTYPES = [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.bool, torch.uint8]


@pytest.fixture(autouse=True)
def _no_disk_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a case's time; nothing here is about what a crash of the machine leaves."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


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


def go_on(kind: str, folder: Path) -> None:
    """One round from the newest checkpoint there."""
    runner = make_runner(config_of(kind, folder))
    found = runner.components.checkpoints.latest()
    assert found is not None
    runner._share_initial_weights()
    restore(runner.context, found.round)
    runner._one_round()


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
        go_on(kind, folder / kind)


def numbers(**changes: Any) -> Change:
    return lambda content: content.state["numbers"].update(changes)


def tensor(name: str, made: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda content: content.tensors.update({name: made(content.tensors[name])})


CORPUS: dict[str, tuple[str, bool, Change]] = {
    "moments that are not finite ended with 6 a round later": (
        "ditto", True, tensor("first_moment", lambda t: torch.full_like(t, math.nan)),
    ),
    "negative squares ended with 6 a round later": ("scaffold", True, tensor("second_moment", lambda t: t - 1e9)),
    "FedDyn's momentum was 0 again": ("feddyn", True, lambda content: content.tensors.pop("momentum")),
    "FedDyn's mean of gradients was 0 again": ("feddyn", True, lambda content: content.tensors.pop("mean_gradient")),
    "FedDyn's gradient of a client was 0 again": ("feddyn", False, lambda content: content.tensors.pop("gradient")),
    "SCAFFOLD's control of a client was 0 again": ("scaffold", False, lambda content: content.tensors.pop("control")),
    "a personal model began anew": ("ditto", False, lambda content: content.tensors.pop("personal")),
    "private weights began anew": ("scaffold", False, lambda content: content.tensors.pop("private")),
    "what top-k left out was forgotten": ("topk", False, lambda content: content.tensors.pop("residual")),
    "the last message was a KeyError": ("returned", False, lambda content: content.tensors.pop("sent")),
    "trained weights were a KeyError": ("trained", False, lambda content: content.tensors.pop("trained")),
    "a place in the data that is infinite": ("ditto", False, numbers(**{"train/cursor": math.inf})),
    "a count that is true was no number on the wire": ("local", True, numbers(evaluated=True)),
    "a best round that is a list of true": ("ditto", True, numbers(best_round=[True])),
    "a score that is no number": ("ditto", True, numbers(best_score="x" * 10**5)),
    "numbers that are a list": ("fedavg", True, lambda content: content.state.update(numbers=[])),
    "clients that are an object": ("fedavg", True, lambda content: content.state.update(num_clients={})),
    "a model without a number": ("fedavg", True, tensor("weights", lambda t: t[:0].clone())),
    "weights of another type": ("local", False, tensor("personal", lambda t: t.to(torch.int64))),
}  # fmt: skip
"""What it once broke, or may break -> kind of run, is it the server's state, and the change."""


@pytest.mark.long
@pytest.mark.parametrize("what", CORPUS)
def test_what_was_found_in_states_is_refused(what: str, whole: dict[str, Path], tmp_path: Path) -> None:
    kind, is_servers, change_it = CORPUS[what]
    shutil.copytree(whole[kind], tmp_path / kind)
    root = tmp_path / kind / "checkpoints"
    change_file(root / "round_000002" / "server.safetensors" if is_servers else of_client(root, "a"), change_it)
    reseal(root)
    with pytest.raises(CheckpointError) as caught:
        go_on(kind, tmp_path / kind)
    assert caught.value.exit_code == 8 and str(root) in str(caught.value) and len(str(caught.value)) < 900


@pytest.mark.long
@cases(30)
@given(data=st.data())
def test_a_resealed_state_is_gone_on_from_or_refused(data: Any, whole: dict[str, Path], tmp_path: Path) -> None:
    try_states(data.draw, whole, tmp_path)


@cases(10_000)
@given(data=st.data())
def test_ten_thousand_resealed_states_are_gone_on_from_or_refused(
    data: Any, whole: dict[str, Path], tmp_path: Path
) -> None:
    try_states(data.draw, whole, tmp_path)
