"""The models that score pairs, as the section `model` of their tasks."""

from __future__ import annotations

from typing import Any

import pytest

from fedtorch.config.validate import validate
from fedtorch.core.yaml_tree import Tree
from fedtorch.models.bert import BertEncoder
from fedtorch.models.patch import Patch
from fedtorch.models.re2 import Re2
from fedtorch.tasks.qa import QA, QARe2


def checked(model: dict[str, Any], task: type = QA) -> tuple[Any, list[str]]:
    section, problems = validate(task, {"model": model}, ("task",), Tree({"task": {"model": model}}, {}))
    return section and section.model, problems


def test_the_task_says_which_model() -> None:
    patch = {"insertion": "horizontal", "structure": "lr", "size": 128}
    assert checked({"name": "bert-random", "head": "scalar", "patch": patch}) == (BertEncoder(patch=Patch()), [])
    assert checked({}) == (BertEncoder(), [])
    assert checked({"hidden": 200, "layers": 3}, QARe2) == (Re2(hidden=200, layers=3), [])


@pytest.mark.parametrize(
    ("task", "model", "message"),
    [
        (QARe2, {"hiden": 2}, "unknown key `task.model.hiden`; did you mean `hidden`?"),
        (QARe2, {"patch": {}}, "unknown key `task.model.patch`"),
        (QA, {"patch": {"sze": 3}}, "unknown key `task.model.patch.sze`; did you mean `size`?"),
        (QA, {"hidden": -1}, "task.model.hidden is -1 but should be an integer at least 1"),
        (
            QA,
            {"patch": {"insertion": "diagonal"}},
            "task.model.patch.insertion is 'diagonal' but should be inner or outer or",
        ),
        (QA, {"patch": {"structure": "pal"}}, "task.model.patch: patch.size is 128, which is not a multiple"),
    ],
)
def test_what_is_wrong_in_yaml_is_said(task: type, model: dict[str, Any], message: str) -> None:
    found, problems = checked(model, task)
    assert found is None and len(problems) == 1 and problems[0].startswith(message)
