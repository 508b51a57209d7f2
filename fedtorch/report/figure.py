"""A figure without pyplot: nothing global is changed, no window system is looked for. Imports matplotlib."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


class RunFigure(Figure):
    """A figure of matplotlib that a notebook shows whichever of its back ends is chosen there."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=80)
        return buffer.getvalue()
