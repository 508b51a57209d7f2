"""Training that stands still between two steps while its rank does something else, and then goes on with the same bits.

It has a thread of its own, but the two never run at the same time: one of them waits for the other.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Semaphore, Thread

from fedtorch.core import devices
from fedtorch.train.engine import Engine
from fedtorch.train.moment import PRIVATE, SHARED


class Left(BaseException):
    """The run is over, and nobody waits for the training; no failure of the client's."""


class Pausable:
    """A training on one engine, whose caller and which run by turns."""

    def __init__(self, work: Callable[[], None], engine: Engine) -> None:
        """work: calls `pause` now and then."""
        self._work, self._engine = work, engine
        self._inner, self._outer = Semaphore(0), Semaphore(0)
        self._error: BaseException | None = None
        self._why: type[BaseException] | None = None  # with which it is left
        self._is_done = False
        self._thread = Thread(target=self._run, name="fedtorch-training", daemon=True)
        self._thread.start()

    def go_on(self) -> bool:
        """Let it train until it pauses or is done; is it done? Raises whatever it raises."""
        self._inner.release()
        self._outer.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._is_done

    def leave(self, why: type[BaseException] = Left) -> None:
        """End it where it stands, as if its next step had raised `why`."""
        if not self._is_done:
            self._why = why
            with suppress(why):
                self.go_on()
        self._thread.join()

    def pause(self) -> None:
        """From within: stand still until the caller lets it go on. Meanwhile the engine may have others' weights."""
        engine = self._engine
        moment = engine.moment(with_optimizer=False)  # the optimiser's state is nobody else's meanwhile
        own = {name: moment.tensors.pop(name).clone() for name in (SHARED, PRIVATE) if name in moment.tensors}
        self._outer.release()
        self._inner.acquire()
        engine.load(own[SHARED], own.get(PRIVATE))
        engine.go_on(moment)
        engine.module.train()
        if self._why is not None:
            raise self._why

    def _run(self) -> None:
        devices.make_present(self._engine.device)
        self._inner.acquire()
        try:
            if self._why is None:
                self._work()
        except BaseException as error:  # raised by `go_on`
            self._error = error
        self._is_done = True
        self._outer.release()
