"""Keys of parties: RFC 8032's own signature, files that nobody else reads, and what a wrong file is told."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from fedtorch.cli.__main__ import main
from fedtorch.core.errors import ConfigError, PreflightError
from fedtorch.trust.keys import PrivateKey, bytes_of, is_signed, new_key, read_key

pytest.importorskip("cryptography")

NORTH = PrivateKey(Path("north.key"), hashlib.sha256(b"north").digest())
RECORD = (
    b'{"accepted":["north","south"],"federation":"abababab","previous":"' + b"0" * 64 + b'","round":3,"scale":-20,'
    b'"weights":["0x1.0000000000000p-2","0x1.8000000000000p-1"]}'
)


def test_the_first_signature_of_rfc_8032() -> None:
    key = PrivateKey(Path("x"), bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert key.public.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    signature = (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
        "d25bf5f0595bbe24655141438e7a100b"
    )
    assert key.sign(b"").hex() == signature


def test_the_example_of_the_specification() -> None:
    assert hashlib.sha256(RECORD).hexdigest() == "8fc35b707c6cdb3b920f7084a3be86be347932d5b2ad474d7dacf674b837f6c9"
    assert NORTH.public.hex() == "b0daa620fa0367dd038543ccbfa97ef7c51917903733d18d69b984a0b1c5aded"
    signature = NORTH.sign(RECORD)
    assert signature.hex().startswith("28af85bff12d1288") and is_signed(RECORD, signature, NORTH.public)


def test_a_changed_text_signature_or_key_is_none() -> None:
    signature = NORTH.sign(RECORD)
    other = PrivateKey(Path("x"), hashlib.sha256(b"south").digest())
    assert not is_signed(RECORD + b" ", signature, NORTH.public)
    assert not is_signed(RECORD, bytes([signature[0] ^ 1]) + signature[1:], NORTH.public)
    assert not is_signed(RECORD, signature, other.public) and not is_signed(RECORD, b"", NORTH.public)
    assert not is_signed(RECORD, signature, b"no key")


def test_a_pair_is_made_once_and_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "north", "--folder", str(tmp_path)]) == 0
    path, public = tmp_path / "north.key", (tmp_path / "north.pub").read_text().strip()
    shown = capsys.readouterr().out
    assert public in shown and path.read_text().strip() not in shown and path.stat().st_mode & 0o777 == 0o600
    key = read_key(path)
    assert key.public.hex() == public and path.read_text().strip() not in repr(key)
    before = path.read_bytes()
    assert main(["keys", "new", "north", "--folder", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err and path.read_bytes() == before
    public_only = tmp_path / "south.pub"
    public_only.write_text("")
    with pytest.raises(ConfigError, match=r"south\.pub is there already"):
        new_key(tmp_path / "south.key")
    assert not (tmp_path / "south.key").exists()


@pytest.mark.parametrize(
    ("name", "folder", "said"),
    [("a/b", "", "NAME is 'a/b'"), ("..", "", "NAME is '..'"), ("north", "nowhere", "which is no folder")],
)
def test_what_is_no_name_or_folder_is_said(
    name: str, folder: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "new", name, "--folder", str(tmp_path / folder)]) == 2
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_full_disk_leaves_no_half_of_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        new_key(tmp_path / "north.key")
    assert not list(tmp_path.iterdir())


def test_a_key_that_others_may_read_or_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "north.key"
    with pytest.raises(PreflightError, match=r"cannot be read .*fedtorch keys new NAME"):
        read_key(path)
    for content in ("", "ab" * 31, "zz" * 32, " " * 64, "a" * 5000, "not a key at all"):
        path.write_text(content)
        os.chmod(path, 0o600)
        with pytest.raises(PreflightError, match="holds no private key: expected 64 hexadecimal digits"):
            read_key(path)
    path.write_text("ab" * 32)
    for mode in (0o640, 0o604, 0o660):
        os.chmod(path, mode)
        with pytest.raises(PreflightError, match=rf"mode {mode:o}.*chmod 600"):
            read_key(path)


def test_a_key_in_text_has_64_digits_and_nothing_else() -> None:
    assert bytes_of("00" * 32) == bytes(32) and bytes_of("AB" * 32) == b"\xab" * 32
    assert all(bytes_of(text) is None for text in ("", "00" * 31, "0 " * 32, "00" * 33, "0x" + "00" * 31, "é" * 64))
