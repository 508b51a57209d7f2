"""Configs and overrides out of Python code say what files and `--set` say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtorch.config.load import load, to_dict
from fedtorch.config.python_configs import assignments, plain_data
from fedtorch.core.errors import ConfigError
from fedtorch.core.yaml_tree import read_value, write_value

TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\n\t:#{}[]'\"-,&*"), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))


@settings(max_examples=50)
@given(VALUES)
def test_a_value_on_a_line_is_read_as_it_was(value: Any) -> None:
    assert read_value(write_value(value), "here") == value


def test_a_dict_is_what_its_file_says(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("base: smoke/fedavg\nrounds: 3\nclient: {lr: 0.5}\nrun: {name: x}\n")
    given_dict = {"base": "smoke/fedavg", "rounds": 3, "client": {"lr": 0.5}, "run": {"name": "x"}}
    assert to_dict(load(given_dict)) == to_dict(load(tmp_path / "file.yaml"))
    assert load(["smoke/fedavg", {"rounds": 3}]).run.name == "fedavg"
    assert load({"rounds": 3, "task": {"name": "text2sql"}}).run.name == "run"
    assert load("smoke/fedavg").run.name == load(Path("smoke/fedavg")).run.name == "fedavg"


def test_a_relative_base_counts_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("below.yaml").write_text("base: smoke/fedavg\nrounds: 7\n")
    assert load({"base": ["below.yaml"]}).rounds == 7


def test_overrides_by_key_are_those_of_a_command_line() -> None:
    values = {"rounds": np.int64(3), "client.lr": np.float32(0.5), "eval.patience": None, "run.dir": Path("a b")}
    lines = assignments({**values, "task": {"max_train": 4, "splits": ("x",)}, "run.name": "1e3"})
    assert lines == [
        "rounds=3",
        "client.lr=0.5",
        "eval.patience=null",
        "run.dir=a b",
        "task={max_train: 4, splits: [x]}",
        "run.name='1e3'",
    ]
    assert assignments("rounds=3") == assignments(["rounds=3"]) == ["rounds=3"]
    assert load("smoke/fedavg", {"rounds": 3, "client": {"lr": 0.5}}) == load(
        "smoke/fedavg", ["rounds=3", "client.lr=.5"]
    )


@pytest.mark.parametrize("value", [object(), {1, 2}, np.arange(3), b"x", [lambda: 3]])
def test_what_no_file_can_hold_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^x is a \w+; a config holds texts, numbers"):
        plain_data(value, "x")
