"""A user's script as a client's trainer: run anew for every client and round, or once, around its rounds."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fedtorch.client as script_side
from fedtorch.core.errors import ConfigError, UpdateError
from fedtorch.core.own_frames import is_own
from fedtorch.core.weights import Layout
from fedtorch.train.job import ClientJob
from fedtorch.train.loop import LossCurve
from fedtorch.train.settings import ClientConfig
from fedtorch.trainers import process_state
from fedtorch.trainers.base import Trainer, own
from fedtorch.trainers.exited import exits_are_errors
from fedtorch.trainers.function import numbers_of
from fedtorch.trainers.kept_script import KeptScript
from fedtorch.trainers.watched import Seen, watched


class NothingSent(UpdateError):
    """The script ended without `fedtorch.client.send`."""


class Script(Trainer):
    """The script of `task: {name: script}`."""

    _kept: KeptScript | None = None

    @property
    def tells_losses(self) -> bool:
        """The user's code need not."""
        return False

    def check(self, hp: ClientConfig, task: Any) -> None:
        """Refuse tasks without a script."""
        self.refuse_kept_optimizer(hp)
        for key, value, instead in (
            ("client.steps", hp.steps, "the script itself says how long it trains"),
            ("client.trainer.args", self.settings.args, "its command line is task.arguments"),
            ("client.trainer.rows", self.settings.rows, "it gets what fedtorch.client.rows() gives"),
        ):
            if value:
                raise ConfigError(f"{key} is {value} but client.trainer is script: {instead}; remove {key}")
        if not hasattr(own(task), "script"):
            raise ConfigError(
                "client.trainer is script but task.name is none: use `fedtorch run --script FILE`, or set task.name to "
                "script and task.script to the file"
            )

    def run(self, job: ClientJob, weights: Tensor) -> LossCurve:
        """Run the script, whose own model gets the weights and gives them back."""
        job.engine.load(weights, job.private)
        task = own(job.task)
        with process_state.lent(job.engine.device, job.seed("trainer")), watched(job.on_step) as seen:
            side = _InRound(job, seen)
            if task.keep == "process":
                kept = self._kept_script(task)
                with as_its_own(task.script, task.arguments, kept):
                    kept.round(side)
            else:
                with as_its_own(task.script, task.arguments, side):
                    run_script(task.script)
        if side.numbers is None:
            raise NothingSent(f"the script {task.script.name} ended without fedtorch.client.send(model)")
        return seen.curve(side.numbers)

    def _kept_script(self, task: Any) -> KeptScript:
        """The script that goes on from round to round, one for all clients of this rank; anew where it has failed."""
        if self._kept is None or self._kept.has_failed:
            self._kept = KeptScript(lambda: run_script(task.script))
        return self._kept


class _InRound:
    """A round of one client, to the script."""

    def __init__(self, job: ClientJob, seen: Seen) -> None:
        self._job, self._seen = job, seen
        self._begun, self._folder = False, Path.cwd()
        self.numbers: dict[str, float] | None = None

    def rows(self, source: str | None, clients: Mapping[str, Any]) -> list[dict[str, Any]]:
        task: Any = self._job.task
        with process_state.present_folder(self._folder):  # the script may have left it, and data/ is there
            found: list[dict[str, Any]] = task.raw_rows(self._job.client.name, "train")
        return found

    def receive(self, model: nn.Module) -> nn.Module:
        for values, parameter in self._pairs(model):
            parameter.data.copy_(values)
        return model

    def send(self, model: nn.Module, numbers: Mapping[str, float]) -> None:
        if self.numbers is not None:
            raise UpdateError("the script calls fedtorch.client.send a second time in a round")
        found = numbers_of(numbers, "fedtorch.client.send")
        with torch.no_grad():
            for values, parameter in self._pairs(model):
                values.copy_(parameter.data)
        self.numbers = found

    def running(self) -> bool:
        self._begun = not self._begun
        return self._begun

    def step(self) -> None:
        self._seen.tell()

    def facts(self) -> Mapping[str, Any]:
        job = self._job
        return {"client": job.client.name, "round": job.round, "seed": job.seed("trainer")}

    def _pairs(self, model: nn.Module) -> Iterator[tuple[Tensor, nn.Parameter]]:
        """(what the engine has, the script's parameter) of all that is trained.

        Raises:
            UpdateError: the script's model is another one than at the start of the run.
        """
        engine, there = self._job.engine, dict(model.named_parameters())
        layouts: Sequence[tuple[Layout, Tensor]] = ((engine.shared, engine.flat), (engine.private, engine.flat_private))
        for layout, flat in layouts:
            for name, values in layout.view(flat.detach()).items():
                if (parameter := there.get(name)) is None:
                    raise UpdateError(f"the script's model has no parameter `{name}`, which it had when the run began")
                if parameter.shape != values.shape:
                    raise UpdateError(
                        f"the script's parameter `{name}` is of {tuple(parameter.shape)}, and was of "
                        f"{tuple(values.shape)} when the run began"
                    )
                yield values, parameter


def run_script(path: Path) -> None:
    """Run a script as `python path` would, inside `as_its_own`.

    Raises:
        UpdateError: it asked the process to exit, other than with 0.
    """
    path = path.resolve()
    with _neighbours(path.parent), exits_are_errors(f"the script {path.name}"):
        runpy.run_path(str(path), run_name="__main__")


@contextmanager
def _neighbours(folder: Path) -> Iterator[None]:
    """Modules of the script's folder that are imported inside are forgotten: the next run of a script has its own.

    What they remember would go from client to client, and a neighbour of another script's could have their name.
    """
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            module = sys.modules[name]
            places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
            found = next((Path(place) for place in places if place), None)
            if found is not None and found.is_relative_to(folder) and is_own(found):
                del sys.modules[name]


@contextmanager
def as_its_own(path: Path, arguments: Sequence[str], side: script_side.Script) -> Iterator[None]:
    """Inside it the process is the script's: `sys.argv`, `sys.path`, and `side` behind `fedtorch.client`.

    Afterwards also `__main__` is the process's own, which a script that goes on would keep: multiprocessing runs that
    file in every process that it starts.
    """
    words, places, before, main = sys.argv[:], sys.path[:], script_side._run, sys.modules["__main__"]
    sys.argv[:] = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    script_side._run = side
    try:
        yield
    finally:
        sys.argv[:], sys.path[:] = words, places
        script_side._run, sys.modules["__main__"] = before, main
