"""The page on algorithms lists every member that a rule of one's own may use, and shows code of the files."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest
from members import signatures

from fedtorch.algorithms.base import Updates
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.limits import Limits
from fedtorch.algorithms.travels import Travels
from fedtorch.core.client import Client, ClientState
from fedtorch.core.sampling import Sampler
from fedtorch.core.server import ServerOptimizer, ServerState
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.train.engine import Engine
from fedtorch.train.job import ClientJob
from fedtorch.train.loop import LossCurve

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-an-algorithm.md").read_text()
CLASSES: list[type] = [
    ClientJob, LossCurve, Engine, ServerState, ServerOptimizer, ClientState, Client, Report, Updates, Layout, Sampler,
]  # fmt: skip
OF_THE_RUNNER: dict[type, set[str]] = {
    ClientJob: {"check_state", "first_private", "outgoing", "parts", "saves", "silo", "sum", "trainer"},
    LossCurve: {"over_budget", "told", "untold"},
    Engine: {
        "adopt_initial", "beside", "counts", "exported", "forget_initial", "free", "go_on", "initial", "join",
        "left_out", "moment", "moment_form", "owners", "summed", "take_initial", "unit_ways", "worker",
    },
    ClientState: {"copy", "num_bytes"},
    Report: {"numbers", "seconds"},
    Updates: {"is_finite"},
    Layout: {"copied", "digest", "within"},
}  # fmt: skip
"""Public members that the runner or the package's own algorithms use; the page leaves them out."""
BLOCKS = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def section(heading: str) -> str:
    """The text between a heading and the next one."""
    assert PAGE.count(f"\n{heading}\n") == 1, heading
    return re.split(r"^#+ ", PAGE.partition(f"\n{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def members_listed(heading: str) -> list[str]:
    """What stands in code at the head of a list's items, which may be several with commas between."""
    heads = re.findall(r"^- ((?:`[^`]+`(?:, )?)+): ", section(heading), re.MULTILINE)
    return [member for head in heads for member in re.findall(r"`([^`]+)`", head)]


def members_named(heading: str) -> list[str]:
    """Names in the lines that begin with `Also`: members that seldom matter, without their signatures."""
    lines = re.findall(r"^Also\b.*", section(heading), re.MULTILINE)
    return [name for line in lines for name in re.findall(r"`(\w+)`", line)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_reference_has_every_public_member_with_its_signature_or_by_name(cls: type) -> None:
    listed, named = members_listed(f"### `{cls.__name__}`"), members_named(f"### `{cls.__name__}`")
    found = {name: text for name, text in signatures(cls).items() if name not in OF_THE_RUNNER.get(cls, ())}
    assert OF_THE_RUNNER.get(cls, set()) <= set(signatures(cls))
    assert len(set(listed)) == len(listed) and len(set(named)) == len(named)
    assert set(named) <= set(found)
    assert set(listed) == {text for name, text in found.items() if name not in named}


def test_the_reference_has_signatures_of_all_that_the_examples_use() -> None:
    chains = [chain for _, text in BLOCKS for chain in re.findall(r"\b(?:job|engine|server|layout)((?:\.\w+)+)", text)]
    used = {name for chain in chains for name in chain.split(".")}
    headings = [f"### `{cls.__name__}`" for cls in CLASSES]
    named = {name for heading in headings for name in members_named(heading)}
    listed = {re.split(r"\W", member)[0] for heading in headings for member in members_listed(heading)}
    assert {"send_difference", "placed", "accepted"} <= used & listed
    assert not used & (named.union(*OF_THE_RUNNER.values()) - listed)


def test_every_class_of_the_reference_is_compared() -> None:
    assert re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE) == [cls.__name__ for cls in CLASSES]


def test_the_table_has_everything_that_a_rule_may_define() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", section("## What it may define"), re.MULTILINE)
    keys = {"weights", "loss_reduction", "robust"}  # a line below the table is about them
    expected = {text for name, text in signatures(FedAvg).items() if name not in keys}
    assert {row.replace(" or ", " | ") for row in rows} == expected and len(rows) == len(expected)


@pytest.mark.parametrize(
    ("cls", "heading"), [(Limits, "### What it needs and rules out"), (Travels, "### What travels")]
)
def test_the_tables_of_fields_have_every_one(cls: type, heading: str) -> None:
    rows = re.findall(r"^\| `(\w+): ([^`]+)` \|", section(heading), re.MULTILINE)
    expected = [(field.name, str(field.type).replace(" | ", " or ")) for field in fields(cls)]
    assert sorted(rows) == sorted(expected)


def code_of(text: str) -> list[str]:
    """The statements of a piece of Python, without docstrings and without what is imported from the future."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module) and ast.get_docstring(node) and body:
            del body[0]
    return [ast.unparse(node) for node in tree.body if getattr(node, "module", "") != "__future__"]


@pytest.mark.parametrize(("file", "text"), BLOCKS, ids=[f"{file}:{i}" for i, (file, _) in enumerate(BLOCKS)])
def test_code_on_the_page_is_that_of_the_file_it_names(file: str, text: str) -> None:
    if "/" in file:  # a part of a file of the package, line by line
        assert f"\n{text}" in f"\n{(ROOT / file).read_text()}"
    else:
        assert code_of(text) == code_of((ROOT / "docs" / "examples" / file).read_text())


def test_the_page_shows_the_examples_and_a_rule_with_state() -> None:
    files = [file for file, _ in BLOCKS]
    assert {"clipped_average.py", "half_way.py", "bent.py", "by_turns.py"} <= set(files)
    assert len(BLOCKS) == PAGE.count("```python\n")


def test_a_signature_is_shown_as_it_is_written() -> None:
    found = signatures(ClientJob)
    assert found["seed"] == "seed(purpose: str) -> int" and found["round"] == "round: int"
    assert found["initial"] == "initial: Tensor" and "_collated" not in found
    assert signatures(Layout)["of"] == "of(weights: Mapping[str, Tensor]) -> Layout"
    assert signatures(FedAvg)["report"] == "report(job: ClientJob, curve: LossCurve, **extra: float) -> Report"
