"""`client.trainer.check`: is a client's training the same when it is done again, with another client's between?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from fedtorch.core.errors import FedtorchError
from fedtorch.train.job import ClientJob
from fedtorch.train.loop import LossCurve

Train = Callable[[ClientJob, Tensor], LossCurve]


@dataclass
class Repeated:
    """Trains the first client once more after the second, and compares; once in a process for each trainer.

    Where this process has one client, the repetition comes in the client's next round, with its own training between.
    """

    first: tuple[ClientJob, Tensor, Tensor, Tensor] | None = None
    """its job, the weights it began with, and those it ended with, shared and private"""
    is_done: bool = False
    """was it compared?"""

    def train(self, train: Train, job: ClientJob, weights: Tensor) -> LossCurve:
        """Train the client; afterwards the engine has its weights.

        Raises:
            FedtorchError: the first client's training came to other weights the second time.
        """
        begun = replace(job, state=job.state.copy())
        curve = train(job, weights)
        if self.is_done:
            return curve
        ended = job.engine.snapshot(), job.engine.snapshot_private()
        if self.first is None:
            self.first = begun, weights.clone(), *ended
            return curve
        self.is_done = True
        again, start, *before = self.first
        self.first = None
        train(replace(again, on_step=lambda n: job.on_step(0)), start)
        self._compare(again, before, [job.engine.snapshot(), job.engine.snapshot_private()])
        job.engine.load(*ended)
        return curve

    def _compare(self, job: ClientJob, before: list[Tensor], after: list[Tensor]) -> None:
        engine = job.engine
        for layout, one, other in zip((engine.shared, engine.private), before, after, strict=True):
            differ = one != other
            differ &= ~(one.isnan() & other.isnan())
            if not differ.any():
                continue
            names = [name for name, part in layout.view(differ).items() if part.any()]
            raise FedtorchError(
                f"client.trainer.check: client {job.client.name} was trained twice from the same start, with another "
                f"training between, and {int(differ.sum())} of {len(one)} numbers differ, first in `{names[0]}`: the "
                "trainer remembers something, or draws from what is not seeded; keep memory in context.state, and draw "
                "from context.seed"
            )
