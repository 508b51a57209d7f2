"""Every shipped YAML: it loads, it is complete when written out again, and it holds its paper's values."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from differences import difference

from fedtorch.config.find import shipped
from fedtorch.config.load import DEFAULT, companions, digest, load, to_dict, to_yaml
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError
from fedtorch.data.text2sql import CLIENTS
from fedtorch.tracking.plugin import flat

ROOT = shipped()
OVERLAYS = sorted((ROOT / "overlays").glob("zero*.yaml"))  # make no sense alone
FEATURES = sorted((ROOT / "features").glob("*.yaml"))  # see test_feature_configs.py
FILES = sorted(set(ROOT.rglob("*.yaml")) - {*OVERLAYS, *FEATURES})
FEDERATED = sorted(path for path in (ROOT / "lorar" / "rows").glob("fed*.yaml"))
FEWFEDWEIGHT = ["abl_da", "abl_da_dyn", "abl_da_w"]
FEWFEDWEIGHT += [f"ffw_{row}" for row in ("central", "ditto", "fedavg", "full", "meta", "silo", "silo_da")]
FEDASSISTANT = ["feda", "feda_both", "feda_freeze"]
FEDASSISTANT += [f"feda_top{n}{end}" for n in (12, 25, 50, 100) for end in ("", "_literal", "_none")]
SMALL_ROWS = [f"fewfedweight/{row}" for row in FEWFEDWEIGHT] + [f"fedassistant/{row}" for row in FEDASSISTANT]


def lorar(row: str) -> Config:
    return load(f"lorar/{row}")


def assert_equal_when_read_back(config: Config, folder: Path) -> None:
    """A config's resolved form, written out and read, is the same config with the same companions."""
    again = folder / "config.yaml"
    again.write_text(to_yaml(config))
    copy = load(again)
    assert copy == config and digest(copy) == digest(config) and difference(copy, config) == [], config.run.name
    assert companions(copy) == companions(config), config.run.name


@pytest.mark.long
@pytest.mark.parametrize("everyone", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["with news", "all"])
def test_every_file_loads_and_its_resolved_form_gives_an_equal_config(everyone: bool, tmp_path: Path) -> None:
    """Read back are those in which a key has a value that it has in none before."""
    known: set[tuple[str, str]] = set()
    for path in (DEFAULT, *FILES):
        config = load(path)
        assert config.run.name == path.stem
        values = {(key, repr(value)) for key, value in flat(to_dict(config)).items() if key != "run.name"}
        if everyone or values - known:
            assert_equal_when_read_back(config, tmp_path)
        known |= values


@pytest.mark.long
def test_every_row_made_small_gives_an_equal_config_when_it_is_read_back(tmp_path: Path) -> None:
    for row in SMALL_ROWS:
        paper, _, name = row.partition("/")
        config = load([Path(row), Path("overlays", f"{paper}_small")])
        assert config.run.name == f"{name}+{paper}_small"
        assert_equal_when_read_back(config, tmp_path)


def test_an_overlay_changes_the_engine_and_nothing_else() -> None:
    smoke = ROOT / "smoke" / "fedavg.yaml"
    for path in OVERLAYS:
        changed = difference(load(smoke), load([smoke, path]))
        assert changed and all(line.startswith("engine.") for line in changed), path.stem
        assert load([smoke, path]).engine.kind == "deepspeed"


def test_every_file_says_what_it_is_and_names_no_place_of_one_machine() -> None:
    for path in (DEFAULT, *FILES, *OVERLAYS, *FEATURES):
        text = path.read_text()
        assert text.startswith("# "), path
        assert not re.search(r"(^|[\s'\"\[])[/~]\w", text), path


def test_no_config_named_means_the_default_job() -> None:
    config = load()
    assert config == load(DEFAULT) and config.task.data == "synthetic"
    other = companions(config)["local"]
    assert difference(config, other) == ["paradigm was federated and is now local"]


SMALL = {"real_small", "real_small_lorar"}  # ours, for a CPU


