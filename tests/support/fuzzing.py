"""Files as no program writes them: what may be put anywhere into JSON, and how many cases a test tries."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import hypothesis
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st

from fedtorch.core.errors import FedtorchError

LONGEST_MESSAGE = 13_000
"""Characters: 20 rows of a file each have a line."""
CODES = (2, 3, 4, 8)
"""With which a run may end that has read anything like this."""
Test = TypeVar("Test", bound=Callable[..., None])

ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 1.5, 1e308, float("inf"), float("nan"), 10**30, -(10**30)]
    + ["", "\0", "\ud800", "x" * 300, "../..", "train", "north", [], {}, [[]], [None], {"": {}}, [[["user", "a"]]]]
) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def cases(number: int) -> Callable[[Test], Test]:
    """So many cases, each over within 20 seconds, the same ones each time; 10,000 belong to the slow set."""

    def decorate(test: Test) -> Test:
        checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
        settled = hypothesis.settings(
            max_examples=number,
            derandomize=True,
            deadline=timedelta(seconds=20),
            database=None,
            suppress_health_check=checks,
        )(test)
        return pytest.mark.timeout(3600)(pytest.mark.slow(settled)) if number > 1000 else settled

    return decorate


def examples(number: int) -> Callable[[Test], Test]:
    """So many cases, others each time; the slow set, in which these tests are too, draws thirty times as many."""

    def decorate(test: Test) -> Test:
        more = 30 if os.environ.get("FEDTORCH_TESTS") == "slow" else 1
        return pytest.mark.random(hypothesis.settings(max_examples=number * more)(test))

    return decorate


@contextmanager
def only_named_errors() -> Iterator[None]:
    """The block ends, or raises one of the package's errors, with a code and a message that a log can take."""
    try:
        yield
    except FedtorchError as error:
        assert error.exit_code in CODES and str(error).strip(), error
        assert len(str(error)) < LONGEST_MESSAGE
        str(error).encode()


def spoilt(draw: st.DrawFn, value: Any) -> Any:
    """`value`, plain data, with one thing in it replaced, removed, doubled or renamed."""
    if isinstance(value, dict) and value and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(value, key=str)))
        kind = draw(st.sampled_from(["inside", "inside", "inside", "inside", "remove", "rename"]))
        rest = {name: item for name, item in value.items() if name != key}
        if kind == "remove":
            return rest
        if kind == "rename":
            return {**rest, draw(st.text(max_size=5)): value[key]}
        return {**value, key: spoilt(draw, value[key])}
    if isinstance(value, list) and value and draw(st.integers(0, 9)):
        place = draw(st.integers(0, len(value) - 1))
        kind = draw(st.sampled_from(["inside", "inside", "inside", "remove", "double"]))
        middle = {
            "inside": lambda: [spoilt(draw, value[place])],
            "remove": lambda: [],
            "double": lambda: [value[place]] * 2,
        }
        return [*value[:place], *middle[kind](), *value[place + 1 :]]
    return draw(ODD)


def text_of(value: Any) -> bytes:
    """As JSON, halves of surrogate pairs escaped."""
    return json.dumps(value).encode()


def torn(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes cut, flipped, or with something put in."""
    place = draw(st.integers(0, len(data)))
    piece = draw(st.sampled_from([b"", b"\0", b"\xff", b"[" * 3000, b"9" * 5000, b"\n", b'"', b"{}", b"\\ud800"]))
    return data[:place] + piece + data[draw(st.sampled_from([place, place + 1, len(data)])) :]
