"""What a layer of a config replaces: another choice takes all that belonged to the former, and leaves the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedtorch.config.load import companions, load, to_dict
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError

NOTES = """
task:
  name: text_classification
  model: {random: bert, hidden_size: 64, num_hidden_layers: 2, adapter: {kind: lora, r: 4}}
  data: {source: notes.jsonl, clients: {by: site}, splits: {dev: 0.2}}
"""


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.yaml").write_text(NOTES)


def loaded(*overrides: str, over: str = "") -> Config:
    Path("over.yaml").write_text(over)
    return load(["notes.yaml", "over.yaml"] if over else "notes.yaml", overrides)


def rule(config: Config) -> dict[str, Any]:
    """What the config says of clients."""
    clients = to_dict(config)["task"]["data"]["clients"]
    return {key: value for key, value in clients.items() if value is not None}


def model(config: Config) -> dict[str, Any]:
    """What it says of the model."""
    return dict(to_dict(config)["task"]["model"])


@pytest.mark.long
@pytest.mark.parametrize("written", ["task.data.clients={iid: 3}", "task.data.clients.iid=3"])
def test_another_rule_for_clients_takes_the_place_of_the_one_below(written: str) -> None:
    assert rule(loaded(written)) == {"iid": 3}


def test_what_stands_beside_a_choice_stays() -> None:
    config = loaded("task.data={clients: {iid: 3}, splits: {test: 0.3}}")
    assert (config.task.data.splits.dev, config.task.data.splits.test) == (0.2, 0.3)
    assert config.task.data.source == "notes.jsonl"


def test_a_file_that_is_laid_over_another_chooses_as_the_command_line_does() -> None:
    over = "task: {data: {clients: {dirichlet: {alpha: 1, number: 4}}}, model: {path: m}}"
    config = loaded(over=over)
    assert set(rule(config)) == {"dirichlet"} and "random" not in model(config)
    Path("row.yaml").write_text(f"base: notes.yaml\n{over}")
    assert load("row.yaml").task == config.task


def test_a_run_beside_this_one_chooses_as_the_command_line_does() -> None:
    config = loaded("compare=[{task: {data: {clients: {iid: 2}}, model: {path: m}}}]")
    (beside,) = companions(config).values()
    assert rule(config) == {"by": "site"} and rule(beside) == {"iid": 2}
    assert beside.task.source_model.path == "m"


def test_a_number_that_belongs_to_another_rule_goes_with_it() -> None:
    over = "task: {data: {clients: {sizes: linear, number: 6}}}"
    assert rule(loaded(over=over)) == {"sizes": "linear", "number": 6}
    assert rule(loaded("task.data.clients.by=ward", over=over)) == {"by": "ward"}
    assert rule(loaded("task.data.clients.number=7", over=over)) == {"sizes": "linear", "number": 7}


def test_the_same_choice_again_changes_what_it_names_and_keeps_the_rest() -> None:
    over = "task: {data: {clients: {dirichlet: {alpha: 1, number: 4, min_size: 3}}}}"
    found = rule(loaded("task.data.clients={dirichlet: {alpha: 0.1}}", over=over))["dirichlet"]
    assert (found["alpha"], found["number"], found["min_size"]) == (0.1, 4, 3)
    assert model(loaded("task.model.num_hidden_layers=1"))["hidden_size"] == 64


@pytest.mark.parametrize("written", ["task.model={path: m}", "task.model.path=m"])
def test_a_folder_takes_the_place_of_a_random_model_and_of_its_sizes(written: str) -> None:
    found = model(loaded(written))
    assert set(found) == {"path", "adapter"}  # of either model


def test_a_random_model_takes_the_place_of_a_folder() -> None:
    over = "task: {model: {path: m, hidden_dropout_prob: 0.2}}"
    assert set(model(loaded("task.model={random: bert, hidden_size: 32}", over=over))) == {
        "random",
        "hidden_size",
        "adapter",
    }


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_what_one_command_sets_of_a_choice_does_not_matter(order: int) -> None:
    sizes = ["task.data.clients.sizes=linear", "task.data.clients.number=4"]
    assert rule(loaded(*sizes[::order])) == {"sizes": "linear", "number": 4}
    path = ["task.model.path=m", "task.model.hidden_dropout_prob=0.3"]
    assert set(model(loaded(*path[::order]))) == {"path", "hidden_dropout_prob", "adapter"}


def test_the_last_of_two_choices_in_one_command_counts() -> None:
    assert rule(loaded("task.data.clients.iid=3", "task.data.clients.by=ward")) == {"by": "ward"}


def test_two_choices_in_one_mapping_are_refused() -> None:
    with pytest.raises(ConfigError, match="found by and iid; give one of"):
        loaded("task.data.clients={by: ward, iid: 3}")
    with pytest.raises(ConfigError, match="task.model has path and random"):
        loaded("task.model={path: m, random: bert}")


def test_a_robust_rule_replaces_the_fields_of_another_one() -> None:
    over = "algorithm: {robust: {name: trimmed_mean, trim: 0.2}}"
    assert loaded("algorithm.robust={name: median}", over=over).algorithm.robust["name"] == "median"
    assert loaded("algorithm.robust={trim: 0.3}", over=over).algorithm.robust["trim"] == 0.3
    assert loaded("algorithm.robust.trim=0.3", over="algorithm: {robust: trimmed_mean}").algorithm.robust["trim"] == 0.3


def test_a_task_that_a_later_layer_replaces_need_not_exist() -> None:
    Path("notes.yaml").write_text(NOTES.replace("name: text_classification", "name: of_tomorrow"))
    config = loaded("task.name=text_classification", over="task: {data: {splits: {test: 0.3}}}")
    assert config.task_name == "text_classification"
