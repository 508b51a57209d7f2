"""Training along noised sums: what one unit more changes, persons with several rows, empty batches, hooks, memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st
from toy import Point, Quadratic

from fedtorch.core.errors import UpdateError
from fedtorch.core.silo_work import SiloWork
from fedtorch.core.weights import Partition
from fedtorch.privacy.record import silo as module
from fedtorch.privacy.record.silo import Silo
from fedtorch.privacy.record.steps import NoisedSteps, Place
from fedtorch.privacy.record.terms import SiloTerms
from fedtorch.train.batches import StepPlan
from fedtorch.train.engine import Engine
from fedtorch.train.moment import Moment
from fedtorch.train.noised import NoisedTraining, noised_sum, train_noised
from fedtorch.train.settings import ClientConfig

KEY = bytes(range(32))
TASK = Quadratic(clients={"a": (1.0, 1.0, 6)}, start=(0.3, -0.7), head=(0.1,), double=False)
HP = ClientConfig(optimizer="sgd", lr=1.0)
Row = tuple[float, float]


def engine() -> Engine:
    return Engine(Point(TASK.start, TASK.head, torch.float32), Partition(private=("head",)), torch.device("cpu"))


def work(
    rows: Sequence[Row],
    units: Sequence[Sequence[int]],
    terms: SiloTerms,
    *,
    physical: int = 16,
    silo: Silo | None = None,
) -> SiloWork:
    kept = silo or Silo(KEY, None)

    def begin(purpose: str, facts: Iterable[bytes | memoryview]) -> NoisedSteps:
        return NoisedSteps(kept, terms, Place(0, purpose), "normal", facts)

    return SiloWork(rows, units, terms.units, 4, "loop", physical, terms.pool is not None, begin)


def terms_of(units: int, batch: int, z: float = 1.0, clip: float = 1.0, pool: int | None = None) -> SiloTerms:
    return SiloTerms("a", units, batch, 1, 1, z, clip, 1e-3, None, pool=pool)


def trained(one: Engine, about: SiloWork, count: int, **how: Any) -> list[float]:
    def start(_: Moment | None) -> None:
        one.start(one.initial_shared, None, HP, steps=count, seed=1)

    plans = [StepPlan(((0,),), 1, 0)] * count
    train_noised(NoisedTraining(one, TASK, about, "a", "train", [b"w"], start, HP), plans, **how)
    return [*one.flat.tolist(), *one.flat_private.tolist()]


numbers = st.floats(-50, 50, width=32)
rows_of_persons = st.lists(
    st.lists(st.tuples(st.floats(0.125, 30, width=32), numbers), min_size=1, max_size=4), min_size=1, max_size=5
)


@pytest.mark.long
@examples(40)
@given(rows_of_persons, st.integers(0, 4), st.sampled_from([0.01, 0.5, 3.0]))
def test_one_person_more_changes_a_sum_by_the_clip_at_most(persons: list[list[Row]], which: int, clip: float) -> None:
    """In whole numbers, however many rows the person has; noise left out."""
    one, out = engine(), which % len(persons)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ADD", {"normal": lambda total, deviation, stream: None})
        for left_out in (None, out):
            rows = [row for person in persons for row in person]
            places = np.split(np.arange(len(rows)), np.cumsum([len(person) for person in persons])[:-1])
            units = [tuple(int(p) for p in each) for n, each in enumerate(places) if n != left_out]
            terms = terms_of(8, 8, clip=clip, pool=8)
            about = work(rows, units, terms)

            def start(_: Moment | None) -> None:
                one.start(one.initial_shared, None, HP, steps=1, seed=1)

            part, _ = noised_sum(NoisedTraining(one, TASK, about, "a", "train", [b"w"], start, HP))
            found.append(np.ldexp(part.numpy(), terms.exponent))
    whole = [int(number) for number in found[0] - found[1]]
    assert (found[0] == np.rint(found[0])).all()
    assert sum(number * number for number in whole) <= (clip * 2.0**terms.exponent) ** 2


def test_steps_go_along_the_noised_sum_and_nothing_else_private_parts_too() -> None:
    """The hook sees what was released, and it is all of the gradient."""
    one, seen, made = engine(), [], []
    release = NoisedSteps.release

    def released(self: NoisedSteps, total: Any) -> Any:
        found = release(self, total)
        made.append(found.copy())
        return found

    def hook(engine: Engine) -> None:
        seen.append(np.concatenate([p.grad.reshape(-1).numpy() for p in engine.trained if p.grad is not None]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoisedSteps, "release", released)
        rows = [(1.0, 1.0)] * 6
        after = trained(one, work(rows, [(n,) for n in range(6)], terms_of(6, 3)), 5, before_step=hook)
    assert len(seen) == 5
    for gradient, expected in zip(seen, made, strict=True):
        assert (gradient == expected.astype(np.float32)).all()
    start = np.array([0.3, -0.7, 0.1], np.float32)
    for gradient in seen:
        start = start - gradient
    assert after == pytest.approx(start.tolist(), abs=1e-6)


def test_an_empty_batch_is_a_step_and_no_batch_is_of_a_fixed_size() -> None:
    silo, sizes, batch = Silo(KEY, None), [], NoisedSteps.batch

    def drawn(self: NoisedSteps, units: int) -> list[int]:
        sizes.append(len(found := batch(self, units)))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoisedSteps, "batch", drawn)
        trained(engine(), work([(1.0, 1.0)] * 6, [(n,) for n in range(6)], terms_of(6, 1), silo=silo), 40)
    assert sizes.count(0) > 3 and len(set(sizes)) > 2
    assert [training.steps for training in silo.trainings()] == [40]


def test_how_many_units_are_in_memory_changes_no_bit() -> None:
    rows = [(1.0 + n, n / 3) for n in range(9)]
    units = [(n,) for n in range(9)]
    found = {
        physical: trained(engine(), work(rows, units, terms_of(9, 6), physical=physical), 4) for physical in (1, 4, 16)
    }
    assert found[1] == found[4] == found[16]


class Named(Quadratic):
    """Batches as vmap takes them."""

    def collate(self, examples: Sequence[Any], train: bool) -> Any:
        return {"rows": super().collate(examples, train)}

    def loss(self, model: Any, batch: Any) -> tuple[torch.Tensor, int]:
        rows = batch["rows"]
        point = torch.cat([model.w, model.head])
        return (0.5 * rows[:, :1] * (point - rows[:, 1:]) ** 2).sum(), len(rows)


def test_both_ways_to_the_gradients_take_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each unit is clipped by itself, also where all gradients of a chunk come at once."""
    monkeypatch.setitem(globals(), "TASK", Named(clients={}, start=(0.3, -0.7), head=(0.1,), double=False))
    rows = [(1.0 + n, n / 3) for n in range(9)]
    about = work(rows, [(n,) for n in range(9)], terms_of(9, 6, clip=0.1))
    alone, together = (trained(engine(), replace(about, per_unit=how), 1) for how in ("loop", "vmap"))
    assert together == pytest.approx(alone, abs=1e-7)


def test_a_training_that_must_not_leave_is_done_again_from_its_start() -> None:
    silo, leave, asked = Silo(KEY, None), NoisedSteps.may_leave, []

    def may_leave(self: NoisedSteps) -> bool:
        asked.append(self._attempt)
        return leave(self) if len(asked) > 1 else False

    rows, units = [(1.0, 1.0)] * 6, [(n,) for n in range(6)]
    expected = trained(engine(), work(rows, units, terms_of(6, 3)), 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoisedSteps, "may_leave", may_leave)
        again = trained(engine(), work(rows, units, terms_of(6, 3), silo=silo), 3)
    assert len(asked) == 2 and again == expected  # the same key and facts, and so the same noise


def test_an_algorithm_cannot_look_at_rows() -> None:
    hidden = work([(1.0, 1.0)] * 6, [(n,) for n in range(6)], terms_of(8, 3)).hidden
    assert len(hidden) == 8
    with pytest.raises(UpdateError, match="must not look at rows"):
        hidden[0]
    with pytest.raises(UpdateError, match="must not look at rows"):
        list(hidden)
