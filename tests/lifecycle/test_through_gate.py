"""Runs of parties of which one has a gate: the same bits, and code in its training process gets nothing else out."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from own_rows import BERT, weather, write_rows
from ranks import expect_exit, run_ranks

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.load import load
from fedtorch.core.mechanism import Mechanism
from fedtorch.core.update import UpdateBuffer
from fedtorch.main import main
from fedtorch.privacy.public_sum import PublicSum
from fedtorch.text.byte_bpe import train_subwords
from fedtorch.trust.keys import PrivateKey, new_key
from fedtorch.trust.policy.file import read_policy
from launchers.site_policy import Process, Site

pytest.importorskip("cryptography")

PARTIES = {0: "hub", 1: "north", 2: "south", 3: "west"}
PINNED = {name: rank for rank, name in PARTIES.items() if rank}
SYSTEM = {"placement": "pinned", "pinned": PINNED, "timeout": 20.0, "start_timeout": 20.0}
SECURE: dict[str, Any] = {"privacy": {"clip": 0.05, "secure_sum": {"threshold": 1.0}}}
RECORD: dict[str, Any] = {
    "privacy": {
        "kind": "record",
        "noise_at": "shared",
        "secure_sum": {"threshold": 1.0},
        "units": dict.fromkeys(PINNED, 12),
        "clip": 0.5,
        "noise_multiplier": 4.0,
        "delta": 1e-3,
        "ledger": "ledger",
    },
    "algorithm": {"name": "fedavg", "weights": "declared"},
    "client": {"batch_size": 4, "steps": 1},
    "server": {"optimizer": "adam", "lr": 0.01},
}
TRUST: dict[str, Any] = {"members": "members.yaml", "key": "own.key"}
ALL = ["status", "steps", "examples", "losses", "norms", "seconds", "figures"]
OF_CHECKED = {"may_leave": {"parameters": ["*"], "reports": ALL, "scores": True}, "require": {"verified": 0.5}}
OF_SECURE = {
    "may_leave": {"parameters": ["*"], "reports": ["status", "steps", "examples", "seconds"], "scores": True},
    "require": {"secure_sum": {"parties": 3}, "clip": 0.05},
    "limits": {"rounds": 2, "bytes_per_round": "1MB"},
}
OF_RECORD = {
    "may_leave": {"parameters": ["*"], "reports": ["status", "steps", "states"], "scores": False},
    "require": {
        "secure_sum": {"parties": 3},
        "privacy": {"kind": "record", "max_epsilon": 3, "delta": 1e-3},
        "clip": 0.5,
    },
}


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A folder for each party, with its rows, its key and the list of members."""
    train_subwords([row["text"] for row in weather()], tmp_path / "words", size=270)
    lines = ["federation: test", "members:"]
    for rank, name in PARTIES.items():
        (tmp_path / name).mkdir()
        shutil.copytree(tmp_path / "words", tmp_path / name / "words")
        write_rows(tmp_path / name / "rows.jsonl", [row for row in weather() if PINNED[row["home"]] == rank])
        key = new_key(tmp_path / name / "own.key")
        lines.append(f"  {name}: {{role: {'silo' if rank else 'server'}, key: {key.public.hex()}}}")
    for name in PARTIES.values():
        (tmp_path / name / "members.yaml").write_text("\n".join(lines) + "\n")
    return tmp_path


def write(places: Path, policy: dict[str, Any], **changes: Any) -> None:
    data = {"source": "rows.jsonl", "clients": {"by": "home"}, "labels": ["good", "bad"]}
    data["splits"] = {"dev": 0.25, "test": 0.25}
    config = {
        "task": {"name": "text_classification", "model": BERT, "tokenizer": "words", "max_length": 32, "data": data},
        "run": {"dir": "run", "name": "gated"},
        "rounds": 2,
        "algorithm": {"name": "fedavg", "weights": "equal"},
        "client": {"batch_size": 4, "optimizer": "adamw", "lr": 0.01},
        "track": {"progress": "lines", "tensorboard": False},
        "trust": TRUST,
        "system": SYSTEM,
    }
    for name in PARTIES.values():
        (places / name / "config.yaml").write_text(yaml.safe_dump({**config, **changes}))
    (places / "south" / "policy.yaml").write_text(json.dumps(policy))


