"""Each way in which the promise was broken on purpose is noticed by a test; slow, as each is a copy of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedtorch

HERE = Path(__file__).parent
STEPS, TERMS, SILO = (f"privacy/record/{name}.py" for name in ("steps", "terms", "silo"))
HELD_OUT = "privacy/record/held_out.py"
NOISED, UNITS = "train/noised.py", "train/unit_gradients.py"
TRAINING, OF_STEPS, RUNS, OF_SCORES = "test_training.py", "test_steps.py", "test_runs.py", "test_held_out.py"
GRADIENTS = "../../train/test_unit_gradients.py"
MUTATIONS: dict[str, tuple[str, str, str, str]] = {
    "noise halved": (STEPS, "self._noise, terms.deviation)", "self._noise, terms.deviation / 2)", OF_STEPS),
    "z² for z": (TERMS, "whole = self.noise_multiplier *", "whole = self.noise_multiplier**2 *", OF_STEPS),
    "noise per chunk": (NOISED, "chunks(picked):\n", "chunks(picked):\n        steps.release(total)\n", TRAINING),
    "mean clipped": (NOISED, "in found.cpu():", "in found.cpu().mean(0, keepdim=True):", TRAINING),
    "norm per layer": (
        STEPS,
        "        add_bounded(total, gradient, self._terms.clip, self.exponent)\n",
        "        for place in range(len(gradient)):\n"
        "            one = slice(place, place + 1)\n"
        "            add_bounded(total[one], gradient[one], self._terms.clip, self.exponent)\n",
        OF_STEPS,
    ),
    "rows clipped before the person": (
        NOISED,
        "gradients.chunks(picked):",
        "gradients.chunks([[row] for unit in picked for row in unit]):",
        TRAINING,
    ),
    "a parameter outside the norm": (
        NOISED,
        "            steps.add(total, gradient)\n",
        "            steps.add(total[:-1], gradient[:-1])\n            total[-1] += float(gradient[-1]) * 2.0**30\n",
        TRAINING,
    ),
    "actual batch as divisor": (NOISED, "return total, losses", "return total / max(1, len(picked)), losses", RUNS),
    "empty batch skipped": (
        NOISED,
        "            along =",
        "            if not loss:\n                continue\n            along =",
        TRAINING,
    ),
    "seed for key": (SILO, "write_own(key, os.urandom(KEY_BYTES))", "write_own(key, bytes(KEY_BYTES))", "test_silo.py"),
    "hook before noise": (
        NOISED,
        "            along = torch.from_numpy(steps.release(total)).to(torch.float32)\n",
        "            before = torch.from_numpy(total.copy()).to(torch.float32)\n"
        "            along = torch.from_numpy(steps.release(total)).to(torch.float32)\n"
        "            along = along if before_step is None else along + 0 * before + before * 2.0**-40\n",
        TRAINING,
    ),
    "private part plain": (
        NOISED,
        "            along = torch.from_numpy(steps.release(total)).to(torch.float32)\n",
        "            plain = total[-1] * 2.0**-32\n"
        "            along = torch.from_numpy(steps.release(total)).to(torch.float32)\n"
        "            along[-1] = plain\n",
        TRAINING,
    ),
    "noise reused": (STEPS, "/{self._step}/{self._last}", "", OF_STEPS),
    "share / n for / (t - a)": (
        "setup/record.py",
        "threshold(plan) - plan.config.privacy.colluders",
        "len(plan.topology.workers)",
        "test_shared.py",
    ),
    "a batch that is kept": (STEPS, "/{self._last}", "/{self._start}", OF_STEPS),
    "noise of a score halved": (HELD_OUT, "ldexp(z, exponent)", "ldexp(z / 2, exponent)", OF_SCORES),
    "noise of a score reused": (HELD_OUT, "*facts, total.view(np.uint8).data", "*facts", OF_SCORES),
    "a score over the units there are": (
        "privacy/record/level.py",
        "(total, declared)",
        "(total, len(units))",
        OF_SCORES,
    ),
    "persons count by rows": (UNITS, "loss.float() / count / len(unit)", "loss.float() / count", GRADIENTS),
}  # fmt: skip


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_promise_is_noticed(name: str, tmp_path: Path) -> None:
    file, old, new, tests = MUTATIONS[name]
    package = tmp_path / "fedtorch"
    shutil.copytree(Path(fedtorch.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (package / file).read_text()
    assert text.count(old) == 1, (file, text.count(old))
    (package / file).write_text(text.replace(old, new))
    words = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not processes", str(HERE / tests)]
    begin = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import fedtorch, pytest; sys.exit(pytest.main({words!r}))"
    )
    where = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    found = subprocess.run(
        [sys.executable, "-c", begin], cwd=HERE.parents[2], env=where, capture_output=True, text=True, check=False
    )
    assert found.returncode == 1 and "1 failed" in found.stdout, found.stdout[-2000:]