def test_rows_of_the_lorar_paper_and_the_remaining_combinations_are_there() -> None:
    combined = {
        f"{a}{w}" for a, w in itertools.product(("fedavg", "fedopt", "fedprox"), ("", "_lorar", "_lr", "_equal"))
    }
    assert {path.stem for path in (ROOT / "lorar" / "rows").iterdir()} == combined | {"finetune", "centralized"}
    assert {path.stem for path in (ROOT / "lorar" / "small").iterdir()} == SMALL


# Lorar: algorithm, weights, server optimiser, its rate and momentum, mu. The first eight are rows of tables 2 and 3.
ROWS = [
    ("fedopt", "fedopt", "size", "sgd", 1.0, 0.9, None),
    ("fedopt_lorar", "fedopt", "lorar", "sgd", 1.0, 0.9, None),
    ("fedopt_lr", "fedopt", "loss_reduction", "sgd", 1.0, 0.9, None),
    ("fedopt_equal", "fedopt", "equal", "sgd", 1.0, 0.9, None),
    ("fedavg", "fedavg", "size", "none", None, 0.0, None),
    ("fedavg_lorar", "fedavg", "lorar", "none", None, 0.0, None),
    ("fedprox", "fedprox", "size", "none", None, 0.0, 1e-4),
    ("fedprox_lorar", "fedprox", "lorar", "none", None, 0.0, 1e-4),
    ("fedavg_lr", "fedavg", "loss_reduction", "none", None, 0.0, None),
    ("fedavg_equal", "fedavg", "equal", "none", None, 0.0, None),
    ("fedprox_lr", "fedprox", "loss_reduction", "none", None, 0.0, 1e-4),
    ("fedprox_equal", "fedprox", "equal", "none", None, 0.0, 1e-4),
]


@pytest.mark.parametrize("row, algorithm, weights, optimizer, lr, momentum, mu", ROWS, ids=[row[0] for row in ROWS])
def test_federated_row_has_the_values_of_the_paper(
    row: str, algorithm: str, weights: str, optimizer: str, lr: float | None, momentum: float, mu: float | None
) -> None:
    config = lorar(row)
    assert (config.paradigm, config.rounds, config.clients.per_round) == ("federated", 60, "all")
    assert (config.algorithm_name, config.algorithm.weights) == (algorithm, weights)
    assert (config.server.optimizer, config.server.lr, config.server.momentum) == (optimizer, lr, momentum)
    assert getattr(config.algorithm, "mu", None) == mu
    measured = config.algorithm.loss_reduction
    assert (measured.measure, measured.window, measured.include_tail) == ("window", 4, True)
    assert (measured.round_digits, measured.include_prox) == (None, True)
    assert config.eval.every == 5


@pytest.mark.parametrize("row", [*(row[0] for row in ROWS), "finetune", "centralized"])
def test_every_row_has_the_common_values(row: str) -> None:
    config = lorar(row)
    task, client = config.task, config.client
    assert (config.task_name, task.model.name, task.model.dropout) == ("text2sql", "t5-base", 0.1)
    assert (task.add_tokens, task.input_max_length, task.output_max_length) == ((" <", " <=", " <>"), 1024, 512)
    assert task.em_normalise and (task.max_train, task.max_dev, task.max_test) == (None, None, None)
    assert (client.optimizer, client.scale_parameter, client.relative_step) == ("adafactor", False, False)
    assert (client.clip_threshold, client.weight_decay, client.max_grad_norm) == (1.0, 0.0, 1.0)
    assert (client.adafactor_eps, client.decay_rate, client.warmup_steps) == ((1e-30, 1e-3), -0.8, 0)
    scores = config.eval
    assert (scores.split, scores.final_split, scores.select_by) == ("dev", "test", "exact_match")
    assert (scores.merge, scores.batch_size, scores.on_start) == (True, 64, False)


