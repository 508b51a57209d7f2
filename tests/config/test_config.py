"""Reading, merging and checking of configs; every message a user can cause."""

from __future__ import annotations

import ast
import inspect
import string
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
from differences import difference
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st
from parsed import parse, read_without_libyaml

from fedtorch.algorithms.base import Algorithm
from fedtorch.config import schema as config
from fedtorch.config import system as config_system
from fedtorch.config.find import shipped
from fedtorch.config.load import companions, digest, load, to_dict, to_yaml
from fedtorch.config.masking import MASK
from fedtorch.config.result_keys import NO_EFFECT
from fedtorch.config.schema import ClientConfig, Config, ServerConfig
from fedtorch.core import settings as core_settings
from fedtorch.core.errors import ConfigError
from fedtorch.core.yaml_tree import merge, read, write
from fedtorch.data.own.keys import OwnData
from fedtorch.tasks.base import Task
from fedtorch.train import settings as train_settings


@dataclass(frozen=True)
class Shape:
    width: int = 8
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.width % 2:
            raise ValueError(f"width is {self.width}; set it to an even number")


@dataclass(frozen=True)
class Toy(Task):
    data: str = "toy"
    shape: Shape = field(default_factory=Shape)
    words: tuple[str, ...] = ()
    hub_token: str | None = None
    add_tokens: tuple[str, ...] = (" <",)


@dataclass(frozen=True)
class Mean(Algorithm):
    weights: Literal["size", "equal"] = "size"


