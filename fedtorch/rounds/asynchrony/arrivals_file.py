"""The arrivals of a run by the real clock, a line each, from which it goes on and is done again (`async.replay`)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtorch.config.asynchrony import AsyncConfig
from fedtorch.core.errors import CheckpointError, ConfigError
from fedtorch.rounds.asynchrony.durations import US_PER_S
from fedtorch.rounds.asynchrony.federation import Event, Federation
from fedtorch.rounds.asynchrony.plan import AsyncPlan, Job

NAME = "arrivals.jsonl"


class ArrivalsFile:
    """RUN/arrivals.jsonl; on the server. Lines are on the disk before the step of their buffer."""

    def __init__(self, folder: Path, federation: Federation) -> None:
        self.path, self._federation = folder / NAME, federation

    def begin(self) -> None:
        """Begin a run's file.

        Raises:
            CheckpointError: the disk refuses.
        """
        self._write(json.dumps(_head(self._federation)) + "\n", "wb")

    def take_up(self) -> list[Event]:
        """All events so far; the federation has them afterwards. A last line that a kill has cut is taken away.

        Raises:
            CheckpointError: the file is missing, or not of this run.
        """
        try:
            data = self.path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if len(whole) < len(data):
                os.truncate(self.path, len(whole))
            return read_events(whole.decode("utf-8"), self._federation, str(self.path))
        except (OSError, UnicodeDecodeError, ConfigError) as error:
            raise CheckpointError(
                f"the run goes on from a checkpoint, but its arrivals cannot be read: {error}; begin anew with "
                "`--resume never`"
            ) from None

    def append(self, events: Sequence[tuple[Event, Job | None]]) -> None:
        """Write lines, which are on the disk then.

        Raises:
            CheckpointError: the disk refuses.
        """
        self._write("".join(json.dumps(_line(self._federation, event, job)) + "\n" for event, job in events), "ab")

    def _write(self, text: str, mode: str) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(mode) as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CheckpointError(f"could not write {self.path} ({error}); free some space") from error


def _head(federation: Federation) -> dict[str, Any]:
    names = hashlib.sha256("\n".join(federation.names).encode()).hexdigest()[:16]
    settings = federation.settings
    kept = {key: getattr(settings, key) for key in ("buffer", "concurrent", "max_staleness", "starts")}
    return {"kind": "arrivals", "clients": names, "run_seed": federation.run_seed, **kept}


def _line(federation: Federation, event: Event, job: Job | None) -> dict[str, Any]:
    if job is None:
        about = {"client": federation.names[event.place], "newest": event.newest, "status": event.status}
        return {**about, "arrived_s": event.arrived / US_PER_S}
    return {
        "number": job.number,
        "client": job.client,
        "start": job.start,
        "version": job.version,
        "newest": event.newest,
        "buffer": job.buffer,
        "staleness": job.staleness,
        "status": event.status,
        "started_s": event.started / US_PER_S,
        "arrived_s": event.arrived / US_PER_S,
    }


def read_events(text: str, federation: Federation, where: str) -> list[Event]:
    """The events of a file, all of which `federation`, a new one, has taken afterwards.

    Raises:
        ConfigError: a line is torn, or not what this run's config comes to; it names the line.
    """
    lines = text.splitlines(keepends=True)
    if not lines or (head := _parsed(lines[0], f"{where}, line 1")).get("kind") != "arrivals":
        raise ConfigError(f"{where}, line 1 is no head of recorded arrivals")
    for key, value in _head(federation).items():
        if head.get(key) != value:
            raise ConfigError(
                f"{where}, line 1 is of another run: its {key} is {head.get(key)!r}, this config's is {value!r}"
            )
    for number, line in enumerate(lines[1:], 2):
        at = f"{where}, line {number}"
        found = _parsed(line, at)
        try:
            event = _event(found, federation)
            job = federation.apply(event)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{at} is no arrival of this run: {type(error).__name__} {error}") from None
        if (line_of := _line(federation, event, job)) != found:
            differing = [key for key, value in line_of.items() if found.get(key) != value]
            raise ConfigError(f"{at} is not what this config comes to: {', '.join(differing) or 'further keys'} differ")
    return [event for event, _ in federation.events]


def _event(found: dict[str, Any], federation: Federation) -> Event:
    """Raises KeyError, TypeError, ValueError: it is none."""
    arrived, newest, status = round(float(found["arrived_s"]) * US_PER_S), int(found["newest"]), str(found["status"])
    if status in ("lost", "left", "back"):
        return Event(-1, newest, status, arrived, arrived, federation.names.index(found["client"]))
    return Event(int(found["start"]), newest, status, round(float(found["started_s"]) * US_PER_S), arrived)


def _parsed(line: str, at: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not line.endswith("\n"):
        raise ConfigError(f"{at} is torn or no JSON object")
    return found


def replayed_plan(settings: AsyncConfig, names: Sequence[str], *, versions: int, run_seed: int) -> AsyncPlan:
    """The plan that `async.replay` describes: a run's folder, or its arrivals.jsonl.

    Raises:
        ConfigError: it cannot be read, is not of this config, or has too few arrivals.
    """
    path = Path(str(settings.replay))
    path = path / NAME if path.is_dir() else path
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"async.replay is {settings.replay}, whose recorded arrivals cannot be read ({error}); give the folder of "
            f"a run with async.clock.kind real, or its {NAME}"
        ) from None
    federation = Federation(settings, names, run_seed)
    read_events(text, federation, f"async.replay {path}")
    if federation.numbers < versions * settings.buffer:
        raise ConfigError(
            f"async.replay {path} has {federation.numbers} arrivals, which make "
            f"{federation.numbers // settings.buffer} versions, but rounds is {versions}; set rounds to at most that"
        )
    instants = [max(job.arrived for job in federation.buffer(b)) for b in range(versions)]
    return AsyncPlan(tuple(federation.jobs), settings.buffer, versions, tuple(instants))
