"""Folders of adapters load by the usual ways of transformers and peft, from anywhere, and ask no network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from harness import make_config, make_runner
from own_rows import BERT, GPT2, LLAMA, T5, classifier, completer, tagger, translator, weather, write_rows
from own_rows import names as tagged
from safetensors.torch import load_file

from fedtorch.config.schema import ClientConfig, EvalConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.model_folder import is_saved
from fedtorch.models.adapters import saved
from fedtorch.models.adapters.lora import add_adapter
from fedtorch.models.adapters.settings import Adapter
from fedtorch.models.pretrained import save_model, save_tokenizer
from fedtorch.models.saved import load_model as load_saved_model
from fedtorch.models.saved import load_saved
from fedtorch.tasks.own import OwnTask
from fedtorch.text import pretrained

LORA = {"kind": "lora", "r": 2, "alpha": 8}
INPUTS = {"input_ids": torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])}
KINDS: dict[str, tuple[Any, str, dict[str, Any], str, str]] = {
    "labels": (classifier, "four.jsonl", BERT, "SequenceClassification", "SEQ_CLS"),
    "tags": (tagger, "names.jsonl", BERT, "TokenClassification", "TOKEN_CLS"),
    "texts": (translator, "sources.jsonl", T5, "Seq2SeqLM", "SEQ_2_SEQ_LM"),
    "continued": (completer, "said.jsonl", GPT2, "CausalLM", "CAUSAL_LM"),
    "llama": (completer, "said.jsonl", LLAMA, "CausalLM", "CAUSAL_LM"),
}


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("folders"))
        rows = weather()
        write_rows(
            Path("four.jsonl"), [{**row, "label": f"{row['label']}{number % 2}"} for number, row in enumerate(rows)]
        )
        write_rows(Path("names.jsonl"), tagged())
        for name, columns in (("said", ("prompt", "completion")), ("sources", ("source", "target"))):
            pairs = [
                dict(zip(columns, (row["text"], row["label"]), strict=True)) | {"home": row["home"]} for row in rows
            ]
            write_rows(Path(f"{name}.jsonl"), pairs)
        yield


def based(kind: str, folder: Path) -> dict[str, Any]:
    """`task.model` with a base on disk, as others save it: it has no head for these labels."""
    make, source, model, head, _ = KINDS[kind]
    task = make(source, model=model)
    built = task.build_model(3)
    save_model(built.bert if head.endswith("Classification") else built, folder)
    if head.endswith("Classification"):
        told = json.loads((folder / "config.json").read_text())
        for key in ("id2label", "label2id", "problem_type"):
            told.pop(key, None)
        (folder / "config.json").write_text(json.dumps(told))
    save_tokenizer(task.vocabulary, folder)
    return {"path": str(folder), "adapter": LORA}


def exported(kind: str, model: dict[str, Any], folder: Path) -> tuple[OwnTask, Any]:
    """(the task, the model that was evaluated) of a run whose model is then in `folder`."""
    make, source, *_ = KINDS[kind]
    task = make(source, model=model)
    client = ClientConfig(optimizer="adamw", lr=5e-2, batch_size=4)
    runner = make_runner(make_config(folder.parent / "run", task, rounds=1, client=client, eval=EvalConfig(every=0)))
    runner.run()
    runner.export(folder)
    return task, runner.components.engine.module.eval()


def logits(model: Any) -> torch.Tensor:
    inputs = INPUTS | ({"decoder_input_ids": INPUTS["input_ids"]} if model.config.is_encoder_decoder else {})
    with torch.no_grad():
        found: torch.Tensor = model.eval()(**inputs).logits
    return found


@pytest.mark.long
@pytest.mark.parametrize("has_base", [True, False], ids=["folder", "random"])
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_and_peft_find_base_and_adapter(
    kind: str, has_base: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = based(kind, tmp_path / "base") if has_base else {**KINDS[kind][2], "adapter": LORA}
    task, evaluated = exported(kind, model, tmp_path / "model")
    *_, head, task_type = KINDS[kind]
    wanted, is_labelled = logits(evaluated), head.endswith("Classification")
    assert (wanted - logits(task.build_model(0))).abs().max() > 1e-3  # it has learned
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    auto, auto_peft = getattr(transformers, f"AutoModelFor{head}"), getattr(peft, f"AutoPeftModelFor{head}")
    settings: dict[str, Any] = {}
    if is_labelled and has_base:  # which has a head for two
        settings["num_labels"] = evaluated.config.num_labels
        with pytest.raises(RuntimeError):
            auto.from_pretrained("../model")
    config = transformers.AutoConfig.from_pretrained("../model/model_config.json")
    assert config.id2label == evaluated.config.id2label
    for loaded in (
        auto.from_pretrained("../model", **settings),
        auto.from_pretrained("../model", config=config),
        auto_peft.from_pretrained("../model", **settings),
        load_saved(Path("../model"))[0],
    ):
        assert (logits(loaded) - wanted).abs().max() < 1e-6  # peft adds in another order than one kernel of ours
    again = task.trained(tmp_path / "model")
    assert (logits(again.build_model(1)) - wanted).abs().max() < 1e-6
    told = json.loads((tmp_path / "model" / "adapter_config.json").read_text())
    assert told["task_type"] == task_type
    assert told["auto_mapping"]["base_model_class"] == type(evaluated).__name__
    assert told["auto_mapping"]["parent_library"] == type(evaluated).__module__
    assert told["base_model_name_or_path"] == str(tmp_path / ("base" if has_base else "model/base"))
    assert not (tmp_path / "model" / "config.json").exists()
    assert len(transformers.AutoTokenizer.from_pretrained("../model")) == len(task.vocabulary)


def test_an_adapter_for_answers_to_questions_is_found_too(tmp_path: Path) -> None:
    """No task of ours puts one beside such a head; a task of one's own can."""
    sizes = {name: value for name, value in BERT.items() if name != "random"}
    config = transformers.AutoConfig.for_model("bert", vocab_size=99, **sizes)
    torch.manual_seed(1)
    save_model(transformers.AutoModelForQuestionAnswering.from_config(config), tmp_path / "base")
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "base").eval()
    add_adapter(model, Adapter(r=2), 0, heads=["qa_outputs"], base=str(tmp_path / "base"))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(0.0, 0.5)
    saved.save_adapted(model, tmp_path / "model")
    told = json.loads((tmp_path / "model" / "adapter_config.json").read_text())
    assert told["task_type"] == "QUESTION_ANS"
    found = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "model").eval()
    with torch.no_grad():
        wanted = model(**INPUTS)
        for side in ("start_logits", "end_logits"):
            assert (found(**INPUTS)[side] - wanted[side]).abs().max() < 1e-6
            assert torch.equal(load_saved_model(tmp_path / "model")(**INPUTS)[side], wanted[side])


