"""Pseudo rows on the toy task, where a loss is ½·a·(w − b)²: what is measured, and what Meta Weighting minimises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from torch import Tensor, nn
from toy import Quadratic

from fedtorch.algorithms.fewfedweight import FewFedWeight
from fedtorch.algorithms.metaweighting import MetaWeighting, Pair, _MetaTask, meta_weights
from fedtorch.algorithms.pseudo import Measured, labelling_task
from fedtorch.core.errors import ConfigError
from fedtorch.core.histograms import read
from fedtorch.core.mechanism import RoundFacts
from fedtorch.rounds.runner import Runner


@dataclass
class Answer:
    """Of two tokens, the first one forced."""

    energy: float
    is_empty: bool = False

    @property
    def tokens(self) -> list[int]:
        return [0, 7]

    @property
    def energies(self) -> list[float]:
        return [float("nan"), self.energy]


@dataclass(frozen=True)
class Labels(Quadratic):
    """A pseudo row is the annotated one mirrored at 0; a client's first label ends at once. Energies are −100 w."""

    def label(self, model: nn.Module, examples: Sequence[Any], **settings: Any) -> list[Answer]:
        settings["on_batch"]()
        return [
            Answer(-100 * float(model.get_parameter("w").detach()[0]), is_empty=not place)
            for place in range(len(examples))
        ]

    def evaluate_labels(self, model: nn.Module, examples: Any, labels: Any, **settings: Any) -> list[Answer]:
        return self.label(model, examples, **settings)

    def relabelled(self, example: Any, tokens: list[int], weights: list[float] | None) -> Any:
        assert tokens == [0, 7] and weights == [0.0, 1.0]
        return (example[0], -example[1], 1.0)

    def collate(self, examples: Sequence[Any], train: bool) -> Any:
        rows = torch.tensor([(*row, 0.0)[:3] for row in examples], dtype=torch.float64)
        return {"rows": rows[:, :2], "is_pseudo": rows[:, 2]}

    def row_losses(self, model: nn.Module, batch: Any) -> Tensor:
        a, b = batch["rows"].unbind(1)
        return 0.5 * a * (model.w - b) ** 2  # type: ignore[operator, return-value]

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        losses = self.row_losses(model, batch)
        return losses.sum(), len(losses)


TASK = Labels({"a": (2.0, 3.0, 4), "b": (1.0, -1.0, 2)}, start=(0.5,))


class Notes:
    """In place of a tracker; no client may fail unnoticed."""

    def round(self, round: int, facts: RoundFacts) -> None:
        assert {report.status for report in facts.reports or ()} == {"ok"}

    def working(self, text: str) -> None: ...

    def evaluation(self, *_: Any, **__: Any) -> None: ...

    def end(self, *_: Any) -> None: ...


def ended(folder: Path, algorithm: Any, rounds: int = 1, task: Labels = TASK) -> tuple[Runner, Mapping[str, float]]:
    """The runner after its rounds, and the numbers that client `a` reported in the last one."""
    runner = make_runner(make_config(folder, task, algorithm, rounds=rounds), tracker=Notes())
    return runner, runner.run().reports["a"].extra


def test_losses_of_pseudo_and_annotated_rows_are_means_of_their_own(tmp_path: Path) -> None:
    """Of a: ½·2·(0.5 + 3)² = 12.25 and (0.5 − 3)² = 6.25."""
    _, extra = ended(tmp_path, FewFedWeight())
    assert (extra["pseudo_loss"], extra["annotated_loss"], extra["rows"]) == (12.25, 6.25, 8.0)
    assert (extra["pseudo_tokens"], extra["empty"], extra["clamped"]) == (8.0, 1.0, 0.0)
    assert 0 < extra["generate_s"] < 60 and 0 < extra["train_s"] < 60
    (bins,) = read(extra).values()
    assert sum(bins.values()) == 4  # forced tokens have no energy


def test_without_pseudo_rows_their_loss_is_0(tmp_path: Path) -> None:
    _, extra = ended(tmp_path, FewFedWeight(pseudo_start_round=1))
    assert (extra["pseudo_loss"], extra["annotated_loss"], extra["rows"]) == (0.0, 6.25, 4.0)


def test_energies_may_be_those_of_the_clients_own_model(tmp_path: Path) -> None:
    """With w at 0.5 all are −50; after a round the models differ, and so do their histograms."""
    found = {}
    for source in ("global", "client"):
        for rounds in (1, 2):
            algorithm = FewFedWeight(energy_from=source)  # type: ignore[arg-type]
            found[source, rounds] = read(ended(tmp_path / f"{source}{rounds}", algorithm, rounds)[1])
    assert found["global", 1] == found["client", 1] and found["global", 2] != found["client", 2]


