"""A rank that is asked to use a public address refuses before anything listens or connects there."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervisor import toy_config

from fedtorch.comm.job import addresses
from fedtorch.comm.job.addresses import check_master
from fedtorch.comm.job.interfaces import Interface
from fedtorch.comm.job.public import is_public
from fedtorch.comm.job.store import host_store
from fedtorch.core.errors import PreflightError
from fedtorch.main import main


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", True),
        ("172.15.255.255", True),
        ("172.32.0.1", True),
        ("192.169.0.1", True),
        ("100.63.255.255", True),
        ("100.128.0.1", True),
        ("203.0.113.7", True),
        ("0.0.0.0", True),  # every address of the machine
        ("::", True),
        ("2001:db8::7", True),
        ("2a00:1450:4001::1", True),
        ("::ffff:8.8.8.8", True),
        ("127.0.1.1", False),
        ("::1", False),
        ("10.83.0.1", False),
        ("172.16.0.1", False),
        ("172.31.255.255", False),
        ("192.168.7.1", False),
        ("169.254.1.1", False),
        ("100.64.0.1", False),
        ("100.127.255.254", False),
        ("fe80::1%eth0", False),
        ("fd00::7", False),
        ("fc00::1", False),
        ("::ffff:10.0.0.1", False),
        ("a-name", False),
    ],
)
def test_what_counts_as_public(address: str, expected: bool) -> None:
    assert is_public(address) is expected


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize("master", ["203.0.113.7", "2001:db8::7"])
def test_a_rank_at_a_public_address_refuses_at_once(
    rank: str, master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": master, "MASTER_PORT": "29500"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    assert main(["--config", str(toy_config(tmp_path))]) == 4
    said = capsys.readouterr().err
    assert f"MASTER_ADDR is {master}: a public address, which anybody on the way can read and change" in said
    assert "docs/silos.md; or set `system.trust_network: true`" in said


def test_it_is_about_jobs_of_several_hosts_that_are_not_trusted() -> None:
    job = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "203.0.113.7"}
    with pytest.raises(PreflightError):
        check_master(job, trusts=False)
    check_master(job, trusts=True)
    check_master({**job, "LOCAL_WORLD_SIZE": "2"}, trusts=False)
    check_master({**job, "MASTER_ADDR": "100.64.0.1"}, trusts=False)
    check_master({**job, "MASTER_ADDR": "no.such.name.invalid"}, trusts=False)


@pytest.mark.parametrize(("trusts", "problem"), [(False, "203.0.113.9 is a public address"), (True, "")])
def test_a_public_address_is_not_announced(trusts: bool, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    class Meeting:
        def addresses(self, note: dict[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
            told.append(dict(note))
            return {note["network"]: note["address"], "another": ""}, ("a", "b")

    monkeypatch.setattr(addresses, "towards", lambda host: Interface("eth0", "203.0.113.9"))
    monkeypatch.setattr(addresses, "_listen", lambda found, ports: None)
    monkeypatch.setattr(addresses, "_try", lambda places, own: "")
    addresses.agree(Meeting(), None, {"MASTER_ADDR": "203.0.113.7"}, trusts=trusts)
    assert told[1]["phase"] == "chosen" and told[1]["problem"].startswith(problem)
    assert bool(told[1]["problem"]) is bool(problem)


def test_a_store_at_an_address_of_this_machine_listens_there_alone() -> None:
    store = host_store("127.0.0.1", 0)
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [words[1] for words in lines if words[3] == "0A" and words[1].endswith(f":{store.port:04X}")]
    assert listening == [f"0100007F:{store.port:04X}"]
