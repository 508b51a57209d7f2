"""The models that clients are evaluated with, on disk: the server's, or one per client, written where it lives."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from fedtorch.algorithms.base import Algorithm
from fedtorch.checkpoint.files import put_in_place, sync
from fedtorch.core.client import folder_name
from fedtorch.core.errors import ConfigError, FedtorchError
from fedtorch.core.overrides import overrides
from fedtorch.rounds.client_scores import ClientScorer
from fedtorch.rounds.components import RunComponents
from fedtorch.rounds.context import RoundContext

log = logging.getLogger(__name__)


def has_own_models(components: RunComponents) -> bool:
    """Are clients evaluated with models of their own, or all with the server's? The same on every rank."""
    config, algorithm = components.config, components.algorithm
    is_personal = overrides(type(algorithm), "eval_weights", Algorithm)
    return (
        # where clients are merged, those that are evaluated train no model
        (is_personal and config.paradigm != "centralized")
        or not algorithm.travels.vectors
        or components.engine.private.size > 0
        or config.eval.point == "trained"
        or config.eval.best == "per_client"
    )


class ModelWriter:
    """Writes a run's models into `folder`: the server's model itself, or a folder for each client, see `folder_name`.

    A model is written beside, into `<folder>.partial`, and renamed when it is whole; what a process that died left
    there is removed by the next run. A client's model is written by the worker that evaluates it, so its private
    weights cross no ranks; it lies in `folder` as that worker sees it.
    """

    def __init__(
        self,
        context: RoundContext,
        scorer: ClientScorer,
        folder: Path,
        suffix: str = ".partial",
        *,
        merge: bool = False,
    ) -> None:
        """merge: write models with what was added to them (an adapter) become part of their weights."""
        self.context, self.scorer, self.folder = context, scorer, folder
        self._save = self._save_merged if merge else context.components.task.save_model
        self.partial = folder.with_name(f"{folder.name}{suffix}")
        self.is_per_client = has_own_models(context.components)

    def write_all(self) -> dict[str, Exception]:
        """Write the weights that clients of `eval.final_split` are evaluated with; all ranks call it alike.

        Returns what this rank could not write, by client; by an empty name the server's model.

        Raises:
            Stopped: on all ranks, if any of them was asked to stop.
        """
        context, failed = self.context, dict[str, Exception]()
        if context.comm.is_server or _tidies(context):
            self._clear()
        context.members.barrier("export")
        for name in self._here():
            if context.role.is_stopped():
                break  # at the next meeting, all ranks
            context.comm.heartbeat(phase="export", round=context.round, client=name)
            context.working(f"writing the model of {name}" if name else "writing the model")
            try:
                if name:
                    self.write_client(name)
                else:
                    self.write_server()
            except FedtorchError:
                raise
            except Exception as error:
                failed[name] = error
        context.members.barrier("exported")
        shutil.rmtree(self.partial, ignore_errors=True)
        return failed

    def is_own(self, name: str) -> bool:
        """Is a client evaluated with other weights than the server's?"""
        weights, private = self.scorer.model(name, at_best=True)
        return private is not None or weights.data_ptr() != self.context.vectors.weights.data_ptr()

    def place_of(self, name: str) -> Path:
        """Where a client's model goes."""
        return self.folder / folder_name(name)

    def write_client(self, name: str, target: Path | None = None) -> bool:
        """Write the model that a client is evaluated with, to `place_of` it by default; see `write`."""
        weights, private = self.scorer.model(name, at_best=True)
        return self.write(weights, private, target or self.place_of(name), self.partial / folder_name(name))

    def write_server(self) -> bool:
        """Write the model with the server's weights, and private ones as before the first round, if there are such."""
        return self.write(self.context.vectors.weights, None, self.folder, self.partial / "server")

    def write(self, weights: Tensor, private: Tensor | None, target: Path, partial: Path) -> bool:
        """Write the model with these weights as the folder `target`; called by all ranks of a worker alike.

        False where the task writes no models.

        Raises:
            Exception: whatever the disk or the task raised, here or on another rank; an earlier `target` is left.
        """
        components = self.context.components
        worker, engine, leads = components.worker, components.engine, self.context.role.leads
        engine.load(weights, private)
        with engine.exported() as module:  # whole on every rank, or made so by all of them together
            writes = leads or engine.owners is not None
            error = _attempt(self._save, module, partial) if writes else None
            if worker is not None and worker.any(error is not None) and error is None:
                error = OSError("another rank of the worker could not write its part")
        if error is not None:
            if leads:
                shutil.rmtree(partial, ignore_errors=True)
            raise error
        if not partial.is_dir():
            return False
        if leads:
            components.task.tell_place(partial, target)
            _rename(partial, target)
        return True

    def _save_merged(self, model: nn.Module, folder: Path) -> None:
        if not self.context.components.task.save_merged(model, folder):
            raise ConfigError("--merge is set, but the run's model has no adapter; leave it out")

    def _here(self) -> list[str]:
        """The clients whose models this rank writes, or an empty name for the server's."""
        components = self.context.components
        if self.is_per_client:
            return self.scorer.here(components.config.eval.final_split)
        worker = components.topology.worker_of(0)
        is_servers = self.context.comm.is_server if worker is None else self.context.role.hosts(worker)
        return [""] if is_servers else []

    def _clear(self) -> None:
        """Remove what a run that died has left, and what is no model of a client; on the server."""
        shutil.rmtree(self.partial, ignore_errors=True)
        if not self.is_per_client or not self.folder.is_dir():
            return
        split, sizes = self.context.config.eval.final_split, self.context.components.task.manifest()
        wanted = {folder_name(name) for name in sizes if sizes[name].get(split)}
        for path in self.folder.iterdir():
            if path.name not in wanted:
                _remove(path)


def _tidies(context: RoundContext) -> bool:
    """Does this rank tidy up a disk that is not the server's?"""
    apart = context.components.checkpoints.apart
    return apart is not None and apart.leads


def _attempt(save: Callable[[nn.Module, Path], None], module: nn.Module, folder: Path) -> Exception | None:
    """Call `save`, and return the error that it raised."""
    try:
        save(module, folder)
    except Exception as error:
        return error
    return None


def _rename(partial: Path, target: Path) -> None:
    """`target` becomes what `partial` is; every file is on the disk before."""
    for path in partial.rglob("*"):
        sync(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    put_in_place(partial, target)
    _remove(target.with_name(f"{target.name}.old"))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
