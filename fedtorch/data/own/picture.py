"""The partition as a picture: which client has how many rows of which label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedtorch.data.own.overview import Overview

MOST_CLIENTS, MOST_LABELS, NAMED = 400, 40, 60


def draw(overview: Overview, path: Path) -> None:
    """Write a PNG: clients × labels as shares of each client's rows, and beside it the sizes of the clients.

    Clients are sorted by size. Of more than 400 every n-th is drawn; the labels after the 40th most frequent one are
    left out. Without labels there are only sizes.
    """
    # imported here: it takes a second
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sizes = {name: client.rows.get("train", 0) for name, client in overview.clients.items()}
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    names = names[:: -(-len(names) // MOST_CLIENTS)]
    labels = [label for label, _ in overview.total().labels.most_common(MOST_LABELS)]
    figure = Figure(figsize=(10, min(14.0, 2.2 + 0.22 * len(names))), layout="constrained")
    FigureCanvasAgg(figure)  # without pyplot: nothing global is changed, no window system is looked for
    if labels:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
        _heat(figure, left, overview, names, labels)
    else:
        right = figure.subplots()
    right.barh(range(len(names)), [sizes[name] for name in names], color="0.4")
    right.set(xlabel="rows of train", ylim=(len(names) - 0.5, -0.5))
    first = left if labels else right
    if len(names) <= NAMED:
        first.set_yticks(range(len(names)), [_short(name) for name in names], fontsize="small")
    else:
        first.set_ylabel(f"{len(names)} of {len(sizes)} clients, by size")
    figure.suptitle(f"{overview.name}: {len(sizes)} clients, {sum(sizes.values())} rows of train")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _heat(figure: Any, axes: Any, overview: Overview, names: list[str], labels: list[str]) -> None:
    counts = [overview.clients[name].labels for name in names]
    shares = [[own[label] / max(1, own.total()) for label in labels] for own in counts]
    image = axes.imshow(shares, aspect="auto", cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    axes.set_xticks(range(len(labels)), [_short(label) for label in labels], rotation=90, fontsize="small")
    if len(names) <= 30 and len(labels) <= 12:
        for row, own in enumerate(counts):
            for place, label in enumerate(labels):
                dark = shares[row][place] < 0.6
                axes.text(place, row, own[label], ha="center", va="center", size=7, color="white" if dark else "black")
    figure.colorbar(image, ax=axes, label="share of the client's rows")


def _short(name: str) -> str:
    text = name if len(name) <= 24 else f"{name[:23]}…"
    return text.replace("$", r"\$")  # else it is set as a formula
