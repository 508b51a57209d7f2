"""DiLoCo's rows: the values of paper and code, a dry run where a tokenizer lies, and a small run that trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from fedtorch.config.load import load
from fedtorch.core.settings import ServerConfig
from fedtorch.main import main
from fedtorch.text.byte_bpe import train_subwords

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.mark.parametrize("name", ["150m", "made"])
def test_both_have_the_rule_of_the_paper(name: str) -> None:
    config = load(f"diloco/{name}")
    client = config.client
    assert config.server == ServerConfig(optimizer="sgd", lr=0.7, momentum=0.9, nesterov=True)
    assert (config.algorithm_name, config.algorithm.weights, config.clients.per_round) == ("fedavg", "equal", "all")
    assert (client.optimizer, client.betas, client.weight_decay, client.max_grad_norm) == ("adamw", (0.9, 0.95), 0.1, 1)
    assert (client.optimizer_state, client.schedule, client.schedule_span) == ("keep", "cosine", "run")


def test_the_row_has_the_values_of_the_code() -> None:
    config = load("diloco/150m")
    client, task = config.client, config.task
    assert config.rounds * client.steps == 88_000 and client.steps == 500
    assert (client.lr, client.warmup_steps, client.schedule_floor) == (4e-4, 1000, 0.0)
    assert client.batch_size * client.accumulation == 512
    assert (config.engine.precision, task.max_length, task.data.clients.iid) == ("bf16", 1024, 8)


def test_a_dry_run_of_the_row_says_what_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    train_subwords(["a text of some words"], Path("models/Mistral-7B-v0.1"), size=300)
    Path("data/diloco").mkdir(parents=True)
    rows = [json.dumps({"text": f"a text of some words and {number}"}) for number in range(2000)]
    Path("data/diloco/c4.jsonl").write_text("\n".join(rows))
    shrunk = ["task.model.hidden_size=64", "task.model.intermediate_size=168"]
    assert main(["--config", "diloco/150m", "--dry-run", "--set", *shrunk]) == 0
    shown = capsys.readouterr().out
    # 12 layers of 4·64² for attention, 3·64·168 behind it, two norms; embeddings, head, the last norm
    words = len(AutoTokenizer.from_pretrained("models/Mistral-7B-v0.1"))
    assert f"{12 * (4 * 64**2 + 3 * 64 * 168 + 2 * 64) + 2 * words * 64 + 64:,} shared" in shown
    assert "8 clients on 1 worker" in shown


def test_the_small_one_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import openfedllm_rows as rows  # type: ignore[import-not-found]

    rows.write(Path("data/openfedllm/small_sft.jsonl"), rows.made_sft(clients=4, each=20))
    assert main(["--config", "diloco/made", "--set", "rounds=2", "client.steps=3", "run.export=none"]) == 0
    results: dict[str, Any] = json.loads(Path("runs/made/results.json").read_text())
    assert results["rounds"] == 2 and len(results["clients"]) == 4
    assert main(["--config", "diloco/streamed", "--set", "rounds=3", "client.steps=2", "run.export=none"]) == 0
    results = json.loads(Path("runs/streamed/results.json").read_text())
    assert results["rounds"] == 3 and len(results["clients"]) == 4
