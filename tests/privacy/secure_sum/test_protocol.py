"""Parties and server in one process: whoever leaves, whenever, the sum is that of the parts that arrived, or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from fedtorch.privacy.secure_sum import keys
from fedtorch.privacy.secure_sum.collector import Collector
from fedtorch.privacy.secure_sum.party import Party, PublicKeys, Revealed
from fedtorch.privacy.secure_sum.shamir import PRIME, split
from fedtorch.privacy.secure_sum.terms import BrokenProtocolError, SumTerms, TooFewPartiesError, threshold_of

pytest.importorskip("cryptography")

STEPS, STAYS = 4, 4
SIZE = 5


def terms_of(count: int, share: float = 0.5, **changes: Any) -> SumTerms:
    settings = {"run": "r", "round": 3, "attempt": "0.1", "parties": tuple(range(1, count + 1)), **changes}
    return SumTerms(**{"threshold": threshold_of(share, count), **settings})


def part(party: int, size: int = SIZE) -> np.ndarray[Any, Any]:
    """Of a party: whole numbers of either sign."""
    return (np.arange(size) + 1) * (-1) ** party * (10**party % 999999937)


def exchange(
    terms: SumTerms, leaves: dict[int, int], size: int = SIZE, windows: int = 1
) -> tuple[Any, Collector, bytes]:
    """The sum (or what kept it from being), the server and all bytes that it received of the parts.

    leaves: party -> the step (0 to 3) in which it is gone; `STAYS`: none.
    """
    server, parties = Collector(terms), {number: Party(number, terms) for number in terms.parties}
    alive = lambda step: [number for number in terms.parties if leaves.get(number, STAYS) > step]  # noqa: E731
    received = bytearray()
    try:
        for number in alive(0):
            server.keys[number] = parties[number].keys()
        roster = server.roster()
        for number in alive(1):
            server.boxes[number] = parties[number].share(roster)
        total = np.zeros(size, np.uint64)
        for number in alive(2):
            parties[number].open_shares(server.boxes_for(number))
            masked = part(number, size).astype(np.int64).view(np.uint64)
            for window in np.array_split(masked, windows):
                parties[number].mask(window)
            received += masked.tobytes()
            total += masked
        arrived = server.close(alive(2))
        for number in alive(3):
            server.take(number, parties[number].reveal(arrived))
        server.prepare()
        for window in np.array_split(total, windows + 1):
            server.unmask(window)
    except TooFewPartiesError as error:
        return error, server, bytes(received)
    return total.view(np.int64), server, bytes(received)


def check(terms: SumTerms, leaves: dict[int, int]) -> None:
    found, server, _ = exchange(terms, leaves)
    steps = [leaves.get(number, STAYS) for number in terms.parties]
    assert isinstance(found, TooFewPartiesError) == (sum(step == STAYS for step in steps) < terms.threshold)
    if not isinstance(found, Exception):
        expected = sum(part(number) for number, step in zip(terms.parties, steps, strict=True) if step > 2)
        assert np.array_equal(found, expected)
    for answer in server.answers.values():  # of no party both kinds of share, not even from two others
        assert not set(answer.own) & {one for other in server.answers.values() for one in other.pairwise}


def patterns(count: int) -> Iterator[dict[int, int]]:
    """Who is gone in which step: every case."""
    for steps in product(range(STEPS + 1), repeat=count):
        yield dict(zip(range(1, count + 1), steps, strict=True))


def test_of_three_parties_every_one_may_leave_in_every_step() -> None:
    for leaves in patterns(3):
        check(terms_of(3), leaves)


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 5])
def test_of_more_parties_too_every_pattern_there_is(count: int) -> None:
    for leaves in patterns(count):
        check(terms_of(count), leaves)


@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_any_one_may_leave_in_any_step(count: int) -> None:
    for number, step in product((1, count // 2, count), range(STEPS)):
        check(terms_of(count), {number: step})


@pytest.mark.slow
@pytest.mark.parametrize("count", range(3, 21))
def test_as_many_as_the_threshold_allows_leave_in_steps_at_random_and_one_more_ends_it(count: int) -> None:
    terms, drawn = terms_of(count), np.random.default_rng(count)
    for extra in (0, 1):
        for _ in range(12):
            gone = drawn.choice(np.arange(1, count + 1), count - terms.threshold + extra, replace=False)
            check(terms, {int(number): int(drawn.integers(STEPS)) for number in gone})


@pytest.mark.slow
@pytest.mark.parametrize("count", range(6, 21))
def test_whoever_leaves_together_in_one_step(count: int) -> None:
    terms = terms_of(count)
    groups = [range(1, most + 1) for most in range(1, count - terms.threshold + 2)]
    groups += [range(count - most, count + 1) for most in range(count - terms.threshold)]
    for group, step in product(groups, range(STEPS)):
        check(terms, dict.fromkeys(group, step))


def test_windows_make_no_difference_and_an_empty_part_is_one() -> None:
    terms = terms_of(3)
    found, _, _ = exchange(terms, {2: 3}, size=1000, windows=7)
    assert np.array_equal(found, sum(part(number, 1000) for number in terms.parties))
    assert exchange(terms, {2: 3}, size=0)[0].shape == (0,)
    _, parties = opened(3)
    assert set(parties[1].reveal([1, 2]).own) == {1, 2}  # a part without numbers has no window to mask


def test_sums_wrap_around_as_whole_numbers_of_64_bits() -> None:
    terms = terms_of(3)
    server, parties = Collector(terms), [Party(number, terms) for number in terms.parties]
    server.keys = {party.number: party.keys() for party in parties}
    server.boxes = {party.number: party.share(server.keys) for party in parties}
    total = np.zeros(2, np.uint64)
    for party in parties:
        party.open_shares(server.boxes_for(party.number))
        window = np.array([2**62, -(2**62)], np.int64).view(np.uint64)
        party.mask(window)
        total += window
    for party in parties:
        server.take(party.number, party.reveal(server.close([1, 2, 3]) if party.number == 1 else server.arrived))
    server.prepare()
    server.unmask(total)
    assert total.view(np.int64).tolist() == [3 * 2**62 - 2**64, 2**64 - 3 * 2**62]


def test_what_the_server_receives_is_uniform_and_has_nothing_of_a_known_part() -> None:
    size = 40_000
    terms = terms_of(3)
    found, _, received = exchange(terms, {}, size=size)
    assert np.array_equal(found, sum(part(number, size) for number in terms.parties))
    for number in terms.parties:
        plain = part(number, size).astype(np.int64).tobytes()
        assert plain[:16] not in received and plain[-16:] not in received
    counts = np.bincount(np.frombuffer(received, np.uint8), minlength=256)
    expected = len(received) / 256
    # chi-square with 255 degrees of freedom, mean 255 and deviation 22.6: beyond 6 deviations once in 10^8 runs
    assert float(((counts - expected) ** 2 / expected).sum()) < 255 + 6 * 22.6
    plain_counts = np.bincount(np.frombuffer(part(1, size).astype(np.int64).tobytes(), np.uint8), minlength=256)
    assert float(((plain_counts - size * 8 / 256) ** 2).sum()) > 1e6  # the test can fail


def opened(count: int) -> tuple[Collector, dict[int, Party]]:
    """As far as the shares that were opened."""
    terms = terms_of(count)
    server, parties = Collector(terms), {number: Party(number, terms) for number in terms.parties}
    server.keys = {number: party.keys() for number, party in parties.items()}
    server.boxes = {number: party.share(server.keys) for number, party in parties.items()}
    for number, party in parties.items():
        party.open_shares(server.boxes_for(number))
    return server, parties


def ready(count: int = 3) -> tuple[Collector, dict[int, Party]]:
    """As far as the masked parts."""
    server, parties = opened(count)
    for party in parties.values():
        party.mask(np.zeros(1, np.uint64))
    return server, parties


def test_nobody_answers_twice() -> None:
    server, parties = ready()
    parties[1].reveal([1, 2, 3])
    with pytest.raises(BrokenProtocolError, match="a second time"):
        parties[1].reveal([1, 2])
    server.close([1, 2, 3])
    with pytest.raises(BrokenProtocolError, match="cannot be of"):
        server.close([1, 2])


def test_both_kinds_of_share_of_one_party_are_not_taken() -> None:
    server, parties = ready()
    server.close([1, 2])
    answer = parties[1].reveal([1, 2])
    assert not set(answer.own) & set(answer.pairwise) and set(answer.pairwise) == {3}
    with pytest.raises(BrokenProtocolError, match="other shares than asked for"):
        server.take(1, Revealed({**answer.own, 3: 1}, answer.pairwise))


def test_shares_have_room_for_every_number_of_the_field() -> None:
    terms = terms_of(3)
    parties = {number: Party(number, terms) for number in terms.parties}
    box = parties[1].share({number: party.keys() for number, party in parties.items()})[2]
    assert len(box) == 2 * 33 + 16  # both shares, and what AES-GCM adds
    assert PRIME.bit_length() <= 33 * 8


def answered(own: int, pairwise: int) -> Collector:
    """A server whose parties 1 and 2 have sent shares of these secrets, of all alike; 3 is gone."""
    server, _ = ready()
    server.close([1, 2])
    shares, others = (split(secret, 2, 3) for secret in (own, pairwise))
    for party in (1, 2):
        server.take(party, Revealed(dict.fromkeys((1, 2), shares[party - 1]), {3: others[party - 1]}))
    return server


@pytest.mark.parametrize("secret", [2**256, PRIME - 1])
def test_shares_that_join_to_more_than_a_secret_are_refused(secret: int) -> None:
    with pytest.raises(BrokenProtocolError, match="do not fit each other"):
        answered(own=secret, pairwise=1).prepare()


def test_shares_that_are_not_of_a_dropped_partys_secret_are_refused() -> None:
    with pytest.raises(BrokenProtocolError, match="of rank 3, .* public key"):
        answered(own=2**256 - 1, pairwise=1).prepare()


@pytest.mark.parametrize("arrived", [[1], [2, 3], [1, 2, 9]])
def test_a_party_answers_only_of_enough_of_those_it_knows_itself_among_them(arrived: list[int]) -> None:
    with pytest.raises((BrokenProtocolError, TooFewPartiesError)):
        ready()[1][1].reveal(arrived)


def test_shares_for_another_or_damaged_and_keys_published_twice_are_refused() -> None:
    terms = terms_of(3)
    parties = {number: Party(number, terms) for number in terms.parties}
    roster = {number: party.keys() for number, party in parties.items()}
    boxes = {number: party.share(roster) for number, party in parties.items() if number != 3}
    for box in (boxes[2][3], boxes[2][1][:-1] + bytes([boxes[2][1][-1] ^ 1])):
        with pytest.raises(BrokenProtocolError, match="not sealed for this party"):
            again = Party(1, terms)
            again.__dict__.update(parties[1].__dict__)
            again.open_shares({2: box})
    with pytest.raises(BrokenProtocolError, match="publish one key"):
        parties[3].share({**roster, 2: roster[1]})
    with pytest.raises(ValueError, match="shared key|key exchange|compute|low order|Error"):
        keys.agreed(keys.new_pair().secret, bytes(32))


@pytest.mark.parametrize(
    ("share", "count", "expected"), [(0.5, 3, 2), (0.7, 3, 3), (0.7, 10, 7), (1, 4, 4), (0.5, 4, 3)]
)
def test_the_threshold_is_always_more_than_half(share: float, count: int, expected: int) -> None:
    assert threshold_of(share, count) == expected


@pytest.mark.parametrize(("threshold", "fits"), [(2, False), (3, True), (4, True), (5, False)])
def test_of_four_parties_three_or_four_can_be_asked_for(threshold: int, fits: bool) -> None:
    with nullcontext() if fits else pytest.raises(BrokenProtocolError, match="more than half"):
        terms_of(4, threshold=threshold)


@pytest.mark.parametrize("count", [1, 2])
def test_of_less_than_three_there_is_no_secure_sum(count: int) -> None:
    with pytest.raises(BrokenProtocolError, match="3 or more"):
        terms_of(count)


def test_no_key_is_derived_twice_over_exchanges_with_twenty_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bytes, str]] = []
    streams: list[bytes] = []
    from fedtorch.privacy.secure_sum import party as module

    monkeypatch.setattr(
        module, "derived", lambda shared, info: seen.append((shared, info)) or keys.derived(shared, info)
    )
    real = module.Stream
    monkeypatch.setattr(module, "Stream", lambda key: streams.append(key) or real(key))
    drawn = np.random.default_rng(0)
    for fault in range(20):
        leaves = {int(drawn.integers(1, 5)): int(drawn.integers(STEPS))}
        exchange(terms_of(4, round=fault // 3, attempt=str(fault)), leaves)
    infos = [info for _, info in seen]
    by_pair = {info: infos.count(info) for info in infos}
    # both ends of a pair derive its keys, and nobody else: a mask is one pair's, a box's one direction's
    masks = [pair for pair in seen if pair[1].startswith("mask/")]
    assert masks and all(masks.count(pair) <= 2 for pair in masks)
    assert all(count <= 2 for info, count in by_pair.items() if info.startswith("share/"))
    assert all(streams.count(key) <= 2 for key in streams)  # a pair's, added by one and subtracted by the other
    assert not any(a == b for a, b in combinations({info.split("/", 1)[0] for info in infos}, 2))


def test_keys_are_new_in_every_exchange() -> None:
    found = [Party(1, terms_of(3)).keys() for _ in range(3)]
    assert len({key for pair in found for key in pair}) == 6 and all(isinstance(pair, PublicKeys) for pair in found)
