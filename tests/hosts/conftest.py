"""Hosts for tests: each with an address, a name and a disk of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hosts import Network, why_not
from silos import DITTO, digest

from fedtorch.main import main


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here are marked; skipped where there can be no hosts."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.hosts)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Callable[..., Network]]:
    """Makes a network of hosts, see `Network`; two of them, a and b, without a common disk, by default."""
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as opened:
        made = 0

        def make(**options: Any) -> Network:
            nonlocal made
            made += 1
            return opened.enter_context(Network(tmp_path / f"network{made}", **options))

        yield make


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the run in one process."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "toy.yaml").write_text(DITTO.replace("DIR", str(folder / "run")))
    assert main(["--config", str(folder / "toy.yaml")]) == 0
    return digest(folder / "run")
