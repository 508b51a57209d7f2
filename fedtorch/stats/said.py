"""States in words what each number of the tables tells about whom: for the terminal, the page and cards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtorch.core.shown import shortened
from fedtorch.stats.table import Stats, Table

_NOBODY = "Nothing is promised"


def promise(stats: Stats) -> str:
    """One sentence: unit, epsilon, delta, where the noise is added, and against whom; or that nothing is promised."""
    said = stats.privacy
    if not said:
        masks = ", but masks hide each silo's own numbers from everybody else" if stats.masked else ""
        return f"none: the numbers are exact, without noise{masks}"
    if said.get("simulated"):
        return "simulated: nothing is promised, as everybody can compute the noise"
    return f"differential privacy of each {_unit(said, stats)}, {_budget(said)}, {_against(said)}"


def who_sees(stats: Stats) -> list[str]:
    """Sentences on which party sees which number, and what it can learn from it about whom."""
    lines = [f"Protection of each {stats.unit}: {promise(stats)}."]
    if stats.absent:
        missed = ", ".join(f"{name} in {rounds}" for name, rounds in stats.absent.items())
        lines.append(f"Not counted in all rounds, so some numbers lack them: {shortened(missed, 200)}.")
    by_silo = [table.title for table in stats.tables if table.silos]
    if by_silo:
        lines.append(f"Of each silo by itself all parties see: {'; '.join(by_silo)}. Everything else is a sum.")
    elif stats.masked:
        lines.append("Nobody, the server neither, has seen a number of one silo: only sums over all silos were opened.")
    else:
        lines.append("The tables have sums over all silos alone.")
    if not stats.privacy:
        lines += _without_noise(stats)
    elif not stats.privacy.get("simulated"):
        lines.append(
            f"Whoever sees the tables cannot tell, up to the epsilon above, whether one {stats.unit} was counted. What "
            "holds for many of them is no secret: that is what is counted."
        )
    return lines + _of_names(stats)


def how_often(table: Table) -> str:
    """How often a name had to be counted to be shown, as the end of a sentence; empty: that is not told."""
    if table.threshold is None or (table.threshold <= 1 and not table.deviation):
        return ""
    return f"more than {table.threshold:.4g} times" if table.deviation else f"{table.threshold:.4g} times or more"


def _without_noise(stats: Stats) -> list[str]:
    server = "The server has received sums alone" if stats.masked else "The server has received every silo's numbers"
    lines = [f"{server}. {_NOBODY}: who knows all rows but one of a sum can subtract them, and knows that one."]
    if stats.min_count is not None and stats.min_count > 1:
        lines.append(
            f"* stands for a number that is not shown: fewer than {stats.min_count} units are behind it, or such a "
            "number would follow from it. That hides numbers from readers, not from whoever has received them, and not "
            "from a comparison with another count of nearly the same rows."
        )
    if any(table.kind == "found" for table in stats.tables):
        lines.append(
            "The server says which beginnings of names are counted next. One that does not keep to the rule can ask "
            "for rare ones; silos notice it with trust.verify: all."
        )
    if len(stats.silos) == 2 and any(not table.silos for table in stats.tables):
        lines.append("There are two silos: each can subtract its own numbers from a sum, and has the other's.")
    return lines


def _of_names(stats: Stats) -> list[str]:
    """Names that were found are parts of texts."""
    found = [table for table in stats.tables if table.kind == "found"]
    if not found:
        return []
    titles = "; ".join(table.title for table in found)
    if not stats.privacy:
        return [f"Names that nobody declared are shown as they stand in rows ({titles}): a rare one may be a person's."]
    return [f"Names that nobody declared were found through noise ({titles}): one that few units have stays hidden."]


def _unit(said: Mapping[str, Any], stats: Stats) -> str:
    return str(said.get("unit") or stats.unit)


def _budget(said: Mapping[str, Any]) -> str:
    silos = said.get("silos")
    if "epsilon" not in said and isinstance(silos, Mapping) and silos:
        return "by silo: " + ", ".join(f"{name} {_epsilon(each)}" for name, each in silos.items())
    return _epsilon(said)


def _epsilon(said: Mapping[str, Any]) -> str:
    if "epsilon" not in said:
        return "epsilon not told"
    delta = f" at delta {float(said['delta']):g}" if said.get("delta") is not None else ""
    return f"epsilon {float(said['epsilon']):.4g}{delta} in all"


def _against(said: Mapping[str, Any]) -> str:
    if said.get("noise_at") == "shared":
        held = f" with {said['colluders']} silos" if said.get("colluders") is not None else ""
        return (
            "by noise of which each silo has added a part, on sums that nobody sees in parts: against the server"
            f"{held} and everybody who sees the tables"
        )
    where = "each silo's own noise" if said.get("noise_at") == "local" else "noise"
    return f"by {where}: against the server, the other silos and everybody who sees the tables"
