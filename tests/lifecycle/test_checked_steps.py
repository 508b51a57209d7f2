"""Runs of which silos check the server's sum and step, on all ranks."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from html import unescape
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
    as_party_of_a_lying_server,
    checked,
    digest,
    ends_well,
    run,
    write_config,
)
from patient import wait_for_return
from ranks import expect_exit, free_port, run_ranks, start_ranks
from safetensors.numpy import load_file, save_file
from torch import Tensor

from fedtorch.comm.job.witness import Exchanged
from fedtorch.core.errors import TrustError
from fedtorch.core.prime import P
from fedtorch.core.update import Report
from fedtorch.rounds import aggregation, opened_leaves
from fedtorch.rounds.aggregation import Decision
from fedtorch.rounds.chain import Chain
from fedtorch.rounds.checked_steps import CheckedSteps
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.opened_leaves import OpenedSteps
from fedtorch.tracking.trust_statement import checked as checked_by
from fedtorch.trust.kept import KeptLeaves
from fedtorch.trust.keys import read_key
from fedtorch.trust.merkle import LEAF, PassingLeaves, root
from fedtorch.trust.receipts import ReceiptsFile, Signed
from launchers import verify

pytest.importorskip("cryptography")

pytestmark = pytest.mark.processes

CHECKED = {"trust": {"members": "members.yaml", "key": "own.key", "verify": "all"}}
SECURE = {"privacy": {"clip": 1.0, "secure_sum": {"threshold": 1.0}}, "system": {**SYSTEM, "sum_scale": "public"}}


@pytest.mark.parametrize("is_secret", [pytest.param(False, marks=pytest.mark.slow), True])
def test_checks_change_no_bit(is_secret: bool, places: Path) -> None:
    changes: dict[str, Any] = SECURE if is_secret else {}
    changes = changes | {"server": {"optimizer": "adam", "lr": 0.1}}
    write_config(places, trust={}, **changes)
    ends_well(run(places, environ=SECRET))
    common = digest(places / "hub" / "run")
    for share in ("all", 0.5):
        write_config(places, **checked(share), **changes)
        ends_well(run(places, "never"))
        assert digest(places / "hub" / "run") == common
        file = ReceiptsFile(places / "south/run/trust/south/receipts.jsonl")
        assert [each.kind for each in file.signed].count("record") == 3
        assert file.right("south") >= {record.digest for record in file.records()}


STEPPED = {
    "adamw": {"server": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1, "no_decay": ["*bias"]}},
    "feddyn": {"algorithm": {"name": "feddyn"}, "server": {"optimizer": "sgd", "lr": 0.5, "momentum": 0.5}},
    "scaffold": {
        "algorithm": {"name": "scaffold"},
        "client": {"batch_size": 4, "optimizer": "sgd", "lr": 0.05},
        "server": {"optimizer": "sgd", "lr": 0.5, "momentum": 0.5},
    },
}


@pytest.mark.parametrize("name", ["adamw", pytest.param("feddyn", marks=pytest.mark.slow), "scaffold"])
def test_a_share_of_the_leaves_is_stepped_as_the_whole(name: str, places: Path) -> None:
    digests = []
    for share in ("all", 0.3):
        write_config(places, **checked(share), **STEPPED[name], run={"dir": str(places / "run")})  # of clients' states
        ends_well(run(places, "never"))
        digests.append(digest(places / "run"))
        file = ReceiptsFile(places / "run/trust/south/receipts.jsonl")
        assert file.right("south") >= {record.digest for record in file.records()}
    assert digests[0] == digests[1]


@pytest.mark.parametrize(("verify", "is_secret"), [("all", True), pytest.param(0.999, False, marks=pytest.mark.slow)])
def test_a_sum_that_is_not_that_of_the_parts_ends_the_run_in_that_round(
    verify: str | float, is_secret: bool, places: Path
) -> None:
    write_config(places, **checked(verify), **(SECURE if is_secret else {}))
    ended = expect_exit(as_party_of_a_lying_server, len(PARTIES), str(places))
    hub, *silos = [outcome.exit_code or outcome.result[0] for outcome in ended]
    assert silos == [11] * len(silos) and hub == 11
    for rank, name in PARTIES.items():
        if rank:
            log = (places / name / "run" / f"log.rank{rank}.txt").read_text()
            assert "round 2: the sum is not that of the parts: 1 of" in log


GOES_ON = {"on_loss": "continue", "min_silos": 2}
RETURNED = [(0, True), (0, False), (1, False), (2, True), (2, False), (3, False)]


Lie = Callable[[list[Signed], Tensor], None]


def signed_anew(told: list[Signed], place: int = -1, by: str = "hub", **changes: Any) -> None:
    """The text at a place says something else, and is signed by its party's key, which lies in another folder."""
    old = told[place]
    about = {name: value for name, value in old.about.items() if name not in ("kind", "party")} | changes
    told[place] = Signed.by(read_key(Path(f"../{by}/own.key")), old.kind, old.party, about)