def test_what_serves_decoders_finds_plain_factors_by_the_names_of_layers(tmp_path: Path) -> None:
    """vLLM reads r, lora_alpha and target_modules, takes no saved modules, and wants names that end in the factor's."""
    exported("llama", based("llama", tmp_path / "base"), tmp_path / "model")
    told = json.loads((tmp_path / "model" / "adapter_config.json").read_text())
    assert (told["r"], told["lora_alpha"], told["peft_type"], told["bias"]) == (2, 8, "LORA", "none")
    assert type(told["lora_alpha"]) is int and set(told["target_modules"]) == {"q_proj", "v_proj"}
    assert not told["modules_to_save"] and not told["use_dora"]
    layers = {f"base_model.model.model.layers.0.self_attn.{side}_proj.lora_{ab}.weight" for side in "qv" for ab in "AB"}
    assert set(load_file(tmp_path / "model" / "adapter_model.safetensors")) == layers


def test_a_pipeline_answers_with_the_names_of_the_labels(tmp_path: Path) -> None:
    task, _ = exported("labels", based("labels", tmp_path / "base"), tmp_path / "model")
    folder = str(tmp_path / "model")
    config = transformers.AutoConfig.from_pretrained(f"{folder}/model_config.json")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, config=config)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    classify = transformers.pipeline("text-classification", model, tokenizer=tokenizer)
    texts = [row["text"] for row in weather()[:6]]
    trained = task.trained(tmp_path / "model")
    answers = trained.answers(trained.build_model(0).eval(), [{"text": text, "where": ""} for text in texts], 6)
    assert [one["label"] for one in classify(texts)] == [answer["label"] for answer in answers]


