"""From a config to everything a runner needs; every check that can be made before the ranks meet is made here."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

import torch
import transformers

import fedtorch
from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.local import Local
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.base import Communicator
from fedtorch.comm.topology import Topology
from fedtorch.comm.wire import KEY
from fedtorch.config.load import digest, to_dict
from fedtorch.config.schema import ClientConfig, ClientsConfig, Config
from fedtorch.core.client import Client
from fedtorch.core.errors import ConfigError, DataError
from fedtorch.rounds.components import RunComponents
from fedtorch.rounds.placement import Placement, make_topology, place
from fedtorch.setup.engine import check_engine, divide, make_engine
from fedtorch.tasks.base import SERVER, Merged, Task
from fedtorch.tracking.records import RECEIVED
from fedtorch.tracking.tracker import Tracker
from fedtorch.train.engine import Engine

log = logging.getLogger(__name__)

# With more clients than this, a rank does not read all its clients' files before the first round.
CHECKED_CLIENTS = 100

LOSS = "loss"  # what `evaluate.judge` calls the loss, beside the task's metrics


@dataclass
class Parts:
    """What a config describes, built on one rank without talking to any other.

    remarks: what the tasks' checks found worth knowing about the clients that live here, one line per client.
    """

    config: Config
    task: Task
    training: Task
    algorithm: Algorithm
    clients: list[Client]
    names: tuple[str, ...]
    topology: Topology
    placement: Placement
    engine: Engine
    remarks: list[str] = field(default_factory=list)

    def setting(
        self,
        comm: Communicator,
        checkpoints: Checkpoints,
        *,
        stop: Callable[[], bool],
        tracker: Tracker | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> RunComponents:
        """The runner's setting on this rank. facts: what a checkpoint must agree with, beside the config.

        Called by all ranks of a worker alike: the first call makes their group.
        """
        mine = self.topology.worker_of(comm.rank)
        worker = None if mine is None else comm.join_worker(self.topology.workers[mine])
        self.engine.join(worker)
        if self.engine.owners is not None:
            self.task.join(self.engine.module, worker)
        return RunComponents(
            config=self.config,
            task=self.task,
            training=self.training,
            algorithm=self.algorithm,
            clients=self.clients,
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
        )

    def show_remarks(self) -> None:
        """Log the remarks, all in one warning."""
        if self.remarks:
            log.warning("\n  ".join(["about the data:", *self.remarks]))

    def facts(self) -> dict[str, str]:
        """What must be the same on every rank, as text; compared before any group is made."""
        return {
            "config": digest(self.config, everything=True),
            "seed": str(self.config.run.seed),
            "code": code_digest(type(self.task), type(self.algorithm)),
            "shared parameters": self.engine.shared.digest(),
            "private parameters": self.engine.private.digest(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            **self.task.facts(),
        }


def build(config: Config, *, num_ranks: int, rank: int, engine: Engine | None = None) -> Parts:
    """Build and check everything; `engine` may be one of an earlier run with the same model and partition.

    Raises:
        ConfigError: settings that do not fit the task's clients, the model or the algorithm.
        DataError: a file of a client at home on this rank is unusable.
    """
    task: Task = config.task
    algorithm: Algorithm = Local() if config.paradigm == "local" else config.algorithm
    training = Merged(task) if config.paradigm == "centralized" else task
    clients = training_clients(training)
    # one whose entry has no `train` at all is there to be judged only
    if rank == 0 and (empty := [name for name, sizes in training.manifest().items() if sizes.get("train") == 0]):
        log.warning("%d clients have no training examples and take no part: %s", len(empty), ", ".join(empty[:10]))
    with_server = [SERVER] if training.server_examples() else []
    replace(config, clients=ClientsConfig()).check_clients([*(client.name for client in clients), *with_server])
    replace(config, per_client={}).check_clients([client.name for client in clients])
    if config.clients.sampling == "size_proportional" and algorithm.weighting != "equal":
        raise ConfigError(
            "clients.sampling is size_proportional, which already favours large clients, and algorithm.weights is "
            f"{algorithm.weighting}; set algorithm.weights to equal (1/K per draw, as in FedProx)"
        )
    if config.paradigm == "centralized" and not algorithm.exchanged_vectors:
        raise ConfigError(
            f"paradigm is centralized but algorithm.name is {config.algorithm_name}, which sends nothing, so the one "
            "client's model would never be judged; set algorithm.name to fedavg"
        )
    if config.paradigm != "federated" and not task.has_labelled_clients:
        raise ConfigError(
            f"paradigm is {config.paradigm} but the clients of the task `{config.task_name}` hold no labels, so "
            "there is nothing to train on without a server; set paradigm to federated"
        )
    if algorithm.needs_labels and not task.has_labelled_clients:
        raise ConfigError(
            f"algorithm.name is {config.algorithm_name} but the clients of the task `{config.task_name}` hold no "
            "labels; set algorithm.name to one that needs none, such as fedparsing"
        )
    settings = _client_settings(config, clients)
    for hp in settings:
        algorithm.check(hp)
    algorithm.check_task(training)
    names = tuple(dict.fromkeys((*task.manifest(), *training.manifest())))
    topology = make_topology(config, num_ranks)
    check_engine(config, algorithm, task, settings, sizes=topology.sizes)
    if max(topology.sizes) > 1 and config.system.server_works is True and training.server_examples():
        raise ConfigError(
            f"system.ranks_per_worker is {config.system.ranks_per_worker} and system.server_works is true, but the "
            "server trains on data of its own, alone; set system.server_works to false"
        )
    check_metrics(task, config.task_name)
    placement = place(config, task, training, clients, topology)
    remarks = check_single(task, config.task_name) if config.eval.per_example else []
    remarks += check_data(task, placement, topology, rank)
    own = topology.worker_of(rank)
    if engine is None:
        engine = make_engine(
            config,
            lambda: task.build_model(config.run.seed),
            device(config.system.device),
            hp=next(iter(settings)),
            trains=own is not None,
        )
    divide(engine, config, task, topology.sizes, own=max(topology.sizes) if own is None else topology.sizes[own])
    remarks += unmatched(config, settings, engine)
    if algorithm.exchanged_vectors and engine.shared.size == 0:
        raise ConfigError(
            "partition leaves no shared parameter, so there is nothing to exchange; share some, or set paradigm: local"
        )
    known = task.metrics()
    if config.eval.select_by is not None and config.eval.select_by not in known:
        raise ConfigError(
            f"eval.select_by is {config.eval.select_by} but the task `{config.task_name}` measures {', '.join(known)}"
        )
    return Parts(config, task, training, algorithm, clients, names, topology, placement, engine, remarks)


def training_clients(task: Task) -> list[Client]:
    """The clients with training examples, in the manifest's order.

    Raises:
        DataError: no client has any.
    """
    manifest = task.manifest()
    clients = [
        Client(name, index, sizes if isinstance(sizes, dict) else dict(sizes))
        for index, (name, sizes) in enumerate(manifest.items())
        if sizes.get("train")
    ]
    if not clients:
        raise DataError(f"none of the {len(manifest)} clients has a training example; prepare the data again")
    return clients


def unmatched(config: Config, settings: Collection[ClientConfig], engine: Engine) -> list[str]:
    """One line for each pattern of `no_decay` that matches no trained parameter: everything there would decay."""
    patterns = {pattern for hp in settings if hp.weight_decay for pattern in hp.no_decay}
    patterns |= set(config.server.no_decay if config.server.weight_decay else ())
    return [
        f"no_decay: the pattern {pattern!r} matches no parameter"
        for pattern in sorted(patterns)
        if not any(fnmatchcase(name, pattern) for name in engine.trained_names)
    ]


def check_metrics(task: Task, name: str) -> None:
    """Refuse metrics whose scores could not travel, or would be lost.

    Raises:
        ConfigError: names the metric.
    """
    for metric in task.metrics():
        if not KEY.fullmatch(f"{RECEIVED}{metric}"):
            raise ConfigError(
                f"the task `{name}` measures {metric!r}; rename it so that {RECEIVED}{metric} matches {KEY.pattern}"
            )
        if metric == LOSS:
            raise ConfigError(f"the task `{name}` measures `{LOSS}`, which every evaluation adds itself; rename it")


def check_single(task: Task, name: str) -> list[str]:
    """What to remark on where scores of single examples are asked for.

    Raises:
        ConfigError: no metric of the task has any.
    """
    single, known = set(task.single_metrics()), task.metrics()
    without = [metric for metric in known if metric not in single]
    if not single:
        raise ConfigError(
            f"eval.per_example is true but no metric of the task `{name}` is a mean over examples; set it to false"
        )
    if not without:
        return []
    shown = ", ".join(without[:3]) + (", ..." if len(without) > 3 else "")
    return [f"eval.per_example: {len(without)} of {len(known)} metrics are no means over examples: {shown}"]


def check_data(task: Task, placement: Placement, topology: Topology, rank: int) -> list[str]:
    """Read the files of the clients that live here, so that a malformed line shows before the first round.

    Returns one line for each client that has something to remark on.
    """
    here = {worker for worker, ranks in enumerate(topology.workers) if rank in ranks}
    mine = [name for name, worker in placement.evaluators.items() if worker in here]
    checked = mine if len(mine) <= CHECKED_CLIENTS else []
    return [f"{name}: {remark}" for name in checked if (remark := task.check(name))]


def device(choice: str) -> torch.device:
    """The device of this rank, which becomes the present one: GPU LOCAL_RANK modulo the GPUs there are, or the CPU."""
    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("system.device is cuda but torch finds no GPU; set it to auto or cpu")
    own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    torch.cuda.set_device(own)  # libraries that name no device mean the present one
    return own


def code_digest(*classes: type) -> str:
    """sha256 of the package's source files and of the files that define `classes` (a user's algorithm)."""
    package = Path(fedtorch.__file__).parent
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    for cls in classes:
        module = __import__(cls.__module__, fromlist=["_"])
        if path := getattr(module, "__file__", None):
            files.setdefault(f"{cls.__module__}:{cls.__qualname__}", Path(path))
    hasher = hashlib.sha256()
    for name in sorted(files):
        hasher.update(name.encode() + b"\0" + files[name].read_bytes())
    return hasher.hexdigest()[:16]


def _client_settings(config: Config, clients: Sequence[Client]) -> set[ClientConfig]:
    """Every distinct setting that a client trains with; not one look-up and hash per client."""
    special = {client.name for client in clients if client.name in config.per_client}
    return {*map(config.client_for, special), *([config.client] if len(special) < len(clients) else [])}
