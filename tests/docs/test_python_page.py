"""The page on Python names what there is, and its examples do what it says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from members import signatures

import fedtorch
from fedtorch.api.result import RunPaths, RunResult
from fedtorch.api.scores import RunScores, Score
from fedtorch.audit.finding import Finding
from fedtorch.audit.result import AuditResult
from fedtorch.core.scores import Means

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()


@pytest.mark.parametrize("kind", [RunResult, RunPaths, RunScores, Score, Means, AuditResult, Finding])
def test_every_member_is_on_the_page(kind: type) -> None:
    names = kind._fields if issubclass(kind, tuple) else signatures(kind)  # type: ignore[attr-defined]
    missing = [name for name in names if not re.search(rf"`(?:RunResult\.)?{name}\b", PAGE)]
    assert missing == (["of"] if kind in (RunPaths, RunScores) else [])


@pytest.mark.parametrize("function", [fedtorch.run, fedtorch.partition, fedtorch.audit_run])
def test_every_argument_is_on_the_page_with_its_default(function: object) -> None:
    shown = " ".join(re.findall(rf"^{function.__name__}\((.*?)\) ->", PAGE, re.MULTILINE))  # type: ignore[attr-defined]
    for name, parameter in inspect.signature(function).parameters.items():  # type: ignore[arg-type]
        default = "" if parameter.default in (parameter.empty, None) and name != "config" else f"={parameter.default!r}"
        assert f"{name}{default}".replace("'", '"') in shown


def test_the_partition_of_the_page_is_the_one_that_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = PAGE.rsplit("```python\n", 1)[1].split("```\n\n```\n")
    exec(code, {"fedtorch": fedtorch})
    assert capsys.readouterr().out == shown.removesuffix("```\n")
