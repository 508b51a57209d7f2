"""Rules about a run: each is called, and says what it is about."""

from __future__ import annotations

import inspect

from fedtorch.setup import checks

LAST = (checks.something_is_trained, checks.something_is_shared, checks.what_travels_is_there)
CALLED = {*checks.RULES, *checks.MODULE_RULES, *LAST, checks.check, checks.check_module}


def test_every_rule_is_in_a_list_and_states_itself() -> None:
    defined = {f for _, f in inspect.getmembers(checks, inspect.isfunction) if f.__module__ == checks.__name__}
    assert defined == CALLED
    assert all(inspect.getdoc(rule) for rule in defined)
    assert len(checks.RULES) == len(set(checks.RULES))