def test_measured_losses_are_of_passes_that_count() -> None:
    engine = SimpleNamespace(counts=True, summed=lambda own: own)
    measured = Measured(TASK, engine)  # type: ignore[arg-type]
    assert measured.means() == {"pseudo_loss": 0.0, "annotated_loss": 0.0, "rows": 0.0}
    measured.add(torch.tensor([1.0, 3.0, 8.0]), torch.tensor([1.0, 1.0, 0.0]))
    measured.add(torch.tensor([5.0, 2.0]), torch.tensor([1.0, 0.0]))
    expected = {"pseudo_loss": 3.0, "annotated_loss": 5.0, "rows": 5.0}
    assert measured.means() == expected
    engine.counts = False
    measured.add(torch.tensor([100.0]), torch.tensor([1.0]))
    assert measured.means() == expected


def test_a_task_that_cannot_label_is_refused_and_one_that_can_is_not() -> None:
    assert labelling_task(TASK) is TASK
    with pytest.raises(ConfigError, match="make pseudo labels, which Quadratic cannot"):
        labelling_task(Quadratic({"a": (1.0, 1.0, 1)}))


@pytest.mark.parametrize(("start", "step", "used"), [(0.5, 5.0, 0.0), (4.0, -2.0 - 14.0, 1.0)])
def test_a_step_of_meta_weighting_by_hand(start: float, step: float, used: float, tmp_path: Path) -> None:
    """a = 2, b = 3: the annotated rows pull by 2 (3 − w), the pseudo rows, at −3, by 2 (−3 − w).

    From 0.5 the pseudo rows pull the other way, so none has a weight; from 4 both pull down, and their weights add up
    to 1.
    """
    task = Labels({"a": (2.0, 3.0, 4)}, start=(start,))
    runner, extra = ended(tmp_path, MetaWeighting(), task=task)
    assert extra["used"] == used
    assert runner.context.store.get("a").tensors["personal"].item() == pytest.approx(start + 0.1 * step)
    assert (extra["pseudo_loss"], extra["annotated_loss"]) == ((start + 3) ** 2, (start - 3) ** 2)
    assert extra["rows"] == 8.0 and 0 < extra["train_s"] < 60


@pytest.mark.parametrize(("gold_on", "alike"), [("B", False), ("Bhat", True)])
def test_of_a_pair_the_trained_row_is_the_measured_one_or_the_pseudo_rows_own(gold_on: Any, alike: bool) -> None:
    job = SimpleNamespace(seed=lambda purpose: 3, examples=[(1.0, float(place)) for place in range(8)])
    rows = [(1.0, -float(place), 1.0) for place in range(8)]
    pairs = MetaWeighting(meta_gold_on=gold_on)._pairs(job, rows)  # type: ignore[arg-type]
    assert [pair.pseudo for pair in pairs] == rows
    assert sorted(pair.measured_on for pair in pairs) == job.examples
    assert [pair.measured_on for pair in pairs] != job.examples
    assert ([pair.trained_on for pair in pairs] == job.examples) == alike
    assert alike or all(pair.trained_on is pair.measured_on for pair in pairs)


@pytest.mark.parametrize("gold_on", ["B", "Bhat"])
def test_a_batch_has_the_own_gold_answers_where_they_are_trained_on(gold_on: Any) -> None:
    """One pair: a pseudo row at −5, measured on a row at 1, and the row at 4 in the printed form."""
    engine: Any = SimpleNamespace(counts=True, summed=lambda own: own)
    task = _MetaTask(MetaWeighting(meta_gold_on=gold_on, meta_rule="printed"), TASK, engine, alpha=0.1)
    batch = task.collate([Pair((1.0, -5.0, 1.0), (1.0, 1.0), (1.0, 4.0))], True)
    assert set(batch) == {"pseudo", "gold"} | ({"trained"} if gold_on == "Bhat" else set())
    loss, terms = task.loss(TASK.build_model(0), batch)
    assert (loss.item(), terms) == (0.5 * ((0.5 - 4.0) ** 2 if gold_on == "Bhat" else 0.5**2), 1) and task.used() == 0


def test_a_parameter_that_no_loss_depends_on_is_left_out_of_the_slopes() -> None:
    parameters = {"w": torch.tensor(4.0, dtype=torch.float64), "unused": torch.tensor(1.0, dtype=torch.float64)}
    pulls = lambda to: lambda p: (p["w"] - torch.tensor(to, dtype=torch.float64)) ** 2  # noqa: E731
    weights, u = meta_weights(pulls([3.0, 5.0, 0.0]), pulls([2.0]), parameters, alpha=0.1)
    # u_j = −0.1 · 2 (4 − 2) · 2 (4 − b_j)
    assert u.tolist() == pytest.approx([-0.8, 0.8, -3.2]) and weights.tolist() == pytest.approx([0.2, 0.0, 0.8])
