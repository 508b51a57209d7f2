"""After the first round no rank takes memory for a whole vector any more, but for the gradients of its training."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from harness import make_config, make_runner
from ranks import run_ranks
from toy import Quadratic

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import SystemConfig

SIZE = 3 << 20
PAGES = 4 * SIZE // resource.getpagesize()  # of one vector
CLIENTS = {f"c{i}": (1.0, float(i), 1) for i in range(4)}


def touched() -> int:
    """Pages that were touched for the first time: fresh memory, for what is freed goes back to the system."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def touched_per_round(folder: str, exchange: Literal["reduce", "send"]) -> list[int]:
    """In every round of this rank, without what the algorithm does while it trains."""
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=60, exchange=exchange) as comm:
        task = Quadratic(clients=CLIENTS, start=(0.1,), width=SIZE, double=False)
        system = SystemConfig(exchange=exchange, server_works=False)
        runner = make_runner(make_config(Path(folder) / "run", task, rounds=5, system=system), comm)
        inside, found = [0], list[int]()

        def counted(run: Callable[..., Any], note: Callable[[int], None]) -> Callable[..., Any]:
            def wrapped(*args: Any) -> Any:
                before = touched()
                try:
                    return run(*args)
                finally:
                    note(touched() - before)

            return wrapped

        def end_round(pages: int) -> None:
            found.append(pages - inside[0])
            inside[0] = 0

        def end_training(pages: int) -> None:
            inside[0] += pages

        runner.trainer._run = counted(runner.trainer._run, end_training)  # type: ignore[method-assign]
        runner._clients_round = counted(runner._clients_round, end_round)  # type: ignore[method-assign]
        runner.run()
        return found


@pytest.mark.processes
@pytest.mark.parametrize("exchange", ["reduce", "send"])
def test_no_vector_is_made_anew_in_a_round(exchange: str, tmp_path: Path) -> None:
    ranks = run_ranks(touched_per_round, 3, str(tmp_path), exchange)
    assert all(len(rounds) == 5 for rounds in ranks)
    if max(first for first, *_ in ranks) < PAGES:
        pytest.skip("the system hands out huge pages, which tell nothing of vectors of this size")
    for first, _, *later in ranks:  # slots of shared memory that one round does not fill are new in the second
        assert max(later) < PAGES / 2, (PAGES, first, later)
