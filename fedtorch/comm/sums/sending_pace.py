"""When it pays to send an update while other clients of the rank still train: not where the last one would wait for it.

What is held back joins what comes later, so that a slow wire carries one sum in place of many updates.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SendingPace:
    """One rank's, by its own clock; no bit of a result depends on it."""

    num_clients: int
    """Of the rank in this round, whether they will succeed or not."""
    began_s: float
    """When their training began."""
    s_per_byte: float = 0.0
    """Of what was sent last, in this round or an earlier one; 0: nothing was."""
    num_done: int = 0
    """Clients that are done."""
    done_s: float = 0.0
    """When the last of them was."""

    def see_done(self, now_s: float) -> None:
        """One more client is done."""
        self.num_done, self.done_s = self.num_done + 1, now_s

    def see_sent(self, num_bytes: int, seconds: float) -> None:
        """So many bytes took so long, what others sent meanwhile included."""
        if num_bytes:
            self.s_per_byte = seconds / num_bytes

    def pays(self, num_bytes: int, now_s: float) -> bool:
        """Would so many bytes be sent before the last client is done? True when all are done, or nothing is known."""
        left = self.num_clients - self.num_done
        if left <= 0 or not self.num_done:
            return True
        each_s = (self.done_s - self.began_s) / self.num_done
        return num_bytes * self.s_per_byte <= left * each_s - (now_s - self.done_s)
