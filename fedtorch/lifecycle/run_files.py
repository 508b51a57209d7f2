"""What the server writes into the run folder beside checkpoints and records: at the start, and the model at the end."""

from __future__ import annotations

import json
import logging

from fedtorch.config.load import to_yaml
from fedtorch.core.errors import CheckpointError
from fedtorch.core.files import replace_file
from fedtorch.lifecycle.status import write_status
from fedtorch.setup.build import BuiltRun
from fedtorch.tracking.tracker import Tracker

log = logging.getLogger(__name__)


def open_run(built: BuiltRun, num_ranks: int, start: int | None, command: str) -> Tracker:
    """Write what the run is, and start tracking it. start: the round that it is resumed from.

    Raises:
        CheckpointError: the disk refuses; a run that cannot even begin to be written would be lost.
    """
    config = built.config
    try:
        config.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(config.folder / "config.yaml", to_yaml(config))
        replace_file(config.folder / "env.json", json.dumps(built.facts() | {"ranks": num_ranks}, indent=1) + "\n")
    except OSError as error:
        raise CheckpointError(
            f"the run folder {config.folder} cannot be written ({error}); free some space, or set `run.dir`"
        ) from error
    write_status(config.folder, code=None, reason="running", command=command, round=start)
    return Tracker(
        config.folder,
        clients=built.names,
        rounds=config.rounds,
        tensorboard=config.track.tensorboard,
        step_curves=config.track.step_curves,
        client_limit=config.track.client_limit,
        progress=config.track.progress,
        resume_round=start,
        metric=config.eval.select_by or built.task.main_metric,
    )


def save_model(built: BuiltRun) -> None:
    """For users of the model; that it cannot be written is no reason to lose the run's result."""
    folder = built.config.folder / "model"
    try:
        with built.engine.exported() as module:
            built.task.save_model(module, folder)
    except Exception as error:
        log.warning("the model could not be saved in %s: %s: %s", folder, type(error).__name__, error)
