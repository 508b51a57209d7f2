"""Adapters in federations over data of one's own: a plain loop's bits, bytes, files, and what they start from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from own_rows import BERT, CLIENTS, GPT2, T5, classifier, completer, tagger, translator, weather, write_rows
from own_rows import names as tagged
from peft import LoraConfig, PeftModel, get_peft_model
from plain_loop import Rows, assert_same_bits, plain_loop, rows_and_tokenizer
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from fedtorch.algorithms.adapters.stacks import FedEx, FLoRA
from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.compression.compressors import TopK
from fedtorch.config.schema import CheckpointConfig, ClientConfig, EvalConfig, PartitionConfig
from fedtorch.core.client import folder_name
from fedtorch.core.seeds import seed_for
from fedtorch.data.own.client_rule import ClientRule
from fedtorch.lifecycle.export import export
from fedtorch.main import main
from fedtorch.models.pretrained import save_model, save_tokenizer
from fedtorch.models.saved import load_saved
from fedtorch.report.command_line import main as report
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import build
from fedtorch.tasks.own import OwnTask
from fedtorch.tracking.tracker import Tracker

pytestmark = pytest.mark.long

LORA = {"kind": "lora", "r": 2, "alpha": 8, "dropout": 0.1}
ONE = ClientRule(iid=1)


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("adapters"))
        write_rows(Path("rows.jsonl"), weather())
        write_rows(Path("names.jsonl"), tagged())
        pairs = [{"prompt": row["text"], "completion": row["label"], "home": row["home"]} for row in weather()]
        write_rows(Path("said.jsonl"), pairs)
        write_rows(Path("sources.jsonl"), [{"source": row["text"], "target": row["label"], "home": row["home"]}
                                           for row in weather()])  # fmt: skip
        base = classifier("rows.jsonl")
        save_model(base.build_model(3), Path("base"))  # a base whose head has the wrong size and is drawn anew
        save_tokenizer(base.vocabulary, Path("base"))
        yield


def trained(folder: Path, task: OwnTask, rounds: int = 1, **changes: Any) -> Runner:
    settings = ClientConfig(optimizer="adamw", lr=1e-2, batch_size=4)
    changes = {"client": settings, "eval": EvalConfig(every=0), **changes}
    runner = make_runner(make_config(folder, task, **{"rounds": rounds, **changes}))
    runner.run()
    return runner


def test_one_client_equals_a_plain_loop_over_peft(tmp_path: Path) -> None:
    """Dropout of the adapter included."""
    task = classifier("rows.jsonl", model={**BERT, "adapter": LORA}, data={"clients": ONE})
    runner = trained(tmp_path, task, rounds=2)
    rows, tokenizer = rows_and_tokenizer(task)
    plain = classifier("rows.jsonl", data={"clients": ONE}).build_model(0)
    torch.manual_seed(seed_for(0, "adapter"))
    config = LoraConfig(r=2, lora_alpha=8, lora_dropout=0.1, target_modules=["query", "value"],
                        modules_to_save=["classifier"])  # fmt: skip
    model = get_peft_model(plain, config)

    def loss(batch: Rows) -> torch.Tensor:
        inputs = tokenizer([row["text"] for row in batch], padding=True, return_tensors="pt")
        labels = torch.tensor([["bad", "good"].index(row["label"]) for row in batch])
        found: torch.Tensor = model(**inputs, labels=labels).loss
        return found

    expected = plain_loop(model, rows, loss, partial(torch.optim.AdamW, fused=True), 1e-2, rounds=2)
    assert_same_bits(runner.context.server.weights, expected, most=1e-15)


def test_a_round_sends_the_factors_and_the_head_and_nothing_else(tmp_path: Path) -> None:
    task = classifier("rows.jsonl", model={**BERT, "adapter": LORA})
    runner = trained(tmp_path, task, checkpoint=CheckpointConfig(every=1))
    numbers = 2 * 2 * (16 + 16) + 16 * 2 + 2  # r (d_in + d_out) of queries and values, and a head of two labels
    sent = runner.context.comm.meter.totals()
    assert runner.components.engine.shared.size == numbers
    assert sent["aggregate/bytes_up"] == 4 * numbers * len(CLIENTS)
    assert sent["broadcast/bytes_down"] == 2 * 4 * numbers * len(CLIENTS)  # before the round, and to be evaluated
    written = [load_file(path) for path in tmp_path.rglob("*.safetensors")]
    largest = max(tensor.numel() for tensors in written for tensor in tensors.values())
    assert written and largest == numbers  # the base is in no checkpoint


def test_of_fed_sb_the_squares_and_the_head_are_sent_and_nothing_is_lost(tmp_path: Path) -> None:
    task = classifier("rows.jsonl", model={**BERT, "adapter": {"kind": "sb", "r": 4}})
    folder = tmp_path / "run"
    tracker = Tracker(folder, clients=list(CLIENTS), rounds=2)
    tracker.working = lambda text: None  # type: ignore[method-assign]
    client = ClientConfig(optimizer="adamw", lr=1e-2, batch_size=4)
    config = make_config(folder, task, rounds=2, client=client, eval=EvalConfig(every=0))
    runner = make_runner(config, tracker=tracker)
    runner.run()
    numbers = 2 * 16 + 16 * 2 + 2
    assert runner.components.engine.shared.size == numbers
    assert runner.context.comm.meter.totals()["aggregate/bytes_up"] == 2 * 4 * numbers * len(CLIENTS)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["extra"]["adapter/aggregation_error"] for line in lines if line["kind"] == "round"] == [0.0, 0.0]
    runner.export(tmp_path / "model")
    ids, model = torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]]), runner.components.engine.module.eval()
    with torch.no_grad():
        assert torch.equal(load_saved(tmp_path / "model")[0](input_ids=ids).logits, model(input_ids=ids).logits)


ALL = {
    "classes": lambda **model: classifier("rows.jsonl", model={**BERT, **model}),
    "words": lambda **model: tagger("names.jsonl", model={**BERT, **model}),
    "texts": lambda **model: translator("sources.jsonl", model={**T5, **model}),
    "continued": lambda **model: completer("said.jsonl", model={**GPT2, **model}),
}


@pytest.mark.parametrize("kind", ALL)
def test_the_saved_adapter_gives_the_logits_of_the_evaluation(kind: str, tmp_path: Path) -> None:
    task: Any = ALL[kind](adapter=LORA)
    runner = trained(tmp_path / "run", task)
    runner.export(tmp_path / "model")
    model = runner.components.engine.module.eval()
    ids = torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})
    config = AutoConfig.from_pretrained(tmp_path / "model" / "model_config.json")
    base = type(model).from_pretrained(tmp_path / "model" / "base", config=config)
    with torch.no_grad():
        evaluated = model(**inputs).logits
        assert torch.equal(PeftModel.from_pretrained(base, tmp_path / "model").eval()(**inputs).logits, evaluated)
        assert torch.equal(load_saved(tmp_path / "model")[0](**inputs).logits, evaluated)
        again = task.trained(tmp_path / "model").build_model(1).eval()
        assert torch.equal(again(**inputs).logits, evaluated)


@pytest.mark.parametrize("rule", [FLoRA, FedEx])
@pytest.mark.parametrize("kind", ["classes", "continued"])
def test_what_joined_the_base_is_in_the_saved_adapter(kind: str, rule: Any, tmp_path: Path) -> None:
    task: Any = ALL[kind](adapter=LORA)
    runner = trained(tmp_path / "run", task, rounds=2, algorithm=rule(ranks={next(iter(task.manifest())): 1}))
    runner.export(tmp_path / "model")
    model = runner.components.engine.module.eval()
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])}
    config = AutoConfig.from_pretrained(tmp_path / "model" / "model_config.json")
    base = type(model).from_pretrained(tmp_path / "model" / "base", config=config)
    start = task.build_model(runner.components.config.run.seed).eval()
    with torch.no_grad():
        evaluated = model(**inputs).logits
        assert (evaluated - start(**inputs).logits).abs().max() > 1e-3
        for loaded in (PeftModel.from_pretrained(base, tmp_path / "model").eval(), load_saved(tmp_path / "model")[0],
                       task.trained(tmp_path / "model").build_model(1).eval()):  # fmt: skip
            assert (loaded(**inputs).logits - evaluated).abs().max() < 1e-5
        assert task.save_merged(model, tmp_path / "whole")
        whole = type(model).from_pretrained(tmp_path / "whole").eval()
        assert (whole(**inputs).logits - evaluated).abs().max() < 1e-5


def test_an_adapter_on_a_base_from_a_folder_is_saved_alone_with_what_the_base_lacks(tmp_path: Path) -> None:
    model = {"path": "base", "adapter": LORA}
    rows = [{**row, "label": f"{row['label']}{number % 2}"} for number, row in enumerate(weather())]
    write_rows(Path("four.jsonl"), rows)
    runner = trained(tmp_path / "run", classifier("four.jsonl", model=model))
    runner.export(tmp_path / "model")
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "model_config.json"} <= names
    assert not {"config.json", "base", "model.safetensors"} & names
    told = json.loads((tmp_path / "model" / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == str(Path("base").resolve())
    evaluated = runner.components.engine.module.eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    base = AutoModelForSequenceClassification.from_pretrained("base", num_labels=4, ignore_mismatched_sizes=True)
    loaded = PeftModel.from_pretrained(base, tmp_path / "model").eval()
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, evaluated(input_ids=ids).logits)
    facts = [build(make_config(tmp_path, classifier("four.jsonl", model=model)), num_ranks=1, rank=0).facts()]
    path = Path("base/model.safetensors")
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\1\0")
    facts.append(build(make_config(tmp_path, classifier("four.jsonl", model=model)), num_ranks=1, rank=0).facts())
    assert facts[0]["base model.safetensors"] != facts[1]["base model.safetensors"]  # a difference names the file


def test_private_factors_are_evaluated_and_saved_for_each_client(tmp_path: Path) -> None:
    """FedSA-LoRA: A is shared, B and the head stay."""
    partition = PartitionConfig(private=("*lora_B*", "classifier.*"))
    runner = trained(tmp_path / "run", classifier("rows.jsonl", model={**BERT, "adapter": LORA}), partition=partition)
    assert runner.components.engine.shared.size == 2 * 2 * 16
    runner.export(tmp_path / "models")
    name = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_{}.weight"
    saved = [load_file(tmp_path / "models" / folder_name(client) / "adapter_model.safetensors") for client in CLIENTS]
    assert all(torch.equal(one[name.format("A")], saved[0][name.format("A")]) for one in saved)
    assert not any(torch.equal(one[name.format("B")], saved[0][name.format("B")]) for one in saved[1:])


def test_a_run_is_merged_on_demand(tmp_path: Path, capsys: Any) -> None:
    config = f"""
