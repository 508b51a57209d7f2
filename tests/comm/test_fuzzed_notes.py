"""Notes, verdicts and heartbeats made at random: read and acted on, or refused with an error that names the sender."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from fuzzing import cases, only_named_errors, spoilt, torn
from hypothesis import given
from hypothesis import strategies as st

from fedtorch.comm.job import addresses, rendezvous
from fedtorch.comm.job.liveness import process_state, this_process
from fedtorch.comm.job.notes import read_heartbeat, read_note, read_part, read_verdict
from fedtorch.comm.transport.backend import choose
from fedtorch.core.errors import FedtorchError, PreflightError

BARRIER = {"phase": "train", "round": 1, "stop": False, "ok": True}
FACTS = {
    "facts": {"seed": "1", "config": "abc"},
    "gpu": "",
    "gpu_problem": "works on the CPU",
    "gpu_versions": {},
    "machine": 0,
}
BEAT = {"phase": "train", "round": 1, "client": "", "step": 0, "count": 3, "left": "", "failed": False}
ADDRESS = {"network": "one", "host": "a", "address": "10.0.0.1 (eth0)", "port": "7", "problem": "", "phase": "chosen"}
VERDICTS = [
    {"places": {"one": "10.0.0.1 7"}, "hosts": ["a", "b"]},
    {"stop": False, "ok": True, "lost": {"2": "gone"}},
    {"error": "different seeds", "kind": "preflight"},
    {"backend": "gloo", "shared": [0, 1]},
]


PART = {"clients": [0, 2], "weights": [(1.5).hex(), (-2.0).hex()]}


def text_of(draw: st.DrawFn, value: Any) -> str:
    for _ in range(draw(st.integers(1, 3))):
        value = spoilt(draw, value)
    data = json.dumps(value).encode()
    return (torn(draw, data) if draw(st.integers(0, 3)) == 0 else data).decode("utf-8", "replace")


def try_notes(draw: st.DrawFn) -> None:
    """What the server does with a note of rank 1, and a worker with a verdict and a heartbeat."""
    note, verdict = (
        text_of(draw, draw(st.sampled_from([BARRIER, FACTS, ADDRESS]))),
        text_of(draw, draw(st.sampled_from(VERDICTS))),
    )
    beat = text_of(draw, {**BEAT, **this_process()})
    with only_named_errors():
        found = read_note(note, 1)
        if "facts" in found:
            rendezvous._compare({0: FACTS["facts"], 1: found["facts"]}, {1: " (silo north)"})  # type: ignore[dict-item]
            choose("auto", {0: FACTS, 1: found})
        elif "network" in found:
            addresses.decide({0: ADDRESS, 1: found})
        else:
            rendezvous._agree({0: BARRIER, 1: found})
    try:
        rendezvous._raise_or_return(read_verdict(verdict), 1)
    except FedtorchError as error:
        assert error.exit_code in (4, 7) and str(error) is not None
    with only_named_errors():
        process_state(this_process(), read_heartbeat(beat, 2))
    with only_named_errors():
        weights = read_part(text_of(draw, PART), 1, {0, 2, 5})
        assert weights and weights.keys() <= {0, 2, 5} and all(weights.values())


CORPUS: dict[str, str] = {
    "brackets thousands deep": "[" * 100_000,
    "a number of thousands of digits": '{"phase": "train", "round": ' + "9" * 5000 + "}",
    "a round that is infinite": json.dumps({**BARRIER, "round": math.inf}),
    "a round that is true": json.dumps({**BARRIER, "round": True}),
    "a phase that is a list": json.dumps({**BARRIER, "phase": []}),
    "a fact that is null": json.dumps({**FACTS, "facts": {"seed": None}}),
    "facts that are a list": json.dumps({**FACTS, "facts": []}),
    "a GPU that is an object": json.dumps({**FACTS, "gpu": {}}),
    "an address of no phase": json.dumps({**ADDRESS, "phase": "x"}),
    "an object that is empty": "{}",
    "a list": "[]",
    "nothing": "",
    "half of it": json.dumps(BARRIER)[:20],
    "a note of 2 MB": json.dumps({**BARRIER, "phase": "x" * 2_000_000}),
    "a value of 100 kB": json.dumps({**BARRIER, "round": "x" * 100_000}),
    "half of a surrogate pair and a terminal's commands": json.dumps({**BARRIER, "ok": "\ud800\x1b[2J"}),
}
"""What it once broke, or may break -> a note."""


@pytest.mark.parametrize("what", CORPUS)
def test_what_was_found_in_notes_is_refused_and_the_sender_named(what: str) -> None:
    with pytest.raises(PreflightError, match="rank 1") as caught:
        read_note(CORPUS[what], 1)
    message = str(caught.value)
    message.encode()
    assert len(message) < 900 and "\x1b" not in message


def test_facts_of_100_kb_with_a_terminals_commands_are_compared_in_a_short_message() -> None:
    facts = {"seed": "\x1b[2J" + "x" * 100_000, "config": "abc"}
    verdict = rendezvous._compare({0: FACTS["facts"], 1: facts}, {1: " (silo north)"})  # type: ignore[dict-item]
    with pytest.raises(PreflightError, match="seed: rank 1 .silo north. has") as caught:
        rendezvous._raise_or_return(verdict, 0)
    assert len(str(caught.value)) < 1600 and "\x1b" not in str(caught.value)


@pytest.mark.long
@cases(50)
@given(data=st.data())
def test_notes_made_at_random_are_read_or_refused(data: Any) -> None:
    try_notes(data.draw)


@cases(10_000)
@given(data=st.data())
def test_ten_thousand_notes_made_at_random_are_read_or_refused(data: Any) -> None:
    try_notes(data.draw)
