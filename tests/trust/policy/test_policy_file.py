"""A site's policy: what it says when it is read, and what in it cannot be."""

from __future__ import annotations

import os
from datetime import time
from pathlib import Path

import pytest

from fedtorch.core.errors import ConfigError
from fedtorch.trust.policy.file import Limits, MayLeave, Policy, PrivacyWanted, Require, read_policy

A, B = (f"sha256:{letter * 64}" for letter in "ab")
FILE = f"""may_leave:
  parameters: ["*.lora_A.*", "score.*"]
  reports: [status, steps]
  scores: false
require:
  secure_sum: {{parties: 3}}
  privacy: {{kind: record, max_epsilon: 3, delta: 1.0e-5}}
  clip: 0.5
  verified: 0.05
limits: {{rounds: 200, bytes_per_round: 50MB, between: ["20:00", "06:00"]}}
code: [{A}]
members: {A}
initial: {B}
"""


def policy(folder: Path, text: str = FILE) -> Policy:
    path = folder / "policy.yaml"
    path.write_text(text)
    return read_policy(path)


def test_a_policy_is_read_whole(tmp_path: Path) -> None:
    found = policy(tmp_path)
    assert found.may_leave == MayLeave(("*.lora_A.*", "score.*"), ("status", "steps"), False)
    assert found.require == Require(3, PrivacyWanted("record", 3.0, 1e-5), 0.5, 0.05)
    assert found.limits == Limits(200, 50_000_000, (time(20), time(6)))
    assert (found.code, found.members, found.initial) == ((A,), A, B)
    assert found.where("require.clip").endswith("policy.yaml:8") and found.where("may_leave.scores").endswith(":4")
    assert found.where("limits.rounds").endswith(":10") and found.where("require.none").endswith("policy.yaml:5")


def test_what_is_not_there_allows_nothing_and_asks_for_nothing(tmp_path: Path) -> None:
    found = policy(tmp_path, "may_leave: {}\n")
    assert found.may_leave == MayLeave() and not found.may_leave.allows("score.weight")
    assert found.require == Require() and found.limits == Limits() and found.code is None
    assert found.where("may_leave.reports").endswith("policy.yaml:1") and found.where("code").endswith("policy.yaml")


def test_names_are_matched_as_shells_do_with_case(tmp_path: Path) -> None:
    allows = policy(tmp_path).may_leave.allows
    assert allows("bert.lora_A.weight") and allows("score.weight")
    assert not allows("bert.lora_a.weight") and not allows("scores.weight") and not allows("bert.score.weight")


@pytest.mark.parametrize(
    ("between", "is_open", "is_closed"),
    [
        ('["20:00", "06:00"]', ["20:00", "23:59", "00:00", "05:59"], ["06:00", "12:00", "19:59"]),
        ('["09:30", "17:00"]', ["09:30", "16:59"], ["09:29", "17:00", "00:00"]),
    ],
)
def test_a_window_may_go_over_midnight(between: str, is_open: list[str], is_closed: list[str], tmp_path: Path) -> None:
    limits = policy(tmp_path, f"may_leave: {{}}\nlimits: {{between: {between}}}\n").limits
    assert all(limits.is_open(time.fromisoformat(now)) for now in is_open)
    assert not any(limits.is_open(time.fromisoformat(now)) for now in is_closed)


@pytest.mark.parametrize(
    ("written", "num_bytes"), [("50MB", 50_000_000), ("1.5 MiB", 1_572_864), ("1024", 1024), ("2kB", 2000), ("0.5B", 0)]
)
def test_bytes_have_units(written: str, num_bytes: int, tmp_path: Path) -> None:
    limits = policy(tmp_path, f"may_leave: {{}}\nlimits: {{bytes_per_round: {written}}}\n").limits
    assert limits.bytes_per_round == num_bytes


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("may_leave:", "may_go:", r"yaml:1: `may_go` is a key that is not known here; expected one of may_leave"),
        ("reports: [status, steps]", "reports: status", r"yaml:3: `may_leave.reports` is status; expected a list"),
        ("[status, steps]", "[status, loss]", r"yaml:3: `may_leave.reports.1` is loss; expected one of status, steps"),
        ("scores: false", "scores: no", r"yaml:4: `may_leave.scores` is no; expected true or false"),
        ("scores: false", "score: false", r"yaml:4: `may_leave.score` is a key that is not known here"),
        ('"score.*"]', "3]", r"yaml:2: `may_leave.parameters.1` is 3; expected a word"),
        ("{parties: 3}", "3", r"yaml:6: `require.secure_sum` is 3; expected a section with some of parties"),
        ("{parties: 3}", "{parties: 0}", r"yaml:6: `require.secure_sum.parties` is 0; expected a whole number"),
        ("{parties: 3}", "{parties: true}", r"yaml:6: `require.secure_sum.parties` is true; expected a whole number"),
        ("{parties: 3}", "{}", r"yaml:6: `require.secure_sum.parties` is missing; expected a whole number"),
        ("kind: record", "kind: none", r"yaml:7: `require.privacy.kind` is none; expected record or client"),
        (", delta: 1.0e-5", "", r"yaml:7: `require.privacy.delta` is missing; expected a number above 0 and at most 1"),
        ("max_epsilon: 3", "max_epsilon: .inf", r"yaml:7: `require.privacy.max_epsilon` is inf; expected a number"),
        ("clip: 0.5", "clip: -1", r"yaml:8: `require.clip` is -1; expected a number above 0"),
        ("verified: 0.05", "verified: 5", r"yaml:9: `require.verified` is 5; expected a number above 0 and at most 1"),
        ("rounds: 200", "rounds: 1.5", r"yaml:10: `limits.rounds` is 1.5; expected a whole number"),
        ("50MB", "50 megabytes", r"yaml:10: `limits.bytes_per_round` is 50 megabytes; expected a number of bytes"),
        ('"20:00", "06:00"', '"24:00", "06:00"', r"yaml:10: `limits.between` is a list of 2; expected two times"),
        ('"20:00", "06:00"', '"20:00"', r"yaml:10: `limits.between` is a list of 1; expected two times of day"),
        ('"20:00", "06:00"', '"06:00", "06:00"', r"yaml:10: `limits.between` is 06:00 to 06:00; expected two diff"),
        (f"code: [{A}]", "code: [abc]", r"yaml:11: `code.0` is abc; expected sha256: and 64 hexadecimal digits"),
        (f"members: {A}", f"members: {A[7:]}", r"yaml:12: `members` is aaaa.*; expected sha256: and 64"),
        (f"initial: {B}", "initial: null", r"yaml:13: `initial` is missing; expected sha256: and 64"),
        ("code:", "code: [\n", r"policy.yaml:13 is not valid YAML"),
        ("members:", "code:", r"policy.yaml:12: duplicate key `code`, first given in line 11"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in FILE
    with pytest.raises(ConfigError, match=said) as caught:
        policy(tmp_path, FILE.replace(old, new, 1))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["", "require: {clip: 1}\n"])
def test_a_policy_says_what_may_leave(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy.yaml: `may_leave` is missing"):
        policy(tmp_path, text)


def test_what_is_no_file_is_refused_in_place_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "latin").write_bytes(b"may_leave: \xff")
    (tmp_path / "large").write_bytes(b"#" * ((1 << 20) + 1))
    for name, said in [
        ("fifo", "no regular file"),
        ("none", "cannot be read"),
        ("latin", "no text in UTF-8"),
        ("large", "expected at most 1048576"),
    ]:
        with pytest.raises(ConfigError, match=said):
            read_policy(tmp_path / name)
