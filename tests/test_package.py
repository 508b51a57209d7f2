"""What importing the package does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("0", "0")])
def test_large_vectors_come_in_large_pages_unless_the_user_says_otherwise(given: str | None, expected: str) -> None:
    environ = {key: value for key, value in os.environ.items() if key != "THP_MEM_ALLOC_ENABLE"}
    environ |= {} if given is None else {"THP_MEM_ALLOC_ENABLE": given}
    script = "import sys, fedtorch, os; print(os.environ['THP_MEM_ALLOC_ENABLE'], 'torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [expected, "False"]  # set before torch could have read it


def test_torch_still_knows_the_setting_of_large_pages() -> None:
    libraries = list((Path(torch.__file__).parent / "lib").glob("*c10*"))
    assert any(b"THP_MEM_ALLOC_ENABLE" in path.read_bytes() for path in libraries)
