"""From a config to everything a runner needs, on one rank and without talking to any other."""

from __future__ import annotations

import hashlib
import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
import transformers

from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.base import Communicator
from fedtorch.comm.worker import WorkerGroup
from fedtorch.config.load import config_facts, to_dict
from fedtorch.config.schema import Config
from fedtorch.core.client import Client
from fedtorch.core.clients import names_of
from fedtorch.core.direction_model import DirectionModel
from fedtorch.core.mechanism import Mechanism
from fedtorch.core.names import Names
from fedtorch.core.overrides import definer
from fedtorch.core.weights import digest_of
from fedtorch.rounds.asynchrony.jobs import Jobs
from fedtorch.rounds.components import RunComponents
from fedtorch.rounds.placement import Placement, own_device, place
from fedtorch.rounds.scalar_record import direction_digest
from fedtorch.setup.code import code_digest
from fedtorch.setup.engine import divide, make_engine
from fedtorch.setup.mechanism import make_mechanism
from fedtorch.setup.plan import Plan
from fedtorch.setup.remarks import about_data, about_decay, about_evaluation, about_metrics, about_neutral, about_rates
from fedtorch.setup.rules import check_engine, check_plan
from fedtorch.tracking.tracker import Tracker
from fedtorch.train.engine import Engine
from fedtorch.trainers.named import trainer_of

UNTRAINED = "parameters that are not trained"
"""The fact that is their digest, where the model has such (`Engine.fixed`)."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BuiltRun(Plan):
    """A run that can start as soon as the ranks have met."""

    names: Names
    """All clients that messages may be about: those of the task and of `training`."""
    placement: Placement
    """Which worker keeps which client."""
    engine: Engine
    """Of this rank."""
    remarks: tuple[str, ...]
    """What is worth knowing about the config and the clients that live here, one line each."""

    def components(
        self,
        comm: Communicator,
        checkpoints: Checkpoints,
        *,
        stop: Callable[[], bool],
        tracker: Tracker | None = None,
        facts: Mapping[str, str] | None = None,
        mechanism: Mechanism | None = None,
        left_out: Mapping[str, int] | None = None,
        is_engine_shared: bool = False,
    ) -> RunComponents:
        """Parts of the runner on this rank. facts: a checkpoint must agree with them, beside the config.

        mechanism: None: that of a run that begins, or goes on in its own folder. is_engine_shared: will a later run
        begin with the same engine's initial weights?

        Called by all ranks of a worker alike: the first call makes their group.
        """
        worker = self._join_worker(comm)
        mechanism = mechanism or make_mechanism(self, is_server=comm.is_server)
        comm.masking = mechanism.masking
        return RunComponents(
            config=self.config,
            task=self.task,
            training=self.training,
            algorithm=self.algorithm,
            clients=self.clients,
            sampler=self.sampler,
            engine=self.engine,
            comm=comm,
            worker=worker,
            topology=self.topology,
            placement=self.placement,
            checkpoints=checkpoints,
            config_record=to_dict(self.config, masked=True),
            facts=facts or {},
            stop=stop,
            tracker=tracker,
            mechanism=mechanism,
            left_out=left_out or {},
            is_engine_shared=is_engine_shared,
        )

    def _join_worker(self, comm: Communicator) -> WorkerGroup | None:
        """This rank's worker, which engine and task know of then; None: it trains alone, or not at all."""
        mine = self.topology.worker_of(comm.rank)
        worker = None if mine is None else comm.join_worker(self.topology.workers[mine])
        together = worker is not None and self.task.passes_together(worker.size)
        self.engine.join(worker, self.task.join if together else None)
        if self.engine.owners is not None:
            self.task.join(self.engine.module, worker)
        return worker

    def show_remarks(self) -> None:
        """Log the remarks, all in one warning."""
        if self.remarks:
            log.warning("\n  ".join(["about the data:", *self.remarks]))

    @cached_property
    def fixed_digest(self) -> str:
        """Digest of the names and bits of `Engine.fixed`; first read before any training."""
        return digest_of({name: self.engine.module.get_parameter(name) for name in self.engine.fixed})[:16]

    def _functions(self) -> list[Any]:
        """Functions of the user's that train clients."""
        named = (hp.trainer for hp in self.settings if hp.trainer is not None and hp.trainer.is_function)
        return [code for code in (trainer_of(trainer).code for trainer in named) if hasattr(code, "__qualname__")]

    def idle_base(self, rank: int) -> list[str]:
        """The untrained parameters that this rank only compares: it neither trains nor evaluates with them."""
        if self.topology.worker_of(rank) is not None or self.algorithm.limits.trains_server:
            return []
        return list(self.task.unsaved(self.engine.module))

    def facts(self) -> dict[str, str]:
        """Facts that must be the same on every rank, as text; compared before any group is made."""
        return {
            **config_facts(self.config),
            "seed": str(self.config.run.seed),
            "code": code_digest(type(self.task), type(self.algorithm), type(self.sampler), *self._functions()),
            "clients of the first round": _cohort_digest(self.first_cohort),
            "ranks that train": ", ".join(map(str, sum(self.topology.workers, ()))),
            "shared parameters": self.engine.shared.digest(),
            "private parameters": self.engine.private.digest(),
            **({UNTRAINED: self.fixed_digest} if self.engine.fixed else {}),
            "python": platform.python_version(),
            "torch": torch.__version__.partition("+")[0],  # a server without GPUs may have the build for the CPU
            "transformers": transformers.__version__,
            **(_versions("trl", "accelerate") if self.config.has_trainers else {}),
            **self._processor(),
            **self.task.facts(),
            **self._directions(),
            **self._asynchrony(),
        }

    def _processor(self) -> dict[str, str]:
        """Which instructions torch takes, where silos repeat a step whose bits depend on it.

        Those of the server's optimiser and of the package's algorithms that step with it do not (`core.fused_add`).
        """
        defined = definer(type(self.algorithm), "server_update")
        is_ours = defined is not None and defined.__module__.startswith("fedtorch.")
        depends = not (is_ours and self.algorithm.limits.steps_with_optimizer)
        return {"processor": torch.backends.cpu.get_cpu_capability()} if self.config.has_tags and depends else {}

    def _asynchrony(self) -> dict[str, str]:
        """Digest of who trains when, as this machine's arithmetic has it, where rounds wait for nobody."""
        return {} if self.jobs is None else {"plan of asynchronous rounds": self.jobs.plan.digest()[:16]}

    @cached_property
    def jobs(self) -> Jobs | None:
        """Plan of asynchronous rounds; None: every round waits for its clients."""
        return Jobs.of(self.config, self.clients)

    def _directions(self) -> dict[str, str]:
        """Digest of directions as this machine makes them, where the weights are a sum over such."""
        model = self.algorithm.travels.rule()
        return {"directions": direction_digest(model)} if isinstance(model, DirectionModel) else {}


