"""What a task is that says only what it must, and what the keys of tasks mean where a config leaves them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from own_rows import LLAMA, classifier, completer, tagger, translator
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from fedtorch.core.errors import ConfigError
from fedtorch.core.scores import LOSS
from fedtorch.models.adapters.lora import with_adapter
from fedtorch.models.adapters.settings import Adapter
from fedtorch.tasks.base import Merged, Task
from fedtorch.tasks.causal_lm import CausalLM
from fedtorch.tasks.dialog import Dialog
from fedtorch.tasks.fewshot import Example as FewShotExample
from fedtorch.tasks.fewshot import FewShotTasks
from fedtorch.tasks.own import OwnTask
from fedtorch.tasks.prepared import Prepared
from fedtorch.tasks.qa import QA
from fedtorch.tasks.seq2seq import Seq2Seq
from fedtorch.tasks.text2sql import Text2SQL
from fedtorch.tasks.text_classification import TextClassification
from fedtorch.tasks.text_generation import Generation, TextTask
from fedtorch.tasks.token_classification import TokenClassification
from fedtorch.tasks.wikisql import WikiSQL

ALL = {"max_train": None, "max_dev": None, "max_test": None}
OWN = {"tokenizer": None, "max_length": 512, "truncate": "right", "client_weight": "examples"}
DEFAULTS: list[tuple[type, dict[str, Any]]] = [
    (Prepared, {"data": "synthetic", **ALL}),
    (OwnTask, OWN),
    (TextTask, {"measures": ("exact_match",), "template": None, **OWN}),
    (Generation, {"max_new_tokens": 64, "num_beams": 1}),
    (Seq2Seq, {"max_target_length": 128, **OWN}),
    (CausalLM, {"rows_are": "completion", "loss_on": "answer", "chat_template": None, "pack": False, "measures": ()}),
    (TextClassification, {"problem": "single_label", "class_weights": None, **OWN}),
    (TokenClassification, {"annotation": "words", **OWN}),
    (FewShotTasks, {"tokenizer": None, "template": "paper", "input_max_length": 512, "output_max_length": 64,
                    "strip": True}),
    (Text2SQL, {"tokenizer": None, "add_tokens": (), "input_max_length": 1024, "output_max_length": 512,
                "em_normalise": True, "em_strings": False, **ALL}),
    (WikiSQL, {"data": "synthetic", "max_length": 96, "head_dropout": 0.2, "attention": False, "masked_words": False,
               "server_labelled": 1000, "num_clients": 1000, "client_size": (20, 40), "deal_seed": 0,
               "max_words": None, "batch_unit": "row", "client_input": "pair", "parts": 16, "max_dev": None,
               "max_test": None}),
    (QA, {"max_lengths": (10, 100), "objective": "hinge", "pairs": "all", "max_positives": None, "no_positive": "zero",
          "cover_queries": 0, "cover_clusters": 20, **ALL}),
    (Dialog, {"sides": "two", "kv_grad": "detached", "kv_transfer": "increment", "kv_dtype": "model",
              "predict_first": True, "max_length": 1024, "tokenizer": None, **ALL}),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "known"), DEFAULTS, ids=[cls.__name__ for cls, _ in DEFAULTS])
def test_a_key_that_an_old_config_leaves_out_means_what_it_meant(cls: type, known: dict[str, Any]) -> None:
    found = {one.name: one.default for one in fields(cls) if one.default is not MISSING}
    assert {name: found[name] for name in known} == known


def test_a_row_of_a_gym_has_no_weights_and_is_nobodys_label_unless_it_says_so() -> None:
    row = FewShotExample("task", [1], [[2]], ["a"])
    assert row.weights is None and not row.is_pseudo


@dataclass(frozen=True)
class Least(Task):
    """Clients, and nothing else of its own."""

    sizes: Mapping[str, Mapping[str, int]]
    """client -> split -> examples"""

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """`sizes`."""
        return self.sizes


def test_a_task_that_says_nothing() -> None:
    task = Least({"a": {"train": 3, "test": 1}, "b": {"test": 2}})
    assert task.server_examples() == 0 and not task.passes_together(2)
    assert task.evaluates_loss and task.has_labelled_clients and not task.takes_metrics and task.cost("a") == 1.0
    assert task.metrics() == task.single_metrics() == ("accuracy",) and task.largest_size(7) == 7
    assert list(task.eval_batches([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert Merged(parts=task).manifest() == {"all": {"train": 3}}  # a client that trains nothing adds nothing


def test_a_model_without_an_adapter_is_merged_with_nothing(tmp_path: Path) -> None:
    saved: list[list[str]] = []

    @dataclass(frozen=True)
    class Saves(Least):
        """Notes what would be written."""

        def save_model(self, model: nn.Module, folder: Path) -> None:
            """The model's weights."""
            saved.append([name for name, _ in model.named_parameters()])

    task = Saves({})
    assert not task.save_merged(nn.Linear(2, 2), tmp_path) and saved == []
    settings = {name: value for name, value in LLAMA.items() if name != "random"}
    model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=32, **settings))
    adapted = with_adapter(model, Adapter(r=2), 0, None)
    assert task.save_merged(adapted, tmp_path) and len(saved) == 1


def test_what_chooses_the_best_round_and_what_can_be_asked_for(tmp_path: Path) -> None:
    source = str(tmp_path / "rows.jsonl")  # which need not be there
    assert translator(source).chooses_by() == LOSS
    assert translator(source, model={"path": "models/t5"}).chooses_by() == "exact_match"
    assert classifier(source).takes_metrics and classifier(source).has_labels and tagger(source).has_labels
    assert not classifier(source, problem="regression").has_labels
    assert not QA.evaluates_loss and not Dialog.evaluates_loss


def test_a_share_is_of_questions_to_train_on_and_at_least_one() -> None:
    task = QA(train_share={"a": 0.1})
    assert task.limit("a", "train", 100) == 10 and task.limit("a", "train", 3) == 1
    assert task.limit("b", "train", 100) == task.limit("a", "dev", 100) == 100
    assert QA(train_share={"a": 0.5}, max_train=20).limit("a", "train", 100) == 10  # of what is left


def test_messages_and_plain_text_have_no_template(tmp_path: Path) -> None:
    source = str(tmp_path / "rows.jsonl")
    completer(source, rows_are="messages")
    completer(source, rows_are="text", measures=())
    completer(source, template="{prompt}!")
    with pytest.raises(ConfigError, match="task.rows_are is messages, whose form is task.chat_template's"):
        completer(source, rows_are="messages", template="{prompt}")
    with pytest.raises(ConfigError, match="task.rows_are is text, which has no prompt"):
        completer(source, rows_are="text", template="{text}")
