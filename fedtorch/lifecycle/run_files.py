"""Files that the server writes into the run folder when a run starts."""

from __future__ import annotations

import json
import logging
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtorch.comm.base import Communicator
from fedtorch.config.load import config_facts, to_dict, to_yaml
from fedtorch.config.schema import Config
from fedtorch.config.trackers import make_trackers
from fedtorch.core import devices
from fedtorch.core.errors import CheckpointError
from fedtorch.core.files import replace_file
from fedtorch.core.model_folder import MODEL
from fedtorch.lifecycle.status import NAME as STATUS
from fedtorch.lifecycle.status import write_status
from fedtorch.rounds.scoring import chooses_by
from fedtorch.setup.build import BuiltRun
from fedtorch.setup.run_config import FACTS, STARTED_IN, keep_task
from fedtorch.tracking.run_folder import RESULTS
from fedtorch.tracking.tracker import Tracker

log = logging.getLogger(__name__)


def open_run(built: BuiltRun, comm: Communicator, start: int | None, command: str, aside: Path) -> Tracker:
    """Write what the run is, and start tracking it. start: the round that it is resumed from. aside: see `set_aside`.

    Raises:
        CheckpointError: the disk refuses; a run that cannot even begin to be written would be lost.
    """
    config = built.config
    try:
        config.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if start is None:
            set_aside(config, aside)
        replace_file(config.folder / "config.yaml", to_yaml(config))
        gpus = comm.gpus or {comm.rank: devices.versions(built.engine.device)}
        facts = _facts(built) | {"ranks": comm.size, STARTED_IN: os.getcwd()}
        facts |= {"gpus": gpus} if any(gpus.values()) else {}
        replace_file(config.folder / FACTS, json.dumps(facts, indent=1) + "\n")
        keep_task(config, built.task)
    except OSError as error:
        raise CheckpointError(
            f"the run folder {config.folder} cannot be written ({error}); free some space, or set `run.dir`"
        ) from error
    write_status(config.folder, code=None, reason="running", command=command, round=start, has_time=config.tells_times)
    return Tracker(
        config.folder,
        clients=() if config.privacy.kind == "client" else built.names,
        rounds=config.rounds,
        settings=replace(config.track, tensorboard=False),  # TensorBoard is one of `run.trackers`
        trackers=make_trackers(config),
        config=to_dict(config, masked=True),
        resume_round=start,
        has_times=config.tells_times,
        metric=chooses_by(config.eval, built.task),
    )


def _facts(built: BuiltRun) -> dict[str, Any]:
    """Facts that ranks compare, without the config's keys, which are in config.yaml and may name clients."""
    keys = config_facts(built.config)
    return {name: value for name, value in built.facts().items() if name not in keys or name in ("fedtorch", "config")}


def set_aside(config: Config, aside: Path) -> None:
    """A model, or results, that are there when a run begins would be taken for that run's if it is stopped early.

    aside: where an earlier run's checkpoints are until this one has its own; its model and results go there too.
    """
    with suppress(OSError):
        if (results := config.folder / RESULTS).is_file():
            aside.mkdir(parents=True, exist_ok=True)
            os.replace(results, aside / RESULTS)
    found = config.folder / MODEL
    if not found.is_dir():
        return
    try:
        if not (config.folder / STATUS).is_file():
            os.replace(found, kept := found.with_name(f"{MODEL}.before"))
            log.warning("%s is no model of this run; it is called %s now", found, kept)
        elif (aside / MODEL).is_dir():
            shutil.rmtree(found)  # of a run that began anew before and came to no checkpoint
        else:
            aside.mkdir(parents=True, exist_ok=True)
            os.replace(found, aside / MODEL)
    except OSError as error:
        log.warning("%s is no model of this run but cannot be removed: %s", found, error)
