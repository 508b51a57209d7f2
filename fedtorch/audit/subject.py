"""Subject of an attack: a run as after its last checkpoint, or a config as before its first round, in one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from fedtorch.audit.layers import FirstLayers
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.local import LocalCommunicator
from fedtorch.config import load as yaml_config
from fedtorch.config.python_configs import Given
from fedtorch.config.schema import Config
from fedtorch.core.errors import CheckpointError, ConfigError
from fedtorch.privacy.record.terms import SiloTerms
from fedtorch.privacy.settings import PrivacyConfig
from fedtorch.rounds.checkpointing import restore
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.evaluation import Evaluation
from fedtorch.rounds.local_training import ClientTrainer
from fedtorch.rounds.references import References
from fedtorch.setup.build import build
from fedtorch.setup.mechanism import noise_of
from fedtorch.setup.plan import Plan
from fedtorch.setup.record import silo_terms
from fedtorch.setup.run_config import at_home, whole_paths
from fedtorch.tasks.base import Task


@dataclass(frozen=True)
class AuditOptions:
    """AuditOptions beside the run; `fedtorch audit` has them too.

    Raises:
        ConfigError: a value is out of its range; begins with its name.
    """

    clip: float | None = None
    """C of a defence to try: updates longer than this are made shorter"""
    noise: float | None = None
    """z of a defence to try: noise of standard deviation z C on the sum of the cohort's clipped updates"""
    delta: float = 1e-5
    """at which epsilon is told"""
    canaries: int = 1000
    """clients of the rounds from which epsilon is estimated"""
    clients: int = 4
    """how many clients' updates are attacked, the first ones of the cohort"""
    places: int = 32
    """tokens from the start of a text that the span check tries"""
    hidden: bool = False
    """are updates hidden from the server by a secure sum? then it sees sums alone"""
    show: bool = False
    """write the recovered tokens too, not only their numbers"""
    trains: bool = False
    """may attacks train the run anew?"""
    promised: PrivacyConfig | None = None
    """what the run itself promises; its clip and noise are those above, unless others are given"""
    rate: float | None = None
    """with which such a run draws its clients"""
    silo: SiloTerms | None = None
    """of a run that promises something to rows or persons: the silo whose units it costs most"""

    def __post_init__(self) -> None:
        if self.noise is not None and self.clip is None:
            raise ConfigError(f"noise is {self.noise} but clip, which it is a multiple of, is not given; give both")
        for name in ("clip", "noise", "clients", "places"):
            if (value := getattr(self, name)) is not None and not 0 < value < 1e12:
                raise ConfigError(f"{name} is {value}; give a number above 0")
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta is {self.delta}; give a number between 0 and 1")
        if self.canaries < 2:
            raise ConfigError(f"canaries is {self.canaries}; give at least 2")


