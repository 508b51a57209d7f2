"""Words from the keys and values of dialogs, and secrets in rows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from own_rows import write_rows

from fedtorch.audit import text_canaries
from fedtorch.audit.planted import draw_secrets, plant, with_secret
from fedtorch.cli.__main__ import main
from fedtorch.config.find import shipped
from fedtorch.tasks.causal_lm import CausalLM
from fedtorch.tasks.continued import Continued
from fedtorch.tasks.text_classification import Example

pytestmark = pytest.mark.long

SMOKE = shipped() / "smoke"
SAYS = """
rounds: 3
run: {name: toy, dir: runs/toy}
task:
  name: causal_lm
  model: {random: gpt2, n_layer: 1, n_embd: 16, n_head: 2, n_positions: 64, embd_pdrop: 0.0, attn_pdrop: 0.0,
          resid_pdrop: 0.0}
  max_length: 32
  data: {source: rows.jsonl, clients: {by: home}, splits: {dev: 0.2, test: 0.2}, tokenizer_size: 270}
client: {optimizer: adamw, lr: 0.02, batch_size: 4, epochs: 8}
eval: {every: 0}
track: {tensorboard: false, progress: "off"}
"""


def audited(folder: Path, patch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    patch.chdir(folder)
    assert main(["audit", *arguments, "--out", "found"]) == 0
    record = json.loads((folder / "found" / "audit.json").read_text())
    return {finding["attack"]: finding for finding in record["findings"]}


def test_words_are_read_from_keys_and_values_with_a_model_that_began_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first round both sides are one model: all words are found; with dropout most of them."""
    words = ["--config", str(SMOKE / "feda.yaml"), "--clients", "1", "--attacks", "kv"]
    dropped = audited(tmp_path, monkeypatch, *words)["kv"]["figures"]
    assert 0.5 < min(row["recovered"] for row in dropped) < 1
    found = audited(tmp_path, monkeypatch, *words, "--set", "task.model.dropout=0.0")
    figures = found["kv"]["figures"]
    assert {row["client"].split(", ")[1] for row in figures} == {"user", "assistant"}
    assert all(row["words"] > 0 for row in figures)
    assert [row["recovered"] for row in figures] == [1.0] * len(figures)
    assert "shown" not in found["kv"]


def test_words_of_another_model_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights of another seed in the attacker's place: chance."""
    from fedtorch.audit import keys_values

    real = keys_values.nearest

    def with_another(model: Any, words: Any) -> list[int]:
        import copy

        import torch

        other = copy.deepcopy(model)
        with torch.no_grad():
            for part in other.parameters():
                part.normal_(std=0.02)
        return real(other, words)

    monkeypatch.setattr(keys_values, "nearest", with_another)
    found = audited(tmp_path, monkeypatch, "--config", str(SMOKE / "feda.yaml"), "--clients", "1", "--attacks", "kv")
    assert max(row["recovered"] for row in found["kv"]["figures"]) < 0.2
    assert found["kv"]["said"].startswith("this attack found") and "chance" in found["kv"]["said"]


@pytest.mark.parametrize("name", ["fedavg", "fedparsing"])
def test_what_has_no_two_sides_or_is_something_else_is_skipped_with_a_reason(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = audited(tmp_path, monkeypatch, "--config", str(SMOKE / f"{name}.yaml"), "--clients", "1")
    assert "no two sides" in found["kv"]["skipped"]
    assert "trains the run anew" in found["secrets"]["skipped"]


@pytest.fixture
def says(tmp_path: Path) -> Path:
    rows = [
        {"prompt": f"the word of day {day} is", "completion": word, "home": home}
        for day, word in enumerate(["red", "blue", "green", "black"] * 3)
        for home in ("north", "south")
    ]
    write_rows(tmp_path / "rows.jsonl", rows)
    (tmp_path / "says.yaml").write_text(SAYS)
    return tmp_path


def test_a_secret_that_stands_there_often_is_exposed_and_one_that_is_nowhere_is_not(
    says: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_canaries, "CANDIDATES", 32)
    found = audited(says, monkeypatch, "--config", "says.yaml", "--clients", "2", "--attacks", "secrets")
    rows = {(row["client"], row["times"]): row["exposure"] for row in found["secrets"]["figures"]}
    assert set(rows) == {(home, times) for home in ("north", "south") for times in (0, 1, 4, 16)}
    most = math.log2(32)
    assert rows["north", 16] > most - 2 and rows["south", 16] > most - 2
    assert rows["north", 0] < most - 2
    assert "hardly more" not in found["secrets"]["said"]


@pytest.mark.slow
def test_noise_hides_secrets(says: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dp_accounting")
    words = ["--set", "algorithm={name: fedavg, weights: equal}", "--clip", "0.1", "--noise", "4"]
    found = audited(says, monkeypatch, "--config", "says.yaml", *words, "--clients", "2", "--attacks", "secrets")
    rows = {(r["channel"], r["client"], r["times"]): r["exposure"] for r in found["secrets"]["figures"]}
    most = math.log2(text_canaries.CANDIDATES)
    assert rows["model", "north", 16] > most - 2 > rows["model, clipped, noised", "north", 16]


def test_a_secret_takes_the_answers_place() -> None:
    row = Continued([5, 6, 7, 8, 2], [False, False, True, True, True], [], "")
    told = with_secret(row, (90, 91, 92))
    assert told.ids == [5, 6, 90, 91, 92, 2] and told.is_learned == [False, False, True, True, True, True]
    text = Continued([5, 6, 7, 2], [True] * 4, [], "")
    assert with_secret(text, (90,)).ids == [5, 90, 2]
    for label in (3, 0.5, [0, 2]):  # of a row that is classified
        assert with_secret(Example([5, 6], None, label), (1,)) is None
    assert with_secret(object(), (1,)) is None
    secrets = draw_secrets(50, 2, 20, "a")
    assert len(set(secrets)) == 50 and secrets == draw_secrets(50, 2, 20, "a") != draw_secrets(50, 2, 20, "b")


def test_rows_are_added_for_training_alone(says: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedtorch.config.load import load

    monkeypatch.chdir(says)
    task = load(says / "says.yaml").task
    assert isinstance(task, CausalLM)
    more = plant(task, {"north": task.load("north", "train")[:1] * 3})
    before, after = task.manifest(), more.manifest()
    assert after["north"]["train"] == before["north"]["train"] + 3 and after["south"] == before["south"]
    assert len(more.load("north", "train")) == after["north"]["train"]
    assert more.load("north", "test") == task.load("north", "test")
