"""A run before anything of it is built: the config with the task, algorithm and clients that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.local import Local
from fedtorch.algorithms.run_facts import RunFacts, in_run
from fedtorch.config.metrics import measured
from fedtorch.config.samplers import make_sampler
from fedtorch.config.schema import Config
from fedtorch.core.client import Client, folder_name
from fedtorch.core.clients import Clients, names_of
from fedtorch.core.errors import DataError
from fedtorch.core.names import look_alikes
from fedtorch.core.sampling import Sampler, cohort
from fedtorch.rounds.placement import make_topology
from fedtorch.rounds.topology import Topology
from fedtorch.setup.counting import counting
from fedtorch.setup.declared import declared
from fedtorch.tasks.base import Merged, Task
from fedtorch.train.settings import ClientConfig


@dataclass(frozen=True)
class Plan:
    """Plan that the rules of `setup.rules` look at; the same on every rank."""

    config: Config
    """As it was read, or as the ranks completed it (see `pinned_data`)."""
    task: Task
    """Evaluation data and model."""
    training: Task
    """What clients train on: `task`, or one client with the data of all."""
    algorithm: Algorithm
    """The config's; with `paradigm: local` the one that sends nothing."""
    clients: Clients
    """Those with training examples, in the manifest's order."""
    topology: Topology
    """Which ranks train together."""

    @classmethod
    def of(cls, config: Config, num_ranks: int) -> Plan:
        """Plan that `config` describes for a job of so many ranks.

        Raises:
            ConfigError: so many ranks cannot be shared out among workers.
            DataError: no client has a training example.
        """
        task: Task = measured(config.task, config.eval.metrics, config.task_name)
        algorithm: Algorithm
        topology = make_topology(config, num_ranks)
        if config.paradigm == "stats":
            task, algorithm = counting(config, topology)
        else:
            algorithm = Local() if config.paradigm == "local" else config.algorithm
        algorithm = in_run(algorithm, _facts(config))
        task = declared(task, config.privacy)
        training = Merged(task) if config.paradigm == "centralized" else task
        return cls(config, task, training, algorithm, training_clients(training), topology)

    @cached_property
    def sampler(self) -> Sampler:
        """Draws the clients of a round."""
        return make_sampler(self.config.clients.sampling)

    @cached_property
    def first_cohort(self) -> list[tuple[Client, int]]:
        """The clients of the first round, each with how often it was drawn.

        Raises:
            ConfigError, QuorumError: see `core.sampling.cohort`.
        """
        config = self.config
        return cohort(self.clients, config.clients.drawn, self.sampler, seed=config.run.seed, round=0)

    @cached_property
    def settings(self) -> set[ClientConfig]:
        """Every distinct setting that a client trains with."""
        special = {name for name in self.config.per_client if self.clients.named(name) is not None}
        rest = [self.config.client] if len(special) < len(self.clients) else []
        return {*map(self.config.client_for, special), *rest}


def _facts(config: Config) -> RunFacts:
    """Facts that the algorithm gets of the run."""
    is_public = config.privacy.secure_sum is not None or config.system.sum_scale == "public"
    hides = config.privacy.kind != "none" or is_public
    return RunFacts(config.run.seed, config.rounds, config.client, config.client_for, same_places=hides)


def training_clients(task: Task) -> Clients:
    """The clients with training examples, in the manifest's order.

    Raises:
        DataError: no client has any, or the names of two, which become folders of models and curves, would be one on a
            disk that ignores case.
    """
    manifest = task.manifest()
    names = names_of(manifest)
    if pair := look_alikes(names[names.numbered :], folder_name):
        raise DataError(f"the clients {ascii(pair[0])} and {ascii(pair[1])} of the task look alike; rename one of them")
    clients = Clients(manifest)
    if not len(clients):
        raise DataError(f"none of the {len(manifest)} clients has a training example; prepare the data again")
    return clients
