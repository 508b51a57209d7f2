"""Rules about a run: each is asked, states itself, and is in the list of docs/refusals.md."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from fedtorch.setup import rules
from fedtorch.setup.rules.subject import Subject

PAGE = Path(__file__).parents[2] / "docs" / "refusals.md"
HELPERS = {"the_sum_is_enough", "is_public", "why", "check_parties", "check_order"}
"""Public functions that are asked elsewhere too."""


def test_every_rule_is_asked_once_and_states_itself() -> None:
    """A function of a file of rules that no subject names would never be asked."""
    defined, subjects = [], []
    for info in iter_modules(rules.__path__):
        module = import_module(f"{rules.__name__}.{info.name}")
        functions = inspect.getmembers(module, inspect.isfunction)
        defined += [name for name, f in functions if f.__module__ == module.__name__ and not name.startswith("_")]
        subjects += [each for _, each in inspect.getmembers(module, lambda value: isinstance(value, Subject))]
    asked = [rule for subject in rules.SUBJECTS for rule in subject.rules()]
    assert sorted(name for name, _ in asked) == sorted({*defined} - HELPERS)
    assert all(states for _, states in asked)
    assert {id(subject) for subject in subjects} == {id(subject) for subject in rules.SUBJECTS}


def test_the_page_has_the_rules_of_the_code() -> None:
    parts = []
    for subject in rules.SUBJECTS:
        rows = [f"| {name.replace('_', ' ')} | {states} |" for name, states in subject.rules()]
        parts.append("\n".join([f"## {subject.name}", "", "| rule | what it refuses |", "|---|---|", *rows]))
    wanted = "\n\n".join(parts) + "\n"
    assert PAGE.read_text().partition("\n## ")[2] == wanted.removeprefix("## "), f"the list in {PAGE} is now:\n{wanted}"