@dataclass
class Subject:
    """A run that can be attacked; what a round's clients send is made once, by the round's own training."""

    context: RoundContext
    """server and clients as they are"""
    rounds: int
    """done when it was opened; 0 for a config"""
    options: AuditOptions
    """of this audit"""
    evaluation: Evaluation
    """the models that clients are evaluated with"""
    failed: dict[str, str] = field(default_factory=dict)
    """client -> status, where its training failed"""
    _examples: dict[str, Sequence[Any]] = field(default_factory=dict)
    """client -> its training examples, once they were asked for"""
    _texts: dict[str, list[list[int]]] = field(default_factory=dict)
    """client -> tokens of each example, see `texts`; once they were asked for"""
    _tokens: dict[str, set[int]] = field(default_factory=dict)
    """client -> all tokens of its examples, see `tokens`; once they were asked for"""

    @cached_property
    def layers(self) -> FirstLayers | str:
        """First layers that a text meets in the model, or why there is none that could be attacked."""
        components = self.context.components
        if not components.training.has_labelled_clients:
            return "clients hold no labels, so that the model cannot be run on their rows alone"
        self.load_server()
        return FirstLayers.of(
            components.engine.module, components.engine.shared, lambda: self.run_example(components.clients[0].name, 0)
        )

    @cached_property
    def updates(self) -> Mapping[str, Tensor]:
        """Updates of each client of the next round's cohort, by name: shared weights, flat, fp32, on the CPU."""
        context = self.context
        trainer = ClientTrainer(context)
        reports = trainer.train_cohort()
        size, found = context.components.engine.shared.size, {}
        for report in reports:
            if report.status != "ok" or report.client not in context.updates:
                self.failed[report.client] = report.status
                continue
            vector, places = context.updates.get(report.client), context.updates.places(report.client)
            if context.packing is not None:
                vector = context.packing.unpack(report.client, vector)
            found[report.client] = (vector if places is None else places.spread(vector))[:size].clone()
        context.updates.clear()
        context.store.commit([])
        return found

    @property
    def attacked(self) -> Mapping[str, Tensor]:
        """The updates of the first `AuditOptions.clients` clients."""
        return dict(list(self.updates.items())[: self.options.clients])

    @property
    def why_no_update(self) -> str:
        """Why there is no update to be attacked; empty if there is."""
        context = self.context
        if self.options.silo is not None:
            return "no update leaves a silo without noise on every step (privacy.kind record); canaries try that"
        if not context.algorithm.travels.vectors:
            return "clients send nothing"
        if context.has_messages:
            return "clients send compressed messages, which this attack does not read"
        if context.vectors.model is not None:
            return "clients send numbers along seeded directions, which this attack does not read"
        if not context.algorithm.limits.trains_clients:
            return "clients do not train"
        if not any(bool(flat.any()) for flat in self.updates.values()):
            return (
                "no client changes anything in the next round (a run whose learning rate has come to its end sends no "
                "more text); give --config in place of RUN"
            )
        return ""

    @property
    def why_no_first_layers(self) -> str:
        """Why there is no update of layers that texts meet first; empty if there is, and `layers` says which."""
        return self.why_no_update or (self.layers if isinstance(self.layers, str) else "")

    @cached_property
    def weights(self) -> Mapping[str, Tensor]:
        """Weights that clients train from, by name; everybody who takes part has them."""
        return self.context.components.engine.shared.view(self.context.vectors.weights)

    def named(self, flat: Tensor) -> Mapping[str, Tensor]:
        """Views of a flat update by the names of parameters."""
        return self.context.components.engine.shared.view(flat)

    def examples(self, client: str) -> Sequence[Any]:
        """Rows that the client trains on."""
        if client not in self._examples:
            components = self.context.components
            rows = components.training.load(client, "train")
            self._examples[client] = self.referred(components.training, client, "train", rows)
            self.load_server()
        return self._examples[client]

    def referred(self, task: Task, client: str, split: str, rows: Sequence[Any]) -> Sequence[Any]:
        """Rows with the start's reference where the task compares with one; the engine then has other weights."""
        engine, size = self.context.components.engine, self.context.config.eval.batch_size
        return References(engine).by_start(task, client, split, rows, size, lambda: None)

    def run_example(self, client: str, index: int) -> None:
        """Run the model on one training example of a client, for those who listen to its layers."""
        components = self.context.components
        components.engine.module.eval()
        batch = components.training.collate([self.examples(client)[index]], False)
        components.training.loss(components.engine.module, batch)

    def texts(self, client: str) -> list[list[int]]:
        """The tokens of each training example, as the model reads them first."""
        assert isinstance(self.layers, FirstLayers)
        if client not in self._texts:
            found = list[list[int]]()
            for index in range(len(self.examples(client))):
                tokens = self.layers.tokens(partial(self.run_example, client, index))
                found += tokens.flatten(0, -2).tolist() if tokens.dim() > 1 else [tokens.tolist()]
            self._texts[client] = found
        return self._texts[client]

    def tokens(self, client: str) -> set[int]:
        """Those of all its training examples, wherever the model reads them."""
        assert isinstance(self.layers, FirstLayers)
        if client not in self._tokens:
            runs = [partial(self.run_example, client, index) for index in range(len(self.examples(client)))]
            self._tokens[client] = set[int]().union(*map(self.layers.looked_up, runs))
        return self._tokens[client]

    def load_server(self) -> None:
        """Put the weights that clients train from into the engine."""
        self.context.components.engine.load(self.context.vectors.weights, None)


