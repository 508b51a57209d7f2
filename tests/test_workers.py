"""Tests that several workers run beside each other (`--workers`): all are run once, and none is lost in silence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import run_ranks

pytestmark = pytest.mark.processes

SUPPORT = Path(__file__).parent / "support"
FILES = {
    "test_a.py": """
import os, pytest
begun = []
@pytest.fixture(scope="module")
def once(): begun.append(1); yield; assert begun == [1]
@pytest.mark.parametrize("n", range(3))
def test_unit(n, once, tmp_path): print("printed by", n); assert len(begun) == 1 and n < 2
""",
    "test_b.py": "import pytest\ndef test_skipped(): pytest.skip('not today')\ndef test_passes(): pass",
    "test_c.py": "import warnings\ndef test_warns(): warnings.warn('mind the gap')",
}


def run(folder: Path, files: dict[str, str], *options: str) -> tuple[int, str]:
    for name, text in files.items():
        (folder / name).write_text(text)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "workers", "-p", "no:cacheprovider", "--workers=2", *options]
    environ = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_every_test_is_reported_once_with_what_it_said(tmp_path: Path) -> None:
    code, said = run(tmp_path, FILES)
    assert code == 1 and re.search(r"1 failed, 4 passed, 1 skipped, 1 warning in", said), said
    assert "FAILED test_a.py::test_unit[2]" in said and "printed by 2" in said and "printed by 1" not in said
    assert "UserWarning: mind the gap" in said


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_worker_that_ends_fails_the_whole(end: str, tmp_path: Path) -> None:
    dies = f"import os\ndef test_dies(): {end}\ndef test_after(): pass"
    code, said = run(tmp_path, {**FILES, "test_d.py": dies})
    expected = "a worker ended with (3|-9) in test_d.py::test_dies"
    assert code == 1 and re.search(expected, said), said


def test_the_first_failure_ends_all_where_that_is_asked_for(tmp_path: Path) -> None:
    waits = "import time\ndef test_waits(): time.sleep(50)"
    code, said = run(tmp_path, {"test_a.py": "def test_fails(): assert False", "test_b.py": waits}, "-x")
    assert code == 1 and "1 failed" in said and "stopping after 1 failures" in said, said


def says() -> None:
    print("from a rank")
    print("to its log", file=sys.stderr)


def test_what_a_rank_says_is_shown_with_the_test_that_started_it(capfd: pytest.CaptureFixture[str]) -> None:
    """Also where another process has started the fork server."""
    run_ranks(says, 1)
    assert capfd.readouterr() == ("from a rank\n", "to its log\n")
