"""Clients in which workers die again and again: counted over the attempts of a run, then named, or left out."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from fedtorch.comm.base import Communicator
from fedtorch.comm.wire import Packet
from fedtorch.config.schema import Config
from fedtorch.core.errors import Death, LostRankError, RepeatedLossError
from fedtorch.core.files import replace_file
from fedtorch.setup.build import BuiltRun

log = logging.getLogger(__name__)

NAME = "losses.json"
TIMES = 3
"""So often a worker dies at the same place without a saved round between, before its client is to blame."""


@dataclass(frozen=True)
class Losses:
    """Deaths of a run that are remembered in a file of the server's run folder."""

    saved: int = 0
    """Rounds that were saved when they happened; deaths before a later one are forgotten."""
    deaths: tuple[Death, ...] = ()
    """One for each process."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Client that takes no part any more -> the first round without it."""
    has_ended: bool = False
    """Has the run ended because of these deaths? Who starts it again by hand has mended it; torchrun has not."""

    def since(self, saved: int) -> Losses:
        """Return the losses that still count when `saved` rounds are saved."""
        return self if saved == self.saved else Losses(saved, (), self.left_out)

    def to_blame(self) -> dict[str, int]:
        """Client that takes part -> how often a worker has died in it, at one place, if that is TIMES or more."""
        counted = Counter((death.client, death.round, death.phase) for death in self.deaths)
        found = {client: number for (client, *_), number in counted.items() if client and number >= TIMES}
        return {client: number for client, number in found.items() if client not in self.left_out}


def note_losses(config: Config, error: LostRankError, *, is_server: bool, saved: int) -> None:
    """Remember where ranks died: the server does, or where that has died itself, who has seen it."""
    if config.clients.on_loss == "restart" and error.deaths and (is_server or 0 in error.ranks):
        known = read_losses(config.folder).since(saved)
        _write(config.folder, Losses(saved, tuple(dict.fromkeys((*known.deaths, *error.deaths))), known.left_out))


def agree_on_left_out(built: BuiltRun, comm: Communicator, start: int | None) -> dict[str, int]:
    """Clients that take no part any more -> the first round without them; all ranks call it alike.

    start: the round that the run is resumed from; None: it begins.

    Raises:
        RepeatedLossError: on all ranks, if a client is to blame and `clients.on_repeated_loss` is `stop`. The next
            start counts from the beginning.
    """
    config, messages = built.config, []
    if comm.is_server and comm.size > 1:
        messages = [
            Packet(comm.names.place(name), "decision", numbers=numbers)
            for name, numbers in _decide(config, start or 0).items()
            if name in comm.names
        ]
    comm.barrier("left out", round=0)
    told = {comm.names[m.client]: m.numbers for m in comm.broadcast_packets(messages, round=0)}
    deaths = {name: int(numbers["deaths"]) for name, numbers in told.items() if numbers["deaths"]}
    if deaths and config.clients.on_repeated_loss == "stop":
        raise RepeatedLossError(
            f"{_died(config, deaths)}, each time at the same place after {start or 0} saved rounds; the log of that "
            "rank may say why. Mend that and start the same command again, or let the others go on without it by "
            "`clients.on_repeated_loss: skip`"
        )
    if comm.is_server and deaths:
        log.warning("%s; the run goes on without it", _died(config, deaths))
    if comm.is_server and told:
        log.warning(
            "%d clients are left out; stop the run and remove %s to let them take part again",
            len(told),
            config.folder / NAME,
        )
    return {name: int(numbers["since"]) for name, numbers in told.items()}


def _decide(config: Config, saved: int) -> dict[str, dict[str, int | float]]:
    """On the server: of each client that is to blame, now or earlier, since when, and how many deaths are new."""
    known = read_losses(config.folder).since(saved)
    if known.has_ended and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) == 0:
        known = Losses(saved, (), known.left_out)
        _write(config.folder, known)
    new, left_out = known.to_blame(), dict(known.left_out)
    if new:
        if config.clients.on_repeated_loss == "stop":
            _write(config.folder, replace(known, has_ended=True))
        else:
            left_out |= dict.fromkeys(new, saved)
            _write(config.folder, Losses(saved, (), left_out))
    since = dict.fromkeys(new, saved) | left_out
    return {name: {"since": since[name], "deaths": new.get(name, 0)} for name in since}


def forget_losses(folder: Path) -> None:
    """Forget the losses of a run that another one takes the place of. A disk that refuses is a warning."""
    try:
        (folder / NAME).unlink(missing_ok=True)
    except OSError as error:
        log.warning("could not delete %s: %s", folder / NAME, error)


def read_losses(folder: Path) -> Losses:
    """Read a run folder's losses; none where there is no such file, or it cannot be read."""
    try:
        found = json.loads((folder / NAME).read_text())
        deaths = tuple(Death(**death) for death in found["deaths"])
        left_out = {str(client): int(since) for client, since in found["left_out"].items()}
        return Losses(int(found["saved"]), deaths, left_out, bool(found["has_ended"]))
    except FileNotFoundError:
        return Losses()
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        log.warning("%s cannot be read (%s); no loss is remembered", folder / NAME, type(error).__name__)
        return Losses()


def _write(folder: Path, losses: Losses) -> None:
    try:
        replace_file(folder / NAME, json.dumps(asdict(losses), indent=1) + "\n")
    except OSError as error:
        log.warning("could not write %s: %s", folder / NAME, error)


def _died(config: Config, deaths: Mapping[str, int]) -> str:
    ranks = config.system.pinned if config.system.pinned_to == "rank" else {}
    where = {name: f" (rank {ranks[name]})" if name in ranks else "" for name in deaths}
    hides = config.privacy.kind == "client"
    return "; ".join(
        f"a worker died {number} times while it worked on {'one client' if hides else f'client `{name}`'}{where[name]}"
        for name, number in deaths.items()
    )
