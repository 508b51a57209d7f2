"""`fedtorch export`: the same files as the end of the run writes, from its checkpoint, and clear words on the rest."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedtorch.core.client import folder_name
from fedtorch.lifecycle.export import main
from fedtorch.main import main as train

pytestmark = pytest.mark.long

CONFIG: dict[str, Any] = {
    "rounds": 3,
    "task": {
        "name": "toy:Saved",
        "clients": {"a": [1.0, 3.0, 4], "b": [0.5, -2.0, 6], "ein Ort": [1.5, 1.0, 5]},
        "start": [0.1, 0.2],
        "head": [0.5],
        "noise": 0.3,
    },
    "algorithm": {"name": "ditto", "lam": 0.5},
    "client": {"optimizer": "sgd", "lr": 0.1, "batch_size": 2},
    "track": {"progress": "lines", "tensorboard": False},
}


NAMES = {client: folder_name(client) for client in CONFIG["task"]["clients"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(CONFIG))
    yield tmp_path / "runs" / "toy"


def run(*settings: str, options: Sequence[str] = (), code: int = 0) -> None:
    assert train(["--config", "toy.yaml", *options, "--set", "run.name=toy", *settings]) == code


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


FAR = "client.lr=2.6"  # diverges, so that the best round is not the last
KINDS = {
    "personal": (),
    "private": ("algorithm={name: fedavg}", "partition.private=[head]", FAR),
    "per client": ("algorithm={name: fedavg}", "eval.best=per_client", FAR),
    "trained": ("algorithm={name: fedavg}", "eval.point=trained", "clients.per_round=2"),
    "local": ("paradigm=local",),
    "shared": ("algorithm={name: fedavg}", FAR),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_writes_what_the_end_of_the_run_writes(
    kind: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(*KINDS[kind])
    written = files(folder / "model")
    assert set(written) == ({"w.safetensors"} if kind == "shared" else {f"{c}/w.safetensors" for c in NAMES.values()})
    assert main([str(folder), "--out", str(tmp_path / "all")]) == 0
    assert files(tmp_path / "all") == written
    capsys.readouterr()
    for client, name in NAMES.items():
        assert main([str(folder), "--client", client, "--out", str(tmp_path / name)]) == 0
        out = capsys.readouterr().out
        own = files(tmp_path / name)["w.safetensors"]
        if kind == "shared":
            assert f"the global model after 3 of 3 rounds, best round 1, with which client {client}, as all" in out
            assert own == written["w.safetensors"]
        else:
            # one that sat out the best round has no weights of its own from it
            whose = "evaluated with the global model" if (kind, client) == ("trained", "ein Ort") else "its own model"
            assert f"{tmp_path / name}: client {client}, {whose} after 3 of 3 rounds" in out
            assert own == written[f"{name}/w.safetensors"]
    assert not list(tmp_path.rglob("*partial*")) and files(folder / "model") == written
    assert not (folder / "spill").exists()


def test_an_interrupted_run_gives_the_best_so_far(folder: Path, tmp_path: Path) -> None:
    run(FAR, "checkpoint.every=1")
    shutil.rmtree(folder / "checkpoints" / "round_000003")
    assert not shutil.rmtree(folder / "model")
    assert main([str(folder), "--client", "a"]) == 0
    assert list(files(folder / "model")) == ["a/w.safetensors"]
    run("rounds=2", FAR, "run.name=two")
    assert files(folder / "model")["a/w.safetensors"] == files(tmp_path / "runs/two/model")["a/w.safetensors"]


def test_without_an_export_at_the_end_it_can_be_done_later(folder: Path, tmp_path: Path) -> None:
    run("run.export=none")
    assert not (folder / "model").exists()
    run("run.export=none")  # resumed
    assert main([str(folder)]) == 0
    run("run.name=again")
    assert files(folder / "model") == files(tmp_path / "runs" / "again" / "model")


def test_a_run_resumed_after_its_last_round_writes_again(folder: Path) -> None:
    run()
    written = files(folder / "model")
    shutil.rmtree(folder / "model")
    run()
    assert files(folder / "model") == written


def test_a_run_that_begins_anew_leaves_no_model_of_an_earlier_one(folder: Path, capsys: Any) -> None:
    folder.mkdir(parents=True)
    (folder / "model").mkdir()
    (folder / "model" / "mine").touch()
    run("run.export=none")
    assert not (folder / "model").exists() and (folder / "model.before" / "mine").exists()
    assert main([str(folder)]) == 0
    run("run.export=none")
    assert (folder / "model").exists()
    run("run.export=none", options=["--resume", "never"])
    assert not (folder / "model").exists() and (folder / "model.before" / "mine").exists()


def test_the_global_model_is_there_on_demand(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("partition.private=[head]")
    assert main([str(folder), "--global", "--out", str(tmp_path / "global")]) == 0
    assert "the global model after 3 of 3 rounds" in (out := capsys.readouterr().out)
    assert "1 private tensors are as before the first round" in out
    run("algorithm={name: fedavg}", "partition.private=[head]", "run.name=other", "eval.every=0")
    assert main(["runs/other", "--global", "--out", str(tmp_path / "other")]) == 0
    assert files(tmp_path / "other") == files(tmp_path / "global")  # Ditto's global model is FedAvg's


def test_a_client_that_never_took_part_is_evaluated_with_the_global_model(folder: Path, capsys: Any) -> None:
    run("clients.per_round=1", "rounds=1")
    capsys.readouterr()
    assert [main([str(folder), "--client", client]) for client in NAMES] == [0, 0, 0]
    out = capsys.readouterr().out
    assert out.count("evaluated with the global model") == 2 and out.count("its own model") == 1


def test_other_clients_files_are_not_needed(folder: Path) -> None:
    run()
    written = files(folder / "model")
    for path in (folder / "checkpoints" / "clients").glob("b-*"):
        path.unlink()
    assert main([str(folder), "--client", "a"]) == 0
    assert files(folder / "model") == written
    assert main([str(folder)]) == main([str(folder), "--client", "b"]) == 8
    assert files(folder / "model") == written


def test_clients_that_are_pinned_elsewhere_need_no_files(
    tmp_path: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.test_main import TINY

    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_data, tmp_path / "data")
    (tmp_path / "tiny.yaml").write_text(TINY.replace("DIR", "runs/tiny").replace("DATA", "data"))
    settings = [
        "system.placement=pinned",
        "system.pinned={north: 0, south: 0, west: 0}",
        "partition.private=[shared.*]",
    ]
    assert train(["--config", "tiny.yaml", "--set", *settings, "rounds=1"]) == 0
    written = files(tmp_path / "runs" / "tiny" / "model")
    for path in (*(tmp_path / "data").glob("*/train.jsonl"), tmp_path / "data" / "manifest.json"):
        path.unlink()
    assert main(["runs/tiny"]) == 0 and files(tmp_path / "runs" / "tiny" / "model") == written
    assert main(["runs/tiny", "--client", "south", "--out", "south"]) == 0
    assert files(tmp_path / "south") == files(tmp_path / "runs" / "tiny" / "model" / "south")


def said(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = main(arguments)
    return code, capsys.readouterr().err


def test_what_cannot_be_exported_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = said(capsys, ["nowhere"])
    assert code == 2 and "nowhere/config.yaml does not exist; name the folder of a run" in text
    run()
    place = str(folder)
    code, text = said(capsys, [place, "--client", "ein ort"])
    assert code == 2 and "--client is ein ort, but the run has no such client; did you mean `ein Ort`?" in text
    code, text = said(capsys, [place, "--client", "xyz"])
    assert code == 2 and "its clients are a, b, ein Ort" in text
    code, text = said(capsys, [place, "--out", place])
    assert code == 2 and f"--out is {place}, which is there already" in text
    code, text = said(capsys, [place, "--global"])
    assert code == 2 and "clients are evaluated with models of their own; say where to by --out" in text
    code, text = said(capsys, [place, "--set", "task.start=[0.3, 0.2]"])
    assert code == 8 and "was written with other initial weights than runs/toy/config.yaml gives here" in text.replace(
        str(tmp_path) + "/", ""
    )
    code, text = said(capsys, [place, "--set", "task.name=toy:Quadratic", "--out", "x"])
    assert code == 2 and "the task Quadratic writes no models; define its `save_model`" in text
    written = files(folder / "model")
    code, text = said(capsys, [place, "--set", "task.full=true"])
    assert code == 8 and "could not be written: [Errno 28] No space left on device; make room or set --out" in text
    assert files(folder / "model") == written and not list(folder.glob("*partial*"))
    for path in (folder / "checkpoints").glob("round_*/server.safetensors"):
        path.write_bytes(b"damaged")
    code, text = said(capsys, [place])
    assert code == 8 and "every checkpoint in" in text
    shutil.rmtree(folder / "checkpoints")
    code, text = said(capsys, [place])
    assert code == 8 and "has no checkpoint yet; let it train on (checkpoint.every), or stop it" in text
    run("paradigm=local", "run.name=local")
    code, text = said(capsys, ["runs/local", "--global", "--out", "y"])
    assert code == 2 and "the run has no global model: its clients send nothing" in text
