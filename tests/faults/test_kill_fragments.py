"""A kill while a fragment of Streaming DiLoCo travels, before it and after it: the undisturbed digest."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervisor import TOY, at, digest_alone, supervise, toy_config

pytestmark = pytest.mark.processes

STEPS, DELAY, EVERY = 8, 3, 2
SENT = STEPS - DELAY
HEAD = "  head: [0.1, -0.2]\n"
"""A second parameter, so that there are two fragments."""
CHANGES = {
    "rounds": "4",
    "algorithm": f"{{name: streaming_diloco, fragments: [[w], [head]], delay: {DELAY}, mixing: 0.5}}",
    "server": "{optimizer: sgd, lr: 0.7, momentum: 0.9, nesterov: true}",
    "clients": "{per_round: all}",
    "client": f"{{optimizer: adamw, lr: 0.1, batch_size: 4, optimizer_state: keep, steps: {STEPS}}}",
    "system": "{sum_scale: previous, exchange: send, timeout: 20}",  # in memory nothing would travel early
}
INSIDE = {"checkpoint": f"{{every_steps: {EVERY}}}"}
slow = pytest.mark.slow


def config_of(folder: Path, **changes: str) -> Path:
    path = toy_config(folder, **{**CHANGES, **changes})
    assert "  dropout: 0.2\n" in TOY
    path.write_text(path.read_text().replace("  dropout: 0.2\n", f"  dropout: 0.2\n{HEAD}"))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of a run in one process, which nobody disturbs."""
    return digest_alone(config_of(tmp_path_factory.mktemp("whole")))


@pytest.mark.parametrize(
    ("client", "step"),
    [
        ("b", SENT),  # when it is due
        ("d", SENT + 1),  # when all of its rank have sent
        pytest.param("b", SENT - 1, marks=slow),
        pytest.param("b", SENT + 1, marks=slow),
        pytest.param("a", STEPS, marks=slow),
        pytest.param("d", STEPS, marks=slow),
    ],
)
@pytest.mark.parametrize("saving", [{}, INSIDE], ids=["rounds", "steps"])
def test_killed_around_the_step_of_the_sending(
    client: str, step: int, saving: dict[str, str], whole: str, tmp_path: Path
) -> None:
    fault = f"kill:phase=train,client={client},step={step},round=2,attempt=0"
    ended = supervise(config_of(tmp_path, **saving), faults=fault)
    assert ended.code == 0 and ended.digest == whole and len(ended.codes) == 2


@pytest.mark.parametrize(
    "phase", ["aggregate", *(pytest.param(phase, marks=slow) for phase in ("broadcast", "header", "checkpoint"))]
)
@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=slow)])
def test_killed_around_the_exchange(phase: str, rank: int, whole: str, tmp_path: Path) -> None:
    ended = supervise(config_of(tmp_path, **INSIDE), faults=at(phase, rank))
    assert ended.code == 0 and ended.digest == whole and len(ended.codes) == 2
