"""A run of parties that sign with keys of their own: the same bits, and whoever may not take part ends it at once."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parties import (
    PARTIES,
    SECRET,
    SYSTEM,
    as_party,
    codes,
    digest,
    ends_well,
    run,
    write_config,
)
from patient import wait_for_return
from ranks import expect_exit, free_port, start_ranks

from fedtorch.comm.sums.witnessed import SilosPart
from fedtorch.main import main
from fedtorch.rounds.exchanged_vectors import ExchangedVectors
from fedtorch.trust.keys import new_key
from fedtorch.trust.merkle import PassingLeaves

pytest.importorskip("cryptography")


def as_misled(places: str) -> tuple[int, str]:
    """South gets other weights in the second round: one number, by one bit."""
    if os.environ["RANK"] == "2":
        send = ExchangedVectors._send

        def send_something_else(self: ExchangedVectors, *about: Any) -> PassingLeaves:
            send(self, *about)
            self.flat.view(torch.int32)[3] ^= 1
            came = PassingLeaves(self.flat)
            came.up_to(len(self.flat))
            return came

        ExchangedVectors._send = send_something_else  # type: ignore[method-assign]
    return as_party(places)


def as_party_that_is_awaited(places: str) -> tuple[int, str]:
    wait_for_return(round=2)
    return as_party(places)


def refused(places: Path, **changes: Any) -> list[tuple[int, str]]:
    write_config(places, **changes)
    return run(places)


def told_south(places: Path, start_timeout: float = 60.0) -> str:
    """Run all parties and return what south is told, which ends with code 4.

    start_timeout: for so long the others wait for it in vain, where nobody tells them.
    """
    write_config(places, system={**SYSTEM, "start_timeout": start_timeout})
    hub, north, south, west = expect_exit(as_party, len(PARTIES), str(places))
    assert [outcome.exit_code for outcome in (hub, north, west)] == [7, 7, 7]
    code, said = south.result
    assert code == 4
    return str(said)


def replaced(places: Path, name: str, old: str, new: str) -> None:
    path = places / name / "members.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def public(places: Path, name: str) -> str:
    return (places / name / "own.pub").read_text().strip()


def as_changed_on_its_way(places: str) -> tuple[int, str]:
    """South signs another number than it sends, as if somebody had changed it between the two."""
    if os.environ["RANK"] == "2":
        see_sent = SilosPart.see_sent

        def see_another(self: SilosPart, window: np.ndarray[Any, Any], place: int = 0) -> None:
            other = window.copy()
            other[3] += 1
            see_sent(self, other, place)

        SilosPart.see_sent = see_another  # type: ignore[method-assign]
    return as_party(places)


SECURE: dict[str, Any] = {
    "privacy": {"clip": 1.0, "secure_sum": {"threshold": 1.0}},
    "system": {**SYSTEM, "sum_scale": "public"},
}


@pytest.mark.processes
@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"algorithm": {"name": "fedavg", "weights": "equal", "robust": "median"}}, marks=pytest.mark.slow),
        pytest.param(SECURE, marks=pytest.mark.slow),
    ],
)
def test_bytes_that_a_silo_has_not_signed_are_refused(changes: dict[str, Any], places: Path) -> None:
    """Though the digests that find damage fit: whoever changes bytes can change these too."""
    write_config(places, **changes)
    ended = expect_exit(as_changed_on_its_way, len(PARTIES), str(places))
    assert (ended[0].exit_code or ended[0].result[0]) == 11, ended
    said = "the receipt of `south` has another `sent` than what came here"
    assert said in (places / "hub" / "run" / "log.rank0.txt").read_text()


@pytest.mark.processes
@pytest.mark.parametrize("is_secret", [False, True])
def test_keys_in_place_of_a_secret_change_no_bit(is_secret: bool, places: Path) -> None:
    changes = SECURE if is_secret else {}
    write_config(places, trust={}, **changes)
    ends_well(run(places, environ=SECRET))
    common = digest(places / "hub" / "run")
    write_config(places, **changes)
    ends_well(run(places, "never"))
    assert digest(places / "hub" / "run") == common
    said = (places / "north" / "run" / "log.rank1.txt").read_text()
    assert "federation test: hub, north, south, west, by members.yaml" in said and "has no secret" not in said


@pytest.mark.processes
def test_a_run_goes_on_from_its_checkpoint_with_keys(places: Path) -> None:
    common = {"run": {"dir": str(places / "run"), "name": "parties"}, "checkpoint": {"every": 1}}
    write_config(places, **common)
    ends_well(run(places))
    whole = digest(places / "run")
    faults = {"FEDTORCH_TESTING": "1", "FEDTORCH_FAULTS": "kill:phase=train,rank=1,round=1,attempt=0"}
    hub, north, south, west = expect_exit(as_party, len(PARTIES), str(places), "never", environ=faults)
    assert north.exit_code == -9 and hub.exit_code == south.exit_code == west.exit_code == 7
    ends_well(run(places))
    assert digest(places / "run") == whole
    assert "resuming after round 1" in (places / "run" / "log.rank0.txt").read_text()


@pytest.mark.processes
@pytest.mark.parametrize("is_secret", [False, True])
def test_parties_that_get_different_weights_stop_before_anything_leaves_them(is_secret: bool, places: Path) -> None:
    system = {**SYSTEM, "shared_memory": "never"}
    changes: dict[str, Any] = {"system": system}
    if is_secret:
        privacy = {"clip": 1.0, "secure_sum": {"threshold": 1.0}}
        changes = {"privacy": privacy, "system": {**system, "sum_scale": "public"}}
    write_config(places, **changes)
    ended = expect_exit(as_misled, len(PARTIES), str(places))
    assert [outcome.exit_code or outcome.result[0] for outcome in ended] == [11] * len(PARTIES)
    for rank, name in PARTIES.items():
        log = (places / name / "run" / f"log.rank{rank}.txt").read_text()
        other = "hub" if name == "south" else "south"
        assert f"`{other}` has signed another digest of the weights that clients have trained from" in log
    status = json.loads((places / "hub" / "run" / "status.json").read_text())
    assert status["code"] == 11 and "`south` has signed another digest" in status["reason"]


@pytest.mark.processes
def test_a_party_that_was_lost_comes_back_with_its_key(places: Path) -> None:
    common = {"run": {"dir": str(places / "run"), "name": "parties"}, "rounds": 4}
    write_config(places, **common, clients={"on_loss": "continue", "min_silos": 2})
    environ = {"MASTER_PORT": str(free_port()), "FEDTORCH_TESTING": "1"}
    faults = {**environ, "FEDTORCH_FAULTS": "kill:rank=2,round=1,phase=train"}
    ranks = start_ranks(as_party_that_is_awaited, len(PARTIES), str(places), environ=faults)
    ranks.processes[2].join(60)
    alone = {**environ, "RANK": "2", "WORLD_SIZE": str(len(PARTIES))}
    again = start_ranks(as_party_that_is_awaited, 1, str(places), environ=alone)
    hub, north, south, west = ranks.join(90)
    assert [*codes([hub.result, north.result, west.result]), south.exit_code] == [0, 0, 0, -9]
    assert again.join(20)[0].result[0] == 0
    log = (places / "run" / "log.rank0.txt").read_text()
    assert "rank 2 is back; all go on together" in log and "resuming after round 2" in log


@pytest.mark.processes
@pytest.mark.parametrize("reason", ["revoked", "past its end"])
def test_who_is_revoked_or_past_its_end_is_refused_by_every_party(reason: str, places: Path) -> None:
    for name in PARTIES.values():
        if reason == "revoked":
            with (places / name / "members.yaml").open("a") as file:
                file.write(f"revoked: [{public(places, 'south')}]\n")
        else:
            replaced(places, name, public(places, "south"), f"{public(places, 'south')}, until: 2020-01-01")
    told = refused(places)
    assert codes(told) == [4] * len(PARTIES)
    wanted = "the key of `south` is revoked" if reason == "revoked" else "`south` is a member until 2020-01-01"
    assert all(f"a party of this run is refused: {wanted}" in said for _, said in told)


@pytest.mark.processes
def test_a_key_of_its_own_making_is_refused_before_it_speaks(places: Path) -> None:
    for path in places.glob("south/own.*"):
        path.unlink()
    new_key(places / "south" / "own.key")
    told = told_south(places)
    assert "its key is nobody's there, and rank 2 is `south`" in told


@pytest.mark.processes
def test_the_key_of_another_member_is_refused(places: Path) -> None:
    shutil.copy(places / "north" / "own.key", places / "south" / "own.key")
    told = told_south(places)
    assert "its key is that of `north`, and rank 2 is `south`" in told


@pytest.mark.processes
def test_a_silo_that_lists_itself_under_another_key_is_not_let_in(places: Path) -> None:
    before = public(places, "south")
    for path in places.glob("south/own.*"):
        path.unlink()
    new_key(places / "south" / "own.key")
    replaced(places, "south", before, public(places, "south"))
    told = told_south(places, start_timeout=12.0)
    assert "did not let rank 2 in: by its list of members" in told
    log = (places / "hub" / "run" / "log.rank0.txt").read_text()
    assert "a connection of rank 2 is refused" in log and "not signed by `south`" in log


@pytest.mark.processes
def test_a_silo_with_another_key_for_the_server_does_not_believe_it(places: Path) -> None:
    replaced(places, "south", public(places, "hub"), "ab" * 32)
    told = told_south(places)
    assert "the list of members (trust.members) of this side is not that of the server" in told


@pytest.mark.processes
def test_lists_that_differ_in_anything_end_the_run(places: Path) -> None:
    with (places / "south" / "members.yaml").open("a") as file:
        file.write("  east: {role: silo, key: " + "ab" * 32 + "}\n")
    told = refused(places)
    assert codes(told) == [4] * len(PARTIES)
    assert "members: rank 2 (south" in told[2][1]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"trust": {"key": "own.key"}}, 2, "trust.key is set but trust.members is not"),
        ({"trust": {"members": "members.yaml"}}, 2, "trust.members is set but trust.key is not"),
        ({"trust": {"members": "nowhere.yaml", "key": "own.key"}}, 2, "which cannot be read"),
        ({"trust": {"members": "members.yaml", "key": "config.yaml"}}, 4, "which others than its owner may read"),
        ({"system": {"timeout": 20.0}}, 2, "a party is one rank with the data that are pinned to it"),
        ({"system": {**SYSTEM, "pinned": {"north": 1, "east": 2, "west": 3}}}, 4, "`east` is not among the members"),
        ({"system": {**SYSTEM, "pinned": {"north": 1, "south": 1, "west": 2}}}, 2, "of which 2 are among"),
        ({"system": {**SYSTEM, "sum_scale": "previous"}}, 2, "updates leave before all parties have signed"),
    ],
)
def test_what_does_not_fit_is_said_before_anybody_is_spoken_to(
    changes: dict[str, Any], code: int, said: str, places: Path
) -> None:
    told = refused(places, **changes)
    assert codes(told) == [code] * len(PARTIES)
    assert said in told[2][1]


@pytest.mark.long
def test_one_process_has_no_other_parties(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(places)
    monkeypatch.chdir(places / "hub")
    assert main(["--config", "config.yaml"]) == 2
    assert "this is one process" in capsys.readouterr().err