# Client: rate, micro-batch, epochs; then what the authors' code has in place of rate and micro-batch.
CLIENT_TABLE = {
    "advising": (1e-4, 8, 6, 1e-4, 4),
    "atis": (1e-4, 8, 6, 1e-4, 8),
    "geoquery": (1e-4, 4, 12, 1e-4, 4),
    "restaurants": (1e-3, 4, 12, 1e-3, 4),
    "scholar": (1e-3, 4, 12, 1e-4, 4),
    "academic": (1e-3, 4, 12, 1e-3, 4),
    "imdb": (1e-3, 4, 12, 1e-3, 4),
    "yelp": (1e-4, 4, 12, 1e-3, 4),
}


@pytest.mark.parametrize("path", FEDERATED, ids=lambda path: path.stem)
def test_federated_clients_have_the_values_of_the_papers_table(path: Path) -> None:
    config = load(path)
    config.check_client_names(list(CLIENTS))
    config.check_client_numbers(len(CLIENTS))
    assert set(config.per_client) == set(CLIENTS)
    for name, (lr, batch_size, epochs, _, _) in CLIENT_TABLE.items():
        client = config.client_for(name)
        assert (client.lr, client.batch_size, client.epochs, client.steps) == (lr, batch_size, epochs, None)
        assert (client.accumulation, client.accumulation_rule, client.schedule) == (16, "exact", "linear")
        assert client.optimizer_state == "reset"


def test_the_codes_rates_can_be_laid_over_any_federated_row(tmp_path: Path) -> None:
    file = tmp_path / "row.yaml"
    file.write_text("base: [lorar/fedopt_lorar, overlays/lorar_code_rates]")
    config = load(file)
    for name, (_, _, epochs, lr, batch_size) in CLIENT_TABLE.items():
        client = config.client_for(name)
        assert (client.lr, client.batch_size, client.epochs) == (lr, batch_size, epochs)
    changed = {line.split(" was ")[0] for line in difference(lorar("fedopt_lorar"), config)}
    assert changed == {"per_client.advising.batch_size", "per_client.scholar.lr", "per_client.yelp.lr"}


def test_finetuning_has_the_clients_rates_and_is_evaluated_every_eight_steps() -> None:
    config = lorar("finetune")
    assert (config.paradigm, config.algorithm_name, config.eval.every, config.eval.patience) == ("local", "local", 1, 5)
    config.check_client_names(list(CLIENTS))
    config.check_client_numbers(len(CLIENTS))
    for name, (lr, *_) in CLIENT_TABLE.items():
        client = config.client_for(name)
        assert (client.lr, client.batch_size, client.accumulation, client.steps) == (lr, 8, 8, 8)
        assert (client.schedule, client.optimizer_state) == ("constant", "keep")
    assert 1 <= config.rounds * 8 / (200 * 4347 / 64) < 1.01  # 200 epochs of the largest client


def test_centralised_training_has_one_rate_and_is_evaluated_every_400_steps() -> None:
    config = lorar("centralized")
    client = config.client
    assert (config.paradigm, config.per_client, config.run.seed) == ("centralized", {}, 1002)
    assert (client.lr, client.batch_size, client.accumulation, client.steps) == (1e-4, 8, 8, 400)
    assert (config.eval.every, config.eval.patience, client.optimizer_state) == (1, 12, "keep")
    assert 1 <= config.rounds * 400 / (200 * 8529 / 64) < 1.02


def test_smoke_runs_are_small() -> None:
    for path in sorted((ROOT / "smoke").glob("[!_]*.yaml")):
        config = load(path)
        assert config.task.data == "synthetic" and config.rounds <= 3, path
        trained = config.task.server_labelled if config.task_name == "wikisql" else config.task.max_train
        assert max(trained, config.task.max_dev, config.task.max_test) <= 32, path


FEDMATCH = {path.stem: path for path in (ROOT / "fedmatch" / "rows").glob("*.yaml")}
BERT_ROWS = {row: path for row, path in FEDMATCH.items() if row not in ("esim", "re2")}


