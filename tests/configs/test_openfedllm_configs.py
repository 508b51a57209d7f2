"""OpenFedLLM's rows: the values of its code, dry runs at full size where a model lies, and small runs that train."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from fedtorch.config.find import shipped
from fedtorch.config.load import load
from fedtorch.config.schema import Config
from fedtorch.main import main
from fedtorch.models.auto import AnyModel
from fedtorch.models.pretrained import save_model
from fedtorch.text.byte_bpe import train_subwords

FOLDER = shipped() / "openfedllm"
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
# algorithm, weights; the server's optimiser, rate, momentum; mu
ALGORITHMS: dict[str, tuple[str, str | None, str, float | None, float, float | None]] = {
    "fedavg": ("fedavg", "size", "none", None, 0.0, None),
    "fedprox": ("fedprox", "size", "none", None, 0.0, 0.01),
    "scaffold": ("scaffold", "equal", "none", None, 0.0, None),
    "fedavgm": ("fedavg", "size", "sgd", 0.1, 0.9, None),
    "fedadagrad": ("fedavg", "equal", "adagrad", 1e-3, 0.0, None),
    "fedyogi": ("fedavg", "equal", "yogi", 1e-3, 0.0, None),
    "fedadam": ("fedavg", "equal", "adam", 1e-3, 0.0, None),
    "local": ("local", None, "none", None, 0.0, None),
}


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example that writes rows, and an empty folder to be in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import openfedllm_rows  # type: ignore[import-not-found]

    return openfedllm_rows


def test_every_algorithm_that_the_code_compares_has_a_row_and_a_small_one() -> None:
    found = {path.stem.removeprefix("sft_") for path in (FOLDER / "rows").glob("sft_*.yaml")}
    small = {path.stem for path in (FOLDER / "small").glob("small_sft*.yaml")}
    assert found == set(ALGORITHMS) == {path.stem.removeprefix("dpo_") for path in (FOLDER / "rows").glob("dpo_*.yaml")}
    assert small == {f"small_sft_{name}" for name in found - {"fedavg"}} | {"small_sft"}


@pytest.mark.parametrize("kind", ["sft", "dpo"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_row_has_the_local_training_and_the_algorithm_of_the_code(algorithm: str, kind: str) -> None:
    config = load(f"openfedllm/{kind}_{algorithm}")
    client, adapter = config.client, config.task.source_model.adapter
    assert (config.rounds, client.steps, client.batch_size, client.accumulation) == (200, 10, 16, 1)
    assert (client.optimizer, client.weight_decay, client.betas, client.eps) == ("adamw", 0.0, (0.9, 0.999), 1e-8)
    assert (client.max_grad_norm, client.optimizer_state, client.schedule) == (1.0, "reset", "constant")
    assert (adapter.kind, adapter.dropout, adapter.targets, adapter.base) == ("lora", 0.05, "auto", "saved")
    assert config.paradigm == ("local" if algorithm == "local" else "federated")
    assert config.clients.per_round == ("all" if algorithm == "local" else 2)
    name, weights, optimizer, lr, momentum, mu = ALGORITHMS[algorithm]
    assert (config.algorithm_name, getattr(config.algorithm, "weights", None) if weights else None) == (name, weights)
    server = config.server
    assert (server.optimizer, server.lr, server.momentum) == (optimizer, lr, momentum)
    assert getattr(config.algorithm, "mu", None) == mu
    if optimizer in ("yogi", "adam", "adagrad"):
        assert (server.resolved().beta1, server.beta2) == (0 if optimizer == "adagrad" else 0.9, 0.99)
        assert server.tau == 1e-3 and not server.bias_correction


def rates(config: Config) -> list[float]:
    """Of the first round, the middle one, and the one that would follow the last."""
    return [config.client.in_round(round, config.rounds).lr for round in (0, 100, 200)]


def test_instruction_tuning_has_the_values_of_its_script() -> None:
    config = load("openfedllm/sft_fedavg")
    task, adapter = config.task, config.task.source_model.adapter
    assert rates(config) == pytest.approx([5e-5, 2.55e-5, 1e-6])
    assert (adapter.r, adapter.alpha, task.source_model.path) == (32, 64, "models/Llama-2-7b-hf")
    assert (config.task_name, task.max_length, task.loss_on) == ("causal_lm", 512, "answer")


def test_value_alignment_has_the_values_of_its_script() -> None:
    config = load("openfedllm/dpo_fedavg")
    task, adapter = config.task, config.task.source_model.adapter
    assert rates(config) == pytest.approx([5e-4, 2.55e-4, 1e-5])
    assert (adapter.r, adapter.alpha, task.source_model.path) == (8, 16, "models/Wizard-Vicuna-7B-Uncensored")
    assert (config.task_name, task.kind, task.beta, task.max_length) == ("preference", "dpo", 0.1, 512)


def alpaca(folder: Path, number: int) -> tuple[Path, Path]:
    """Rows as those of Alpaca-GPT4, and a template."""
    file, template = folder / "alpaca.json", folder / "template.txt"
    found = [{"instruction": f"do {i}", "input": "this" * (i % 2), "output": f"done {i}"} for i in range(number)]
    file.write_text("\n".join(map(json.dumps, found)))
    template.write_text("Order: {instruction}\nAnswer:")
    return file, template


def test_rows_are_drawn_and_dealt_as_datasets_does(rows: Any, tmp_path: Path) -> None:
    from datasets import Dataset

    file, template = alpaca(tmp_path, 103)
    found = list(rows.sft(file, template.read_text(), clients=4))
    assert Counter(row["client"] for row in found) == {
        "client_00": 26,
        "client_01": 26,
        "client_02": 26,
        "client_03": 25,
    }
    by_prompt = {row["prompt"]: row["completion"] for row in found}
    assert len(by_prompt) == 103 and by_prompt["Order: do 3 this\nAnswer:"] == " done 3"
    order = Dataset.from_dict({"i": range(103)}).shuffle(seed=2023).shuffle(seed=2023)["i"]
    assert [row["completion"] for row in found if row["client"] == "client_01"] == [f" done {i}" for i in order[1::4]]
    Dataset.from_list([json.loads(line) for line in file.read_text().splitlines()]).to_parquet("alpaca.parquet")
    assert list(rows.sft(Path("alpaca.parquet"), template.read_text(), clients=4)) == found


def test_dialogs_that_part_in_their_last_turn_are_a_prompt_with_two_whole_answers(rows: Any, tmp_path: Path) -> None:
    said = "\n\nHuman: Hello\n\nAssistant: Hi.\n\nHuman: Who?\n\nAssistant:"
    found = rows.pair(f"{said} I am A.", f"{said} I will not say.", "A talk.\n")
    assert found == {
        "prompt": "A talk. USER: Hello ASSISTANT: Hi.</s>USER: Who? ASSISTANT:",
        "chosen": " I am A.",
        "rejected": " I will not say.",
    }
    assert rows.pair(f"{said} A.", f"{said} A.", "") is None and rows.pair(f"{said} A.", f"{said} ", "") is None
    assert rows.pair(f"{said} A.", f"{said.replace('Hi', 'Ho')} B.", "") is None
    both = [{"chosen": f"{said} yes {i}", "rejected": f"{said} no {i}"} for i in range(11)]
    (tmp_path / "hh.jsonl").write_text("\n".join(map(json.dumps, both)))
    sizes = Counter(row["client"] for row in rows.dpo(tmp_path / "hh.jsonl", "A talk."))
    assert sizes == {f"client_0{i}": 3 if i == 0 else 2 for i in range(5)}


@pytest.fixture
def full_size(rows: Any, tmp_path: Path) -> None:
    """All that a row of full size names, with a model that is small."""
    file, template = alpaca(tmp_path, 200)
    rows.write(Path("data/openfedllm/sft.jsonl"), rows.sft(file, template.read_text()))
    said = "\n\nHuman: Who?\n\nAssistant:"
    both = [rows.pair(f"{said} yes {i}", f"{said} no {i}", "A talk.") for i in range(100)]
    rows.write(Path("data/openfedllm/dpo.jsonl"), [{"client": f"client_0{i % 5}"} | row for i, row in enumerate(both)])
    for name in ("Llama-2-7b-hf", "Wizard-Vicuna-7B-Uncensored"):
        small_llama(Path("models", name))


def small_llama(folder: Path) -> None:
    """A Llama with random weights, 16 wide, and its tokenizer."""
    train_subwords(["Order: do this 0 1 2 3 4 5 6 7 8 9\nAnswer: done"], folder, size=300)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    save_model(AnyModel.of({"random": "llama", **sizes}).build("CausalLM", 0, tokenizer), folder)


@pytest.mark.long
@pytest.mark.usefixtures("full_size")
def test_a_dry_run_of_every_row_says_what_travels_and_the_rates(capsys: pytest.CaptureFixture[str]) -> None:
    for algorithm in ALGORITHMS:
        assert main(["--config", f"openfedllm/sft_{algorithm}", "--dry-run"]) == 0, algorithm
        shown = capsys.readouterr().out
        assert "20 clients on 1 worker" in shown
        assert "round 1 5e-05, round 101 2.55e-05, round 200 1.00302e-06 (cosine)" in shown
        assert "traffic: 2,048 shared" in shown  # A and B of r = 32 beside queries and values that are 16 wide
    for algorithm in ALGORITHMS:
        assert main(["--config", f"openfedllm/dpo_{algorithm}", "--dry-run"]) == 0, algorithm
        shown = capsys.readouterr().out
        assert "5 clients on 1 worker" in shown and "traffic: 512 shared" in shown
        assert "round 1 0.0005, round 101 0.000255, round 200 1.00302e-05 (cosine)" in shown


SHRUNK = ("rounds=2", "client.steps=2", "eval.every=0", "run.export=none")


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedyogi", "local"])
def test_small_rows_train(algorithm: str, rows: Any) -> None:
    rows.write(Path("data/openfedllm/small_sft.jsonl"), rows.made_sft(clients=4, each=20))
    name = "small_sft" if algorithm == "fedavg" else f"small_sft_{algorithm}"
    assert main(["--config", f"openfedllm/{name}", "--set", *SHRUNK]) == 0
    assert json.loads(Path(f"runs/{name}/results.json").read_text())["rounds"] == 2


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "scaffold", "local"])
def test_value_alignment_trains_by_every_kind_of_algorithm(algorithm: str, rows: Any, tmp_path: Path) -> None:
    rows.write(Path("data/openfedllm/small_dpo.jsonl"), rows.made_dpo(clients=2, each=20))
    own = "" if algorithm == "fedavg" else f", {FOLDER / f'_{algorithm}.yaml'}"
    (tmp_path / "row.yaml").write_text(f"base: [openfedllm/small_dpo{own}]\n")
    assert main(["--config", "row.yaml", "--set", *SHRUNK]) == 0
    assert json.loads(Path("runs/row/results.json").read_text())["rounds"] == 2
