"""Errors that end a run, each with the exit code a launcher can act on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedtorch.core.shown import bounded


class FedtorchError(Exception):
    """Base of every error that a user can cause or fix; `exit_code` is the process's exit status."""

    exit_code = 1
    told: str = ""
    """What other ranks may hear of it: names of keys, no value and no path; empty: only that it happened."""

    def __init__(self, message: str = "") -> None:
        super().__init__(bounded(str(message)))


def print_error(error: FedtorchError, command: str = "fedtorch") -> int:
    """Say on stderr why a command ends; returns the exit code for its `main` to return."""
    print(f"{command}: {error}", file=sys.stderr)
    return error.exit_code


class ConfigError(FedtorchError, ValueError):
    """A config file, key or value is wrong."""

    exit_code = 2


class DataError(FedtorchError, ValueError):
    """A data file is missing, malformed or empty; the message names file and line."""

    exit_code = 3


class PreflightError(FedtorchError, RuntimeError):
    """The ranks cannot form one job: different configs or code, a taken port, a message that does not fit."""

    exit_code = 4


class NoStoreError(PreflightError):
    """No store answers where rank 0, or the launcher, is to have one: it was not started, or has ended."""


class QuorumError(FedtorchError, RuntimeError):
    """Too few clients delivered a usable update for too long."""

    exit_code = 5


class NonFiniteError(FedtorchError, RuntimeError):
    """A client sent NaN or infinity and `clients.on_failure` is `stop`, or the global weights are not finite."""

    exit_code = 6


class RefusedUpdatesError(NonFiniteError):
    """Updates are not what their clients reported, or cannot be combined. It ends no round: the server decides again.

    `rounds.aggregation` catches it, on all ranks, and leaves the clients out. A NonFiniteError where nobody does.
    """

    reasons: Mapping[str, str]
    """Client -> what is wrong with its update; on ranks other than the server empty."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"client `{name}`: {reason}" for name, reason in reasons.items()))
        self.reasons = dict(reasons)


class RepeatedLossError(FedtorchError, RuntimeError):
    """A client's worker died in it again and again, and `clients.on_repeated_loss` is `stop`."""

    exit_code = 6


@dataclass(frozen=True)
class Death:
    """Where a rank's process came to its end, by its last sign of life."""

    client: str
    """With which it was busy; empty: with none."""
    round: int
    """Rounds done."""
    phase: str
    """Of the round."""
    process: str
    """What tells this process from all others."""


class LostRankError(FedtorchError, RuntimeError):
    """Ranks of the job are gone. The base of what ends a run because of that; a verdict, not a suspicion.

    Which ranks is known by the time it is raised, as far as it can be: the rank that raises it has looked at every
    rank's heartbeat. `CollectiveFailed` is raised before anybody has looked, where the run may go on.
    """

    ranks: tuple[int, ...]
    """Those that are known to be gone; empty if none of them could be named."""
    deaths: tuple[Death, ...]
    """Of those whose process is known to have come to its end, not only to be silent."""

    def __init__(self, message: str, ranks: tuple[int, ...] = (), deaths: tuple[Death, ...] = ()) -> None:
        super().__init__(message)
        self.ranks, self.deaths = ranks, deaths


class DeadlineError(LostRankError):
    """A rank is dead, gone with an error, or silent for `system.timeout` seconds; the message names it."""

    exit_code = 7


class ForgedNoteError(LostRankError):
    """Somebody who is no rank of this job writes into its store; every rank ends, and the run can be resumed."""

    exit_code = 7


class CollectiveFailed(DeadlineError):
    """A collective failed on this rank, of a run that can go on without a lost one. Names no rank: `ranks` is empty.

    Unlike the other LostRankErrors it does not end the run. `Membership.retry_on_loss` catches it; the ranks then
    meet (`Communicator.commit_collective`), find out together which of them is lost, if any, and repeat the exchange.
    It is a DeadlineError so that it ends the run like one where nobody catches it.
    """


class CheckpointError(FedtorchError, RuntimeError):
    """A checkpoint could not be written, or none that fits this run could be read."""

    exit_code = 8

    def __init__(self, message: str = "", *, told: str = "") -> None:
        super().__init__(message)
        self.told = told


class RestartsError(LostRankError):
    """A rank is lost, and the launcher has used up its restarts."""

    exit_code = 9


class BudgetError(FedtorchError, RuntimeError):
    """Another round would pass `privacy.max_epsilon`; all before it is saved, and the run can be resumed with more."""

    exit_code = 10


class DeviceError(FedtorchError, RuntimeError):
    """A GPU has failed: this process can compute nothing on it any more, and a restart would meet the same again."""

    exit_code = 11


class TrustError(FedtorchError, RuntimeError):
    """A party of a federation did not keep to what was agreed on; a restart would meet the same again."""

    exit_code = 11
    heard: ClassVar[str] = "has left, as something was not as all had agreed"
    """Words that the other parties say after this one's name: they hear the class of the error, and never its text."""


class WrongWorkError(TrustError):
    """A part of the server's work is wrong: its sum, its step, or what it has signed of a round."""

    heard = "has found the server's work wrong"


class OtherPartyError(TrustError):
    """Another party has left with a TrustError, so that this one leaves too."""

    heard = "has left after another party"


class PolicyError(TrustError):
    """A site's own policy forbids what was about to leave it, so nothing has."""

    heard = "refuses by its policy"


class PeerError(RuntimeError):
    """Another rank of this worker failed at the client that they train together; its error is in its own log."""

    out_of_memory: bool
    """Whether it ran out of memory, so that smaller micro-batches could help."""

    def __init__(self, message: str, *, out_of_memory: bool = False) -> None:
        super().__init__(message)
        self.out_of_memory = out_of_memory


class UpdateError(ValueError):
    """An algorithm did not send what its clients have to send, or something else; that client fails in this round.

    The message names algorithm and vector and nothing of the client's data, so it may be logged.
    """


class Interrupted(FedtorchError, RuntimeError):
    """A signal asked the run to stop; everything computed is saved and the run can be resumed."""

    exit_code = 75


def trust_error_of(name: str) -> type[TrustError] | None:
    """The kind of TrustError whose class has this name."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, TrustError) else None


def is_ours(name: str) -> bool:
    """Is it the name of a class of errors in this module?"""
    return isinstance(found := globals().get(name), type) and issubclass(found, Exception)


_BY_CODE = (
    ConfigError,
    DataError,
    PreflightError,
    QuorumError,
    NonFiniteError,
    DeadlineError,
    CheckpointError,
    RestartsError,
    BudgetError,
    DeviceError,
    Interrupted,
)


def error_of_code(code: int, message: str) -> FedtorchError:
    """The error with which another process has ended; its `exit_code` is `code`, also where no class has that one."""
    kind = next((kind for kind in _BY_CODE if kind.exit_code == code), FedtorchError)
    error = kind(message)
    error.exit_code = code
    return error
