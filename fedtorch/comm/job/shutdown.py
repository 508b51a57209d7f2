"""How a rank leaves: in good order together with the others, or because of an error, its own or another rank's."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import NoReturn

from fedtorch.comm.job.awake import awake_s
from fedtorch.comm.job.interfaces import named
from fedtorch.comm.job.liveness import Liveness
from fedtorch.comm.job.rejoin import HEARD, OVER, STAYS
from fedtorch.comm.job.rendezvous import Rendezvous
from fedtorch.comm.job.store import Store
from fedtorch.core.errors import DeadlineError, FedtorchError, TrustError

_NOT_CONNECTED = "connectFullMesh"  # stands in what gloo says then
_CLOSE_WAIT_S = 10.0  # to wait for the others before the last sockets close


class Shutdown:
    """End of a communicator; `drop` closes its sockets."""

    def __init__(
        self,
        store: Store,
        liveness: Liveness,
        rendezvous: Rendezvous,
        hosts_store: bool,
        grace_s: float,
        drop: Callable[[], None],
    ) -> None:
        self._store, self._liveness, self._rendezvous = store, liveness, rendezvous
        self._rank, self._hosts_store, self._grace_s, self._drop = liveness.rank, hosts_store, grace_s, drop

    def leave_together(self, *, is_broken: bool, comes_again: bool = False) -> None:
        """Leave in good order; waits at most 10 s for the others before the sockets close.

        comes_again: all are about to join again; the store stays where it is.
        """
        self._liveness.stop()
        everyone = {rank: f"bye/{rank}" for rank in (self._rank, *self._liveness.others)}
        try:
            self._store.set(everyone[self._rank], "")
            if not is_broken:
                self._rendezvous.wait(everyone, limit_s=_CLOSE_WAIT_S)
            self._drop()
            if comes_again:
                self._close_connections()
                return
            if self._rank == 0:
                self._store.door.set(OVER, STAYS if self._store.stays_s else "")
            # The host of the store leaves last: it is needed until everyone has read that the others leave.
            gone = {rank: f"gone/{rank}" for rank in self._liveness.others if rank}
            if self._rank:
                self._store.door.set(f"{HEARD}/{self._rank}", "")
                self._store.set(f"gone/{self._rank}", "")
            elif self._hosts_store:
                self._rendezvous.wait(gone, limit_s=_CLOSE_WAIT_S)
        except (DeadlineError, TrustError):
            self._drop()  # somebody has left already, which is what closing is for
            with suppress(FedtorchError):  # the server may be gone, or wait for this
                self._store.set(f"gone/{self._rank}", "")
        self._close_connections()

    def leave_with_error(self, error: str) -> None:
        """Leave because of an error of this class; the others are told."""
        self._drop()
        try:
            self._liveness.beat(left=error)
            self._liveness.links.end_all()  # nobody waits for a last word of this rank, nor it for them
            self._liveness.stop()
            if self._hosts_store:  # so that the others can read why
                self._rendezvous.wait_regardless({r: f"gone/{r}" for r in self._liveness.others}, self._grace_s)
            else:
                self._store.set(f"gone/{self._rank}", "")
        except FedtorchError:
            pass  # the error that ends this rank is on its way already
        self._close_connections()

    def raise_culprit(self, text: str, among: Collection[int] | None = None) -> NoReturn:
        """Find out which rank made a collective of the ranks `among`, all by default, fail, and raise.

        Everyone alive comes here soon after the first one (sockets are closed), and says so; who stays silent is
        dead, stopped, or still somewhere else.
        """
        give_up_at = awake_s() + self._grace_s
        self._drop()

        def of_these(ranks: Sequence[int]) -> list[int]:
            return [rank for rank in ranks if among is None or rank in among]

        try:
            self._liveness.beat(failed=True)
            while (suspects := of_these(self._liveness.unaccounted())) and awake_s() < give_up_at:
                if of_these(self._liveness.left(first=True)) or len(self._liveness.dead(suspects)) == len(suspects):
                    break
                time.sleep(0.05)
        except DeadlineError as error:
            raise DeadlineError(f"{error}; the collective ended with: {text}") from None
        culprits = of_these(self._liveness.left(first=True)) or suspects
        if _NOT_CONNECTED in text:  # ranks still wait for a connection and say nothing: they are not silent for that
            culprits = of_these(self._liveness.missing(suspects))
            if not culprits:
                raise DeadlineError(
                    f"rank {self._rank}{self._here()} and another one could not connect, though no rank is known to be "
                    f"gone: a wire is cut or a port is closed, or what they announce leads elsewhere, see "
                    f"system.interface (collective: {text})"
                )
        raise self._liveness.error_of(culprits, f" (collective: {text})")

    def _here(self) -> str:
        return f" at {named(self._store.address)}" if self._store.address else ""

    def _close_connections(self) -> None:
        self._liveness.links.close()