@dataclass(frozen=True)
class Pulled(Mean):
    mu: float = 0.01
    required: int = field(kw_only=True)


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The toys above under short names, and an empty folder to work in."""
    toys = {"text2sql": f"{__name__}:Toy", "toy": f"{__name__}:Toy", "mapped": f"{__name__}:Mapped"}
    monkeypatch.setattr("fedtorch.tasks.TASKS", toys)
    toys = {"fedavg": f"{__name__}:Mean", "pulled": f"{__name__}:Pulled"}
    monkeypatch.setattr("fedtorch.algorithms.ALGORITHMS", toys | {"fedopt": "fedtorch.algorithms.fedavg:FedOpt"})
    monkeypatch.chdir(tmp_path)


def loaded(text: str, *overrides: str, name: str = "x.yaml") -> Config:
    Path(name).write_text(text, encoding="utf-8")
    return load(Path(name), overrides)


def message(text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(text, *overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_code_that_cannot_be_imported_names_the_line_that_failed() -> None:
    Path("mine_7392.py").write_text("import os\n\nnothing_there\n")
    assert "failed: NameError: name 'nothing_there' is not defined at mine_7392.py:3" in message(
        "algorithm: {name: 'mine_7392:My'}"
    )


# What is right


def test_an_empty_file_gives_a_valid_run_named_after_the_file() -> None:
    config = loaded("", name="first_try.yaml")
    assert (config.run.name, config.folder, config.run.seed) == ("first_try", Path("runs/first_try"), 0)
    assert (config.task, config.algorithm, config.paradigm) == (Toy(), Mean(), "federated")
    assert config.client == ClientConfig() and config.client.epochs == 1 and config.client.steps is None


@pytest.mark.parametrize(
    "text, expected",
    [
        ("client: {lr: 1e-3}", 1e-3),
        ("client: {lr: '1e-3'}", 1e-3),
        ("client: {lr: 1}", 1.0),
        ("client: {lr: .5}", 0.5),
        ("client: {lr: 1_0.5}", 10.5),
    ],
)
def test_numbers_in_all_spellings_become_floats(text: str, expected: float) -> None:
    found = loaded(text).client.lr
    assert found == expected and type(found) is float


def test_words_that_older_yaml_takes_for_booleans_stay_words() -> None:
    assert loaded("track: {progress: off}").track.progress == "off"
    assert loaded("task: {words: [yes, on, 1:30, 2026-01-01]}").task.words == ("yes", "on", "1:30", "2026-01-01")


def test_server_works_takes_a_word_or_a_boolean() -> None:
    assert [loaded(f"system: {{server_works: {v}}}").system.server_works for v in ("auto", "true", "false")] == [
        "auto",
        True,
        False,
    ]


def test_later_layers_win_mappings_merge_lists_and_null_replace() -> None:
    Path("sub").mkdir()
    Path("sub/one.yaml").write_text(
        "rounds: 1\ntask: {words: [a, b], shape: {width: 2, dropout: 0.5}}\ncompare: {rounds: 9}"
    )
    Path("sub/two.yaml").write_text("base: one.yaml\nrounds: 2\nclient: {lr: 0.5}")
    Path("three.yaml").write_text("client: {lr: 0.25, batch_size: 3}")
    config = loaded(
        "base: [sub/two.yaml, three.yaml]\ntask: {words: [c], shape: {width: 4}}\ncompare: null", "rounds=7"
    )
    assert (config.rounds, config.client.lr, config.client.batch_size) == (7, 0.25, 3)
    assert config.task == Toy(words=("c",), shape=Shape(4, 0.5)) and config.compare is None


def test_overrides_create_what_is_missing_and_the_last_one_wins() -> None:
    config = loaded("", "compare.paradigm=local", "per_client.a.lr=1e-2", "rounds=3", "rounds=4", "task.words=[x, y]")
    assert config.compare == {"paradigm": "local"} and config.rounds == 4 and config.task.words == ("x", "y")
    assert config.client_for("a").lr == 0.01 and config.client_for("b") is config.client


def test_per_client_changes_only_the_fields_it_names() -> None:
    config = loaded(
        "client: {optimizer: adam, lr: 1, batch_size: 4}\n"
        "per_client: {a: {lr: 2, betas: [0.5, 0.5]}, b: {epochs: null, steps: 5}, c: null}"
    )
    assert config.client_for("a") == ClientConfig("adam", 2.0, betas=(0.5, 0.5), batch_size=4)
    assert config.client_for("b") == ClientConfig("adam", 1.0, batch_size=4, steps=5)
    assert config.client_for("c") == config.client


def test_per_client_null_drops_the_entries_of_base_files() -> None:
    Path("low.yaml").write_text("per_client: {a: {lr: 2}}")
    assert loaded("base: low.yaml\nper_client: null").per_client == {}


@dataclass(frozen=True)
class Mapped(Toy):
    lengths: dict[str, tuple[int, int]] = field(default_factory=dict)
    shares: dict[str, float | None] = field(default_factory=lambda: {"z": 1.0})
    names: dict[str, str] | None = None
    parts: dict[str, Shape] = field(default_factory=dict)


def test_null_clears_a_mapping_of_a_base_config_and_drops_an_entry() -> None:
    Path("low.yaml").write_text(
        "task: {name: mapped, lengths: {a: [1, 2], b: [3, 4]}, shares: {a: 0.5}, names: {a: b},\n"
        "  parts: {a: {width: 2}}}\n"
        "system: {placement: pinned, pinned: {a: 1}}"
    )

    def task(*overrides: str) -> Mapped:
        config = loaded("base: low.yaml", *overrides)
        assert load(Path("x.yaml"), overrides) == config
        return config.task

    assert task().lengths == {"a": (1, 2), "b": (3, 4)}
    assert task("task.lengths=null").lengths == task("task.lengths=").lengths == {}
    assert task("task.lengths.a=null").lengths == {"b": (3, 4)}
    assert task("task.shares=null").shares == {} and task("task.names=null").names is None
    assert task("task.shares.a=null").shares == {"a": None}  # there null is a value
    assert task("task.parts.a=null").parts == {}
    assert loaded("base: low.yaml", "system.placement=balanced", "system.pinned=null").system.pinned == {}
    (compared,) = companions(loaded("base: low.yaml", "compare.task.lengths=null")).values()
    assert compared.task.lengths == {}
    assert "task.parts.a.width is null in --set" in message("base: low.yaml", "task.parts.a.width=null")


def test_a_new_name_keeps_the_fields_both_classes_have_and_drops_the_others() -> None:
    Path("low.yaml").write_text("algorithm: {name: pulled, required: 1, mu: 1, weights: equal}")
    config = loaded("base: low.yaml\nalgorithm: {name: fedavg}")
    assert config.algorithm == Mean("equal") and config.algorithm_name == "fedavg"
    assert message("base: low.yaml\nalgorithm: {name: fedavg, mu: 2}").startswith(
        "unknown key `algorithm.mu` in x.yaml:2;"
    )


def test_a_class_of_the_users_own_is_imported_from_the_working_folder(caplog: pytest.LogCaptureFixture) -> None:
    Path("mine_7391.py").write_text(
        "from dataclasses import dataclass\nfrom fedtorch.algorithms.base import Algorithm\n"
        "@dataclass(frozen=True)\nclass My(Algorithm):\n    k: int = 1\n"
    )
    text = "algorithm: {name: 'mine_7391:My', k: 5}"
    config = loaded(text)
    assert config.algorithm.k == 5 and config.algorithm_name == "mine_7391:My"
    assert loaded(to_yaml(config)) == config
    assert len([r for r in caplog.records if "mine_7391:My" in r.getMessage()]) == 1  # said once, not at every load
    assert "unknown key `algorithm.j` in x.yaml:1; choose one of k" in message(text.replace("k:", "j:"))


def test_fields_of_the_server_that_are_null_resolve_to_their_numbers() -> None:
    assert ServerConfig().resolved() == ServerConfig()
    assert ServerConfig("sgd").resolved().lr == 1.0
    assert [ServerConfig(name, 0.1).resolved().beta1 for name in ("adam", "yogi", "adagrad")] == [0.9, 0.9, 0.0]
    assert ServerConfig("adam", 0.1, beta1=0.5).resolved().beta1 == 0.5


def test_the_companion_is_this_run_with_the_changes_in_a_folder_of_its_own() -> None:
    assert companions(loaded("")) == companions(loaded("compare: []")) == {}
    config = loaded(
        "run: {dir: out}\nserver: {optimizer: sgd, lr: 0.5}\ncompare: {paradigm: local, client: {lr: 0.125}}"
    )
    other = companions(config)["local"]
    assert other.compare is None
    assert other.run == replace(config.run, name="x-local", dir=str(Path("out/compare")))
    assert difference(config, other) == [
        "paradigm was federated and is now local",
        "client.lr was 0.001 and is now 0.125",
    ]
    (named,) = companions(loaded("compare: {run: {name: beside, dir: there}}")).values()
    assert (named.run.name, named.folder) == ("beside", Path("there"))


def test_several_runs_stand_beside_this_one_each_in_its_folder() -> None:
    config = loaded(
        "run: {dir: out}\nserver: {optimizer: sgd, lr: 0.5}\nclients: {per_round: 3, max_norm_to_median: 9}\n"
        "per_client: {a: {lr: 2}}\npartition: {private: ['x.*']}\nalgorithm: {name: pulled, required: 1}\n"
        "eval: {point: trained, also_received: true}\n"
        "compare: [start, local, centralized, {run: {name: faster}, client: {lr: 1}}]"
    )
    found = companions(config)
    assert {label: str(other.folder) for label, other in found.items()} == {
        label: f"out/compare-{label}" for label in ("start", "local", "centralized", "faster")
    }
    assert [other.run.name for other in found.values()] == ["x-start", "x-local", "x-centralized", "faster"]
    alone = [
        "paradigm was federated and is now local",
        "clients.max_norm_to_median was 9.0 and is now null",
        "eval.also_received was true and is now false",
    ]
    assert difference(config, found["local"]) == alone
    assert difference(config, found["start"]) == [alone[0], "rounds was 10 and is now 0", *alone[1:]]
    assert (found["start"].run.export, found["local"].run.export) == ("none", "all")
    pooled = found["centralized"]
    assert (pooled.paradigm, pooled.algorithm, pooled.server) == ("centralized", Mean(), ServerConfig())
    assert pooled.per_client == {} and pooled.partition.private == () and pooled.clients.per_round == "all"
    assert pooled.client == replace(config.client, optimizer_state="keep") and pooled.rounds == config.rounds
    assert difference(config, found["faster"]) == ["client.lr was 0.001 and is now 1.0"]


# What is wrong

BAD = [
    ("algorithm: {weigths: size}", "unknown key `algorithm.weigths` in x.yaml:1; did you mean `weights`?"),
    ("rounds: 1\nclient:\n  lrr: 1", "unknown key `client.lrr` in x.yaml:3; did you mean `lr`?"),
    ("\nalgoritm: {}", "unknown key `algoritm` in x.yaml:2; did you mean `algorithm`?"),
    ("task: {shape: {wdth: 2}}", "unknown key `task.shape.wdth` in x.yaml:1; did you mean `width`?"),
    (
        "checkpoint: {zzz: 1}",
        "unknown key `checkpoint.zzz` in x.yaml:1; choose one of every, cost, lose, every_steps, every_seconds",
    ),
    ("task_name: a", "unknown key `task_name` in x.yaml:1; did you mean `task`?"),
    ("per_client: {atis: {lrr: 1}}", "unknown key `per_client.atis.lrr` in x.yaml:1; did you mean `lr`?"),
    (
        "compare: {rouds: 1}",
        "in the run that `compare` describes: unknown key `rouds` in x.yaml:1; did you mean `rounds`?",
    ),
    ("rounds: 1\nclient: {}\nrounds: 2", "x.yaml:3: duplicate key `rounds`, first given in line 1; remove one"),
    ("client:\n  lr: 1\n  lr: 2", "x.yaml:3: duplicate key `client.lr`, first given in line 2; remove one"),
    ("client: {lr: fast}", "client.lr is 'fast' in x.yaml:1 but should be a number at least 0"),
    ("client: {lr: -1}", "client.lr is -1 in x.yaml:1 but should be a number at least 0"),
    ("client: {lr: true}", "client.lr is true in x.yaml:1 but should be a number at least 0"),
    ("client: {lr: .nan}", "client.lr is nan in x.yaml:1 but should be a number at least 0"),
    ("client: {lr: null}", "client.lr is null in x.yaml:1 but should be a number at least 0"),
    ("client: {betas: [1, 2, 3]}", "client.betas is a list of 3 in x.yaml:1 but should be a list of 2: a number"),
    ("client: {betas: [0.5,\n 1]}", "client.betas.1 is 1 in x.yaml:2 but should be a number at least 0 and below 1"),
    ("eval: {every: true}", "eval.every is true in x.yaml:1 but should be an integer at least 0"),
    ("eval: {every: 1.0}", "eval.every is 1.0 in x.yaml:1 but should be an integer at least 0"),
    ("eval: {every: '5'}", "eval.every is '5' in x.yaml:1 but should be an integer at least 0"),
    ("eval: {patience: x}", "eval.patience is 'x' in x.yaml:1 but should be an integer at least 1 or null"),
    ("track: {tensorboard: 1}", "track.tensorboard is 1 in x.yaml:1 but should be true or false"),
    ("track: {progress: no}", "track.progress is 'no' in x.yaml:1 but should be auto or bar or lines or off"),
    (
        "clients: {per_round: some}",
        "clients.per_round is 'some' in x.yaml:1 but should be all or an integer at least 1",
    ),
    ("run: {name: 5}", "run.name is 5 in x.yaml:1 but should be a string"),
    ("run: {name: ../x}", "run.name is '../x' but it names a folder"),
    (
        "partition: {private: head}",
        "partition.private is 'head' in x.yaml:1 but should be a list of items that are each a string",
    ),
    ("server:\nrounds: 1", "server is null in x.yaml:1 but should be a mapping"),
    ("task: toy", "task is 'toy' in x.yaml:1 but should be a mapping"),
    ("per_client: {a: 1}", "per_client.a is 1 in x.yaml:1 but should be a mapping"),
    ("per_client: [a]", "per_client is a list of 1 in x.yaml:1 but should be a mapping of client names"),
    ("task: {name: txt2sql}", "task.name is `txt2sql` in x.yaml:1 but there is no such task; did you mean `text2sql`?"),
    ("algorithm: {name: 'no_such:A'}", "importing `no_such:A` failed: ModuleNotFoundError: No module named 'no_such'"),
    (
        "algorithm: {name: 'pathlib:Path'}",
        "algorithm.name is `pathlib:Path` in x.yaml:1 but `pathlib:Path` is not a dataclass",
    ),
    ("algorithm: {name: 3}", "algorithm.name is 3 in x.yaml:1 but should be a string"),
    ("algorithm: {name: pulled}", "algorithm.required is not given in x.yaml:1 but is required; add it"),
    ("task: {shape: {width: 3}}", "task.shape: width is 3; set it to an even number (x.yaml:1)"),
    ("client: {epochs: 1, steps: 2}", "client.epochs is 1 and client.steps is 2 but only one of them can be set"),
    ("client: {epochs: 1}\nper_client: {a: {steps: 2}}", "per_client.a: client.epochs is 1 and client.steps is 2 but"),
    ("client: {momentum: 0.9}", "client.momentum is 0.9 but client.optimizer is adamw, which does not use it"),
    (
        "client: {optimizer: adafactor, relative_step: true, schedule: linear}",
        "client.relative_step is true but client.schedule is linear; set client.schedule to constant",
    ),
    (
        "server: {lr: 1}",
        "server.lr is 1.0 but server.optimizer is none, which does not use it; remove server.lr or set",
    ),
    ("server: {momentum: 0.9}", "server.momentum is 0.9 but server.optimizer is none"),
    ("server: {nesterov: true}", "server.nesterov is True but server.optimizer is none"),
    ("server: {optimizer: sgd, nesterov: true}", "server.nesterov is true but server.momentum is 0"),
    ("client: {schedule: cosine, schedule_floor: 1.0}", "client.schedule_floor is 1.0"),
    ("server: {optimizer: adam}", "server.lr is null but server.optimizer is adam; set it, for example to 0.01"),
    ("server: {optimizer: sgd, beta1: 0.5}", "server.beta1 is 0.5 but server.optimizer is sgd, which does not use it"),
    ("clients: {min: 3, per_round: 2}", "clients.min is 3 but clients.per_round is 2, so no round could count"),
    ("clients: {sampling: size_proportional}", "clients.sampling is size_proportional but clients.per_round is all"),
    ("eval: {every: 0, patience: 3}", "eval.patience is 3 but eval.every is 0 (no evaluations)"),
    ("algorithm: {name: fedopt}", "server.optimizer is none but algorithm.name is fedopt; set server.optimizer"),
    ("paradigm: centralized\nper_client: {a: {lr: 1}}", "per_client has entries (a) but paradigm is centralized"),
    ("compare: {compare: {rounds: 1}}", "compare.compare is set in x.yaml:1 but cannot be; remove it"),
    ("compare: 1", "compare is 1 in x.yaml:1 but should be a mapping or a list"),
    (
        "rounds: 1\ncompare: [start,\n lokal]",
        "compare.1 is 'lokal' in x.yaml:3 but should be start or local or centralized, or a mapping of changes; did "
        "you mean `local`?",
    ),
    ("compare: [local, {paradigm: local}]", "compare has two runs called local in x.yaml:1; give one of them a"),
    ("compare: [{base: y}]", "compare.0.base is set in x.yaml:1 but cannot be; remove it"),
    (
        "compare: [{run: {name: y}, rouds: 1}]",
        "in the run that `compare.0` describes: unknown key `rouds` in x.yaml:1; did you mean `rounds`?",
    ),
    (
        "system: {placement: pinned, pinned: {a: 0}}\ncompare: [centralized]",
        "in the run that `compare.0` describes: paradigm is centralized, where one client owns all data",
    ),
    ("base: [gone.yaml]", "base file gone.yaml in x.yaml:1 does not exist"),
    ("base: [x.yaml]", "base files form a cycle: x.yaml -> x.yaml; remove one `base`"),
    ("base: [1]", "base in x.yaml:1 is a list of 1 but should be a list of file names"),
    ("- a\n- b", "x.yaml holds a list of 2 but should hold `key: value` lines"),
    ("rounds: 1\n  client: {}", "x.yaml:2 is not valid YAML: mapping values are not allowed"),
    ("rounds: 1\n---\nrounds: 2", "x.yaml:2: a second document begins here; expected one"),
    ("task: {data: !!python/name:os.system x}", "x.yaml:1: the tag `!!python/name:os.system` is not supported"),
    ("client: &c {lr: 1}\nserver: *c", "x.yaml:2: an alias (`*name`) is not supported"),
    (f"rounds: {'1' * 5000}", "x.yaml:1: Exceeds the limit (4300 digits)"),
    ("rounds: \0", "x.yaml is not valid YAML"),
    ("run: {seed: -1}", "run.seed is -1 in x.yaml:1 but should be an integer at least 0"),
    (
        f"task: {{hub_token: {MASK}}}",
        "task.hub_token is masked in x.yaml:1; give its value with --set task.hub_token=...",
    ),
]


@pytest.mark.parametrize("text, fragment", BAD, ids=[fragment[:50] for _, fragment in BAD])
def test_bad_file_is_refused_with_the_place_and_the_remedy(text: str, fragment: str) -> None:
    assert fragment in message(text)


@pytest.mark.parametrize(
    "override, fragment",
    [
        ("rounds", "`--set rounds` should have the form `--set section.key=value`"),
        ("=3", "`--set =3` should have the form"),
        ("client..lr=3", "should have the form"),
        ("client.lrr=3", "unknown key `client.lrr` in --set client.lrr=3; did you mean `lr`?"),
        ("client.lr=fast", "client.lr is 'fast' in --set client.lr=fast but should be a number"),
        ("rounds=", "rounds is null in --set rounds= but should be an integer at least 0"),
        ("rounds.x=1", "rounds is a mapping of 1 in --set rounds.x=1 but should be an integer at least 0"),
        ("base=[a.yaml]", "base can only be given in a file"),
        ("task.words=[a", "`--set task.words=[a` is not valid YAML"),
    ],
)
def test_bad_override_is_refused_and_named(override: str, fragment: str) -> None:
    assert fragment in message("", override)


def test_everything_that_is_wrong_is_reported_at_once() -> None:
    Path("low.yaml").write_text("client:\n  lr: fast\n")
    lines = message("base: low.yaml\nalgorithm: {weigths: size}\nrounds: -1", "task.x=1").splitlines()
    assert sorted(line.partition(" but ")[0].partition(";")[0] for line in lines) == [
        "client.lr is 'fast' in low.yaml:2",
        "rounds is -1 in x.yaml:3",
        "unknown key `algorithm.weigths` in x.yaml:2",
        "unknown key `task.x` in --set task.x=1",
    ]


def test_a_missing_or_unreadable_config_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"config file none\.yaml does not exist"):
        load(Path("none.yaml"))
    Path("bytes.yaml").write_bytes(b"rounds: \xff\xfe")
    with pytest.raises(ConfigError, match=r"config file bytes\.yaml cannot be read"):
        load(Path("bytes.yaml"))


def test_longer_cycles_of_base_files_are_shown_in_full() -> None:
    Path("a.yaml").write_text("base: b.yaml")
    Path("b.yaml").write_text("base: x.yaml")
    assert "cycle: x.yaml -> a.yaml -> b.yaml -> x.yaml" in message("base: a.yaml")


def test_clients_the_task_does_not_have_are_refused() -> None:
    names = ["atis", "geoquery"]
    config = loaded("per_client: {atis: {lr: 1}}\nclients: {per_round: 2}")
    config.check_client_names(names)
    config.check_client_numbers(2)
    with pytest.raises(ConfigError, match=r"per_client\.atiss is set .* no client `atiss`; did you mean `atis`\?"):
        loaded("per_client: {atiss: {lr: 1}}").check_client_names(names)
    with pytest.raises(ConfigError, match=r"clients\.per_round is 3 but the task `text2sql` has 2 clients; set it to"):
        loaded("clients: {per_round: 3}").check_client_numbers(2)


# Back to plain data


def test_the_resolved_config_is_a_config_file_that_gives_an_equal_config() -> None:
    text = """
        run: {name: other, dir: there, seed: 3}
        task: {words: ['off', '1e-3', 'null', ' <', 'é: #'], shape: {dropout: 1e-30}}
        algorithm: {name: pulled, required: 1}
        client: {optimizer: adafactor, adafactor_eps: [1e-30, 1e-3], steps: 5}
        per_client: {'5': {lr: 3}, 'null': {epochs: 1, steps: null}, a.b: {schedule: cosine}}
        compare: {client: {lr: 1e-5}, per_client: null}
    """
    config = loaded(text)
    assert loaded(to_yaml(config), name="again.yaml") == config
    assert loaded(write(to_dict(config))) == config
    assert list(config.per_client) == ["5", "null", "a.b"]


def test_a_config_built_in_python_names_its_classes_by_module() -> None:
    config = Config(task=Toy(), algorithm=Mean("equal"))
    assert to_dict(config)["algorithm"] == {"name": f"{__name__}:Mean", "weights": "equal"}


def test_secrets_do_not_reach_the_written_config() -> None:
    config = loaded("task: {hub_token: hf_abc}")
    assert "hf_abc" not in to_yaml(config) and f"hub_token: {MASK}" in to_yaml(config)
    assert "add_tokens:\n  - ' <'" in to_yaml(config)  # not a secret, though its name ends alike
    assert "hf_abc" not in str(to_dict(config, masked=True)) and "hf_abc" in str(to_dict(config))
    lines = difference(loaded("task: {hub_token: hf_xyz}"), config)
    assert lines == [f"task.hub_token was {MASK} and is now {MASK}"]


def test_digest_and_difference_see_what_changes_results_and_nothing_else() -> None:
    config = loaded("")
    for override in ("run.name=n", "run.dir=d", "track.tensorboard=false", "checkpoint.keep=9", "compare.rounds=3"):
        other = loaded("", override)
        assert digest(other) == digest(config) and difference(config, other) == []
        assert digest(other, everything=True) != digest(config, everything=True)
    for override in ("run.seed=1", "client.lr=0.5", "per_client.a.lr=0.5", "system.threads=2", "task.words=[a]"):
        other = loaded("", override)
        assert digest(other) != digest(config) and len(difference(config, other)) == 1
    assert difference(config, loaded("", "per_client.a.lr=0.5")) == ["per_client.a.lr was not set and is now 0.5"]


def test_the_keys_without_effect_exist() -> None:
    data = {**to_dict(loaded("")), "task": {f"data.{field.name}" for field in fields(OwnData)}}
    for name in NO_EFFECT:
        section, _, key = name.partition(".*")[0].partition(".")
        assert section in data and (not key or key in data[section])


@pytest.mark.parametrize("module", [config, config_system, core_settings, train_settings])
def test_every_field_has_a_line_of_explanation(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    for cls in [node for node in tree.body if isinstance(node, ast.ClassDef)]:
        assert ast.get_docstring(cls)
        for node, after in zip(cls.body, [*cls.body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign):
                explained = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                assert explained, f"{cls.name}.{ast.unparse(node.target)}"


# The YAML layer for any input

_texts = st.one_of(
    st.text(string.printable, max_size=8),
    st.text(max_size=4),
    st.sampled_from(
        ["off", "1e-3", "~", "null", "010", "0x10", "1:30", "<<", "=", ".inf", "2026-01-01", "-", "1_0", ""]
    ),
).filter(lambda text: all(c.isprintable() or c in "\n\t" for c in text))
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.long
@examples(70)
@given(st.dictionaries(_texts, _values, max_size=4))
def test_what_is_written_is_read_back_equal(data: dict[str, object]) -> None:
    found = read(write(data), "x").data
    assert found == data and repr(found) == repr(data)  # repr tells 1 from 1.0 and true


def test_with_and_without_libyaml_a_config_has_the_same_values_and_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def parsed(path: Path) -> tuple[str, dict[Any, str]]:
        marks: dict[Any, str] = {}
        return repr(parse(path.read_text(), "x", marks, numbered=True)), marks

    files = sorted(shipped().rglob("*.yaml"))
    found = {path: parsed(path) for path in files}
    read_without_libyaml(monkeypatch)
    assert len(files) > 100 and {path: parsed(path) for path in files} == found


@examples(70)
@given(st.text(string.printable, max_size=40) | st.text(":{}[]&*!|>#-?,'\" \nab1", max_size=30))
def test_no_text_makes_the_reader_fail_in_another_way(text: str) -> None:
    try:
        read(text, "x")
    except ConfigError:
        pass


def test_deep_nesting_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        read("a: " + "[" * 5000, "x")


def test_merging_changes_neither_side() -> None:
    lower, upper = {"a": {"b": 1, "c": [1]}}, {"a": {"c": [2]}, "d": None}
    assert merge(lower, upper) == {"a": {"b": 1, "c": [2]}, "d": None}
    assert (lower, upper) == ({"a": {"b": 1, "c": [1]}}, {"a": {"c": [2]}, "d": None})


def test_nccl_needs_gpus_and_a_group_that_stays() -> None:
    nccl = "system.backend=nccl"
    assert loaded("", nccl).system.backend == "nccl"
    assert "GPUs, but system.device is cpu" in message("", nccl, "system.device=cpu")
    assert "system.backend is nccl but clients.on_loss is continue" in message("", nccl, "clients.on_loss=continue")


@pytest.mark.parametrize(("section", "base"), [("algorithm", "Algorithm"), ("task", "Task")])
def test_a_dataclass_that_is_no_algorithm_or_task_is_refused(
    section: str, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Mine:\n    k: int = 1\n"
    (tmp_path / f"no_{section}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ConfigError, match=f"`no_{section}:Mine` is no {base}; derive it from `fedtorch.{section}s.base."
    ):
        load(None, [f"{section}={{name: 'no_{section}:Mine'}}"])
