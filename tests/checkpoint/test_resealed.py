"""Checkpoints that somebody changed and gave the digests that go with it: refused with 8, or the same result."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_runner
from resealed import RUNS, Change, Content, change_file, config_of, of_client, reseal
from xxhash import xxh3_64_hexdigest

from fedtorch.checkpoint.files import to_json
from fedtorch.core.errors import CheckpointError


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """Kind -> a folder with the checkpoints of rounds 1 and 2, and the digest at the end."""
    made = {}
    for kind in RUNS:
        folder = tmp_path_factory.mktemp(kind)
        digest = make_runner(config_of(kind, folder)).run().digest
        shutil.rmtree(folder / "checkpoints" / "round_000003")
        made[kind] = (folder, digest)
    return made


def outcome(kind: str, folder: Path) -> str:
    """The digest of a run that goes on from the newest checkpoint there."""
    runner = make_runner(config_of(kind, folder))
    found = runner.components.checkpoints.latest()
    assert found is not None and found.round == 2
    return runner.run(2).digest


def recast(name: str, dtype: torch.dtype) -> Change:
    return lambda c: c.tensors.update({name: c.tensors[name].to(dtype)})


def longer(name: str) -> Change:
    return lambda c: c.tensors.update({name: torch.cat([c.tensors[name].flatten(), torch.zeros(1)])})


def turned(name: str) -> Change:
    return lambda c: c.tensors.update({name: c.tensors[name].view(1, -1)})


def without(name: str) -> Change:
    return lambda c: c.tensors.pop(name)


def number(name: str, value: Any) -> Change:
    def change(content: Content) -> None:
        assert name in content.state["numbers"], sorted(content.state["numbers"])
        content.state["numbers"][name] = value

    return change


def key(name: str, value: Any) -> Change:
    return lambda c: c.state.update({name: value})


def filled(name: str, value: float) -> Change:
    return lambda c: c.tensors[name].fill_(value)


def unnumbered(name: str) -> Change:
    return lambda c: c.state["numbers"].pop(name)


def without_optimizer(purpose: str) -> Change:
    def change(content: Content) -> None:
        names = [name for name in content.tensors if name.startswith(f"{purpose}/optimizer/")]
        assert names
        for name in names:
            del content.tensors[name]

    return change


ADAM = "train/optimizer/w/exp_avg"
ODD: list[Any] = ["1", None, [], {}, -1, 0.5, float("nan"), float("inf"), 10**30]
SERVER: dict[str, tuple[str, Change]] = {
    **{f"{n} {d}": ("ditto", recast(n, d)) for n in ("weights", "best", "first_moment", "second_moment")
       for d in (torch.float16, torch.float64, torch.int32)},
    **{f"{n} longer": ("ditto", longer(n)) for n in ("weights", "best", "first_moment", "second_moment")},
    **{f"{n} turned": ("ditto", turned(n)) for n in ("weights", "best", "first_moment")},
    **{f"no {n}": ("ditto", without(n)) for n in ("weights", "best", "first_moment", "second_moment")},
    **{f"{n} {v!r:.9}": ("ditto", number(n, v)) for n in ("server_steps", "best_round", "evaluated") for v in ODD},
    "best_round of later": ("ditto", number("best_round", 3)),
    "a score that is none": ("ditto", number("best_score", float("nan"))),
    "another round": ("ditto", key("round", 1)),
    "more states": ("ditto", key("states", 3)),
    "clients of another kind": ("ditto", key("num_clients", "2")),
    "negative clients": ("ditto", key("num_clients", -1)),
    "not finite": ("ditto", lambda c: c.tensors["weights"].fill_(float("nan"))),
    **{f"{n} not finite": ("ditto", filled(n, math.nan)) for n in ("best", "first_moment", "second_moment")},
    "a second moment that is negative": ("scaffold", filled("second_moment", -1.0)),
    "a momentum without end": ("fedavg", filled("momentum", math.inf)),
    "a mean that is not finite": ("feddyn", filled("mean_gradient", math.nan)),
    "no control": ("scaffold", without("control")),
    "another control": ("scaffold", recast("control", torch.float16)),
    "no momentum": ("fedavg", without("momentum")),
    "another momentum": ("feddyn", turned("momentum")),
    "another mean": ("feddyn", longer("mean_gradient")),
    "no mean": ("feddyn", without("mean_gradient")),
    "no momentum of a rule with a step of its own": ("feddyn", without("momentum")),
    "no moments of a rule with a step of its own": ("scaffold", without("second_moment")),
    "no count of steps": ("ditto", unnumbered("server_steps")),
    "nothing that was not chosen": ("topk", without("residual")),
    "no last step": ("returned", without("step")),
}  # fmt: skip
CLIENT: dict[str, tuple[str, Change]] = {
    **{f"{n} {d}": ("ditto", recast(n, d)) for n in ("private", "personal", ADAM)
       for d in (torch.float16, torch.float64, torch.int64)},
    **{f"{n} longer": ("ditto", longer(n)) for n in ("private", "personal", ADAM)},
    **{f"{n} turned": ("ditto", turned(n)) for n in ("private", "personal", ADAM)},
    **{f"no {n}": ("ditto", without(n)) for n in (ADAM, "train/optimizer/w/step")},
    **{f"{n} {v!r:.9}": ("ditto", number(n, v)) for n in ("train/cursor", "train/steps") for v in ODD},
    "a parameter that is none": ("ditto", lambda c: c.tensors.update({"train/optimizer/x/step": torch.tensor(1.0)})),
    "another optimiser's": ("ditto", lambda c: c.tensors.update({"train/optimizer/w/momentum_buffer": torch.ones(2)})),
    "a negative step": ("ditto", lambda c: c.tensors["train/optimizer/w/step"].fill_(-1.0)),
    "another client": ("ditto", key("client", "b")),
    "another round": ("ditto", key("round", 1)),
    "another part": ("ditto", key("part", 1)),
    "another control": ("scaffold", turned("control")),
    "another dtype of control": ("scaffold", recast("control", torch.float64)),
    "another gradient": ("feddyn", longer("gradient")),
    **{f"no {n}": ("ditto", without(n)) for n in ("private", "personal")},
    "no control": ("scaffold", without("control")),
    "no gradient": ("feddyn", without("gradient")),
    "nothing at all": ("feddyn", lambda c: (c.tensors.clear(), c.state["numbers"].clear())),
    "squares that are negative": ("ditto", filled("train/optimizer/w/exp_avg_sq", -1.0)),
    "no optimiser": ("ditto", without_optimizer("train")),
    "no cursor": ("ditto", unnumbered("train/cursor")),
    "no steps": ("ditto", unnumbered("train/steps")),
    "nothing left out": ("topk", without("residual")),
    "no message": ("returned", without("sent")),
    "no round of a message": ("returned", unnumbered("sent/round")),
    "no model of its own": ("local", without("personal")),
    "no best weights": ("local", without("best/weights")),
    "no best private weights": ("local", without("best/private")),
    "no trained weights": ("trained", without("trained")),
}  # fmt: skip


def refused(kind: str, folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        outcome(kind, folder)
    text = str(caught.value)
    assert caught.value.exit_code == 8
    assert str(folder) in text and len(text) < 1500, text
    return text


@pytest.fixture
def copied(runs: dict[str, tuple[Path, str]], tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """kind -> (a folder of runs, the folder of its checkpoints), to be changed; only the newest checkpoint is there."""

    def copy(kind: str) -> tuple[Path, Path]:
        folder = tmp_path / kind
        shutil.copytree(runs[kind][0], folder)
        (folder / "checkpoints" / "round_000001" / "manifest.json").unlink()
        return folder, folder / "checkpoints"

    return copy


Copied = Callable[[str], tuple[Path, Path]]


@pytest.mark.parametrize("kind", RUNS)
def test_a_resealed_checkpoint_without_a_change_goes_on_to_the_same_bits(
    kind: str, copied: Copied, runs: dict[str, tuple[Path, str]]
) -> None:
    folder, root = copied(kind)
    change_file(root / "round_000002" / "server.safetensors", lambda c: None)
    change_file(of_client(root, "a"), lambda c: None)
    reseal(root)
    assert outcome(kind, folder) == runs[kind][1]


@pytest.mark.long
@pytest.mark.parametrize("name", SERVER)
def test_a_resealed_state_of_the_server_is_compared_with_model_config_and_round(name: str, copied: Copied) -> None:
    kind, change = SERVER[name]
    folder, root = copied(kind)
    change_file(root / "round_000002" / "server.safetensors", change)
    reseal(root)
    refused(kind, folder)


@pytest.mark.long
@pytest.mark.parametrize("name", CLIENT)
def test_a_resealed_state_of_a_client_is_compared_with_model_config_and_round(name: str, copied: Copied) -> None:
    kind, change = CLIENT[name]
    folder, root = copied(kind)
    change_file(of_client(root, "a"), change)
    reseal(root)
    assert "a-" in refused(kind, folder) or "client 'a'" in refused(kind, folder)


@pytest.mark.parametrize("kind", RUNS)
def test_the_states_of_two_clients_cannot_change_places(kind: str, copied: Copied) -> None:
    folder, root = copied(kind)
    one, other = of_client(root, "a"), of_client(root, "b")
    held = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(held)
    reseal(root)
    assert "was written with another client" in refused(kind, folder)


@pytest.mark.parametrize("kind", RUNS)
def test_an_earlier_rounds_state_cannot_take_the_place_of_a_later_one(kind: str, copied: Copied) -> None:
    folder, root = copied(kind)
    shutil.copyfile(of_client(root, "a", 1), of_client(root, "a"))
    reseal(root)
    assert "was written with another round" in refused(kind, folder)


def test_an_earlier_rounds_server_cannot_take_the_place_of_a_later_one(copied: Copied) -> None:
    folder, root = copied("ditto")
    for name in ("server.json", "server.safetensors"):
        shutil.copyfile(root / "round_000001" / name, root / "round_000002" / name)
    reseal(root)
    assert "is of another round" in refused("ditto", folder)


def test_a_client_cannot_be_left_out(copied: Copied) -> None:
    folder, root = copied("ditto")
    path = root / "round_000002" / "manifest.json"
    manifest = json.loads(path.read_bytes())["manifest"]
    for name in manifest["clients"].pop("a"):
        del manifest["files"][name]
    path.write_text(to_json({"manifest": manifest, "xxh3": xxh3_64_hexdigest(to_json(manifest).encode())}))
    assert "the states of other clients" in refused("ditto", folder)


@pytest.mark.parametrize("which", ["extra", "missing", "twice"])
def test_the_list_of_names_is_compared_with_the_tensors(which: str, copied: Copied) -> None:
    folder, root = copied("ditto")
    path = root / "round_000002" / "server.json"
    state = json.loads(path.read_text())
    names = state["names"]
    state["names"] = {"extra": [*names, "more"], "missing": names[:-1], "twice": [*names, names[0]]}[which]
    path.write_text(json.dumps(state))
    reseal(root)
    assert "other tensors than its list of names says" in refused("ditto", folder)


def test_files_of_before_that_do_not_say_whose_they_are_are_read(
    copied: Copied, runs: dict[str, tuple[Path, str]]
) -> None:
    folder, root = copied("ditto")

    def forget(content: Content) -> None:
        for name in ("client", "round", "part", "states"):
            content.state.pop(name, None)

    change_file(root / "round_000002" / "server.safetensors", forget)
    change_file(of_client(root, "a"), forget)
    reseal(root)
    assert outcome("ditto", folder) == runs["ditto"][1]
