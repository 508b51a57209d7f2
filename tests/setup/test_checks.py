"""Rules about a run: each is called, and says what it is about."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from fedtorch.setup import checks, vector_checks

CALLED = {
    checks: {*checks.RULES, *checks.MODULE_RULES, checks.something_is_trained, checks.check, checks.check_module},
    vector_checks: {*vector_checks.RULES, vector_checks.check_vectors},
}


@pytest.mark.parametrize("module", CALLED, ids=lambda module: module.__name__)
def test_every_rule_is_in_a_list_and_states_itself(module: ModuleType) -> None:
    defined = {f for _, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__}
    assert defined == {rule for rule in CALLED[module] if rule.__module__ == module.__name__}
    assert all(inspect.getdoc(rule) for rule in CALLED[module])
    assert len(module.RULES) == len(set(module.RULES))
