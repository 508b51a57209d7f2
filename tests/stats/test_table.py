"""RUN/stats.json: what is written is read again, and what is no such file is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from counted_tables import exact, hidden, noised, noised_by_silo

from fedtorch.core.errors import DataError
from fedtorch.stats.table import FILE, Stats, Table

PLAIN = Table("units", "units", "names", ("units",), (), 1, False, (3.0,), 0.0)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    found = replace(exact(), absent={"west": 2}, masked=True, privacy={"epsilon": 4.0, "silos": {"east": {"delta": 1}}})
    for stats in (found, hidden(exact()), noised(exact()), noised_by_silo(exact()), exact(tables=())):
        path = stats.write(tmp_path)
        assert path == tmp_path / "stats.json" == tmp_path / FILE
        assert Stats.read(tmp_path) == Stats.read(path) == stats
    text = path.read_text()
    assert text.endswith("}\n") and text.startswith('{\n "form": 1,\n "unit"') and "Infinity" not in text


def test_what_is_not_said_is_nothing() -> None:
    assert (PLAIN.silos, PLAIN.silo_deviation, PLAIN.threshold) == ({}, 0.0, None)
    stats = Stats("row", ("a",), (PLAIN,), None)
    assert (stats.tokenizer, stats.max_length, stats.privacy, stats.task) == (None, None, {}, "")
    assert (stats.absent, stats.masked, stats.table("units"), stats.table("rows")) == ({}, False, PLAIN, None)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"stats.json cannot be read \(No such file.*\); name the folder of a run"):
        Stats.read(tmp_path)


def changed(data: dict[str, Any], place: str) -> dict[str, Any]:
    table = data["tables"][4]  # bins of tokens
    if place == "form":
        data["form"] = 2
    elif place == "no form":
        del data["form"]
    elif place == "another key":
        data["more"] = 1
    elif place == "pooled":
        table["pooled"].pop()
    elif place == "silo":
        table["silos"]["east"].append(1.0)
    elif place == "edges":
        table["edges"].pop(1)
    elif place == "cells":
        table["cells"].append("x")
    return data


@pytest.mark.parametrize("place", ["form", "no form", "another key", "pooled", "silo", "edges", "cells"])
def test_somebody_elses_file_is_refused(place: str, tmp_path: Path) -> None:
    path = exact().write(tmp_path)
    data = json.loads(path.read_text())
    path.write_text(json.dumps(changed(data, "")))
    assert Stats.read(path) == exact()
    path.write_text(json.dumps(changed(data, place)))
    with pytest.raises(DataError, match="is no file of `fedtorch stats`, or of another version; count anew"):
        Stats.read(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100_000, '{"form": 1, "tables": 3, "silos": []}'])
def test_a_torn_or_strange_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(DataError, match="count anew"):
        Stats.read(tmp_path)