def root_of(values: Tensor) -> str:
    return root(values.numpy()).hex()


def numbers_of(sums: Tensor) -> int:
    """How many numbers the sum has; its tags follow."""
    return len(sums) - -(-len(sums) // (LEAF + 1))


def another_sum(told: list[Signed], sums: Tensor, at: int, more: int) -> None:
    sums[at] += more
    signed_anew(told, sum=root_of(sums[: numbers_of(sums)]))


def come_again(self: CheckedSteps, sums: Tensor) -> None:
    """A silo hashes a sum while it comes; this is another one."""
    self._came = PassingLeaves(sums[: numbers_of(sums)])  # type: ignore[attr-defined]
    self._came.up_to(len(sums))  # type: ignore[attr-defined]


def without_receipt(told: list[Signed], party: str, accepted: list[str]) -> None:
    del told[[each.party for each in told].index(party)]
    receipts = {name: digest for name, digest in told[-1].about["receipts"].items() if name != party}
    weights = [(1 / len(accepted)).hex() for _ in accepted]
    signed_anew(told, receipts=receipts, accepted=accepted, weights=weights)


def invented(told: list[Signed]) -> None:
    more = Signed.by(read_key(Path("../hub/own.key")), "receipt", "east", told[0].about)
    told.insert(0, more)
    signed_anew(told, receipts={**told[-1].about["receipts"], "east": more.digest})


def changed(told: list[Signed], place: int, **words: str) -> None:
    told[place] = replace(told[place], **words)


LIES: dict[str, tuple[str, Lie]] = {
    "one more in one number": ("the sum is not that of the parts: 1 of", lambda t, s: another_sum(t, s, 3, 1)),
    "the prime more": ("could not be told from others", lambda t, s: another_sum(t, s, 3, P)),
    "a sum that is not the record's": ("another sum, or other tags", lambda t, s: s[0].add_(1)),
    "another tag": ("another sum, or other tags", lambda t, s: s[-1].add_(1)),
    "another tag in the record too": (
        "the sum is not that of the parts",
        lambda t, s: (s[-1].add_(1), signed_anew(t, tags=root_of(s[numbers_of(s) :].view(torch.uint64)))) and None,
    ),
    "other steps of the optimiser": (
        "leaves another state",
        lambda t, s: signed_anew(t, state={**t[-1].about["state"], "steps": 7}),
    ),
    "other weights after the step": ("comes to other weights", lambda t, s: signed_anew(t, next="00" * 32)),
    "momentum out of nothing": ("leaves another state", lambda t, s: signed_anew(t, state={"steps": 0, "tensors": {}})),
    "a silo left out, with its receipt": ("this party has sent a part", lambda t, s: without_receipt(t, "south", [])),
    "another silo left out": (
        "other clients, weights or another scale",
        lambda t, s: without_receipt(t, "north", ["south", "west"]),
    ),
    "another one's part left out of the receipts alone": (
        "no receipt says what `north` is weighed by",
        lambda t, s: without_receipt(t, "north", ["north", "south", "west"]),
    ),
    "other weights": ("other clients, weights", lambda t, s: signed_anew(t, weights=[(0.5).hex()] * 3)),
    "another scale": ("or another scale", lambda t, s: signed_anew(t, scale=t[-1].about["scale"] - 1)),
    "an old round": ("another `round`", lambda t, s: signed_anew(t, round=0)),
    "another past": ("another `previous`", lambda t, s: signed_anew(t, previous="11" * 32)),
    "from elsewhere": ("another `from`", lambda t, s: signed_anew(t, **{"from": "11" * 32})),
    "another meeting": ("not the server's of this meeting", lambda t, s: signed_anew(t, meeting="11" * 32)),
    "an invented silo": ("was not signed by `east`", lambda t, s: invented(t)),
    "a receipt that says something else": (
        "was not signed by `north`",
        lambda t, s: changed(t, 0, text=t[0].text.replace("sent", "seen")),
    ),
    "a receipt signed by the server": ("was not signed by `north`", lambda t, s: signed_anew(t, 0, round=1)),
    "a receipt that the record does not name": (
        "passes on other receipts",
        lambda t, s: signed_anew(t, 0, "north", round=7),
    ),
    "a record of nobody": ("was not signed by `hub`", lambda t, s: changed(t, -1, signature="00" * 64)),
    "a record of a silo": (
        "not the server's of this meeting",
        lambda t, s: t.__setitem__(-1, Signed.by(read_key(Path("own.key")), "record", "south", t[-1].about)),
    ),
    "nothing": ("is none", lambda t, s: t.clear()),
    "a record that lacks something": ("is none", lambda t, s: t.__setitem__(-1, nothing_but_a_record(t[-1]))),
}


def nothing_but_a_record(old: Signed) -> Signed:
    about = {name: old.about[name] for name in ("federation", "meeting", "members")}
    return Signed.by(read_key(Path("../hub/own.key")), "record", "hub", about)


def as_party_that_is_lied_to(places: str) -> tuple[int, str]:
    """South sees every lie in place of the second round's record, and then the record."""
    if os.environ["RANK"] == "2":
        check = CheckedSteps._check_round

        def check_lies(self: CheckedSteps, told: Sequence[Signed], exchanged: Exchanged, sums: Tensor) -> None:
            found: dict[str, str] = {}
            for name, (_, lie) in LIES.items() if self.context.round == 1 else ():
                other, numbers, tensors = [*told], sums.clone(), self.context.server.tensors
                lie(other, numbers)
                kept = {key: tensor.clone() for key, tensor in tensors.items()}
                come_again(self, numbers)
                try:
                    check(self, other, exchanged, numbers)
                except TrustError as error:
                    found[name] = str(error)
                for key, tensor in kept.items():
                    tensors[key].copy_(tensor)
                if name in found:
                    assert self.chain.receipts.evidence.exists()
            Path(f"lies.{self.context.round}.json").write_text(json.dumps(found))
            come_again(self, sums)
            check(self, told, exchanged, sums)

        CheckedSteps._check_round = check_lies  # type: ignore[assignment,method-assign]
    return as_party(places)


def test_every_lie_of_a_record_is_found(places: Path) -> None:
    write_config(places, **CHECKED, server={"optimizer": "sgd", "lr": 0.5, "momentum": 0.5})
    ends_well(run_ranks(as_party_that_is_lied_to, len(PARTIES), str(places)))
    found = json.loads((places / "south" / "lies.1.json").read_text())
    for name, (said, _) in LIES.items():
        assert said in found.get(name, "it was believed"), name
        assert "round 2" in found[name] or "signed by" in found[name], name


def as_party_that_alone_is_lied_to(places: str) -> tuple[int, str]:
    """South alone sees a false sum in the second round."""
    if os.environ["RANK"] == "2":
        check = CheckedSteps._check_round

        def check_a_lie(self: CheckedSteps, told: Sequence[Signed], exchanged: Exchanged, sums: Tensor) -> None:
            other = [*told]
            if self.context.round == 1:
                another_sum(other, sums, 3, 1)
                come_again(self, sums)
            check(self, other, exchanged, sums)

        CheckedSteps._check_round = check_a_lie  # type: ignore[assignment,method-assign]
    return as_party(places)


@pytest.mark.parametrize("clients", [{}, {"on_loss": "continue", "min_silos": 2}])
def test_the_others_hear_who_has_found_something_wrong_and_what(clients: dict[str, Any], places: Path) -> None:
    write_config(places, **CHECKED, clients=clients, privacy={"colluders": 0})
    ended = expect_exit(as_party_that_alone_is_lied_to, len(PARTIES), str(places))
    assert [outcome.exit_code or outcome.result[0] for outcome in ended] == [11] * len(PARTIES), ended
    for rank, name in PARTIES.items():
        log = (places / name / "run" / f"log.rank{rank}.txt").read_text()
        assert ("south has found the server's work wrong" in log) == (name != "south")
        assert ("the sum is not that of the parts: 1 of" in log) == (name == "south")
    status = json.loads((places / "hub" / "run" / "status.json").read_text())
    assert status["code"] == 11 and "south has found the server's work wrong" in status["reason"]


def chain(places: Path, party: str) -> list[Signed]:
    return ReceiptsFile(places / "run/trust" / party / "receipts.jsonl").signed


@pytest.mark.parametrize(
    "fault",
    [pytest.param("kill:phase=train,rank=1,round=2", marks=pytest.mark.slow), "kill:phase=record,rank=0,round=2"],
)
def test_killed_anywhere_the_chain_goes_on(fault: str, places: Path) -> None:
    common = {"run": {"dir": str(places / "run"), "name": "parties"}, "checkpoint": {"every": 2}, "rounds": 4}
    changes = {**common, **CHECKED, "server": {"optimizer": "adam", "lr": 0.1}}
    write_config(places, **changes)
    ends_well(run(places))
    whole = digest(places / "run")
    faults = {"FEDTORCH_TESTING": "1", "FEDTORCH_FAULTS": f"{fault},attempt=0"}
    ended = expect_exit(as_party, len(PARTIES), str(places), "never", environ=faults)
    assert -9 in [outcome.exit_code for outcome in ended]
    before = [len(chain(places, party)) for party in PARTIES.values()]
    ends_well(run(places))
    assert digest(places / "run") == whole
    for party, count in zip(PARTIES.values(), before, strict=True):
        signed = chain(places, party)
        records = [each for each in signed if each.kind == "record"]
        assert len(signed) > count and len({each.about["run"] for each in records}) == 1
        for first, second in zip(records, records[1:], strict=False):
            assert second.about["previous"] == first.digest
    rounds = [(each.about["round"], "begins" in each.about) for each in chain(places, "hub") if each.kind == "record"]
    assert rounds[0] == (0, True) and [pair for pair in rounds if pair[1]][1:] and rounds[-1] == (3, False)


def as_party_that_is_awaited(places: str) -> tuple[int, str]:
    wait_for_return(round=2)
    return as_party(places)


@pytest.mark.slow
def test_a_round_of_a_secure_sum_that_was_opened_is_done_again_after_a_kill(places: Path) -> None:
    """Each silo answers again for the same sum, though the record that the run goes on from is another one."""
    common = {"run": {"dir": str(places / "run"), "name": "parties"}, "checkpoint": {"every": 2}, "rounds": 4}
    write_config(places, **common, **CHECKED, **SECURE)
    ends_well(run(places))
    whole = digest(places / "run")
    faults = {"FEDTORCH_TESTING": "1", "FEDTORCH_FAULTS": "kill:phase=record,rank=0,round=2,attempt=0"}
    ended = expect_exit(as_party, len(PARTIES), str(places), "never", environ=faults)
    assert -9 in [outcome.exit_code for outcome in ended]
    answered = (places / "run/trust/south/answers.jsonl").read_text()
    assert answered.count('"round": 2') == 1
    ends_well(run(places))
    assert digest(places / "run") == whole
    assert (places / "run/trust/south/answers.jsonl").read_text().startswith(answered)


@pytest.mark.slow
def test_a_silo_that_was_lost_comes_back_to_the_chain(places: Path) -> None:
    common = {"run": {"dir": str(places / "run"), "name": "parties"}, "rounds": 4}
    write_config(places, **common, **CHECKED, clients=GOES_ON, privacy={"colluders": 0})
    environ = {"MASTER_PORT": str(free_port()), "FEDTORCH_TESTING": "1"}
    faults = {**environ, "FEDTORCH_FAULTS": "kill:rank=2,round=1,phase=train"}
    ranks = start_ranks(as_party_that_is_awaited, len(PARTIES), str(places), environ=faults)
    ranks.processes[2].join(60)
    alone = {**environ, "RANK": "2", "WORLD_SIZE": str(len(PARTIES))}
    again = start_ranks(as_party_that_is_awaited, 1, str(places), environ=alone)
    ended = ranks.join(90)
    assert [ended[rank].result[0] for rank in (0, 1, 3)] == [0, 0, 0]
    records = [each for each in chain(places, "south") if each.kind == "record"]
    assert [(each.about["round"], "begins" in each.about) for each in records] == RETURNED
    assert again.join(20)[0].result[0] == 0


def shown_otherwise(opening: Any, part: int, after: str = "") -> None:
    """One bit of a part of what is shown: of the sums' first leaf, the states' first one, or the path of a weight."""
    at = 3 * len(opening.sums.leaves) if after == "sums" else 0
    list(opening._parts(opening.data))[at + part][0] ^= 1


def said_otherwise(opening: Any, **changes: Any) -> None:
    opening.after = {**opening.after, **changes}


def root_of_its_own(opening: Any, name: str) -> None:
    state = opening.after["state"]
    said_otherwise(opening, state={**state, "tensors": {**state["tensors"], name: "11" * 32}})


OPENED: dict[str, tuple[str, Callable[[Any], None]]] = {
    "a number of the sum": ("leaf 0 of the sum is not that of the record", lambda o: shown_otherwise(o, 0)),
    "a tag": ("the sum is not that of the parts: 1 of", lambda o: shown_otherwise(o, 1)),
    "a path of the sum": ("leaf 0 of the sum is not", lambda o: shown_otherwise(o, 2)),
    "the state before": ("leaf 0 of the first_moment is not", lambda o: shown_otherwise(o, 0, "sums")),
    "a path of the state before": ("leaf 0 of the second_moment is not", lambda o: shown_otherwise(o, 3, "sums")),
    "a path of the state after": ("first_moment after the step is not", lambda o: shown_otherwise(o, 4, "sums")),
    "a path of the weights": ("weights after the step is not", lambda o: shown_otherwise(o, -1)),
    "other weights after the step": ("weights after the step is not", lambda o: said_otherwise(o, next="11" * 32)),
    "another state after the step": (
        "second_moment after the step is not",
        lambda o: root_of_its_own(o, "second_moment"),
    ),
    "another scale": ("after the step is not", lambda o: said_otherwise(o, scale=o.after["scale"] - 1)),
    "other steps": (
        "counts other steps",
        lambda o: said_otherwise(o, state={**o.after["state"], "steps": 7}),
    ),
}


def as_party_that_is_shown_something_else(places: str) -> tuple[int, str]:
    if os.environ["RANK"] == "2":
        check = opened_leaves._Opening.check

        def check_lies(self: Any, steps: OpenedSteps) -> KeptLeaves:
            found: dict[str, str] = {}
            for name, (_, lie) in OPENED.items() if steps.context.round == 1 else ():
                other = deepcopy(self)
                lie(other)
                try:
                    check(other, steps)
                except TrustError as error:
                    found[name] = str(error)
            Path(f"lies.{steps.context.round}.json").write_text(json.dumps(found))
            return check(self, steps)

        opened_leaves._Opening.check = check_lies  # type: ignore[method-assign]
    return as_party(places)


@pytest.mark.parametrize("changes", [{}, pytest.param(STEPPED["scaffold"], marks=pytest.mark.slow)], ids=["one", "two"])
def test_every_lie_of_an_opened_leaf_is_found(changes: dict[str, Any], places: Path) -> None:
    common = {"server": {"optimizer": "adam", "lr": 0.1}, "run": {"dir": str(places / "run")}}  # of clients' states
    write_config(places, **checked(0.999), **changes | common)
    ends_well(run_ranks(as_party_that_is_shown_something_else, len(PARTIES), str(places)))
    found = json.loads((places / "south" / "lies.1.json").read_text())
    for name, (said, _) in OPENED.items():
        assert said in found.get(name, "it was believed"), (name, found.get(name))


Changed = Callable[[Path, list[dict[str, Any]]], None]


def in_text(kind: str, old: str, new: str) -> Changed:
    """Change a word of the last text of a kind, by whoever can write the file."""

    def change(folder: Path, lines: list[dict[str, Any]]) -> None:
        line = [line for line in lines if line["kind"] == kind][-1]
        assert old in line["text"], line["text"]
        line["text"] = line["text"].replace(old, new)

    return change


def again_by_the_server(**changes: Any) -> Changed:
    """Change the last record but one and sign it anew, as the server can; its digest is then another one."""

    def change(folder: Path, lines: list[dict[str, Any]]) -> None:
        line = [line for line in lines if line["kind"] == "record"][-2]
        told = Signed.of(line).about
        about = {name: value for name, value in told.items() if name not in ("kind", "party")} | changes
        line.update(Signed.by(read_key(folder.parents[3] / "hub/own.key"), "record", "hub", about).sent())

    return change


def without(kind: str) -> Changed:
    def change(folder: Path, lines: list[dict[str, Any]]) -> None:
        lines.remove([line for line in lines if line["kind"] == kind][2])

    return change


def without_acknowledgements(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Two silos have said nothing of the record of the first round."""
    record = Signed.of([line for line in lines if line["kind"] == "record"][1]).digest
    found = [line for line in lines if line["kind"] == "acknowledgement" and record in line["text"]]
    for line in [line for line in found if line["party"] in ("north", "west")]:
        lines.remove(line)


def another_order(folder: Path, lines: list[dict[str, Any]]) -> None:
    records = [number for number, line in enumerate(lines) if line["kind"] == "record"]
    lines[records[1]], lines[records[2]] = lines[records[2]], lines[records[1]]


def another_leaf(name: str) -> Changed:
    def change(folder: Path, lines: list[dict[str, Any]]) -> None:
        path = sorted(folder.glob("leaves/*"))[0]
        arrays = load_file(path)
        arrays[name].view(np.uint8)[0] ^= 1
        save_file(arrays, path)

    return change


CHANGES: dict[str, tuple[str, Changed]] = {
    "a client": ("was not signed by `hub`", in_text("record", '"accepted":["north"', '"accepted":["norht"')),
    "a weight": ("was not signed by `hub`", in_text("record", '"weights":["0x1.5', '"weights":["0x1.6')),
    "a scale": ("was not signed by `hub`", in_text("record", '"scale":', '"scale":-')),
    "the sum": ("was not signed by `hub`", in_text("record", '"sum":"', '"sum":"0')),
    "the state": ("was not signed by `hub`", in_text("record", '"steps":3', '"steps":4')),
    "a receipt": ("was not signed by", in_text("receipt", '"round":2', '"round":1')),
    "an acknowledgement": ("was not signed by", in_text("acknowledgement", "oath/closing", "oath/gather")),
    "a signature": ("was not signed by `hub`", lambda f, ls: ls[0].update(signature="00" * 64)),
    "the order": ("but before it stands", another_order),
    "a record less": ("but before it stands", without("record")),
    "a receipt less": ("that the record of round 1 names is not there", without("receipt")),
    "acknowledgements less": ("was acknowledged by 1 of 3 silos (south)", without_acknowledgements),
    "a record that the server has signed anew": ("but before it stands", again_by_the_server(scale=1)),
    "a number that is kept": ("is not of its sum", another_leaf("sums")),
    "a tag that is kept": ("is not the sum of the parts", another_leaf("tags")),
    "a path that is kept": ("is not of its sum", another_leaf("paths")),
    "no key": ("the key of the tags", lambda f, ls: next(f.glob("tags.*.key")).unlink()),
    "no list of members": ("name it with --members", lambda f, ls: next(f.glob("members.*")).unlink()),
    "another list of members": (
        "name it with --members",
        lambda f, ls: next(f.glob("members.*")).open("a").write("# a word more") and None,
    ),
    "no text": ("line 3 of", lambda f, ls: ls.__setitem__(2, {"kind": "record"})),
}


def test_all_parties_can_verify_the_run_and_see_what_was_changed_since(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(places, **checked("all"), rounds=3, server={"optimizer": "adam", "lr": 0.1})
    ends_well(run(places))
    capsys.readouterr()
    for name in PARTIES.values():
        assert verify.main([str(places / name / "run")]) == 0
        said = capsys.readouterr().out
        assert "records           4, rounds 1 to 3, in one chain" in said and "all of it is right" in said
        assert ("of 12 leaves in 3 rounds" if name != "hub" else "no leaves are kept here") in said
    page = places / "page.html"
    assert verify.main([str(places / "south/run"), "--html", str(page)]) == 0
    assert "All that was looked at is right." in page.read_text() and "rounds 1 to 3, in one chain" in page.read_text()
    assert verify.main([str(places / "south/run"), "--html", str(places)]) == 8
    capsys.readouterr()
    said = json.loads((places / "hub/run/results.json").read_text())["trust"]
    assert (said["silos"], said["verify"], said["rounds"]) == (["north", "south", "west"], "all", 3)
    assert "sum and step of 3 rounds by the silos north, south, west (all leaves), federation test" in checked_by(said)
    assert checked_by({**said, "verify": 0.05, "rounds": 1}).startswith("sum and step of 1 round by the silos")
    assert "5 % of the leaves" in checked_by({**said, "verify": 0.05}) and checked_by({}) == ""
    before = places / "south/run"
    for name, (expected, change) in CHANGES.items():
        copied = places / "south" / "copy"
        shutil.copytree(before, copied)
        folder = copied / "trust/south"
        lines = [json.loads(line) for line in (folder / "receipts.jsonl").read_text().splitlines()]
        change(folder, lines)
        (folder / "receipts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        code, told = verify.main([str(copied), "--html", str(page)]), capsys.readouterr()
        assert (code in (8, 11)) and expected in told.err, (name, code, told)
        assert code == 8 or expected in unescape(page.read_text()), name
        shutil.rmtree(copied)


def test_two_records_of_one_exchange_are_proof_against_the_server(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(places, **checked("all"))
    ends_well(run(places))
    file = places / "north/run/trust/north/receipts.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    ours, other = str(places / "south/run"), places / "other.jsonl"
    assert verify.main([ours, "--beside", str(file)]) == 0
    in_text("record", '"scale":', '"scale":-')(file.parent, lines)
    other.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert verify.main([ours, "--beside", str(other)]) == 0  # anybody can write that
    again_by_the_server(scale=1)(file.parent, lines)
    other.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert verify.main([ours, "--beside", str(other)]) == 11
    assert "`hub` has signed two records of one exchange: the record of round 1" in capsys.readouterr().err
    assert verify.main([str(places), "--beside", str(file)]) == 2
    assert verify.main([ours, "--beside", "nowhere"]) == 2


def as_party_of_a_server_that_goes_on_elsewhere(places: str) -> tuple[int, str]:
    """Its checkpoint has weights that no round came to."""
    if os.environ["RANK"] == "0":
        begin = Chain.begin

        def begin_elsewhere(self: Chain, *, resumed: bool) -> None:
            if resumed:
                self.context.server.weights[0] += 1
            begin(self, resumed=resumed)

        Chain.begin = begin_elsewhere  # type: ignore[method-assign]
    return as_party(places)


@pytest.mark.slow
def test_a_server_cannot_go_on_from_what_nobody_has_checked(places: Path) -> None:
    """Not from weights of its own, nor after its lie was found, whatever it has signed meanwhile."""
    common = {"run": {"dir": str(places / "run"), "name": "parties"}, "checkpoint": {"every": 1}}
    write_config(places, **common, **CHECKED)
    ended = expect_exit(as_party_of_a_lying_server, len(PARTIES), str(places))
    assert [outcome.exit_code or outcome.result[0] for outcome in ended] == [11] * len(PARTIES)
    told = refused_again(places)
    assert "has found something wrong in this run before" in told
    for path in (places / "run/trust").glob("*/evidence.json"):
        path.unlink()
    ended = expect_exit(as_party_of_a_server_that_goes_on_elsewhere, len(PARTIES), str(places))
    assert 11 in [outcome.exit_code or outcome.result[0] for outcome in ended[1:]]
    log = (places / "run/log.rank1.txt").read_text()
    assert "from weights or a state that no record before says, so that nobody has checked" in log
    ends_well(run(places))  # the last that was right


def refused_again(places: Path) -> str:
    ended = expect_exit(as_party, len(PARTIES), str(places))
    assert 11 in [outcome.exit_code or outcome.result[0] for outcome in ended[1:]]
    return (places / "run/log.rank1.txt").read_text()


def as_party_of_a_server_that_leaves_one_out(places: str) -> tuple[int, str]:
    """It says that north's report was not right."""
    if os.environ["RANK"] == "0":
        decide = aggregation._decide

        def decide_otherwise(context: RoundContext, reports: Sequence[Report], known: Mapping[str, str]) -> Decision:
            return decide(context, reports, {**known, "north": "it is not liked"} if context.round == 1 else known)

        aggregation._decide = decide_otherwise
    return as_party(places)


@pytest.mark.slow
def test_a_silo_that_is_left_out_is_told_so_by_the_record(places: Path) -> None:
    write_config(places, **checked(0.5))
    told = run_ranks(as_party_of_a_server_that_leaves_one_out, len(PARTIES), str(places))
    ends_well(told)
    log = (places / "north/run/log.rank1.txt").read_text()
    assert "round 2: the server has left out north, whose report was right" in log
    assert "round 1: the server has left out" not in log
    records = ReceiptsFile(places / "south/run/trust/south/receipts.jsonl").records()
    assert [record.about.get("accepted") for record in records][1:] == [["north", "south", "west"], ["south", "west"]]
    assert all(verify.main([str(places / name / "run")]) == 0 for name in PARTIES.values())


@pytest.mark.slow
def test_an_adapter_is_trained_and_checked(places: Path) -> None:
    """Of which the server would otherwise measure what averaging loses, from single updates."""
    write_config(places, **checked("all"))
    for name in PARTIES.values():
        config = json.loads((places / name / "config.yaml").read_text())
        config["task"]["model"]["adapter"] = {"r": 2, "targets": ["query", "value"]}
        (places / name / "config.yaml").write_text(json.dumps(config))
    ends_well(run(places))
    assert verify.main([str(places / "north/run")]) == 0
