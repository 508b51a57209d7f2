"""How a rank leaves: in good order together with the others, or because of an error, its own or another rank's."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from fedtorch.comm.liveness import Liveness
from fedtorch.comm.rendezvous import Rendezvous
from fedtorch.comm.store import Store
from fedtorch.core.errors import DeadlineError, FedtorchError

_GRACE_S = 3.0  # after a failed collective: for the living to say that they are; their sockets close within 0.1 s
_FAREWELL_S = 10.0  # to wait for the others before the last sockets close


class Shutdown:
    """What a communicator does at its end; `drop` closes its sockets."""

    def __init__(
        self,
        store: Store,
        liveness: Liveness,
        rendezvous: Rendezvous,
        *,
        hosts_store: bool,
        drop: Callable[[], None],
    ) -> None:
        self._store, self._liveness, self._rendezvous = store, liveness, rendezvous
        self._rank, self._hosts_store, self._drop = liveness.rank, hosts_store, drop

    def say_goodbye(self, *, is_broken: bool) -> None:
        """Leave in good order; waits at most 10 s for the others before the sockets close."""
        self._liveness.rest()
        everyone = {rank: f"bye/{rank}" for rank in (self._rank, *self._liveness.others)}
        try:
            self._store.set(everyone[self._rank], "")
            if not is_broken:
                self._rendezvous.wait(everyone, limit_s=_FAREWELL_S)
            self._drop()
            # The host of the store leaves last: it is needed until everyone has read the others' goodbye.
            gone = {rank: f"gone/{rank}" for rank in self._liveness.others if rank}
            if self._rank:
                self._store.set(f"gone/{self._rank}", "")
            elif self._hosts_store:
                self._rendezvous.wait(gone, limit_s=_FAREWELL_S)
        except DeadlineError:
            self._drop()  # somebody has left already, which is what closing is for
        self._close_lifeline()

    def leave(self, error: str) -> None:
        """Leave because of an error of this class; the others are told."""
        self._drop()
        try:
            self._liveness.beat(left=error)
            self._liveness.rest()
            if self._hosts_store:  # so that the others can read why
                self._rendezvous.linger({r: f"gone/{r}" for r in self._liveness.others}, _GRACE_S)
            else:
                self._store.set(f"gone/{self._rank}", "")
        except FedtorchError:
            pass  # the error that ends this rank is on its way already
        self._close_lifeline()

    def blame(self, text: str, among: Collection[int] | None = None) -> NoReturn:
        """Find out who is to blame for a failed collective of the ranks `among`, all by default, and raise.

        Everyone alive comes here soon after the first one (sockets are closed), and says so; who stays silent is
        dead, stopped, or still somewhere else.
        """
        give_up_at = time.monotonic() + _GRACE_S
        self._drop()

        def of_these(ranks: Sequence[int]) -> list[int]:
            return [rank for rank in ranks if among is None or rank in among]

        try:
            self._liveness.beat(failed=True)
            while (suspects := of_these(self._liveness.unheard())) and time.monotonic() < give_up_at:
                if of_these(self._liveness.left(first=True)) or len(self._liveness.dead(suspects)) == len(suspects):
                    break
                time.sleep(0.05)
        except DeadlineError as error:
            raise DeadlineError(f"{error}; the collective ended with: {text}") from None
        culprits = of_these(self._liveness.left(first=True)) or suspects
        names = "; ".join(self._liveness.describe(rank) for rank in culprits)
        names = names or "every rank is alive, but a connection broke"
        raise DeadlineError(f"{names} (collective: {text})", ranks=tuple(culprits))

    def _close_lifeline(self) -> None:
        if self._liveness.lifeline is not None:
            self._liveness.lifeline.close()
