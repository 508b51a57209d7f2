"""Runs of parties of which one has a gate: the same bits, and code in its training process gets nothing else out."""

from __future__ import annotations

import json
import math
import os
import shutil
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parties import PARTIES, PINNED, SYSTEM, write_config
from ranks import expect_exit, run_ranks

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.load import load
from fedtorch.core.mechanism import Mechanism
from fedtorch.core.update import UpdateBuffer
from fedtorch.main import main
from fedtorch.privacy.public_sum import PublicSum
from fedtorch.trust.keys import PrivateKey
from fedtorch.trust.policy.file import read_policy
from fedtorch.trust.policy.remote import GateKey, GateParty
from fedtorch.trust.tags import TagKey
from fedtorch.trust.verify import Verifier
from launchers.site_policy import Process, Site

pytest.importorskip("cryptography")

pytestmark = pytest.mark.processes

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
OF_PLAIN = {"may_leave": OF_CHECKED["may_leave"]}
OF_CLIENT = {"may_leave": {**OF_CHECKED["may_leave"], "scores": False}}
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


def write(places: Path, policy: dict[str, Any], **changes: Any) -> None:
    write_config(places, **{"run": {"dir": "run", "name": "gated"}, "system": SYSTEM, **changes})
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
        site = Site(read_policy(policy), (), resume, False, [], Process.start(policy))
        try:
            site.judge(config, [gated], size=len(PARTIES))
            os.environ.update(site.taking_part(config, gated, rank))
            if patch:
                globals()[patch]()
            PrivateKey.sign = None  # type: ignore[assignment,method-assign]  # nobody signs here, nor makes tags
            TagKey.tags = TagKey.pads = None  # type: ignore[assignment,method-assign]
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
    noised = [(each["at"], each["deviation"]) for each in found if "noised" in each]
    deviation = 4.0 * 0.5 / math.sqrt(3 - 1)
    assert noised == ([(f"round {n}", pytest.approx(deviation)) for n in range(2)] if policy is OF_RECORD else [])
    if "trust" in changes:
        looked = Verifier(places / "run" / "trust" / "south", None).verify()
        assert (
            not looked.failures
            and dict(looked.lines)["decisions"] == f"{len(found)} by the site's policy, 0 of them refused something"
        )
        without = [each for each in found if not {"root", "sent"} & each.keys() or each["at"] == "round 0"]
        (places / "run" / "policy.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in without))
        (wrong,) = Verifier(places / "run" / "trust" / "south", None).verify().failures
        assert "a part of round 2 has left of which" in wrong


@pytest.mark.slow
def test_parts_of_rounds_in_which_a_silo_was_not_drawn_have_decisions_too(places: Path) -> None:
    """With the server's noise every silo sends a part in every round, one of nothing where it was not drawn."""
    private = {"kind": "client", "clip": 1.0, "noise_multiplier": 1.0, "delta": 0.01, "simulate": True, "seed": 5}
    drawn = {"clients": {"sampling": "poisson", "rate": 0.4}, "rounds": 4}
    write(places, OF_CLIENT, privacy=private, trust={**TRUST, "verify": "all"}, **drawn)
    told = run(places)
    assert {name: code for name, (code, _) in told.items()} == dict.fromkeys(told, 0), told
    folder = places / "south" / "run"
    assert len([each for each in decisions(folder) if "root" in each]) < 4  # of the four rounds
    assert not Verifier(folder / "trust" / "south", None).verify().failures
    (folder / "policy.jsonl").write_text("[]\n")
    (wrong,) = Verifier(folder / "trust" / "south", None).verify().failures
    assert "policy.jsonl says how much has left this site, and cannot be read (line 1 is no decision)" in wrong


def tell_everything() -> None:
    PublicSum.reported = Mechanism.reported  # type: ignore[method-assign]


def forget_the_clip() -> None:
    PublicSum.outgoing = Mechanism.outgoing  # type: ignore[method-assign]


def pass_the_gate_by() -> None:
    DistributedCommunicator.pass_updates = lambda *_, **__: None  # type: ignore[method-assign]


def send_another_length() -> None:
    get = UpdateBuffer.get
    UpdateBuffer.get = lambda self, client: get(self, client)[:-1]  # type: ignore[method-assign]


def change_what_was_measured() -> None:
    passed = DistributedCommunicator.pass_updates

    def then_change(self: DistributedCommunicator, local: UpdateBuffer, reports: Any, *, round: int) -> None:
        passed(self, local, reports, round=round)
        for report in reports:
            local.get(report.client)[3] += 1

    DistributedCommunicator.pass_updates = then_change  # type: ignore[assignment,method-assign]


def leave_out_the_masks() -> None:
    mask = GateParty.mask

    def forget_them(self: GateParty, window: np.ndarray[Any, Any]) -> None:
        mask(self, window.copy())

    GateParty.mask = forget_them  # type: ignore[method-assign]


def leave_out_the_noise() -> None:
    add = GateKey.add_noise

    def add_to_a_copy(self: GateKey, step: Any, total: np.ndarray[Any, Any], blocks: Any) -> str:
        return add(self, step, total.copy(), blocks)

    GateKey.add_noise = add_to_a_copy  # type: ignore[method-assign]


def test_a_part_without_its_noise_does_not_leave(places: Path) -> None:
    write(places, OF_RECORD, **RECORD, run={"dir": str(places / "run"), "name": "gated"})
    ended = expect_exit(as_party, len(PARTIES), str(places), "never", "south", "leave_out_the_noise")
    assert [outcome.exit_code for outcome in ended] == [11] * 4, ended
    last = decisions(places / "run")[-1]
    assert (last["verdict"], last["line"]) == ("refused", "require.privacy")


@pytest.mark.parametrize(
    ("patch", "policy", "changes"),
    [
        ("change_what_was_measured", OF_PLAIN, {}),
        pytest.param(
            "leave_out_the_masks",
            OF_SECURE,
            {**SECURE, "system": {**SYSTEM, "sum_scale": "public"}},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_bytes_that_the_gate_has_not_made_are_refused_by_the_server(
    patch: str, policy: dict[str, Any], changes: dict[str, Any], places: Path
) -> None:
    write(places, policy, **changes)
    ended = expect_exit(as_party, len(PARTIES), str(places), "never", "south", patch)
    assert (ended[0].exit_code or ended[0].result[0]) == 11, ended
    said = "the receipt of `south` has another `sent` than what came here"
    assert said in (places / "hub" / "run" / "log.rank0.txt").read_text()


@pytest.mark.slow
def test_under_masks_the_gates_own_numbers_leave(places: Path) -> None:
    digests = []
    for patch in ("", "change_what_was_measured"):
        write(places, OF_SECURE, **SECURE, system={**SYSTEM, "sum_scale": "public"})
        told = run(places, patch=patch)
        assert {code for code, _ in told.values()} == {0}, told
        digests.append(digest(places / "hub"))
    assert digests[0] == digests[1]


def ask_for_a_part_without_masks() -> None:
    begin = GateKey.begin_part
    GateKey.begin_part = lambda self, way, *about: begin(self, "sum", *about)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("patch", "line"),
    [
        ("ask_for_a_part_without_masks", "require.secure_sum: a part without masks"),  # the others wait in the exchange
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


COUNTED = {"labels": {"longest": 5, "width": 4}, "words": {"longest": 5, "width": 16}, "min_count": 2}
SECURELY: dict[str, Any] = {"clip": 1.0, "secure_sum": {"threshold": 1.0}}
OF_COUNTS = {
    "may_leave": {"parameters": ["counts"], "reports": ["status", "steps", "examples"], "scores": False},
    "require": {"privacy": {"kind": "record", "max_epsilon": 50, "delta": 1e-5}},
}


def counted(**privacy: Any) -> dict[str, Any]:
    return {"paradigm": "stats", "stats": {**COUNTED, "privacy": {"noise_multiplier": 1.0, **privacy}}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        counted(),
        {**counted(), "trust": {**TRUST, "verify": "all"}},
        {**counted(noise_at="shared", noise="discrete"), "privacy": SECURELY},
    ],
    ids=["signed", "checked", "shared"],
)
def test_a_gate_adds_the_noise_of_counts_and_changes_no_bit(changes: dict[str, Any], places: Path) -> None:
    tables = []
    for gated in ("", "south"):
        write(places, OF_COUNTS, **changes, run={"dir": str(places / gated / "run"), "name": "gated"})
        told = run(places, gated)
        assert {name: code for name, (code, _) in told.items()} == dict.fromkeys(told, 0), told
        tables.append(json.loads((places / gated / "run-stats" / "stats.json").read_text())["tables"])
        shutil.rmtree(places / "south" / "rows.privacy", ignore_errors=True)
    assert tables[0] == tables[1]
    found = decisions(places / "south" / "run-stats")
    noised, sent = ([each[key] for each in found if key in each] for key in ("noised", "root"))
    assert noised == sent and len(noised) > 2
    assert all(each["deviation"] > 0.5 for each in found if "deviation" in each)


def test_counts_without_their_noise_do_not_leave(places: Path) -> None:
    write(places, OF_COUNTS, **counted(), run={"dir": str(places / "run"), "name": "gated"})
    ended = expect_exit(as_party, len(PARTIES), str(places), "never", "south", "leave_out_the_noise")
    assert [outcome.exit_code for outcome in ended] == [11] * 4, ended
    last = decisions(places / "run-stats")[-1]
    assert (last["verdict"], last["line"]) == ("refused", "require.privacy")
