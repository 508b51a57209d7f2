"""While a command imports, nothing is looked for among its objects; afterwards Python looks as it always does."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from fedtorch.core.imports import importing


@pytest.fixture(params=[True, False])
def was_enabled(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("fails", [True, False])
def test_collections_are_off_within_and_as_they_were_afterwards(was_enabled: bool, fails: bool) -> None:
    frozen = gc.get_freeze_count()
    try:
        with importing():
            assert not gc.isenabled()
            made = [[] for _ in range(100)]  # type: ignore[var-annotated]
            if fails:
                raise ImportError
    except ImportError:
        assert fails
    assert gc.isenabled() is was_enabled
    assert (gc.get_freeze_count() >= frozen + len(made)) is was_enabled
