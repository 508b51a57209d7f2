"""Configs made at random: read, or refused with 2."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from fuzzing import ODD, cases, only_named_errors, spoilt, torn
from hypothesis import given
from hypothesis import strategies as st

from fedtorch.config.load import companions, load, to_dict
from fedtorch.core.errors import ConfigError
from fedtorch.core.yaml_tree import write

CONFIGS = ["smoke/fedavg", "smoke/feda_top50", "smoke/fedmatch", "smoke/fedparsing", "fewfedweight/smoke_ffw_full"]


@pytest.fixture(scope="module")
def wholes() -> list[dict[str, Any]]:
    """Every key of some configs."""
    return [to_dict(load(name)) for name in CONFIGS]


def try_config(draw: st.DrawFn, wholes: list[dict[str, Any]], path: Path) -> None:
    data = draw(st.sampled_from(wholes))
    for _ in range(draw(st.integers(1, 3))):
        data = spoilt(draw, data)
    keys = st.lists(st.sampled_from(["task", "model", "client", "lr", "base", "run", "compare", "per_client", "x", ""]))
    override = f"{'.'.join(draw(keys))}={draw(ODD)}"
    with only_named_errors():
        try:
            text = write(data).encode()
        except (UnicodeEncodeError, ValueError, TypeError, AttributeError):  # nothing that YAML has
            text = str(data).encode(errors="replace")
        path.write_bytes(torn(draw, text) if draw(st.integers(0, 3)) == 0 else text)
        config = load(path, [override] if draw(st.booleans()) else [])
        companions(config)


DEEP = "&a0 [x, x]\n" + "".join(f"k{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
CORPUS: dict[str, bytes | str] = {
    "an infinite number of rounds": "base: smoke/fedavg\nrounds: .inf\n",
    "rounds that are not a number": "base: smoke/fedavg\nrounds: .nan\n",
    "rounds that are true": "base: smoke/fedavg\nrounds: true\n",
    "rounds that are an object": "base: smoke/fedavg\nrounds: {}\n",
    "rounds below 1": "base: smoke/fedavg\nrounds: -1\n",
    "a number of thousands of digits": f"base: smoke/fedavg\nrounds: {'9' * 5000}\n",
    "a value of 100 kB": f"base: smoke/fedavg\nrounds: {'x' * 10**5}\n",
    "a key of 100 kB": f"base: smoke/fedavg\n{'x' * 10**5}: 1\n",
    "a key that clears the terminal": 'base: smoke/fedavg\n"\\e[2J": 1\n',
    "a model with negative heads": "base: smoke/fedavg\ntask: {model: {num_heads: -1}}\n",
    "a model of a size that no memory has": "base: smoke/fedavg\ntask: {model: {d_model: 1.0e+300}}\n",
    "a name with NUL": 'base: smoke/fedavg\nrun: {name: "a\\0b"}\n',
    "a name that is half of a surrogate pair": 'base: smoke/fedavg\nrun: {name: "\\uD800"}\n',
    "a name that leads out of the folder": "base: smoke/fedavg\nrun: {name: ../x}\n",
    "a name with a terminal's commands": 'base: smoke/fedavg\nrun: {name: "a\\e[31m"}\n',
    "brackets thousands deep": "rounds: " + "[" * 3000,
    "braces thousands deep": "rounds: " + "{a: " * 3000,
    "aliases that grow without end": f"x: {DEEP}",
    "an alias of itself": "base: smoke/fedavg\nclients: &a {min: *a}\n",
    "a key that is a list": "base: smoke/fedavg\n[1, 2]: 3\n",
    "the same key twice": "base: smoke/fedavg\nrounds: 1\nrounds: 2\n",
    "a base that is a number": "base: [1]\n",
    "a base with NUL": 'base: "a\\0b"\n',
    "a base that is a device": "base: /dev/zero\n",
    "a client's settings under an empty name": 'base: smoke/fedavg\nper_client: {"": {lr: 1}, x: 3}\n',
    "a list in place of a run to compare with": "base: smoke/fedavg\ncompare: [[]]\n",
    "an override that is a date": "base: smoke/fedavg\nrounds: 2026-01-01\n",
    "an object of Python": "base: smoke/fedavg\nrounds: !!python/object/apply:os.system [ls]\n",
    "a list": "[1, 2]\n",
    "a NUL": b"rounds: 1\0\n",
    "no UTF-8": b"run: {name: \xff}\n",
    "a mark of another byte order": b"\xff\xfer\0o\0",
    "a line that was cut": "base: smoke/fedavg\nrun: {name: a",
}
"""What it once broke, or may break -> a config."""


@pytest.mark.long
@pytest.mark.parametrize("what", CORPUS)
def test_what_was_found_in_configs_is_refused(what: str, tmp_path: Path) -> None:
    text = CORPUS[what]
    path = tmp_path / "x.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        companions(load(path))
    message = str(caught.value)
    message.encode()
    assert len(message) < 1200 and "\x1b" not in message


def test_a_fifo_in_place_of_a_config_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.yaml")
    with pytest.raises(ConfigError, match="no ordinary file"):
        load(tmp_path / "x.yaml")


@pytest.mark.long
@cases(30)
@given(data=st.data())
def test_a_config_made_at_random_is_read_or_refused(data: Any, wholes: list[dict[str, Any]], tmp_path: Path) -> None:
    try_config(data.draw, wholes, tmp_path / "x.yaml")


@cases(10_000)
@given(data=st.data())
def test_ten_thousand_configs_are_read_or_refused(data: Any, wholes: list[dict[str, Any]], tmp_path: Path) -> None:
    try_config(data.draw, wholes, tmp_path / "x.yaml")
