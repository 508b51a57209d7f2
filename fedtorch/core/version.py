"""Version, description and folder of the package, for modules that `fedtorch` itself may import in turn."""

from __future__ import annotations

from pathlib import Path

VERSION = "0.1.0"  # pyproject.toml names this
"""What `fedtorch --version` and the metadata of an installation say."""
ABOUT = "fedtorch: federated training of NLP models over torch.distributed."
"""The package in one sentence; its docstring too."""
PACKAGE = Path(__file__).parents[1]
"""The package's folder."""
