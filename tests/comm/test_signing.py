"""What a stranger can do who reaches the store of a job: nothing that a rank would believe."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import free_port, run_ranks, start_ranks

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.job.links import Links
from fedtorch.comm.job.notes import MAX_CHARACTERS, read_heartbeat, read_note, read_verdict
from fedtorch.comm.job.same_secret import _stranger
from fedtorch.comm.job.signing import VARIABLE, Signature, forget_secret, job_secret, read_secret
from fedtorch.comm.job.store import host_store
from fedtorch.comm.options import Network
from fedtorch.core.errors import DeadlineError, ForgedNoteError, PreflightError

SECRET = "0123456789abcdef0123456789abcdef"
BARRIER = {"phase": "train", "round": 1, "then": "", "stop": False, "ok": True}
BEAT = {"phase": "train", "round": 1, "client": "", "step": 0, "count": 3, "left": "", "failed": False}


def test_what_was_signed_is_read_under_its_key_in_its_attempt_only() -> None:
    ours = Signature(SECRET, "job/0")
    text = ours.sign("meeting0/1", '{"ok": true}')
    assert ours.check("meeting0/1", text, 1) == '{"ok": true}'
    strangers = [Signature(SECRET, "job/1"), Signature("another secret of a job", "job/0")]
    for other, key, value in [
        (ours, "meeting1/1", text),
        (ours, "meeting0/1", text.replace("true", "false")),
        (ours, "meeting0/1", '{"ok": true}'),
        (ours, "meeting0/1", ""),
        *((stranger, "meeting0/1", text) for stranger in strangers),
    ]:
        with pytest.raises(ForgedNoteError, match=f"`{key}` was not written by a rank of this job"):
            other.check(key, value, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "cannot be read"),
        ('{"phase": "train"', "cannot be read"),
        ("[]", "expected a mapping"),
        (json.dumps({**BARRIER, "stop": 1}), "`stop` = 1"),
        (json.dumps({**BARRIER, "round": True}), "`round` = true"),
        *((json.dumps({k: v for k, v in BARRIER.items() if k != field}), f"no `{field}`") for field in BARRIER),
        (json.dumps({"facts": {"seed": 1}, "gpu": "", "gpu_problem": ""}), "`facts`"),
        (json.dumps({"facts": {}, "gpu": "", "gpu_problem": "", "gpu_versions": {"nccl": 2}}), "`gpu_versions`"),
        (json.dumps({**BARRIER, "more": "x" * MAX_CHARACTERS}), "characters"),
    ],
)
def test_a_malformed_note_is_an_error_that_names_its_sender(text: str, said: str) -> None:
    with pytest.raises(PreflightError, match="the note of rank 3 ") as caught:
        read_note(text, 3)
    assert said in str(caught.value)


def test_verdicts_and_heartbeats_are_read_as_carefully() -> None:
    assert read_verdict('{"stop": false, "ok": true, "lost": {"2": "gone"}}')["lost"] == {"2": "gone"}
    for text in ('{"stop": false}', '{"error": 1, "kind": "x"}', '{"backend": "mpi", "shared": []}', "[[[[", "{}"):
        with pytest.raises(PreflightError, match=r"the verdict of rank 0 \(the server\)"):
            read_verdict(text)
    assert read_heartbeat(json.dumps(BEAT), 2) == BEAT
    for change in ({"count": "3"}, {"left": None}, {"machine": "m", "pid": "../1", "started": "1"}, {"machine": "m"}):
        with pytest.raises(PreflightError, match="the heartbeat of rank 2"):
            read_heartbeat(json.dumps(BEAT | change), 2)


def meet_with_a_stranger() -> str:
    """Between two meetings somebody writes what the environment says; rank 2 comes late to the next one."""
    with DistributedCommunicator.join(["a"], timeout_s=60, secret=os.environ.get(VARIABLE, "")) as comm:
        comm.barrier("train", round=0)
        if comm.rank == 1:
            stranger = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), wait_for_workers=False)
            stranger.set("fedtorch/none/attempt0/heartbeat/2", os.environ["FORGED"])
        time.sleep(0.7 * (comm.rank == 2))
        comm.barrier("train", round=1)
        comm.barrier("train", round=2)
    return "went on"


@pytest.mark.processes
def test_a_forged_heartbeat_is_passed_over_and_the_ranks_own_awaited() -> None:
    """Unsigned, it was believed, and ended the job with a code after which no launcher starts it again."""
    forged = f"{'0' * 64} {json.dumps(BEAT | {'left': 'KeyError'})}"
    outcomes = start_ranks(meet_with_a_stranger, 3, environ={"FORGED": forged, VARIABLE: SECRET}).join()
    assert [outcome.result for outcome in outcomes] == ["went on"] * 3


def meet_over_a_tampered_link(spoiled: int) -> str:
    """What this rank sends to the second meeting is changed on its way to another one."""
    send, forged = Links.send, os.environ["FORGED"].encode()

    def tampered(self: Links, rank: int, topic: str, data: bytes) -> None:
        is_spoiled = comm.rank == spoiled and rank == 1 - spoiled and topic == "meeting1"
        send(self, rank, topic, forged if is_spoiled else data)

    with DistributedCommunicator.join(["a"], timeout_s=60, secret=os.environ.get(VARIABLE, "")) as comm:
        Links.send = tampered  # type: ignore[method-assign]
        for round in range(3):
            comm.barrier("train", round=round)
    return "went on"


@pytest.mark.processes
@pytest.mark.parametrize("spoiled", [0, 1])
def test_a_note_or_verdict_that_was_changed_on_its_way_ends_the_job_so_that_it_is_started_again(spoiled: int) -> None:
    environ = {"FORGED": f"{'0' * 64} {json.dumps(BARRIER | {'stop': True})}", VARIABLE: SECRET}
    outcomes = start_ranks(meet_over_a_tampered_link, 3, spoiled, environ=environ).join()
    assert f"`meeting1/{spoiled}` was not written by a rank of this job" in outcomes[1 - spoiled].error
    assert outcomes[1 - spoiled].exit_code == ForgedNoteError.exit_code
    assert {outcome.exit_code for outcome in outcomes} <= {ForgedNoteError.exit_code, DeadlineError.exit_code}


@pytest.mark.processes
def test_without_a_secret_what_cannot_be_read_is_an_error_that_names_its_place() -> None:
    outcomes = start_ranks(meet_over_a_tampered_link, 3, 0, environ={"FORGED": "[" * 50_000}).join()
    assert "the verdict of rank 0 (the server) cannot be read (RecursionError)" in outcomes[1].error
    assert outcomes[1].exit_code == PreflightError.exit_code


def sum_up() -> Any:
    with DistributedCommunicator.join(["a"], timeout_s=10, secret=os.environ[VARIABLE]) as comm:
        comm.preflight({"job": "the same"})
        flat = torch.full((3,), float(comm.rank))
        comm.broadcast(flat)
        return flat.tolist(), comm.barrier("train", round=1)


@pytest.mark.processes
def test_ranks_that_share_a_secret_meet() -> None:
    for nodes in ("1", "2"):  # of two they agree on the attempt first
        environ = {VARIABLE: SECRET, "GROUP_WORLD_SIZE": nodes}
        assert run_ranks(sum_up, 2, environ=environ) == [([0.0] * 3, False)] * 2


def differ() -> Any:
    if os.environ["RANK"] in os.environ["DIFFERS"]:
        os.environ[VARIABLE] += os.environ["RANK"]
    network = Network(start_s=5.0, who={1: "north"})
    with DistributedCommunicator.join(["a"], timeout_s=20, secret=os.environ[VARIABLE], network=network) as comm:
        comm.preflight({"job": "the same"})
    return "met"


@pytest.mark.processes
@pytest.mark.parametrize("nodes", ["1", "2"])
@pytest.mark.parametrize(("differs", "wrong"), [("1", [1]), ("12", [1, 2]), ("0", [1, 2])])
def test_a_rank_with_another_secret_ends_with_its_own_code_and_the_server_waits(
    differs: str, wrong: list[int], nodes: str
) -> None:
    environ = {VARIABLE: SECRET, "DIFFERS": differs, "GROUP_WORLD_SIZE": nodes}
    outcomes = start_ranks(differ, 3, environ=environ).join()
    for rank in wrong:
        assert outcomes[rank].exit_code == PreflightError.exit_code
        assert f"the secret ({VARIABLE}) of this side is not that of the server" in outcomes[rank].error
    assert outcomes[0].exit_code == DeadlineError.exit_code, "nobody came in time, which another try may mend"
    assert "rank 1" in outcomes[0].error and "was never there in" in outcomes[0].error


def come_after_a_stranger() -> Any:
    """Rank 1 comes first with another secret, as by mistake, then with the right one."""
    right, network, said = os.environ[VARIABLE], Network(who={1: "north"}), list[str]()
    if os.environ["RANK"] == "1":
        with pytest.raises(PreflightError):
            DistributedCommunicator.join(["a"], timeout_s=15, secret=f"{right}, no more", network=network)
    else:
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("fedtorch").addHandler(handler)
    with DistributedCommunicator.join(["a"], timeout_s=15, secret=right, network=network) as comm:
        return comm.barrier("train", round=1), said


@pytest.mark.processes
def test_the_server_names_who_has_another_secret_and_goes_on_with_the_right_one() -> None:
    (stops, said), *_ = run_ranks(come_after_a_stranger, 2, environ={VARIABLE: SECRET})
    assert not stops
    host = re.sub(r"[^\w.-]", "", socket.gethostname())
    assert any(f"rank 1 (north, on host `{host}`, by its own words) came with another" in line for line in said)


@pytest.mark.parametrize(
    "text", ["[" * 9000, "{}", '{"rank": "1", "host": "x"}', '{"rank": 1, "host": 3}', "\x00\xff", "1"]
)
def test_a_note_of_who_has_another_secret_is_read_as_what_anybody_may_have_written(text: str) -> None:
    assert _stranger(text, {}) == "somebody"
    odd = json.dumps({"rank": 1, "host": "a\x1b[2J\n`rm`" + "x" * 99})
    assert _stranger(odd, {1: "north"}) == f"rank 1 (north, on host `a2Jrm{'x' * 54}`, by its own words)"


def test_a_store_of_local_ranks_listens_on_loopback_alone() -> None:
    store = host_store("127.0.0.1", 0)
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for outside in addresses - {"127.0.0.1"} or {"127.0.0.2"}:
        with pytest.raises(OSError):
            socket.create_connection((outside, store.port), timeout=2).close()
    store.set("key", "value")
    assert dist.TCPStore("127.0.0.1", store.port, wait_for_workers=False).get("key") == b"value"


def test_a_taken_port_is_an_error_with_loopback_too() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(OSError, match="in use"):
        host_store("127.0.0.1", port)


def test_one_agents_ranks_share_a_secret_through_the_run_folder(tmp_path: Path) -> None:
    environ = {"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "1"}
    secrets = {job_secret(environ, tmp_path / "run") for _ in range(3)}
    assert len(secrets) == 1 and len(secrets.pop()) == 64
    files = list((tmp_path / "run").iterdir())
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600]
    forget_secret(tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())


def test_where_nothing_is_known_there_is_no_secret_and_a_short_one_is_refused(tmp_path: Path) -> None:
    assert job_secret({"WORLD_SIZE": "3"}, tmp_path) == ""
    assert job_secret({"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "2"}, tmp_path) == ""
    assert job_secret({VARIABLE: SECRET}, tmp_path) == SECRET
    with pytest.raises(PreflightError, match=f"{VARIABLE} has 3 characters"):
        job_secret({VARIABLE: "abc"}, tmp_path)
    (tmp_path / "job.secret").write_text("open to all")
    (tmp_path / "job.secret").chmod(0o644)
    with pytest.raises(PreflightError, match="remove it"):
        job_secret({"TORCHELASTIC_RUN_ID": "none"}, tmp_path)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("", 0o600, "is empty, expected a secret; make one"),
        (" \n", 0o600, "is empty, expected a secret"),
        (SECRET, 0o644, r"can be read by others than its owner \(mode 644\); chmod 600"),
        (SECRET, 0o640, r"can be read by others than its owner \(mode 640\)"),
        (None, 0o600, r"the secret cannot be read from .*No such file"),
    ],
)
def test_a_secrets_file_that_is_empty_or_open_to_others_is_refused(
    text: str | None, mode: int, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(PreflightError, match=said):
        read_secret(path)


def test_a_secrets_file_is_read_without_the_end_of_its_line_and_a_service_may_be_named_in_its_list(
    tmp_path: Path,
) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o400)
    assert read_secret(path) == SECRET
    entries = [
        (1, 4, -1),
        (2, 4, 1000),
        (4, 0, -1),
        (16, 4, -1),
        (32, 0, -1),
    ]  # as systemd gives a credential to a user
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", packed)
    except OSError as error:
        pytest.skip(f"no access control lists on this disk: {error}")
    assert path.stat().st_mode & 0o070 and read_secret(path) == SECRET
