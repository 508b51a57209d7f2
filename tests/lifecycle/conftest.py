"""Folders of parties, which several files of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from parties import make_places


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A folder for each party, with its rows, its key and the list of members."""
    pytest.importorskip("cryptography")
    return make_places(tmp_path)
