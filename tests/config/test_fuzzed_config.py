"""Configs made at random: read, or refused with 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fuzzing import ODD, cases, only_named_errors, spoilt, torn
from hypothesis import given
from hypothesis import strategies as st

from fedtorch.config.load import companions, load, to_dict
from fedtorch.config.yaml_tree import write

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


@cases(50)
@given(data=st.data())
def test_a_config_made_at_random_is_read_or_refused(data: Any, wholes: list[dict[str, Any]], tmp_path: Path) -> None:
    try_config(data.draw, wholes, tmp_path / "x.yaml")


@cases(10_000)
@given(data=st.data())
def test_ten_thousand_configs_are_read_or_refused(data: Any, wholes: list[dict[str, Any]], tmp_path: Path) -> None:
    try_config(data.draw, wholes, tmp_path / "x.yaml")