def build(
    config: Config, *, num_ranks: int, rank: int, engine: Engine | None = None, is_for_count: bool = False
) -> BuiltRun:
    """Check and build everything; `engine` may be one of an earlier run with the same model and partition.

    is_for_count: the run is described, not done, so its weights need no values.

    Raises:
        ConfigError: settings that do not fit the task's clients, the model or the algorithm.
        DataError: a file of a client at home on this rank is unusable.
    """
    plan = Plan.of(config, num_ranks)
    if rank == 0:
        _name_idle_clients(plan)
    check_plan(plan)
    placement = place(config, plan.task, plan.training, plan.clients, plan.topology)
    idle = (*about_evaluation(plan), *about_rates(plan), *about_neutral(plan))
    remarks = [*about_metrics(plan), *idle, *about_data(plan, placement, rank)]
    own = plan.topology.worker_of(rank)
    if engine is None:
        engine = make_engine(
            config,
            lambda: plan.task.build_model(config.run.seed),
            own_device(config, num_ranks),
            hp=next(iter(plan.settings)),
            ranks=0 if own is None else plan.topology.sizes[own],
            values="none" if is_for_count else "sent" if rank else "own",
        )
    sizes = plan.topology.sizes
    divide(engine, config, plan.task, sizes, own=max(sizes) if own is None else sizes[own])
    check_engine(plan, engine)
    remarks += about_decay(plan, engine)
    return _whole(plan, placement, engine, remarks)


def rebuild(config: Config, num_ranks: int = 1) -> BuiltRun:
    """A run that is over, or has not begun, in one process on the CPU, to look at it: no client's rows are read.

    num_ranks: of the job that is looked at.

    Raises:
        ConfigError, DataError: the model, its vocabulary or the data's manifest cannot be read.
    """
    plan = Plan.of(config, num_ranks)
    engine = make_engine(
        config,
        lambda: plan.task.build_model(config.run.seed),
        torch.device("cpu"),
        hp=config.client,
        ranks=0,
    )
    placement = place(config, plan.task, plan.training, plan.clients, plan.topology)
    return _whole(plan, placement, engine, remarks=())


def _whole(plan: Plan, placement: Placement, engine: Engine, remarks: Sequence[str]) -> BuiltRun:
    return BuiltRun(
        plan.config,
        plan.task,
        plan.training,
        plan.algorithm,
        plan.clients,
        plan.topology,
        names=_names(plan),
        placement=placement,
        engine=engine,
        remarks=tuple(remarks),
    )


def _names(plan: Plan) -> Names:
    if plan.training is plan.task:
        return names_of(plan.task.manifest())
    return Names(dict.fromkeys((*plan.task.manifest(), *plan.training.manifest())))


def _name_idle_clients(plan: Plan) -> None:
    # one whose entry has no `train` at all is there for evaluation only
    if empty := [name for name, sizes in plan.training.manifest().items() if sizes.get("train") == 0]:
        log.warning("%d clients have no training examples and take no part: %s", len(empty), ", ".join(empty[:10]))


def _versions(*packages: str) -> dict[str, str]:
    """Versions of packages that trainers are made of, whose arithmetic changes between them."""
    return {name: version(name) for name in packages if find_spec(name) is not None}


def _cohort_digest(drawn: Sequence[tuple[Client, int]]) -> str:
    """Equal exactly when the same clients were drawn as often."""
    return hashlib.sha256(",".join(f"{client.index}:{draws}" for client, draws in drawn).encode()).hexdigest()[:16]
