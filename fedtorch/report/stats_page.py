"""Tables of what silos have, as one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from fedtorch.report.html_heat import heat_map
from fedtorch.report.html_style import document
from fedtorch.report.html_table import note, section, table
from fedtorch.report.svg import Bar, bar_chart
from fedtorch.stats.bins import Bins
from fedtorch.stats.said import who_sees
from fedtorch.stats.shown import ALL, Grid, grids, heading, label_table, number
from fedtorch.stats.table import Stats, Table

NAME = "stats.html"
"""Name of the page in a run folder."""
MOST_ROWS = 1000
"""Rows of a table; the file has all."""
MOST_DRAWN = 6
"""Silos whose lengths are drawn beside one another."""


def page(
    stats: Stats, proposed: str = "", *, title: str = "", remarks: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Return the page: who sees what, a heat map of silos by labels, lengths, names, proposals.

    Every name in it is escaped, and a browser loads nothing but the page.

    Args:
        proposed: YAML with proposals; empty: there is no such section.
        title: the page's heading; empty: how many silos there are.
        remarks: heading -> sentences that the page begins with; None: who sees which number.
    """
    labels = label_table(stats)
    said = {"What each number tells about whom": who_sees(stats)} if remarks is None else remarks
    parts = [f"<p>{escape(', '.join(stats.silos))}</p>"]
    parts += [section(head, "".join(f"<p>{escape(line)}</p>" for line in lines)) for head, lines in said.items()]
    for grid in grids(stats):
        of = stats.table(grid.name)
        picture = ""
        if of is not None and of.kind == "bins":
            picture = _bars(stats, of)
        elif of is not None and of is labels and of.silos:
            picture = _heat(stats, of)
        parts.append(section(grid.title, (f"<figure>{picture}</figure><br>" if picture else "") + _table(grid)))
    if proposed:
        body = f"<pre class='wide'>{escape(proposed)}</pre>"
        parts.append(
            section("Proposals", body + note("`fedtorch init FILE --from-stats RUN` writes them into a config."))
        )
    return document(title or heading(stats), *parts)


def _table(grid: Grid) -> str:
    rows = [*grid.rows[:MOST_ROWS], *[grid.total] * bool(grid.total)]
    more = [f"{len(grid.rows) - MOST_ROWS} more stand in the file."] if len(grid.rows) > MOST_ROWS else []
    return table(grid.heads, rows) + "".join(map(note, (*more, *grid.notes)))


def _heat(stats: Stats, of: Table) -> str:
    """Silos by labels; the noise of all numbers is told once, below it."""
    counts = {silo: dict(zip(of.cells, numbers, strict=True)) for silo, numbers in of.silos.items()}
    shown = heat_map(counts, lambda count: number(count, 0.0, stats.min_count)[0], head="silo")
    return shown + (note(f"Each number is ± {of.silo_deviation:.2g}.") if of.silo_deviation else "")


def _bars(stats: Stats, of: Table) -> str:
    """Bars of each bin: shares of each silo's rows, or rows of all with three deviations of the noise.

    What is not shown has no bar. Bins before the first and after the last bar are left out.
    """
    silos = list(of.silos)
    if 0 < len(silos) <= MOST_DRAWN:
        totals = [Bins.of(stats, of, silo).total() for silo in silos]
        names, label = silos, "share of the silo's rows"
        columns = [_shares(of.silos[silo], total) for silo, total in zip(silos, totals, strict=True)]
    else:
        spread = 3 * of.deviation
        names, label = [ALL], "rows"
        columns = [[None if each is None else (each, each - spread, each + spread) for each in of.pooled]]
    cells = list(zip(*columns, strict=True))
    filled = [place for place, bars in enumerate(cells) if any(bar is not None and bar[0] > 0 for bar in bars)]
    if not filled:
        return ""
    drawn = range(filled[0], filled[-1] + 1)
    return bar_chart({of.cells[place]: cells[place] for place in drawn}, names, label)


def _shares(numbers: Sequence[float | None], total: float) -> list[Bar | None]:
    return [None if each is None or total <= 0 else (max(0.0, each / total),) * 3 for each in numbers]