def as_party(places: str, resume: str, gated: str, patch: str) -> tuple[int, str]:
    """The exit code, and what the party was told. gated: who has a gate. patch: of its training process, by name."""
    rank = int(os.environ["RANK"])
    os.chdir(Path(places) / PARTIES[rank])
    arguments = ["--config", "config.yaml", "--resume", resume]
    with redirect_stderr(StringIO()) as said, redirect_stdout(said):
        if PARTIES[rank] != gated:
            return main(arguments), said.getvalue()
        config, policy = load([Path("config.yaml")]), Path("policy.yaml")
        site = Site(gated, read_policy(policy), (), resume, False, [], Process.start(policy))
        try:
            site.judge(config, [gated], size=len(PARTIES))
            os.environ.update(site.taking_part(config, gated, rank))
            if patch:
                globals()[patch]()
            PrivateKey.sign = None  # type: ignore[assignment,method-assign]  # nobody signs here
            return main(arguments), said.getvalue()
        finally:
            site.close()


def run(places: Path, gated: str = "south", patch: str = "", resume: str = "never") -> dict[str, tuple[int, str]]:
    told = run_ranks(as_party, len(PARTIES), str(places), resume, gated, patch)
    return dict(zip(PARTIES.values(), told, strict=True))


def decisions(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "policy.jsonl").read_text().splitlines()]


def digest(places: Path) -> str:
    found: str = json.loads((places / "run" / "results.json").read_text())["digest"]
    return found


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        (OF_SECURE, {**SECURE, "system": {**SYSTEM, "sum_scale": "public"}}),
        (OF_RECORD, RECORD),
        (OF_CHECKED, {"trust": {**TRUST, "verify": "all"}}),
        (OF_CHECKED, {"trust": {**TRUST, "verify": 0.5}, **SECURE, "system": {**SYSTEM, "sum_scale": "public"}}),
    ],
)
def test_a_gate_changes_no_bit_and_writes_down_what_left(
    policy: dict[str, Any], changes: dict[str, Any], places: Path
) -> None:
    digests = []
    for gated in ("", "south"):
        write(places, policy, **changes, run={"dir": str(places / "run"), "name": "gated"})
        told = run(places, gated)
        assert {name: code for name, (code, _) in told.items()} == dict.fromkeys(told, 0), told
        digests.append(digest(places))
    assert digests[0] == digests[1]
    found = decisions(places / "run")
    assert [each["at"] for each in found if "root" in each] == ["round 0", "round 1"]
    assert {each["verdict"] for each in found} <= {"allowed", "not asked for"}


def tell_everything() -> None:
    PublicSum.reported = Mechanism.reported  # type: ignore[method-assign]


def forget_the_clip() -> None:
    PublicSum.outgoing = Mechanism.outgoing  # type: ignore[method-assign]


def pass_the_gate_by() -> None:
    DistributedCommunicator.pass_updates = lambda *_, **__: None  # type: ignore[method-assign]


def send_another_length() -> None:
    get = UpdateBuffer.get
    UpdateBuffer.get = lambda self, client: get(self, client)[:-1]  # type: ignore[method-assign]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("patch", "line"),
    [
        ("forget_the_clip", "require.clip: an update that is longer than the clip"),
        pytest.param("tell_everything", "may_leave.reports: losses", marks=pytest.mark.slow),
        pytest.param("pass_the_gate_by", "may_leave.parameters: a report on an update", marks=pytest.mark.slow),
        pytest.param("send_another_length", "may_leave.parameters: an update of another", marks=pytest.mark.slow),
    ],
)
def test_code_in_the_training_process_gets_nothing_out(patch: str, line: str, places: Path) -> None:
    write(places, OF_SECURE, **SECURE, system={**SYSTEM, "sum_scale": "public"})
    ended = expect_exit(as_party, len(PARTIES), str(places), "never", "south", patch)
    assert [outcome.exit_code for outcome in ended] == [11] * 4, ended
    logs = {name: (places / name / "run" / f"log.rank{rank}.txt").read_text() for rank, name in PARTIES.items()}
    assert f"PolicyError: the gate lets nothing out: policy.yaml:1: {line}" in logs.pop("south")
    for log in logs.values():
        assert "south refuses by its policy" in log and line not in log
    assert "south refuses by its policy" in (places / "hub" / "run" / "status.json").read_text()
    last = decisions(places / "south" / "run")[-1]
    assert last["verdict"] == "refused" and last["line"] == line.partition(":")[0]
