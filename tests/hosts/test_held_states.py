"""A disk that holds states of a run gives them up to nobody who did not ask for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import Network
from silos import WHERE, digest, run, write_config
from supervisor import TOY

from fedtorch.checkpoint.own_disk import NOTE, write_note

pytestmark = pytest.mark.processes

STOP = "term:rank=0,round=2,phase=broadcast,attempt=0"


def of(hosts: Network, name: str) -> Path:
    return hosts.hosts[name].disk / "run"


def files(folder: Path) -> dict[str, bytes]:
    """What is in a run's checkpoints and models."""
    found = [path for sub in ("checkpoints", "model") for path in (folder / sub).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def reason(hosts: Network) -> str:
    found: str = json.loads((of(hosts, "a") / "status.json").read_text())["reason"]
    return found


def start_each(hosts: Network, words: list[str], options: dict[int, list[str]]) -> list[int | None]:
    """The ranks' exit codes. options: of some ranks, further words."""
    started = [hosts.start_again(WHERE, rank, [*options.get(rank, []), *words]) for rank in range(len(WHERE))]
    return [outcome.exit_code for ranks in started for outcome in ranks.join()]


def stopped(hosts: Network, *settings: str, text: str = "") -> list[str]:
    """Words that go on with a run that was stopped after two of three rounds."""
    words = write_config(hosts, *settings)
    if text:
        (hosts.root / "toy.yaml").write_text(text.replace("DIR", str(hosts.disk / "run")))
    assert run(hosts, words, STOP) == [75] * 4
    return words


def test_a_server_whose_folder_is_gone_wipes_nobodys_states(network: Callable[..., Network], alone: str) -> None:
    """It is refused by who holds them, until that side is told to begin anew as well."""
    hosts = network()
    words = stopped(hosts)
    (of(hosts, "b") / "model" / "c").mkdir(parents=True)
    (of(hosts, "b") / "model" / "c" / "mine").touch()
    kept, away = files(of(hosts, "b")), of(hosts, "a").rename(hosts.root / "not-mounted")
    assert run(hosts, words) == [8] * 4
    assert files(of(hosts, "b")) == kept
    assert f"in {hosts.disk}/run/checkpoints rank 2 (host `b`) holds the states of 2 clients after 2 saved rounds" in (
        reason(hosts)
    )
    assert "was it started in the same folder?" in reason(hosts) and "with `--resume never`" in reason(hosts)
    assert start_each(hosts, words, {rank: ["--resume", "never"] for rank in (0, 1, 3)}) == [8] * 4, "rank 2 was not"
    assert start_each(hosts, words, {2: ["--resume", "force"]}) == [8] * 4
    assert files(of(hosts, "b")) == kept
    shutil.rmtree(of(hosts, "a"))
    away.rename(of(hosts, "a"))  # the disk is there again
    assert run(hosts, words) == [0] * 4
    assert digest(of(hosts, "a")) == alone
    shutil.rmtree(of(hosts, "a"))
    assert start_each(hosts, words, {2: ["--resume", "never"]}) == [0] * 4
    assert digest(of(hosts, "a")) == alone and not (of(hosts, "b") / "checkpoints.before").exists()


def test_what_was_given_up_is_there_until_the_new_run_has_a_checkpoint(
    network: Callable[..., Network], alone: str
) -> None:
    """A run that began anew and dies before goes on by the same command without `--resume never`."""
    hosts = network()
    words = stopped(hosts)
    kept = {name: files(of(hosts, name)) for name in "ab"}
    dying = ["--resume", "never", *words]
    for _ in range(2):
        assert run(hosts, dying, "kill:rank=3,round=1,phase=checkpoint,attempt=0")[3] not in (0, 7, 8, None)
        for name in "ab":
            aside = {f"checkpoints/{path}": text for path, text in files_of(of(hosts, name) / "checkpoints.before")}
            assert aside == kept[name]
    assert run(hosts, words) == [0] * 4
    assert digest(of(hosts, "a")) == alone
    assert not [path for name in "ab" for path in of(hosts, name).glob("*.before")]


def files_of(folder: Path) -> list[tuple[str, bytes]]:
    return [(str(path.relative_to(folder)), path.read_bytes()) for path in folder.rglob("*") if path.is_file()]


def test_a_server_restored_from_an_older_backup_takes_nothing_newer_away(
    network: Callable[..., Network], alone: str
) -> None:
    hosts = network()
    words = stopped(hosts, "checkpoint.keep=5")
    backup = shutil.copytree(of(hosts, "a"), hosts.root / "backup")
    assert run(hosts, words) == [0] * 4
    newest = files(of(hosts, "b"))
    shutil.rmtree(of(hosts, "a"))
    backup.rename(of(hosts, "a"))
    assert run(hosts, words) == [8] * 4
    assert "the server's newest checkpoint is of round 2: its run folder is an older copy" in reason(hosts)
    assert "rank 2 (host `b`) holds the states of 3 clients after 3 saved rounds" in reason(hosts)
    assert files(of(hosts, "b")) == newest
    assert start_each(hosts, words, {2: ["--resume", "force"]}) == [0] * 4
    assert digest(of(hosts, "a")) == alone


def test_a_server_that_passes_over_a_damaged_checkpoint_may_go_back(
    network: Callable[..., Network], alone: str
) -> None:
    hosts = network()
    words = stopped(hosts)
    (of(hosts, "a") / "checkpoints" / "round_000002" / "server.json").write_text("{}")
    assert run(hosts, words) == [0] * 4
    assert "resuming after round 1" in hosts.log("a", 0) and digest(of(hosts, "a")) == alone


def test_states_of_another_run_in_a_folder_are_not_taken_away(network: Callable[..., Network]) -> None:
    hosts = network()
    words = stopped(hosts)
    write_note(of(hosts, "b") / "checkpoints", 2, "digest of another config")
    kept = files(of(hosts, "b"))
    assert run(hosts, words) == [8] * 4
    assert "after 2 saved rounds, of a run with another config; which this run would delete" in reason(hosts)
    assert files(of(hosts, "b")) == kept


def test_states_that_an_earlier_version_left_without_a_note_are_held_too(network: Callable[..., Network]) -> None:
    hosts = network()
    words = stopped(hosts)
    (of(hosts, "b") / "checkpoints" / NOTE).unlink()
    shutil.rmtree(of(hosts, "a"))
    assert run(hosts, words) == [8] * 4
    assert "holds the states of 2 clients after an unknown number of rounds" in reason(hosts)


def test_a_machine_that_kept_no_state_but_knows_of_saved_rounds_refuses_too(network: Callable[..., Network]) -> None:
    hosts = network()
    words = stopped(hosts, text=TOY.replace(", optimizer_state: keep", ""))
    shutil.rmtree(of(hosts, "a"))
    assert run(hosts, words) == [8] * 4
    assert "rank 2 (host `b`) holds the states of 0 clients after 2 saved rounds" in reason(hosts)


@pytest.mark.parametrize("phase", ["train", "checkpoint"])
def test_a_run_that_dies_before_its_first_checkpoint_begins_again_by_itself(
    phase: str, network: Callable[..., Network], alone: str
) -> None:
    hosts = network()
    words = write_config(hosts)
    done = 1 if phase == "checkpoint" else 0
    assert run(hosts, words, f"kill:rank=0,round={done},phase={phase},attempt=0")[0] not in (0, 7, 8, None)
    assert run(hosts, words) == [0] * 4
    assert digest(of(hosts, "a")) == alone


def test_a_common_folder_that_is_not_mounted_on_the_server_is_not_emptied(network: Callable[..., Network]) -> None:
    """The others have all of it, whole checkpoints too, and no note: it was nobody's own."""
    hosts = network(has_common_disk=True)
    words = stopped(hosts)
    kept = files(of(hosts, "b"))
    hosts.kill("a")
    hosts.hosts["a"].disk = hosts.root / "empty"
    hosts.boot("a")
    assert run(hosts, words) == [8] * 4
    assert files(of(hosts, "b")) == kept
    assert "rank 2 (host `b`) holds the states of 3 clients after 2 saved rounds" in reason(hosts)


def test_newer_states_without_a_note_are_passed_over_by_who_is_told_to_alone(network: Callable[..., Network]) -> None:
    """The server came from a backup, and what goes with that is gone: the same refusal as with a note, and way on."""
    hosts = network()
    words = stopped(hosts, "checkpoint.keep=1")
    backup = shutil.copytree(of(hosts, "a"), hosts.root / "backup")
    assert run(hosts, words) == [0] * 4
    shutil.rmtree(of(hosts, "a"))
    backup.rename(of(hosts, "a"))
    note = of(hosts, "b") / "checkpoints" / NOTE
    note.unlink()
    newest = files(of(hosts, "b"))
    assert run(hosts, [*words, "checkpoint.missing_clients=restart"]) == [8] * 4
    assert "the server's newest checkpoint is of round 2: its run folder is an older copy" in reason(hosts)
    assert "has one of round 3" in reason(hosts)
    assert files(of(hosts, "b")) == newest
    force = dict.fromkeys((2, 3), ["--resume", "force"])
    assert start_each(hosts, words, force) == [8] * 4
    assert "are not where the clients live" in reason(hosts) and "has one of round 3" in reason(hosts)
    assert start_each(hosts, [*words, "checkpoint.missing_clients=restart"], force) == [0] * 4
