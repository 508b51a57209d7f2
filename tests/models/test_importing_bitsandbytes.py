"""Importing bitsandbytes fetches nothing: shown in ranks, which have not imported it, nor does this file."""

from __future__ import annotations

import sys
from contextlib import redirect_stderr
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
from ranks import run_ranks


def imported(who: str, folder: str) -> tuple[str, str]:
    """Where a package `kernels` comes from once `who` has imported the library, and what was said meanwhile."""
    assert "bitsandbytes" not in sys.modules
    sys.path.insert(0, folder)
    with redirect_stderr(StringIO()) as said:
        import_module(who)
    assert "bitsandbytes" in sys.modules
    return str(import_module("kernels").__file__), said.getvalue()


@pytest.mark.processes
@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
@pytest.mark.parametrize("who", ["bitsandbytes", "peft", "transformers.optimization"])
def test_the_library_is_loaded_without_asking_for_kernels_elsewhere(who: str, tmp_path: Path) -> None:
    """Whoever imports it, a package of that name is not asked, and afterwards it is what it was."""
    (tmp_path / "kernels.py").write_text("def get_kernel(*_, **__):\n    raise SystemExit('fetched')\n")
    ((file, said),) = run_ranks(imported, 1, who, str(tmp_path))
    assert file == str(tmp_path / "kernels.py") and "kernels" not in said