task: {{name: causal_lm, model: {{random: gpt2, n_layer: 1, n_embd: 16, n_head: 2, n_positions: 64,
  adapter: {{kind: lora, r: 2}}}}, data: {{source: said.jsonl, clients: {{by: home}}, tokenizer_size: 270,
  splits: {{dev: 0.25, test: 0.25}}}}, max_length: 64, generate: {{max_new_tokens: 4}}}}
run: {{dir: {tmp_path / "run"}, name: one}}
rounds: 1
track: {{tensorboard: false}}
eval: {{every: 0}}
"""
    Path("one.yaml").write_text(config)
    assert main(["--config", "one.yaml"]) == 0
    run = tmp_path / "run"
    card = (run / "model" / "README.md").read_text()
    assert 'AutoModelForCausalLM.from_pretrained("FOLDER")  # finds base and adapter' in card.replace(str(run), "")
    assert report(["adapters", str(run)]) == 0
    row = capsys.readouterr().out.splitlines()[-1].split(" | ")
    # rows of train and rounds; bytes of r (d_in + d_out) of one layer and some text; the error is there, and small
    assert row[1:5] == ["fedavg", "2", "18", "1"] and 4 * 2 * 64 * 3 / 1e6 <= float(row[5]) < 0.01
    assert 0 <= float(row[7]) < 1 and row[9].endswith("log_likelihood |")
    export(run, merge=True, out=tmp_path / "whole")
    whole, adapted = AutoModelForCausalLM.from_pretrained(tmp_path / "whole").eval(), load_saved(run / "model")[0]
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        difference = (whole(input_ids=ids).logits - adapted(input_ids=ids).logits).abs().max()
    assert difference < 1e-5 and not (tmp_path / "whole" / "adapter_config.json").exists()


@pytest.mark.parametrize(
    ("compression", "exchanges"),
    [("topk", ("dense", "star", "replicated", "allreduce")), ("quantise", ("dense", "star", "replicated"))],
)
def test_compressed_messages_go_over_an_adapter_as_over_any_parameters(
    compression: Any, exchanges: Sequence[Any], tmp_path: Path
) -> None:
    """The same bits by every exchange; what travels has the adapter's size."""
    task, found = classifier("rows.jsonl", model={**BERT, "adapter": LORA}), set()
    for exchange in exchanges:
        algorithm = FedAssistant(payload="delta", compression=compression, topk=TopK(ratio=0.1), exchange=exchange)
        runner = trained(tmp_path / exchange, task, rounds=3, algorithm=algorithm)
        found.add(runner.result.digest)
        size, sent = runner.components.engine.shared.size, runner.context.comm.meter.totals()["aggregate/bytes_up"]
        assert sent == 4 * size * 3 * len(CLIENTS) if exchange == "dense" else sent < 2 * size * 3 * len(CLIENTS)
    assert len(found) == 1
