"""The functions a task defines, and the task whose clients are merged into one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from fedtorch.core.errors import ConfigError

Scores = dict[str, tuple[float, int]]

SERVER = "server"
"""The name under which the server's own training examples are loaded; no client may have it."""


@dataclass(frozen=True)
class Task:
    """Data + model + loss + prediction + scoring of one problem; the fields of a subclass are its YAML keys."""

    main_metric: ClassVar[str] = "accuracy"
    """the metric (higher is better) that chooses the best model unless `eval.select_by` names another"""
    evaluates_loss: ClassVar[bool] = True
    """is the loss measured beside the scores, also where `eval.select_by` is not `loss`? It costs a second pass over
    the examples"""
    draws_in_loss: ClassVar[bool] = False
    """does `loss` draw at random by itself, also where the model is in evaluation mode?"""
    has_labelled_clients: ClassVar[bool] = True
    """can `loss` be taken of what clients train on? If not, the algorithm brings its own objective"""

    takes_metrics: ClassVar[bool] = False
    """can `eval.metrics` ask for more than the task measures by itself?"""
    built_in: ClassVar[Mapping[str, Any]] = {}
    """metrics that it may ask for, whatever the task's other keys are -> what `with_metrics` takes for each"""
    replaceable: ClassVar[tuple[str, ...]] = ()
    """those of them whose name a metric of one's own may have, which then takes its place"""
    chosen: ClassVar[Mapping[str, Any]] = {}
    """what it asks for; set by `with_metrics` in the task that this returns"""

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """Examples per client and split, in the clients' order. Cheap: read on every rank, no client's text."""
        raise NotImplementedError

    def sharing(self, split: str) -> Collection[str]:
        """Clients that have the same rows in a split, such as a test file for all: they count once; by default none."""
        return ()

    def server_examples(self) -> int:
        """Training examples that the server holds itself, loaded with `load("server", "train")`; 0: none."""
        return 0

    def cost(self, client: str) -> float:
        """Relative cost of training on one example of this client; used to balance the workers."""
        return 1.0

    def check(self, client: str) -> str | None:
        """Read the client's files and raise DataError for what is wrong; called at its home, before any training.

        Returns what is worth knowing before a run begins, on one line and without the client's text; None if nothing.
        """
        for split in self.manifest()[client]:
            self.load(client, split)
        return None

    def load(self, client: str, split: str) -> Sequence[Any]:
        """The client's examples, ready to be collated; called only where the client runs."""
        raise NotImplementedError

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """Columns of `raw_rows`, known without data; by default none, and then there are no such rows."""
        return ()

    def raw_rows(self, client: str, split: str) -> Sequence[Mapping[str, Any]]:
        """The client's rows by column as texts, for a `client.trainer` that tokenises by itself."""
        raise NotImplementedError

    def with_persons(self, column: str) -> Task:
        """This task with rows that say which person they are about, by a column of their source (`privacy.unit`).

        Raises:
            ConfigError: its rows have no columns.
        """
        raise ConfigError(
            f"privacy.unit names the column {column!r} but the rows of the task {type(self).__name__} have none; set "
            "privacy.unit to row, or use data of your own"
        )

    def persons(self, client: str, split: str = "train") -> Sequence[str]:
        """Which person each row of the client's split is about, in the order of `load`; after `with_persons`."""
        raise NotImplementedError

    def build_model(self, seed: int) -> nn.Module:
        """The model, from a pretrained folder or with weights drawn from `seed`."""
        raise NotImplementedError

    def draw_private(self, model: nn.Module, seed: int) -> Mapping[str, Tensor]:
        """Private parameters that a client draws for itself before its first round, by name.

        Names that are not private are ignored; private parameters that are not named start as in `build_model`.
        """
        return {}

    def parameter_owners(self, model: nn.Module, ranks: int) -> Mapping[str, int]:
        """Which rank of a worker of `ranks` computes the gradient of which parameter; rank 0 leads the worker.

        {}: every rank computes everything, or an engine divides the work by itself. Raises ConfigError for a model
        that cannot be divided like this. Scores and losses are those of the whole model on every rank.
        """
        return {}

    def passes_together(self, ranks: int) -> bool:
        """Under DeepSpeed: do the ranks of a worker of `ranks` compute each micro-batch together, connected by `join`?

        Otherwise they share a step's micro-batches. One that says yes sets `whole_passes`.
        """
        return False

    def join(self, model: nn.Module, worker: Any) -> None:
        """Connect a model that `parameter_owners` divides, or `passes_together`, with the worker's other ranks.

        worker: None: the model is whole here.
        """

    def collate(self, examples: Sequence[Any], train: bool) -> Any:
        """A batch of CPU tensors from examples."""
        raise NotImplementedError

    @property
    def refers_to(self) -> Literal["", "start", "round"]:
        """The weights that a loss compares the trained ones with, without a second model in memory; by default none.

        Before examples are trained on or evaluated, `with_reference` gives them what `reference_of` says of them: with
        the weights of the run's start loaded, or in training (`round`) those received in the round.
        """
        return ""

    @property
    def mixes_rows(self) -> bool:
        """Is the loss of an example another one beside other examples of its micro-batch? By default it is not."""
        return False

    def reference_of(self, model: nn.Module, examples: Sequence[Any]) -> Tensor:
        """Numbers of each example by a model in eval mode, shape (examples, numbers), fp32; without gradients.

        Called with the same few examples in the same order on any rank, and after a resume.
        """
        raise NotImplementedError

    def with_reference(self, examples: Sequence[Any], found: Tensor) -> Sequence[Any]:
        """Copies of examples with their rows of what `reference_of` found, on the CPU."""
        raise NotImplementedError

    def example_lengths(self, examples: Sequence[Any]) -> Sequence[tuple[int, ...]]:
        """Tokens of each example, in each of the rows that `collate` pads for themselves; cheap.

        For `client.group_by_length` and `client.max_tokens_per_batch`, which are refused where a task does not define
        it: (text,), or (source, target).
        """
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | int]:
        """(sum of the losses, number of terms) of a batch; their quotient is what is minimised."""
        raise NotImplementedError

    def terms(self, batch: Any) -> int | None:
        """The terms of `loss` in a batch that `collate` made, known without the model.

        A step's loss is then the sum over its micro-batches divided by all their terms, so that it does not matter how
        they are cut. None: the mean of the micro-batches' means.
        """
        return None

    def predict(self, model: nn.Module, examples: Sequence[Any], batch_size: int) -> list[Any]:
        """One prediction per example, in their order. The model is in eval mode, without gradients."""
        raise NotImplementedError

    def eval_batches(self, examples: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
        """A client's examples cut for evaluation: each part is predicted and scored by itself, the scores are added.

        Parts of `size` examples by default. A task overrides this where a score is no mean over examples, so that
        all examples of such a score come together.
        """
        for start in range(0, len(examples), size):
            yield examples[start : start + size]

    def score(self, examples: Sequence[Any], predictions: Sequence[Any]) -> Scores:
        """Per metric its sum over the examples and their number."""
        raise NotImplementedError

    def metrics(self) -> tuple[str, ...]:
        """The names that `score` uses, all of them higher-is-better."""
        return (self.main_metric,)

    def chooses_by(self) -> str:
        """The metric that chooses the best model unless `eval.select_by` names another; or `core.scores.LOSS`."""
        return self.main_metric

    def loss_examples(self, examples: Sequence[Any]) -> Sequence[Any]:
        """Examples that `loss` takes, made of those that `load` gives for evaluation; by default those themselves."""
        return examples

    def single_metrics(self) -> tuple[str, ...]:
        """Those whose score is the mean of the single examples' scores, for `eval.per_example`; all by default."""
        return self.metrics()

    def pop_counters(self, model: nn.Module) -> Mapping[str, float]:
        """Numbers that the model counted since the last call, for a client's report; those in bytes end in `_bytes`."""
        return {}

    def known_metrics(self) -> Mapping[str, Any]:
        """Those of `built_in` that fit the task's keys."""
        return self.built_in

    def with_metrics(self, chosen: Mapping[str, Any]) -> Task:
        """This task with what `eval.metrics` asks for; only called where `takes_metrics` is true, or with nothing."""
        return self

    def client_scores(self, client: str, scores: Scores, examples: Sequence[Any], predictions: Sequence[Any]) -> Scores:
        """Scores of all of a client's examples, beside `scores`, which are those of its parts added up.

        Only called where something is `chosen`.
        """
        return {}

    def pooled_scores(self, scores: Mapping[str, Scores]) -> Mapping[str, float]:
        """Figures of all clients' examples together, for metrics that are no means."""
        return {}

    def behind(self, scores: Scores) -> Mapping[str, int]:
        """Count the examples of a client's scores, by name, where that is not the second number of the pair."""
        return {}

    def counts(self, examples: Sequence[Any]) -> Mapping[str, float]:
        """Numbers about a client's training examples, for its report; one under `fedtorch.core.update.SIZE` is what the
        client weighs by in place of its examples."""
        return {}

    def largest_size(self, examples: int) -> float:
        """The most that a client of so many examples can have under `SIZE`; a report of more is left out."""
        return examples

    def summary(self, scores: Mapping[str, Scores]) -> Mapping[str, Any]:
        """Figures that are no averages of the final scores (client -> metric -> sum, count), for `results.json`."""
        return {}

    def save_model(self, model: nn.Module, folder: Path) -> None:
        """Write the model into `folder`, which need not exist, so that users can load it without this package.

        Called with the weights that a client, or all of them, were evaluated with, in fp32; by a worker's first rank,
        or where `parameter_owners` divides the model by each of its ranks, for what that rank computes. By default
        nothing is written.
        """

    def unsaved(self, model: nn.Module) -> Sequence[str]:
        """Untrained parameters of which `save_model` writes nothing, so that a rank that only saves can do without."""
        return ()

    def scale_adapter(self, model: nn.Module, rank: int | None) -> float:
        """Set s of the products B·A beside layers to that of factors of `rank` (None: of those there); returns it.

        For clients of lower rank than the model, the rest of whose factors is 0.
        """
        from fedtorch.models.adapters.lora import scale_factors  # brings transformers

        return scale_factors(model, rank)

    def add_to_base(self, model: nn.Module, factors: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Beside each layer that is named stands s·left·right from now on, never trained; s as of its own factors.

        factors: layer -> left, shape (d_out, k), and right, (k, d_in), on the model's device, not copied. They take the
        place of earlier ones.
        """
        from fedtorch.models.adapters.lora import add_to_base  # brings transformers

        add_to_base(model, factors)

    def save_merged(self, model: nn.Module, folder: Path) -> bool:
        """Save the model with an adapter made part of its weights; False: nothing was added to it."""
        from fedtorch.models.adapters.lora import has_adapter, merged

        if not has_adapter(model):
            return False
        with merged(model):
            self.save_model(model, folder)
        return True

    def usage_merged(self) -> Mapping[str, str]:
        """`usage` of what `save_merged` writes."""
        return self.usage()

    def tell_place(self, folder: Path, target: Path) -> None:
        """Change what files of a model say of their own place; `folder` is renamed to `target` next."""
        from fedtorch.models.adapters.saved import tell_place  # brings transformers

        tell_place(folder, target)

    def usage(self) -> Mapping[str, str]:
        """Lines of a model card on how to load the saved model; by default none, and then no card is written.

        `pipeline`: its name among transformers' pipelines or an empty text; `code`: the Python lines that load it, with
        `FOLDER` for its folder; `start`: the weights that training begins with.
        """
        return {}

    def facts(self) -> dict[str, str]:
        """Facts that must be the same on every rank (digest of the data manifest); compared at start."""
        return {}

    def record(self) -> dict[str, Any]:
        """Facts about data and model for the run's record."""
        return {}

    def public_record(self) -> dict[str, Any]:
        """Those of `record` that count no rows, for runs that promise not to tell of these; by default none."""
        return {}


@dataclass(frozen=True)
class Merged(Task):
    """A task with one client, `all`, that owns the union of all training data (`paradigm: centralized`)."""

    parts: Task
    """the task as it was; only training is merged, evaluation goes on over its clients"""

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """One client with all training examples."""
        return {"all": {"train": sum(sizes.get("train", 0) for sizes in self.parts.manifest().values())}}

    def load(self, client: str, split: str) -> Sequence[Any]:
        """The clients' examples one after the other."""
        manifest = self.parts.manifest()
        return [example for name in manifest if manifest[name].get(split) for example in self.parts.load(name, split)]

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """As in `parts`."""
        return self.parts.raw_columns

    def raw_rows(self, client: str, split: str) -> Sequence[Mapping[str, Any]]:
        """The clients' rows one after the other."""
        manifest = self.parts.manifest()
        return [row for name in manifest if manifest[name].get(split) for row in self.parts.raw_rows(name, split)]

    def collate(self, examples: Sequence[Any], train: bool) -> Any:
        """As in `parts`."""
        return self.parts.collate(examples, train)

    @property
    def refers_to(self) -> Literal["", "start", "round"]:
        """As in `parts`."""
        return self.parts.refers_to

    @property
    def mixes_rows(self) -> bool:
        """As in `parts`."""
        return self.parts.mixes_rows

    def reference_of(self, model: nn.Module, examples: Sequence[Any]) -> Tensor:
        """As in `parts`."""
        return self.parts.reference_of(model, examples)

    def with_reference(self, examples: Sequence[Any], found: Tensor) -> Sequence[Any]:
        """As in `parts`."""
        return self.parts.with_reference(examples, found)

    def example_lengths(self, examples: Sequence[Any]) -> Sequence[tuple[int, ...]]:
        """As in `parts`."""
        return self.parts.example_lengths(examples)

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | int]:
        """As in `parts`."""
        return self.parts.loss(model, batch)

    def terms(self, batch: Any) -> int | None:
        """As in `parts`."""
        return self.parts.terms(batch)

    def counts(self, examples: Sequence[Any]) -> Mapping[str, float]:
        """As in `parts`."""
        return self.parts.counts(examples)

    def largest_size(self, examples: int) -> float:
        """As in `parts`."""
        return self.parts.largest_size(examples)

    def pop_counters(self, model: nn.Module) -> Mapping[str, float]:
        """As in `parts`."""
        return self.parts.pop_counters(model)
