"""`compare`: what stands beside a federated score is what the same command would give without the federation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from own_rows import weather, write_rows

from fedtorch.lifecycle import start
from fedtorch.main import main

pytestmark = pytest.mark.long

CONFIG = """
run: {name: weather, dir: run}
rounds: 1
task:
  name: text_classification
  model: {random: bert, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16}
  data: {source: rows.jsonl, clients: {by: home}, splits: {dev: 0.25, test: 0.25}, tokenizer_size: 270}
  max_length: 16
algorithm: {name: fedprox, mu: 0.1}
server: {optimizer: sgd, lr: 0.5}
client: {optimizer: adamw, lr: 1e-2, batch_size: 4, epochs: 2}
track: {progress: lines, tensorboard: false, step_curves: false}
"""
PLAIN = ("algorithm={name: fedavg, weights: size}", "server={optimizer: none, lr: null}", "client.optimizer_state=keep")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.jsonl"), weather())
    Path("weather.yaml").write_text(CONFIG)


def run(folder: str, *overrides: str) -> dict[str, Any]:
    assert main(["--config", "weather.yaml", "--set", f"run.dir={folder}", *overrides]) == 0
    found: dict[str, Any] = json.loads(Path(folder, "results.json").read_text())
    return found


def test_start_local_and_centralized_are_the_runs_one_would_make_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    evaluated = "eval={on_start: true, split: test}"
    found = run("run", evaluated, "compare=[start, local, centralized]")
    shown = capsys.readouterr().out
    assert list(found["compare"]) == ["start", "local", "centralized"]
    by_hand = {"local": run("alone", evaluated, "paradigm=local", "run.export=none"),
               "centralized": run("pooled", evaluated, "paradigm=centralized", *PLAIN)}  # fmt: skip
    for label, other in by_hand.items():
        assert found["compare"][label]["digest"] == other["digest"]
        assert found["compare"][label]["averages"] == other["averages"]
        assert found["compare"][label]["pooled"] == other["summary"]["pooled"]
    records = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    first = next(record for record in records if record["kind"] == "eval_total")
    assert first["round"] == 0 and first["metrics"]["accuracy"] == found["compare"]["start"]["averages"]["accuracy"]
    assert found["compare"]["start"]["rounds"] == 0 and not Path("run/compare-start/model").exists()

    assert "run 1 of 4: weather, 1 round\nround 0" in shown and "run 3 of 4: weather-local, 1 round\n" in shown
    assert re.findall(r"run (\d) of 4: done in \d+s", shown) == ["1", "2", "3", "4"]
    headings = next(line for line in shown.splitlines() if "centralized:" in line)
    assert headings.split() == ["start:", "centralized:", "local:"]
    assert [line.split() for line in shown.splitlines() if " steps " in line] == ["steps 12 0 10 12".split()]

    again = run("run", evaluated, "compare=[start, local, centralized]")  # resumed, all of them
    assert {**again, "traffic": None} == {**found, "traffic": None}  # it sends the best model once more


def test_a_run_is_done_when_what_stands_beside_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is killed at the second run is started again by whoever looks at the first one's status."""
    seen: list[str] = []
    begin = start.find_start

    def noted(*args: Any) -> Any:
        path = Path("run/status.json")
        seen.append(json.loads(path.read_text())["state"] if path.is_file() else "nothing")
        return begin(*args)

    monkeypatch.setattr(start, "find_start", noted)
    run("run", "compare={paradigm: local}")
    assert seen == ["nothing", "running"]
    assert json.loads(Path("run/status.json").read_text())["state"] == "done"
    assert json.loads(Path("run/compare/status.json").read_text())["state"] == "done"


def test_what_a_companion_cannot_do_is_said_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = "compare=[start, {run: {name: other}, clients: {min: 4}}]"
    assert main(["--config", "weather.yaml", "--set", wrong]) == 2
    assert "in the run `other` of `compare`: clients.min is 4 but the task" in capsys.readouterr().err
