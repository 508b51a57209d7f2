"""A server that waits for a lost rank before it goes on; `python -m patient ARGUMENTS` is fedtorch.main with it."""

from __future__ import annotations

import sys
import time
from typing import Any

from fedtorch.comm.base import Met
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.job import rejoin as door
from fedtorch.main import main

BACK_AT = 3
"""Rounds done when it waits."""


def wait_for_return(round: int = BACK_AT, ranks: int = 1) -> None:
    """The server lets nobody in before so many rounds are done, and then goes on once as many ranks are back."""
    original = DistributedCommunicator.meet

    def meet(self: Any, phase: str, *, may_reopen: bool = False, **about: Any) -> Met:
        may_reopen &= about["round"] == round and not self.member.entry.number
        while may_reopen and self.is_server and self.lost and len(door.waiting(self._store, self.lost)) < ranks:
            self.heartbeat(phase="wait", round=round)
            time.sleep(0.02)
        return original(self, phase, may_reopen=may_reopen, **about)

    DistributedCommunicator.meet = meet  # type: ignore[method-assign]


if __name__ == "__main__":
    wait_for_return()
    sys.exit(main(sys.argv[1:]))