def test_a_folder_that_was_moved_with_its_base_is_still_read_by_us(tmp_path: Path) -> None:
    _, evaluated = exported("labels", {**BERT, "adapter": LORA}, tmp_path / "model")
    wanted = logits(evaluated)
    (tmp_path / "model").rename(tmp_path / "moved")
    assert torch.equal(logits(load_saved(tmp_path / "moved")[0]), wanted)


@pytest.mark.parametrize("has_base", [True, False], ids=["folder", "random"])
def test_folders_of_earlier_versions_are_read(has_base: bool, tmp_path: Path) -> None:
    model = based("labels", tmp_path / "base") if has_base else {**BERT, "adapter": LORA}
    task, evaluated = exported("labels", model, folder := tmp_path / "model")
    (folder / "model_config.json").rename(folder / "config.json")
    told = json.loads((folder / "adapter_config.json").read_text()) | {"task_type": None, "auto_mapping": None}
    told["base_model_name_or_path"] = told["base_model_name_or_path"] if has_base else None
    (folder / "adapter_config.json").write_text(json.dumps(told))
    assert is_saved(folder)
    assert torch.equal(logits(load_saved(folder)[0]), logits(evaluated))
    assert torch.equal(logits(task.trained(folder).build_model(0)), logits(evaluated))


@pytest.mark.parametrize("name", ["hub:some/base", "some/base"])
def test_a_base_of_the_hub_is_named_as_there_and_fetched_only_where_the_config_names_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    based("labels", tmp_path / "base")
    asked: list[str] = []

    def fetched(name: str, **_: Any) -> str:
        asked.append(name)
        return str(tmp_path / "base")

    monkeypatch.setattr(pretrained, "snapshot_download", fetched)
    task, evaluated = exported("labels", {"path": name, "adapter": LORA}, folder := tmp_path / "model")
    told = json.loads((folder / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == "some/base" and asked
    asked.clear()
    for written in ("some/base", "hub:some/base"):  # the latter by earlier versions
        (folder / "adapter_config.json").write_text(json.dumps({**told, "base_model_name_or_path": written}))
        with pytest.raises(
            ConfigError, match="names the base 'some/base', which is no folder and not in the local hub"
        ):
            load_saved(folder)
        with pytest.raises(ConfigError, match="set base_model_name_or_path in that file"):
            classifier("four.jsonl").trained(folder)
        assert not asked
        assert torch.equal(logits(task.trained(folder).build_model(0)), logits(evaluated)) and asked  # hub: in config
        asked.clear()


def test_a_base_that_is_gone_is_named(tmp_path: Path) -> None:
    task, _ = exported("continued", based("continued", tmp_path / "base"), tmp_path / "model")
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(ConfigError, match="adapter_config.json names the base '.*base', which is no folder"):
        task.trained(tmp_path / "model")


def test_places_are_told_to_adapters_with_a_base_below_them_alone(tmp_path: Path) -> None:
    for name, has_base in (("one", True), ("two", False)):
        (tmp_path / "p" / name / ("base" if has_base else "")).mkdir(parents=True)
        (tmp_path / "p" / name / "adapter_config.json").write_text('{"base_model_name_or_path": "before"}')
    saved.tell_place(tmp_path / "p", tmp_path / "model")
    told = [json.loads((tmp_path / "p" / n / "adapter_config.json").read_text()) for n in ("one", "two")]
    assert [one["base_model_name_or_path"] for one in told] == [str(tmp_path / "model" / "one" / "base"), "before"]
