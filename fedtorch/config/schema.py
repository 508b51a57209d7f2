"""The configuration of a run: one frozen dataclass per section of the YAML file.

Every field is a key of the file; the line under a field explains it. Reading, merging and checking of files is in
`config/load.py`. Checks that involve two keys are in `__post_init__`, so they also hold for configs built in Python;
ranges of single values are checked when a file is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fedtorch.checkpoint.settings import CheckpointConfig
from fedtorch.compression.settings import ExchangeConfig
from fedtorch.config.asynchrony import AsyncConfig
from fedtorch.config.clients import ClientsConfig
from fedtorch.config.system import RunConfig, SystemConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import LARGEST, Count, Whole
from fedtorch.core.settings import ServerConfig
from fedtorch.privacy.settings import Persons, PrivacyConfig
from fedtorch.stats.settings import StatsConfig
from fedtorch.tracking.settings import TrackConfig
from fedtorch.train.attacks.settings import AttackConfig
from fedtorch.train.settings import ClientConfig, EngineConfig
from fedtorch.trust.settings import TrustConfig

__all__ = [
    "AsyncConfig",
    "AttackConfig",
    "CheckpointConfig",
    "ClientConfig",
    "ClientsConfig",
    "Config",
    "EngineConfig",
    "EvalConfig",
    "ExchangeConfig",
    "PartitionConfig",
    "PrivacyConfig",
    "RunConfig",
    "ServerConfig",
    "StatsConfig",
    "SystemConfig",
    "TrackConfig",
    "TrustConfig",
]


@dataclass(frozen=True)
class PartitionConfig:
    """`partition`: which parameters do not travel, by shell patterns over their names (`encoder.block.0.*`).

    `!` before a pattern takes out what it matches; a list that begins so begins with all (`["!*lora_*"]`).
    """

    private: tuple[str, ...] = ()
    """Trained by each client for itself and never sent."""
    frozen: tuple[str, ...] = ()
    """Never trained and never sent."""


Ties = Literal["loss", "later", "earlier"]


@dataclass(frozen=True)
class EvalConfig:
    """`eval`: when and on what the models are evaluated, and which one is kept as the best."""

    every: Whole = 1
    """Rounds between evaluations, counted from the first; 0: none during training."""
    split: str = "dev"
    """Split evaluated during training, by which the best model is chosen."""
    final_split: str = "test"
    """Split the best model is evaluated on at the end."""
    select_by: str | None = None
    """Metric that chooses the best model, or `loss`, of which less is better; null: the task's main metric, and `loss`
    where a model of random weights generates text."""
    ties: Ties = "loss"
    """Which of two rounds with equal scores is the best. loss: that of the lower loss on `split`, and where losses are
    equal or not measured the later one; later; earlier: as in `if score > best`."""
    metrics: tuple[str, ...] = ()
    """Of a task over data of your own: what else is measured, by name (`macro_f1`, `span_f1`, `rouge_2`, ...), or
    `module:NAME`, a function or class of your own."""
    point: Literal["received", "trained"] = "received"
    """The model a client is evaluated with: the server's (beside its private parameters), or its own as it was after
    its training of the round, before the server combined it; a client that sat out the round has only the former. Where
    a client has a model that the server never overwrites (paradigm local, personal algorithms), it is always that one.
    """
    also_received: bool = False
    """With `point: trained`: evaluate both; scores of the former are called `received/<metric>`, at the end those of
    the newest weights."""
    best: Literal["together", "per_client"] = "together"
    """One best round by the scores of all clients, or each client keeps the model of its own best round. Where
    nothing is exchanged it is always the latter."""
    per_example: bool = False
    """Record the final split's scores example by example, for a paired test between two runs; of metrics that are means
    over examples only."""
    batch_size: Count = 64
    """Examples per prediction step."""
    patience: Count | None = None
    """Evaluations without gain before training stops. A higher score is a gain, and with `ties: loss` an equal one with
    a lower loss; a later round that is only equal is none. With `best: per_client` those of every client that has a
    score. Where nothing is exchanged each client rests by itself. null: never."""
    merge: bool = True
    """Choose by all clients' examples together (micro average); false: by the mean over clients (macro average)."""
    on_start: bool = False
    """Evaluate also before the first round."""
    overlap: bool = False
    """A worker that has evaluated its clients trains on, and all meet over the scores after the next round's training:
    whoever evaluates for long may train for a short time. Results are the same; a round's scores come a round later.
    For algorithms whose clients keep nothing."""

    def __post_init__(self) -> None:
        if self.patience is not None and self.every == 0:
            raise ConfigError(
                f"eval.patience is {self.patience} but eval.every is 0 (no evaluations); "
                f"set eval.every to at least 1 or eval.patience to null"
            )
        if self.also_received and self.point == "received":
            raise ConfigError("eval.also_received is true but eval.point is received already; set one of them back")
        for key, value in (("point", "received"), ("best", "together"), ("patience", None)):
            if self.overlap and (found := getattr(self, key)) != value:
                raise ConfigError(
                    f"eval.overlap is true but eval.{key} is {found}, which needs the scores before the next round; "
                    f"set eval.overlap to false or eval.{key} to {'null' if value is None else value}"
                )
        if self.overlap and self.every == 0:
            raise ConfigError(
                "eval.overlap is true but eval.every is 0 (no evaluations); set eval.every to at least 1 or "
                "eval.overlap to false"
            )
        if self.best == "per_client" and not self.merge:
            raise ConfigError(
                "eval.merge is false but eval.best is per_client, where no mean over clients chooses; set eval.merge "
                "to true or eval.best to together"
            )
        if self.best == "per_client" and self.every == 0:
            raise ConfigError("eval.best is per_client but eval.every is 0 (no evaluations); set eval.every to 1")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run. Read one with `fedtorch.config.load.load`."""

    run: RunConfig = RunConfig()
    """Name, folder, seed."""
    paradigm: Literal["federated", "centralized", "local", "stats"] = "federated"
    """federated; centralized: one client that owns all data; local: every client by itself, nothing is sent; stats:
    nobody trains, and rows are counted as `stats` says, in a run folder of its own (`fedtorch stats`)."""
    rounds: Annotated[int, Field(ge=0, le=LARGEST)] = 10
    """Rounds to train; for centralized and local the upper limit of stretches between evaluations; 0: the model is
    evaluated as it is."""
    task: Any
    """Data, model, loss and score: `name` (or `module:Class`) and the fields of that task's dataclass."""
    algorithm: Any
    """What clients compute and how it is combined: `name` (or `module:Class`) and that dataclass's fields."""
    server: ServerConfig = ServerConfig()
    """The server's optimiser."""
    clients: ClientsConfig = ClientsConfig()
    """Who takes part."""
    asynchrony: AsyncConfig | None = field(default=None, metadata={"hidden": True})
    """The section `async`, a word that Python keeps for itself: rounds that wait for nobody; null: every round waits
    for its clients."""
    client: ClientConfig = ClientConfig()
    """Local training."""
    per_client: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Client name -> the fields of `client` that differ for it."""
    engine: EngineConfig = EngineConfig()
    """What the clients' models are trained by: plain torch, or DeepSpeed."""
    partition: PartitionConfig = PartitionConfig()
    """Private and frozen parameters."""
    exchange: ExchangeConfig = ExchangeConfig()
    """In how few bits clients' updates travel."""
    eval: EvalConfig = EvalConfig()
    """Evaluation and choice of the best model."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Saving for a resume."""
    track: TrackConfig = TrackConfig()
    """Logs and curves."""
    system: SystemConfig = SystemConfig()
    """Devices, threads, memory, transport."""
    privacy: PrivacyConfig = PrivacyConfig()
    """What is promised to clients."""
    stats: StatsConfig = StatsConfig()
    """What `fedtorch stats` counts."""
    trust: TrustConfig = TrustConfig()
    """Who the parties are, where each signs with a key of its own."""
    attack: AttackConfig = AttackConfig()
    """Clients that cheat, on purpose."""
    compare: dict[str, Any] | tuple[str | dict[str, Any], ...] | None = None
    """Runs that are trained after this one and shown beside it: a list of `start` (the model before training), `local`
    (every client by itself), `centralized` (one client with all rows) and mappings of changes; or one such mapping."""
    task_name: str = field(default="", metadata={"hidden": True})
    """Not a key of the file: the `name` under `task`."""
    algorithm_name: str = field(default="", metadata={"hidden": True})
    """Not a key of the file: the `name` under `algorithm`."""

    def __post_init__(self) -> None:
        if isinstance(unit := self.privacy.unit, Persons) and hasattr(self.task, "with_persons"):
            object.__setattr__(self, "task", self.task.with_persons(unit.column))
        if self.system.backend == "nccl" and self.clients.on_loss == "continue":
            raise ConfigError(
                "system.backend is nccl but clients.on_loss is continue, and an NCCL group cannot be formed anew "
                "around a rank that is lost; set system.backend to auto or clients.on_loss to restart"
            )
        fewest, silos = self.clients.min_silos, len(self.silos_of(self.system.pinned))
        if fewest is not None and silos < fewest:
            raise ConfigError(
                f"clients.min_silos is {fewest} (2 with `fedtorch serve` and `join`, unless it is set) but "
                f"system.pinned gives clients to {silos} ranks; add silos there, or set clients.min_silos to "
                + ("1, if everybody may see the update of one silo" if silos else "null")
            )
        if self.paradigm == "centralized":
            self._check_centralized()
        if self.paradigm == "local" and self.clients.max_update_norm is not None:
            raise ConfigError(
                f"clients.max_update_norm is {self.clients.max_update_norm} but paradigm is local, where no update is "
                "sent; set it to null"
            )
        if self.paradigm != "federated" and self.clients.max_norm_to_median is not None:
            raise ConfigError(
                f"clients.max_norm_to_median is set but paradigm is {self.paradigm}, where no updates of several "
                "clients are compared; set it to null"
            )
        if self.paradigm == "local" and self.eval.also_received:
            raise ConfigError(
                "eval.also_received is true but paradigm is local, where nothing is received; set eval.also_received "
                "to false"
            )
        if self.paradigm == "federated" and self.algorithm is not None:  # null while the other sections are checked
            self.algorithm.check_server(self.server)

    def _check_centralized(self) -> None:
        """Nothing that tells clients apart has an effect, or they would be evaluated with a model not theirs."""
        if self.per_client:
            raise ConfigError(
                f"per_client has entries ({', '.join(list(self.per_client)[:3])}) but paradigm is centralized, which "
                f"has one client that owns all data; set per_client to null"
            )
        if self.partition.private:
            raise ConfigError(
                "partition.private is set but paradigm is centralized, where the one client's private parameters would "
                "reach none of those that are evaluated; set partition.private to []"
            )
        if self.eval.point == "trained":
            raise ConfigError(
                "eval.point is trained but paradigm is centralized, where those that are evaluated do not train; set "
                "eval.point to received and eval.also_received to false"
            )
        if self.system.placement == "pinned":
            raise ConfigError(
                "paradigm is centralized, where one client owns all data, but system.placement is pinned, where no "
                "rank has all data; set system.placement to balanced"
            )

    @property
    def folder(self) -> Path:
        """The run folder: `run.dir`, or `runs/<run.name>`."""
        return Path(self.run.dir) if self.run.dir is not None else Path("runs") / self.run.name

    def silos_of(self, clients: Iterable[str]) -> set[int]:
        """The ranks with which the data of these clients are, where `system.pinned` says so of ranks."""
        pinned = self.system.pinned if self.system.pinned_to == "rank" else {}
        return {pinned[name] for name in clients if name in pinned}

    def has_silos(self, clients: Iterable[str]) -> bool:
        """Are these clients of as many silos as `clients.min_silos` asks for?"""
        return self.clients.min_silos is None or len(self.silos_of(clients)) >= self.clients.min_silos

    @property
    def tells_times(self) -> bool:
        """May what the run leaves say when, and how long, it did something? With privacy that tells who took part."""
        return self.privacy.kind == "none" and not self.counts_privately

    @property
    def adds_up(self) -> bool:
        """Does a server add up what clients send?"""
        return self.paradigm in ("federated", "stats")

    @property
    def has_tags(self) -> bool:
        """Do silos check sums, by tags that must say nothing of a sum before the server's noise?"""
        return self.trust.verify is not None and self.privacy.kind != "client"

    @property
    def counts_privately(self) -> bool:
        """Is it a run that counts rows, with noise?"""
        return self.paradigm == "stats" and self.stats.privacy is not None

    @property
    def has_trainers(self) -> bool:
        """Is a client trained by somebody else's trainer, which may ask for the start model?"""
        return any(hp.trainer is not None for hp in (self.client, *map(self.client_for, self.per_client)))

    def client_for(self, name: str) -> ClientConfig:
        """The local training of one client: `client` with the fields of `per_client.<name>` in place."""
        changes = self.per_client.get(name)
        return replace(self.client, **changes) if changes else self.client

    def check_client_names(self, names: Sequence[str]) -> None:
        """To be called once the names that `per_client` may have are known.

        Raises:
            ConfigError: it has another one.
        """
        for name in self.per_client:
            if name not in names and self.paradigm != "centralized":
                near = get_close_matches(name, names, 1)
                raise ConfigError(
                    f"per_client.{name} is set but the task `{self.task_name}` has no client `{name}`; "
                    + (f"did you mean `{near[0]}`?" if near else f"its clients are {', '.join(list(names)[:10])}")
                )

    def check_client_numbers(self, number: int) -> None:
        """To be called once the number of clients that train is known.

        Raises:
            ConfigError: a round wants more.
        """
        if self.clients.max_norm_to_median is not None and number < 3:
            raise ConfigError(
                f"clients.max_norm_to_median is set but the task `{self.task_name}` has {number} clients, and a "
                "median of fewer than 3 norms tells nothing; use clients.max_update_norm"
            )
        extra = self.clients.extra
        if extra and self.paradigm == "federated" and extra + int(self.clients.per_round) > number:
            raise ConfigError(
                f"clients.per_round and clients.extra come to {extra + int(self.clients.per_round)} but the task "
                f"`{self.task_name}` has {number} clients; set them to less"
            )
        for key in ("per_round", "min"):
            value = getattr(self.clients, key)
            if value != "all" and value > number and (self.paradigm == "federated" or key == "min"):
                advice = "`all` or at most" if key == "per_round" else "at most"
                raise ConfigError(
                    f"clients.{key} is {value} but the task `{self.task_name}` has {number} clients; "
                    f"set it to {advice} {number}"
                )
