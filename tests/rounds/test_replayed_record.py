"""A real run in which clients were late, on ranks: its own metrics.jsonl is enough to do it again, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervisor import Ended, supervise, toy_config

from fedtorch.main import main
from fedtorch.rounds.buffer import LATE
from fedtorch.tracking import records


def late(folder: Path) -> dict[int, set[str]]:
    """Round -> who came too late."""
    found: dict[int, set[str]] = {}
    for record in records.read(folder / records.NAME):
        if record["kind"] == "client":
            found.setdefault(record["round"], set()).update({record["client"]} if record["status"] == LATE else ())
    return found


@pytest.mark.processes
@pytest.mark.parametrize(
    ("clients", "asleep"),
    [
        ("{per_round: 3, extra: 1}", 0.3),
        pytest.param("{per_round: all, deadline: 2.0}", 3.0, marks=pytest.mark.slow),
    ],
    ids=["extra", "deadline"],
)
def test_a_replay_of_a_real_runs_record_has_its_bits(clients: str, asleep: float, tmp_path: Path) -> None:
    """Replayed in one process in which nobody sleeps; from the folder, and from the file in it."""
    faults = f"sleep:client=a,phase=train,step=1,seconds={asleep};sleep:client=d,round=1,phase=train,seconds={asleep}"
    real = supervise(toy_config(tmp_path / "real", clients=clients), 3, faults=faults)
    assert real.codes == [[0, 0, 0]], real.log(0)
    found = late(real.folder)
    assert set(found) == {1, 2, 3} and any(found.values()) and all(len(names) < 4 for names in found.values())
    digests = {}
    for name, replay in (("folder", real.folder), ("file", real.folder / records.NAME), ("none", "null")):
        config = toy_config(tmp_path / name, clients=clients if replay != "null" else "{per_round: all}")
        assert main(["--config", str(config), "--set", f"clients.replay={replay}"]) == 0
        digests[name] = Ended(tmp_path / name / "run").digest
    assert digests["folder"] == digests["file"] == real.digest != digests["none"]
    assert late(tmp_path / "folder" / "run") == found
