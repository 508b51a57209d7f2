"""The primitives give the values of the documents that define them."""

from __future__ import annotations

import pytest

from fedtorch.privacy.secure_sum import keys
from fedtorch.privacy.stream import Stream

pytest.importorskip("cryptography")


def test_x25519_is_that_of_rfc_7748_section_6_1() -> None:
    alice = keys.pair_of(bytes.fromhex(ALICE))
    bob = keys.pair_of(bytes.fromhex(BOB))
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert keys.agreed(alice.secret, bob.public).hex() == keys.agreed(bob.secret, alice.public).hex() == shared


ALICE = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"
BOB = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"


def test_hkdf_is_that_of_rfc_5869_test_case_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_SALT", bytes.fromhex("000102030405060708090a0b0c"))
    info = bytes(range(0xF0, 0xFA)).decode("latin-1")
    monkeypatch.setattr(keys, "BYTES", 42)

    class Text(str):
        def encode(self, *args: str) -> bytes:  # type: ignore[override]
            return super().encode("latin-1")

    expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    assert keys.derived(bytes([0x0B] * 22), Text(info)).hex() == expected


def test_the_mask_is_the_key_stream_of_rfc_8439_a_1() -> None:
    expected = (  # test vector 1: a key of zeros, counter 0, nonce 0
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert Stream(bytes(32)).integers(8).tobytes().hex() == expected
    third = "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a8eca00bbb4a73bdad192b5c42f73f2fd"
    assert Stream(bytes(31) + b"\1").integers(14).tobytes()[64:].hex() == third  # test vector 3: the second block


def test_a_box_opens_with_its_key_and_text_alone() -> None:
    box = keys.sealed(bytes(32), b"text", "about")
    assert keys.unsealed(bytes(32), box, "about") == b"text"
    for key, about in ((b"\1" * 32, "about"), (bytes(32), "other")):
        with pytest.raises(ValueError, match="not sealed for this party"):
            keys.unsealed(key, box, about)
