"""Payloads as a gate makes them: whole numbers of updates that it has measured, masked, and nothing else."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtorch.core.errors import FedtorchError, PolicyError, TrustError
from fedtorch.lifecycle.gate import Answers
from fedtorch.privacy.secure_sum.collector import Collector
from fedtorch.privacy.secure_sum.party import Party, PublicKeys, Revealed
from fedtorch.privacy.secure_sum.terms import BrokenProtocolError, SumTerms
from fedtorch.privacy.secure_sum.texts import OwnParty
from fedtorch.trust.keys import PrivateKey, new_key
from fedtorch.trust.merkle import leaves
from fedtorch.trust.policy.asked import Asked
from fedtorch.trust.policy.file import read_policy
from fedtorch.trust.policy.gate import Side
from fedtorch.trust.policy.parts import salted
from fedtorch.trust.policy.remote import VARIABLE, GateKey, ask, serve
from fedtorch.trust.receipts import Signed

pytest.importorskip("cryptography")

pytestmark = pytest.mark.long

SIZE, RANKS = 5000, {1: "north", 2: "south", 3: "west"}
UPDATE = np.linspace(-1, 1, SIZE, dtype=np.float32)
EXPONENT = 20
TERMS = SumTerms("ab" * 16, 0, "0.7", tuple(RANKS), 3, "sworn")
POLICY: dict[str, Any] = {"may_leave": {"parameters": ["*"], "reports": ["status", "steps"]}}
OF_SECURE = {**POLICY, "require": {"secure_sum": {"parties": 3}}}


def note(key: str, value: str, scope: str = "job/0/abc") -> bytes:
    return "\0".join(("test", scope, key, value)).encode()


class Silo:
    """South, whose gate is a thread of the test."""

    def __init__(self, folder: Path, connection: socket.socket, policy: dict[str, Any], parties: int | None) -> None:
        self.keys = {rank: new_key(folder / f"{name}.key") for rank, name in RANKS.items()}
        public = tuple((rank, key.public.hex()) for rank, key in self.keys.items())
        side = Side("test", "south", 2, ("south",), tuple(RANKS.values()), public)
        asked = Asked((("weight", SIZE),), 1, ("status", "steps"), 3, 8 * SIZE, parties=parties)
        ask(connection, {"ask": "key", "path": str(folder / "south.key")})
        ask(
            connection,
            {"ask": "begin", "side": asdict(side), "asked": asdict(asked), "folder": str(folder), "is_new": False},
        )
        found = GateKey.of({VARIABLE: str(connection.fileno())})
        assert found is not None
        self.gate = found
        self.gate.sign(note("hello/2", "0" * 32))
        self.gate.pass_update("south", 0, UPDATE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def silo(request: pytest.FixtureRequest, folder: Path) -> Iterator[Silo]:
    """With the policy that the test asks for; that of a secure sum by default."""
    policy = getattr(request, "param", OF_SECURE)
    (folder / "policy.yaml").write_text(json.dumps(policy))
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=serve, args=(there, Answers(read_policy(folder / "policy.yaml"))))
    thread.start()
    made = Silo(folder, here, policy, 3 if policy is OF_SECURE else None)
    yield made
    made.gate.socket.close()
    here.close()
    thread.join(10)
    there.close()


def keys_note(key: PrivateKey, rank: int, text: str, scope: str = "job/0/abc") -> str:
    return f"{key.sign(note(f'secure sum/{TERMS.attempt}/keys/{rank}', text, scope)).hex()} {text}"


def whole() -> np.ndarray[Any, Any]:
    return np.rint(UPDATE.astype(np.float64) * 2.0**EXPONENT)


def receipt(sent: str) -> bytes:
    about = {"attempt": f"{'a' * 16}.0.7", "federation": "test", "meeting": "b" * 64, "members": "c" * 64}
    about |= {"own": {}, "round": 0, "run": "d" * 16, "sent": sent, "weights": "e" * 64}
    return Signed.unsigned("receipt", "south", about).text.encode()


def exchanged(silo: Silo) -> tuple[dict[int, Any], dict[int, str], Collector]:
    """Keys are exchanged and shares opened; the three parties, and the signed notes."""
    parties: dict[int, Any] = {rank: OwnParty(Party(rank, TERMS)) for rank in (1, 3)}
    parties[2] = silo.gate.party(TERMS)
    texts = {rank: parties[rank].keys() for rank in RANKS}
    silo.gate.sign(note(f"secure sum/{TERMS.attempt}/keys/2", texts[2]))
    signed = {rank: keys_note(silo.keys[rank], rank, text) for rank, text in texts.items()}
    server = Collector(TERMS)
    server.keys = {r: PublicKeys(*map(bytes.fromhex, json.loads(text))) for r, text in texts.items()}
    roster = server.roster()
    for rank, party in parties.items():
        found = json.loads(party.share(roster, signed))
        server.boxes[rank] = {int(other): bytes.fromhex(box) for other, box in found.items()}
    for rank, party in parties.items():
        party.open_shares(server.boxes_for(rank))
    return parties, signed, server


def test_a_masked_part_is_made_of_what_was_measured_and_the_sum_comes_out(silo: Silo) -> None:
    parties, _, server = exchanged(silo)
    total, hashes = np.zeros(SIZE, np.uint64), []
    silo.gate.begin_part("masked", 0, [("south", 1.0)], EXPONENT)
    for start, stop in ((0, 4096), (4096, SIZE)):
        for party in parties.values():
            window = np.full(stop - start, 7, np.int64)  # what the gate is given does not count
            if party is not parties[2]:
                window[:] = 1
            party.mask(window.view(np.uint64))
            total[start:stop] += window.view(np.uint64)
            hashes += [*leaves(window)] if party is parties[2] else []
    sent, salt, _ = silo.gate.finish_part()
    assert sent == salted(salt, hashes)
    silo.gate.sign(receipt(sent))
    arrived = server.close([*parties])
    for rank, party in parties.items():
        own, pairwise = ({int(i): int(s, 16) for i, s in kind.items()} for kind in json.loads(party.reveal(arrived)))
        server.take(rank, Revealed(own, pairwise))
    server.prepare()
    for start, stop in ((0, 4096), (4096, SIZE)):
        server.unmask(total[start:stop])
    assert (total.view(np.int64) == whole().astype(np.int64) + 2).all()


@pytest.mark.parametrize("silo", [POLICY], indirect=True)
@pytest.mark.parametrize("way", ["sum", "updates"])
def test_a_part_without_masks_is_signed_as_it_was_measured(way: str, silo: Silo) -> None:
    silo.gate.begin_part(way, 0, [("south", 1.0)], EXPONENT)
    expected = whole() if way == "sum" else UPDATE
    silo.gate.leave(expected[:4096])
    silo.gate.leave(expected[4096:] * 3)  # the gate takes its own numbers
    sent, salt, _ = silo.gate.finish_part()
    assert sent == salted(salt, [*leaves(expected[:4096]), *leaves(expected[4096:])])
    silo.gate.sign(receipt(sent))


@pytest.mark.parametrize("silo", [POLICY], indirect=True)
def test_what_the_gate_has_not_made_gets_no_receipt(silo: Silo) -> None:
    with pytest.raises(PolicyError, match="does not answer 'window' now"):
        silo.gate.leave(UPDATE)
    silo.gate.begin_part("sum", 0, [("south", 1.0)], EXPONENT)
    silo.gate.leave(UPDATE[:4096])
    with pytest.raises(TrustError, match="cannot read that"):  # some of it has not left
        silo.gate.finish_part()
    with pytest.raises(PolicyError, match="a receipt of something that the gate has not made"):
        silo.gate.sign(receipt("f" * 64))


@pytest.mark.parametrize("silo", [POLICY], indirect=True)
@pytest.mark.parametrize(
    ("way", "client", "weight"), [("sum", "north", 1.0), ("gradients", "south", 1.0), ("sum", "south", float("inf"))]
)
def test_parts_of_something_else_do_not_begin(way: str, client: str, weight: float, silo: Silo) -> None:
    with pytest.raises(FedtorchError, match="has not measured|cannot read that"):
        silo.gate.begin_part(way, 0, [(client, weight)], EXPONENT)


@pytest.mark.parametrize("way", ["sum", "updates"])
def test_where_masks_are_asked_for_nothing_leaves_without_them(way: str, silo: Silo) -> None:
    with pytest.raises(PolicyError, match="require.secure_sum: a part without masks"):
        silo.gate.begin_part(way, 0, [("south", 1.0)], EXPONENT)


def test_a_sum_that_fewer_silos_open_is_refused(silo: Silo) -> None:
    with pytest.raises(PolicyError, match="require.secure_sum: a sum that is opened with fewer silos"):
        silo.gate.party(SumTerms("ab" * 16, 0, "0.7", (1, 2, 3), 2))


@pytest.mark.parametrize("forged", ["another key", "another meeting", "another party's"])
def test_the_gate_masks_with_no_key_that_its_party_has_not_signed(forged: str, silo: Silo) -> None:
    """Else the training process could name keys of the server's for all others, and its part would be seen."""
    parties: dict[int, Any] = {rank: OwnParty(Party(rank, TERMS)) for rank in (1, 3)}
    parties[2] = silo.gate.party(TERMS)
    texts = {rank: parties[rank].keys() for rank in RANKS}
    silo.gate.sign(note(f"secure sum/{TERMS.attempt}/keys/2", texts[2]))
    signed = {rank: keys_note(silo.keys[rank], rank, text) for rank, text in texts.items()}
    keys = {rank: PublicKeys(*map(bytes.fromhex, json.loads(text))) for rank, text in texts.items()}
    other = OwnParty(Party(3, TERMS)).keys()
    signed[3] = {
        "another key": signed[3].replace(texts[3], other),
        "another meeting": keys_note(silo.keys[3], 3, texts[3], "job/0/of before"),
        "another party's": keys_note(silo.keys[1], 3, other),
    }[forged]
    with pytest.raises(PolicyError, match="no keys that their party has not signed"):
        parties[2].share(keys, signed)


@pytest.mark.parametrize("kind", ["keys", "shares", "answer"])
def test_texts_of_a_secure_sum_that_the_gate_has_not_made_are_not_signed(kind: str, silo: Silo) -> None:
    """They are hexadecimal, so anything could be in them."""
    exchanged(silo)
    with pytest.raises(PolicyError, match="a text of a secure sum that the gate has not made"):
        silo.gate.sign(note(f"secure sum/0.7/{kind}/2", json.dumps(["ab" * 32, "cd" * 32])))


def test_a_second_reveal_is_refused_by_the_party_in_the_gate(silo: Silo) -> None:
    parties, _, server = exchanged(silo)
    silo.gate.begin_part("masked", 0, [("south", 1.0)], EXPONENT)
    parties[2].mask(np.zeros(SIZE, np.uint64))
    parties[2].reveal([1, 2, 3])
    with pytest.raises(BrokenProtocolError, match="a second time"):
        parties[2].reveal([1, 2, 3])
