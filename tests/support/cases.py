"""The cases of a module of tests, all of them in one process or on ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import SystemConfig

RunCase = Callable[..., Any]
"""`run_case(name, folder, communicator=None, **changes)`: what of a case's run is compared."""


def in_one_process(run_case: RunCase, cases: Iterable[str], factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every case through no group at all."""
    folder = str(factory.mktemp("alone"))
    return {name: run_case(name, folder) for name in cases}


def on_this_rank(
    run_case: RunCase, cases: Iterable[str], clients: Iterable[str], folder: str, system: SystemConfig | None = None
) -> dict[str, Any]:
    """Every case, one after the other in one group; called by all ranks alike. system: changes each case's config."""
    exchange = (system or SystemConfig()).exchange
    with DistributedCommunicator.join(tuple(clients), timeout_s=30, exchange=exchange) as comm:
        changes = {} if system is None else {"system": system}
        return {name: run_case(name, folder, comm, **changes) for name in cases}
