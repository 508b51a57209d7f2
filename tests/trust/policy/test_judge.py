"""Each line of a policy beside a run that asks for too much of it, and one that does not."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedtorch.core.errors import CheckpointError, PolicyError
from fedtorch.trust.policy.asked import Asked
from fedtorch.trust.policy.decisions import Decisions
from fedtorch.trust.policy.file import Policy, read_policy
from fedtorch.trust.policy.judge import judge, refuse

A, B = (f"sha256:{letter * 64}" for letter in "ab")
TEXT = f"""may_leave:
  parameters: ["score.*"]
  reports: [status, steps]
  scores: false
require:
  secure_sum: {{parties: 3}}
  privacy: {{kind: record, max_epsilon: 3, delta: 1.0e-5}}
  clip: 0.5
  verified: 0.05
limits:
  rounds: 200
  bytes_per_round: 800
  between: ["20:00", "06:00"]
code: [{A}]
members: {A}
initial: {B}
"""
FITS = Asked(
    (("score.weight", 80), ("score.bias", 20)),
    vectors=1,
    kinds=("status", "steps"),
    rounds=200,
    bytes_per_round=800,
    parties=3,
    promise="record",
    epsilon=3.0,
    delta=1e-5,
    clip=0.5,
    verified=0.05,
    code=((A, "fedtorch"),),
    members=A,
    initial=B,
)


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    (tmp_path / "policy.yaml").write_text(TEXT)
    return read_policy(tmp_path / "policy.yaml")


def test_a_run_that_fits_is_allowed_by_every_line(policy: Policy) -> None:
    lines = judge(policy, FITS)
    refuse(lines)
    assert {line.verdict for line in lines} == {"allowed"}
    assert [line.key for line in lines] == [
        "may_leave.parameters",
        *["may_leave.reports"] * 2,
        "require.secure_sum",
        *["require.privacy"] * 3,
        "require.clip",
        "require.verified",
        "limits.rounds",
        "limits.bytes_per_round",
        "limits.between",
        "code",
        "members",
        "initial",
    ]


@pytest.mark.parametrize(
    ("change", "key", "line", "said"),
    [
        (
            {"parameters": (("score.bias", 20), ("bert.weight", 80))},
            "may_leave.parameters",
            2,
            "updates of bert.weight",
        ),
        ({"kinds": ("status", "steps", "examples")}, "may_leave.reports", 3, "examples: how many examples"),
        ({"kinds": ("status", "steps", "losses")}, "may_leave.reports", 3, "losses: losses of the training"),
        ({"kinds": ("status", "steps", "norms")}, "may_leave.reports", 3, "norms: norm and largest number"),
        ({"kinds": ("status", "steps", "seconds")}, "may_leave.reports", 3, "seconds: how long"),
        ({"kinds": ("status", "steps", "figures")}, "may_leave.reports", 3, "figures: further numbers"),
        ({"kinds": ("status", "steps", "states")}, "may_leave.reports", 3, "states: sizes and digests"),
        ({"kinds": ("status", "steps", "scores")}, "may_leave.scores", 4, "scores of the silo's own rows"),
        ({"parties": 2}, "require.secure_sum", 6, "a sum of at least 2 silos, and 3 are required"),
        ({"parties": None}, "require.secure_sum", 6, "no secure sum"),
        ({"promise": "client"}, "require.privacy", 7, "kind client, and record is required"),
        ({"promise": "none", "epsilon": None}, "require.privacy", 7, "kind none"),
        ({"epsilon": 3.01}, "require.privacy", 7, "epsilon 3.01, by this site's ledger, of at most 3"),
        ({"delta": 1.1e-5}, "require.privacy", 7, "delta 1.1e-05, of at most 1e-05"),
        ({"clip": 0.6}, "require.clip", 8, "a clip of 0.6, of at most 0.5"),
        ({"clip": None}, "require.clip", 8, "no clip, or one that moves"),
        ({"verified": 0.0}, "require.verified", 9, "a share of 0 of the server's work is checked, of at least 0.05"),
        ({"rounds": 201}, "limits.rounds", 11, "201 rounds, of at most 200"),
        ({"bytes_per_round": 801}, "limits.bytes_per_round", 12, "801 bytes of updates in a round, of at most 800"),
        ({"code": ((A, "fedtorch"), (B, "mine.py"))}, "code", 14, "mine.py"),
        ({"members": B}, "members", 15, "the list with sha256:bbbb"),
        ({"initial": A}, "initial", 16, "weights to start from"),
        ({"initial": ""}, "initial", 16, "not known"),
    ],
)
def test_each_line_refuses_what_it_does_not_allow(
    change: dict[str, Any], key: str, line: int, said: str, policy: Policy
) -> None:
    lines = judge(policy, replace(FITS, **change))
    refused = [found for found in lines if found.verdict == "refused"]
    assert [found.key for found in refused] == [key] and said in refused[0].about
    with pytest.raises(PolicyError, match=rf"policy.yaml:{line}: {key}: ") as caught:
        refuse(lines)
    assert caught.value.exit_code == 11


@pytest.mark.parametrize("kind", ["messages", "keys and values", "scores of single examples"])
def test_what_no_line_can_name_is_refused(kind: str, policy: Policy) -> None:
    (line,) = [line for line in judge(policy, replace(FITS, kinds=("status", "steps", kind))) if not line.key]
    assert line.verdict == "refused" and line.about.startswith(f"{kind}: ") and "no line: " in line.text


def test_the_noise_that_the_gate_adds_is_said(policy: Policy) -> None:
    one = ((0, 9, 3.0 * 2**20),)
    for rounds, said in (((one,), "0.75"), ((one, ((0, 1, 0.0), (1, 9, 3.0 * 2**21))), "0.75 to 1.5")):
        noised = replace(FITS, noise=(("south", "silos/south", "discrete", 22, rounds),))
        (found,) = {*judge(policy, noised)} - {*judge(policy, FITS)}
        told = f"discrete noise with a standard deviation of {said}, which the gate adds to the sum of `south`"
        assert (found.key, found.verdict, found.about) == ("require.privacy", "allowed", told)


def test_what_a_policy_allows_and_no_run_asks_for_is_said(tmp_path: Path) -> None:
    text = 'may_leave: {parameters: ["*"], reports: [status, steps, losses], scores: true}\n'
    (tmp_path / "policy.yaml").write_text(text)
    lines = judge(read_policy(tmp_path / "policy.yaml"), replace(FITS, parameters=(), vectors=0))
    assert [line.about.partition(":")[0] for line in lines if line.verdict == "not asked for"] == [
        "no update leaves",
        "losses",
        "scores of the silo's own rows",
    ]
    refuse(lines)


def test_an_empty_policy_refuses_all_that_leaves(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("may_leave: {}\n")
    lines = judge(read_policy(tmp_path / "policy.yaml"), replace(FITS, kinds=("status", "steps", "scores")))
    assert [line.verdict for line in lines] == ["refused"] * 4


def test_decisions_are_lines_for_their_owner_alone(tmp_path: Path, policy: Policy) -> None:
    decisions = Decisions(tmp_path / "run")
    decisions.judged(judge(policy, FITS))
    decisions.add({"at": "round 1", "verdict": "refused", "line": "require.clip"})
    path = tmp_path / "run" / "policy.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(found) == 16 and found[0]["line"] == "may_leave.parameters" and found[-1]["at"] == "round 1"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and all(found[0]["time"] <= each["time"] for each in found)


def test_a_disk_that_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(CheckpointError, match="without it nothing leaves"):
        Decisions(tmp_path / "run").add({"at": "start"})


def test_a_decision_in_which_a_process_died_is_cut_off(tmp_path: Path) -> None:
    """Else the next one would stand in its line, and neither could be read."""
    Decisions(tmp_path).add({"at": "start"})
    with (tmp_path / "policy.jsonl").open("a") as file:
        file.write('{"at": "upd')
    Decisions(tmp_path).add({"at": "note"})
    assert [json.loads(line)["at"] for line in (tmp_path / "policy.jsonl").read_text().splitlines()] == [
        "start",
        "note",
    ]
