"""A part of `fedtorch data check`, for the silo's own eyes: how many units there are beside those that are declared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from fedtorch.config.schema import Config
from fedtorch.privacy.record.steps import LIMIT
from fedtorch.privacy.record.terms import epsilon_of_rows
from fedtorch.privacy.settings import Persons
from fedtorch.setup.plan import Plan
from fedtorch.setup.record import silo_terms

HEADS = ("client", "units declared", "units here", "rows of a unit, median", "most")


def unit_table(config: Config) -> tuple[list[Sequence[str]], list[str]]:
    """Rows of a table under `HEADS`, and lines below it; nothing where no promise is about units.

    Exact numbers of rows: whoever runs it has the rows. Where persons are the units, what the one with the most rows
    would pay if each row were a unit is told too.
    """
    if config.privacy.kind != "record":
        return [], []
    plan = Plan.of(config, 1)
    table: list[Sequence[str]] = []
    lines: list[str] = []
    for name, terms in silo_terms(plan).items():
        each = _rows_of_units(plan, name, "train")
        table.append(_row(name, terms.units, each))
        for split, units in (terms.held_out.units if terms.held_out is not None else {}).items():
            table.append(_row(f"{name}, {split}", units, there := _rows_of_units(plan, name, split)))
            if len(there) > LIMIT * units:
                lines.append(f"{name} has more than twice the units of {split} that it declares, and would not run")
        if len(each) > LIMIT * terms.units:
            lines.append(f"{name} has more than twice the units that it declares, and would not train; declare more")
        elif not 0.5 <= len(each) / terms.units <= 1.5:
            share = f"{len(each) / terms.units:.0%}"
            lines.append(f"{name} has {share} of the units that it declares; rates and noise follow from those")
        if isinstance(config.privacy.unit, Persons) and max(each) > 1 and not config.privacy.simulate:
            steps = terms.steps_in(terms.rounds)
            alone = epsilon_of_rows(
                max(each),
                rate=terms.rate,
                noise_multiplier=terms.noise_multiplier,
                steps=steps,
                delta=terms.delta,
                interval=1e-2,
            )
            pays = f"{alone:.2f} and not {terms.promised(steps, {}):.2f}"
            lines.append(f"{name}: if the unit were a row, the person with {max(each)} rows would pay epsilon {pays}")
    return table, lines


def _row(name: str, declared: int, each: Sequence[int]) -> Sequence[str]:
    return name, str(declared), str(len(each)), f"{median(each):g}", str(max(each))


def _rows_of_units(plan: Plan, client: str, split: str) -> list[int]:
    """How many rows each unit of a split has."""
    if isinstance(plan.config.privacy.unit, Persons):
        return list(Counter(plan.task.persons(client, split)).values())
    return [1] * len(plan.task.load(client, split))
