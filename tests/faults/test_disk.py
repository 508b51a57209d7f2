"""Full disks and damaged checkpoints: what was saved stays, and the run goes on from it to the same bits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from supervisor import Ended, digest_alone, supervise, toy_config

from fedtorch.main import main
from tests.checkpoint.test_checkpoint import damage_delete, damage_flip, damage_truncate, damage_zero

WIDE = ("task.width=1000", "rounds=5", "checkpoint.save_retries=1")
FULL = "diskfull:phase=checkpoint,round=2,attempt=0,bytes=12000"  # 12 kB: a state has more, logs and records less

STATELESS = ("task.width=1000", "client.optimizer_state=reset")  # the server is the only one that writes


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of a run whose states are larger."""
    return digest_alone(toy_config(tmp_path_factory.mktemp("wide")), *WIDE)


@pytest.mark.processes
@pytest.mark.parametrize("size", [1, 3])
def test_a_full_disk_ends_the_run_after_the_retries_and_the_last_checkpoint_is_whole(
    size: int, wide: str, tmp_path: Path
) -> None:
    ended = supervise(toy_config(tmp_path), size, faults=FULL, sets=WIDE)
    assert ended.codes == [[8] * size, [0] * size]
    log = "".join(ended.log(rank) for rank in range(size))
    assert "checkpoints" in log and "bytes, " in log and "File too large" in log and "is untouched" in log
    assert [f"round {n} is not saved" in ended.log(0) for n in (2, 3, 4)] == [True, True, False]
    assert "resuming after round 1 " in ended.log(0)
    assert ended.digest == wide


@pytest.mark.processes
@pytest.mark.parametrize(("last", "tries"), [(9, 3), (3, 3)], ids=["the retries", "the last save"])
def test_a_server_that_cannot_write_its_own_state_ends_the_run(last: int, tries: int, tmp_path: Path) -> None:
    sets = (*STATELESS, f"rounds={last}", f"checkpoint.save_retries={2 if last == 9 else 9}")
    ended = supervise(toy_config(tmp_path), 1, faults=FULL, sets=sets)
    assert ended.codes == [[8], [0]]
    assert ended.log(0).count("is not saved") == tries


@pytest.mark.processes
def test_a_disk_that_has_room_again_costs_nothing(wide: str, tmp_path: Path) -> None:
    faults = f"{FULL};diskroom:phase=checkpoint,round=3"
    ended = supervise(toy_config(tmp_path), 1, faults=faults, sets=WIDE)
    assert ended.codes == [[0]] and ended.digest == wide
    assert ended.log(0).count("is not saved") == 1


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run's config; to be copied back before each damage."""
    config = toy_config(tmp_path_factory.mktemp("finished"))
    assert main(["--config", str(config)]) == 0
    shutil.copytree(config.parent / "run", config.parent / "whole")
    return config


DAMAGES = [damage_truncate, damage_flip, damage_zero, damage_delete]


@pytest.mark.long
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("victim", ["server.safetensors", "server.json", "manifest.json", "clients"])
def test_a_damaged_file_makes_the_run_go_on_from_the_checkpoint_before(
    victim: str, damage: Callable[[Path], None], finished: Path, undisturbed: str
) -> None:
    folder = _restored(finished) / "checkpoints"
    path = min(folder.glob("clients/*-r000003.*")) if victim == "clients" else folder / "round_000003" / victim
    damage(path)
    assert main(["--config", str(finished)]) == 0
    ended = Ended(finished.parent / "run")
    log = ended.log(0)
    assert ended.digest == undisturbed
    assert "resuming after round 2 " in log
    if (victim, damage) != ("manifest.json", damage_delete):  # without a manifest there never was a checkpoint
        assert "DAMAGED" in log and str(path) in log


def test_without_a_whole_checkpoint_the_run_ends_with_8(finished: Path) -> None:
    run = _restored(finished)
    for path in run.glob("checkpoints/round_*/server.json"):
        damage_flip(path)
    assert main(["--config", str(finished)]) == 8
    status = Ended(run).status
    assert status["code"] == 8 and "every checkpoint" in status["reason"] and "--resume never" in status["reason"]
    assert main(["--config", str(finished), "--resume", "never"]) == 0


def test_a_run_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = toy_config(tmp_path)
    (tmp_path / "file").touch()
    assert main(["--config", str(config), "--set", f"run.dir={tmp_path / 'file' / 'run'}"]) == 8
    assert f"the run folder {tmp_path / 'file' / 'run'} cannot be written" in capsys.readouterr().err


def _restored(finished: Path) -> Path:
    run = finished.parent / "run"
    shutil.rmtree(run)
    shutil.copytree(finished.parent / "whole", run)
    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_of_an_earlier_run_is_deleted_before_the_new_one_has_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process, one disk: a run that begins anew and comes to nothing takes nothing away, nor does the next one."""
    words, run = ["--config", str(toy_config(tmp_path))], tmp_path / "run"
    assert main(words) == 0
    kept = {**contents(run / "checkpoints"), "results.json": (run / "results.json").read_bytes()}
    for _ in range(2):
        monkeypatch.setenv("FEDTORCH_TESTING", "1")
        monkeypatch.setenv("FEDTORCH_FAULTS", ";".join(f"nan:client={name}" for name in "abcd"))
        assert main([*words, "--resume", "never", "--set", "clients.on_failure=stop"]) == 6
        assert kept and contents(run / "checkpoints.before") == kept
    monkeypatch.delenv("FEDTORCH_FAULTS")
    assert main([*words, "--resume", "never"]) == 0
    assert not (run / "checkpoints.before").exists() and len(contents(run / "checkpoints")) == len(kept) - 1