def test_rows_of_the_fedmatch_paper_are_there() -> None:
    from fedtorch.report.published import FEDMATCH as tables

    assert set(FEDMATCH) == set(tables[0].rows) | {"fm_h_lr_encoder", "fm_released"}
    sweeps = {path.stem for path in (ROOT / "fedmatch" / "figures").glob("*.yaml")}
    expected = {f"layers_{n:02d}" for n in range(13)} | {f"patch_{size}" for size in (32, 64, 128, 256, 512)}
    expected |= {f"frequency_{e}" for e in (1, 2, 3)}
    sizes = itertools.product(("data", "data_all"), (20, 40, 60, 80, 100), ("fm", "bert"))
    assert sweeps == expected | {f"{name}_{share}_{kind}" for name, share, kind in sizes}


@pytest.mark.parametrize("row", FEDMATCH)
def test_every_fedmatch_row_has_the_common_values(row: str) -> None:
    config = load(path := FEDMATCH[row])
    task, client, scores = config.task, config.client, config.eval
    is_word_model = path.stem in ("esim", "re2")
    assert config.rounds == (11 if path.stem == "fm_released" else 10) and client.total_epochs == 10
    assert (client.optimizer, client.lr) == ("adamw", 1e-3 if is_word_model else 2e-5)
    assert (client.betas, client.eps, client.weight_decay) == ((0.9, 0.98), 1e-8, 5e-5)
    assert (client.schedule, client.schedule_span, client.warmup_ratio) == ("linear", "run", 0.1)
    assert (client.max_grad_norm, client.optimizer_state, client.batch_size, client.epochs) == (5.0, "keep", 32, 1)
    assert client.no_decay == ("*bias", "*LayerNorm*")
    if config.paradigm != "centralized":
        assert config.client_for("medquad").batch_size == 12
    assert config.algorithm_name == ("local" if config.paradigm == "local" else "fedavg")
    if config.paradigm == "federated":
        assert config.algorithm.weights == "equal" and (scores.point, scores.also_received) == ("trained", True)
    assert (scores.select_by, scores.best) == ("mrr", "per_client")
    assert (scores.split, scores.final_split) == ("dev", "test")
    assert task.max_lengths == (10, 100)
    assert task.client_lengths == {"privacyqa": (10, 40), "pubmedqa": (15, 50), "medquad": (25, 480)}
    assert config.clients.per_round == (2 if path.stem.endswith("_cs") else "all")


@pytest.mark.parametrize(
    ("row", "insertion", "structure", "size"),
    [
        (f"fm_{key}_{structure}", insertion, structure, size)
        for key, insertion in {"i": "inner", "o": "outer", "v": "vertical", "h": "horizontal"}.items()
        for structure, size in {"pal": 204, "lr": 128}.items()
    ],
)
def test_patches_of_the_fedmatch_rows(row: str, insertion: str, structure: str, size: int) -> None:
    config = load(FEDMATCH[row])
    patch = config.task.model.patch
    assert (patch.insertion, patch.structure, patch.size, patch.heads) == (insertion, structure, size, 6)
    assert patch.inner_skip and (patch.scope, patch.position) == ("layer", "outside_ln")
    assert config.partition.private == ("patch.*",) and config.task.model.name == "bert-base-uncased"


@pytest.mark.parametrize("number", range(13))
def test_shared_layers_of_the_fedmatch_sweep(number: int) -> None:
    config = load(f"fedmatch/layers_{number:02d}")
    if number == 0:
        assert config.paradigm == "local" and config.partition.private == ()
        return
    layers = [p for p in config.partition.private if p.startswith("bert.encoder")]
    assert layers == [f"bert.encoder.layer.{i}.*" for i in range(number, 12)]
    assert ("bert.pooler.*" in config.partition.private) == (number < 12)


@pytest.mark.parametrize(("epochs", "rounds"), [(1, 10), (2, 5), (3, 4)])
def test_frequencies_of_the_fedmatch_sweep_have_ten_epochs(epochs: int, rounds: int) -> None:
    config = load(f"fedmatch/frequency_{epochs}")
    assert (config.client.epochs, config.rounds, config.client.total_epochs) == (epochs, rounds, 10)


