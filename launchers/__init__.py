"""Programs that start runs: `local`, `sweep`, `slurm`, `serve` and `join`.

They lie beside the package in a clone (`python -m launchers.local`) and are installed inside it (`fedtorch local`), so
they import each other relatively.
"""

from __future__ import annotations


def start_words(name: str) -> list[str]:
    """The words that start launcher `name` from a shell, here or once more on another machine of the cluster."""
    if __name__.startswith("fedtorch."):
        return ["fedtorch", name]
    return ["python", "-m", f"{__name__}.{name}"]
