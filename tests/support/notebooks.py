"""Runs the code of a notebook, cell after cell in one process, and compares what it shows with what is stored.

python tests/support/notebooks.py docs/notebooks/*.ipynb    runs them anew and stores what they show
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

TOLERANCE = 0.1
"""Between numbers that are shown: another kind of processor has other last digits, and models that learn from them.

Rates of a notebook are so small that this is enough: look with ATEN_CPU_CAPABILITY=default.
"""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_TIME = re.compile(r"\d+(?:\.\d+)?(?:s|m\d*|h\d*m)\b")


def code_cells(path: Path) -> list[dict[str, Any]]:
    """Those of a notebook, in order."""
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def execute(path: str, folder: str) -> list[list[dict[str, Any]]]:
    """The outputs of each code cell, as a notebook stores them; whatever a cell raises ends it.

    folder: where the cells run. The module that they run in takes the place of `__main__`, as in a kernel.
    """
    os.chdir(folder)
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    return [_outputs("".join(cell["source"]), vars(module), place) for place, cell in enumerate(code_cells(Path(path)))]


def _outputs(source: str, names: dict[str, Any], place: int) -> list[dict[str, Any]]:
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    out, err, value = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        exec(compile(ast.Module(body, []), f"cell {place}", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {place}", "eval"), names)
    found: list[dict[str, Any]] = [
        {"output_type": "stream", "name": name, "text": stream.getvalue().splitlines(keepends=True)}
        for name, stream in (("stdout", out), ("stderr", err))
        if stream.getvalue()
    ]
    if value is not None:
        data = {"execution_count": place + 1, "metadata": {}, "data": _shown(value)}
        found.append({"output_type": "execute_result", **data})
    return found


def _shown(value: Any) -> dict[str, Any]:
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_html_") and (page := value._repr_html_()):
        data["text/html"] = page.splitlines(keepends=True)
    if hasattr(value, "_repr_png_"):
        data["image/png"] = base64.b64encode(value._repr_png_()).decode() + "\n"
    return data


def texts(outputs: list[dict[str, Any]]) -> list[str]:
    """What a cell shows as text, warnings included, and the kinds of what else it shows."""
    found = []
    for output in outputs:
        data = {"text/plain": output["text"]} if output["output_type"] == "stream" else output["data"]
        found += ["".join(data["text/plain"]), " ".join(sorted(data))]
    return found


def differences(stored: str, shown: str) -> list[str]:
    """Lines that differ in more than times and the last digits of numbers."""
    pairs = [
        (line, other) for line, other in zip(_lines(stored), _lines(shown), strict=False) if not _alike(line, other)
    ]
    more = len(_lines(stored)) - len(_lines(shown))
    return [f"{line!r} is stored, {other!r} is shown" for line, other in pairs] + (
        [f"{more} lines less"] if more else []
    )


def _lines(text: str) -> list[str]:
    return [" ".join(_TIME.sub("TIME", line).replace("─", "").split()) for line in text.splitlines()]


def _alike(line: str, other: str) -> bool:
    if _NUMBER.sub("N", line) != _NUMBER.sub("N", other):
        return False
    pairs = zip(map(float, _NUMBER.findall(line)), map(float, _NUMBER.findall(other)), strict=True)
    return all(abs(a - b) <= TOLERANCE * max(1.0, abs(a)) for a, b in pairs)


def store(path: Path) -> None:
    """Run a notebook in a new folder and store what it shows."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = execute(str(path.absolute()), folder)
    notebook = json.loads(path.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for place, (cell, found) in enumerate(zip(cells, outputs, strict=True)):
        cell["outputs"], cell["execution_count"] = found, place + 1
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    here = Path.cwd()
    for name in sys.argv[1:]:
        if not os.fork():  # each in a process of its own
            store(here / name)
            os._exit(0)
        if os.wait()[1]:
            sys.exit(f"{name} failed")