@contextmanager
def opened(
    run: Path | None, config: Sequence[Given], settings: Sequence[str], options: AuditOptions
) -> Iterator[Subject]:
    """A run's folder, or a config; nothing in the folder is changed.

    Raises:
        ConfigError: neither or both, no such run, or a config that is wrong.
        CheckpointError: a run without a checkpoint.
        DataError: the rows are unusable.
    """
    if (run is None) == (not config):
        raise ConfigError("name either the folder of a run, such as runs/my_run, or a config (--config FILE)")
    with ExitStack() as entered:
        if run is not None:
            settings, run = whole_paths(settings), entered.enter_context(at_home(run))
            if not (path := run / "config.yaml").is_file():
                raise ConfigError(f"{path} does not exist; name the folder of a run, such as runs/my_run")
            config = [path]
        loaded = yaml_config.load([*config], [*settings, "system.device=cpu"])
        loaded, options = _in_the_clear(loaded, options)
        spill = entered.enter_context(TemporaryDirectory())  # not the run's own, which may be going on
        loaded = replace(loaded, run=replace(loaded.run, dir=spill))
        checkpoints = Checkpoints((run or Path(spill)) / "checkpoints", keep=1)
        found = checkpoints.latest() if run is not None else None
        if run is not None and found is None:
            raise CheckpointError(
                f"{run} has no checkpoint yet; let it train on (checkpoint.every), or stop it with SIGTERM, which saves"
            )
        torch.set_num_threads(loaded.system.threads)
        built = build(loaded, num_ranks=1, rank=0)
        context = RoundContext(built.components(LocalCommunicator(built.names), checkpoints, stop=lambda: False))
        if context.algorithm.travels.vectors:
            context.vectors.weights.copy_(built.engine.initial_shared)
        if found is not None:
            restore(context, found.round)
        evaluation = Evaluation(context)
        yield Subject(context, 0 if found is None else found.round, options, evaluation)


def _in_the_clear(config: Config, options: AuditOptions) -> tuple[Config, AuditOptions]:
    """A run with privacy as it would be without: its clip and noise are then defences to try, as any others.

    So nothing is released, and no ledger is opened.
    """
    promise = config.privacy
    options = replace(options, hidden=promise.secure_sum is not None)
    config = replace(config, system=replace(config.system, sum_scale="reports"))
    if promise.kind == "none":
        clip = promise.clip if isinstance(promise.clip, float) and options.clip is None else options.clip
        return replace(config, privacy=type(promise)()), replace(options, clip=clip)
    if promise.kind == "record":
        terms = silo_terms(plan := Plan.of(config, max(1, len(config.privacy.units) + 1)))
        worst = max(terms.values(), key=lambda one: one.epsilon(one.rounds))
        options = replace(options, promised=promise, silo=worst, clip=worst.clip, noise=worst.noise_multiplier)
        algorithm = plan.algorithm
        if getattr(algorithm, "weights", "") == "declared":
            algorithm = replace(algorithm, weights="equal")  # type: ignore[call-arg]
        return replace(config, privacy=type(promise)(), algorithm=algorithm), options
    clip = promise.first_clip if options.clip is None else options.clip
    noise = noise_of(Plan.of(config, 1)) if options.noise is None else options.noise
    options = replace(options, promised=promise, rate=config.clients.rate)
    config = replace(config, privacy=type(promise)(), clients=replace(config.clients, sampling="uniform", rate=None))
    return config, replace(options, clip=clip, noise=noise)