def test_later_configs_are_laid_over_the_first() -> None:
    files = [FEDMATCH["fm_h_lr"], ROOT / "overlays" / "fedmatch_small_random.yaml"]
    config = load(files)
    assert config.run.name == "fm_h_lr+fedmatch_small_random"
    assert config.task.model.name == "bert-random" and config.task.model.patch.size == 128


def test_a_misspelt_key_of_a_real_algorithm_is_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown key `algorithm\.weigths` in --set .*; did you mean `weights`\?"):
        load("lorar/fedprox", ["algorithm.weigths=lorar"])
    with pytest.raises(ConfigError, match=r"algorithm\.loss_reduction\.window is 0; set it to at least 1"):
        load("lorar/fedprox", ["algorithm.loss_reduction.window=0"])


# config of a search: the row that it is laid over, and the keys that it sets with their values
SEARCHES: dict[str, tuple[str, dict[str, float]]] = {
    **{
        f"lorar/server_{name}{end}": ("lorar/fedopt", {"server.lr": rate, "server.momentum": momentum})
        for name, rate in (("1e-3", 1e-3), ("1e-2", 1e-2), ("1e-1", 0.1), ("5e-1", 0.5), ("1", 1.0))
        for end, momentum in (("", 0.9), ("_plain", 0.0))
    },
    **{
        f"lorar/prox_{name}": ("lorar/fedprox", {"algorithm.mu": mu})
        for name, mu in (("1e-4", 1e-4), ("1e-3", 1e-3), ("1e-2", 1e-2), ("1e-1", 0.1), ("1", 1.0))
    },
    **{
        f"lorar/rate_{name}": (
            "lorar/finetune",
            {"client.lr": rate, **{f"per_client.{client}.lr": rate for client in CLIENTS}},
        )
        for name, rate in (("1e-5", 1e-5), ("1e-4", 1e-4), ("1e-3", 1e-3))
    },
    **{
        f"fedparsing/rate_{name}": ("fedparsing/fedparsing_ema_1000", {"client.lr": rate})
        for name, rate in (("1e-3", 1e-3), ("3e-3", 3e-3), ("1e-2", 1e-2), ("3e-2", 3e-2))
    },
    **{
        f"fewfedweight/ditto_{name}": ("fewfedweight/ffw_ditto", {"algorithm.lam": lam})
        for name, lam in (("1e-1", 0.1), ("1", 1.0), ("2", 2.0))
    },
}


def test_searches_are_whole() -> None:
    found = {f"{path.parts[-3]}/{path.stem}" for path in ROOT.glob("*/tuning/*.yaml")}
    assert found == set(SEARCHES)


def test_a_point_of_a_search_changes_what_is_searched_and_nothing_else() -> None:
    for name, (row, values) in SEARCHES.items():
        config = load(name)
        known = flat(to_dict(config))
        assert {key: known[key] for key in values} == values, name
        changed = {line.split(" was ")[0] for line in difference(load(row), config)}
        assert changed <= {*values, "run.name", "eval.final_split"}, name
        assert config.eval.final_split == ("test" if name.startswith("fewfedweight") else "dev"), name


@pytest.mark.parametrize("share", [20, 40, 60, 80, 100])
def test_training_sizes_are_those_of_one_client_or_of_all(share: int) -> None:
    one, all_ = (load(f"fedmatch/{name}_{share}_fm").task.train_share for name in ("data", "data_all"))
    assert one == {"insuranceqa": share / 100}
    assert all_ == dict.fromkeys(("privacyqa", "pubmedqa", "fiqa", "insuranceqa", "medquad"), share / 100)
    for name in ("data", "data_all"):
        bert, fm = (load(f"fedmatch/{name}_{share}_{model}") for model in ("bert", "fm"))
        assert bert.task.train_share == fm.task.train_share
        assert (bert.paradigm, fm.paradigm) == (load("fedmatch/bert").paradigm, load("fedmatch/fm_h_lr").paradigm)
