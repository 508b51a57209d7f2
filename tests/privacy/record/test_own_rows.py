"""Rows of one's own with noise of each silo's own: the tasks, persons, adapters, what records and cards say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from record_rows import BERT, MODELS, SILOS, config, rows
from supervisor import as_rank
from toy import Quadratic

import fedtorch
from fedtorch.core.errors import ConfigError
from fedtorch.main import main
from fedtorch.privacy.record.silo import Silo
from fedtorch.privacy.record.terms import SiloTerms, epsilon_of, epsilon_of_rows
from fedtorch.privacy.settings import PrivacyConfig
from fedtorch.report.command_line import main as report
from fedtorch.report.privacy_of_records import records_markdown
from fedtorch.setup.data_check import main as data_check
from fedtorch.setup.declared import declared


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared rows go below data/."""
    monkeypatch.chdir(tmp_path)


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "results.json").read_text())
    return found


@pytest.mark.long
@pytest.mark.parametrize("kind", MODELS)
def test_every_task_of_own_rows_trains_with_persons_for_units(kind: str, tmp_path: Path, caplog: Any) -> None:
    assert main(["--config", str(config(tmp_path, kind))]) == 0
    for silo in SILOS:
        (one, two) = Silo.open(tmp_path / "silos" / silo, "").trainings()
        assert (one.steps, two.steps) == (2, 2)
    assert "one after the other" not in caplog.text  # vmap can do all of these models
    said = results(tmp_path)["privacy"]
    assert said["unit"] == "person (column patient, 2 rows at most)"


def test_rows_that_are_compared_with_each_other_are_refused(tmp_path: Path) -> None:
    """KTO's z is a mean over a batch, of prompts with answers of other rows."""
    path = config(tmp_path, "preference")
    path.write_text(path.read_text().replace("name: preference", "name: preference\n  kind: kto"))
    judged = [{**row, "completion": "rain", "label": True} for silo in SILOS for row in rows(silo, 4, "preference")]
    (tmp_path / "rows" / "preference.jsonl").write_text("".join(json.dumps(row) + "\n" for row in judged))
    with pytest.raises(ConfigError, match="privacy.kind is record but the task `preference` compares each row"):
        fedtorch.run(path, {"system.oom_retry": False, "privacy.units": {"bank": 4, "clinic": 4, "shop": 4}})


@pytest.mark.long
@pytest.mark.parametrize("way", ["vmap", "loop"])
def test_both_ways_to_the_gradients_come_to_nearly_the_same(way: str, tmp_path: Path) -> None:
    digests = []
    for name, how in (("one", way), ("other", "auto")):
        path = config(tmp_path / name, promise=f"per_unit: {how}\n  simulate: true\n  seed: 1")
        path.write_text(path.read_text().replace(f"ledger: {tmp_path / name / 'silos'}", ""))
        assert main(["--config", str(path), "--set", "client.optimizer=sgd"]) == 0
        digests.append(results(tmp_path / name)["digest"])
    assert (digests[0] == digests[1]) == (way == "vmap")


@pytest.mark.long
def test_an_adapter_and_a_head_train(tmp_path: Path) -> None:
    path = config(tmp_path)
    path.write_text(path.read_text().replace(BERT, BERT[:-1] + ", adapter: {kind: lora, r: 2, dropout: 0.1}}"))
    assert main(["--config", str(path)]) == 0
    assert (tmp_path / "run" / "model" / "adapter_model.safetensors").is_file()


@pytest.mark.long
@pytest.mark.parametrize(
    "algorithm",
    [
        "{name: rolora, weights: equal}",
        "{name: hetlora, ranks: {bank: 1}, rank_decay: 0.5}",
        pytest.param("{name: flexlora, weights: declared, ranks: {bank: 1}}", marks=pytest.mark.slow),
        pytest.param("{name: flora, weights: equal}", marks=pytest.mark.slow),
        "{name: fedex, weights: equal, ranks: {bank: 1}}",
        pytest.param("{name: fedavg, weights: equal, robust: trimmed_mean}", marks=pytest.mark.slow),
    ],
)
def test_rules_for_adapters_train_along_noised_steps(algorithm: str, tmp_path: Path) -> None:
    """Factors beyond a client's rank stay 0, though all numbers have noise."""
    path = config(tmp_path)
    text = path.read_text().replace(BERT, BERT[:-1] + ", adapter: {kind: lora, r: 2}}")
    path.write_text(text.replace("algorithm: {name: fedavg, weights: equal}", f"algorithm: {algorithm}"))
    assert main(["--config", str(path)]) == 0
    records = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rounds = [json.loads(line)["extra"] for line in records if json.loads(line)["kind"] == "round"]
    assert [each["privacy/silos"] for each in rounds] == [3.0, 3.0]  # nobody failed
    assert all(len(Silo.open(tmp_path / "silos" / silo, "").trainings()) == 2 for silo in SILOS)


@pytest.mark.processes
@pytest.mark.parametrize("ranks", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_any_ranks_give_the_bits_of_one_process(ranks: int, tmp_path: Path) -> None:
    path = config(tmp_path)
    assert main(["--config", str(path)]) == 0
    digest = results(tmp_path)["digest"]
    for silo in SILOS:
        (tmp_path / "silos" / silo / "ledger.jsonl").write_text('{"form": 1}\n')
    again = ["--config", str(path), "--set", f"run.dir={tmp_path / 'ranks' / 'run'}"]
    run_ranks(as_rank, ranks, again, timeout=120)
    assert results(tmp_path / "ranks")["digest"] == digest


def test_no_record_counts_rows(tmp_path: Path) -> None:
    """Neither how many rows a silo has, nor of which label, nor which stand in it twice."""
    assert main(["--config", str(config(tmp_path))]) == 0
    found = results(tmp_path)
    assert found["task"]["data"].keys() == {"options", "settings"} and "labels" not in found["task"]
    assert found["clients"] == {} and found["privacy"]["rows"] is None and found["summary"] == {}
    counts = {str(len(rows(silo, 8, "text_classification"))) for silo in SILOS}
    assert counts == {"15"}
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file() and path.name != "config.yaml" and path.suffix in (".json", ".jsonl", ".md", ".yaml"):
            words = path.read_text().replace(",", " ").replace("}", " ").split()
            assert path.name == "env.json" or "15" not in words, path


def test_the_card_says_unit_epsilon_and_against_whom(tmp_path: Path, capsys: Any) -> None:
    assert main(["--config", str(config(tmp_path))]) == 0
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    epsilon = results(tmp_path)["privacy"]["silos"]["bank"]["epsilon"]
    said = f"differential privacy of each person (column patient, 2 rows at most), by silo: bank: epsilon {epsilon:.4f}"
    assert said in card and "against the server, the other silos and everybody" in card
    assert "rows of 3 clients" in card and "a silo's own administrator" in card
    assert "f1_macro" not in card  # nobody was evaluated


def test_a_dry_run_and_python_say_what_each_silo_will_have_spent(tmp_path: Path, capsys: Any) -> None:
    limit = SiloTerms("shop", 8, 4, 2, 2, 2.0, 1.0, 0.01, None).epsilon(1) + 0.001
    path = config(tmp_path, promise=f"per_silo: {{shop: {{noise_multiplier: 2.0, max_epsilon: {limit}}}}}")
    assert main(["--config", str(path), "--dry-run"]) == 0
    said = capsys.readouterr().out
    cost = fedtorch.privacy_cost(path)
    assert set(cost) == set(SILOS) and cost["bank"] == cost["clinic"] > cost["shop"]
    assert "privacy: of each person (column patient), against the server and the other silos" in said
    assert f"{cost['bank']:.4f}" in said and f"{cost['shop']:.4f}" in said
    assert f"shop rests after 1 of 2 rounds: privacy.max_epsilon {limit:g}" in said
    assert "somebody with rows in all silos: epsilon" in said
    assert not (tmp_path / "silos").exists()
    assert main(["--config", str(path)]) == 0
    silos = results(tmp_path)["privacy"]["silos"]
    assert silos["bank"]["epsilon"] == cost["bank"] and silos["shop"]["steps"] == 2


def test_python_says_the_cost_of_other_promises(tmp_path: Path) -> None:
    plain = {"task": {"name": "toy:Quadratic", "clients": {"a": [1, 1, 4], "b": [1, 1, 4]}}, "algorithm": "fedavg"}
    assert fedtorch.privacy_cost({**plain, "algorithm": {"name": "fedavg"}}) == {}
    client = {"kind": "client", "clip": 1.0, "noise_multiplier": 2.0, "delta": 0.1}
    private = {"algorithm": {"name": "fedavg", "weights": "equal"}, "privacy": client, "rounds": 3}
    how = {"clients": {"sampling": "poisson", "rate": 0.5}, "run": {"dir": str(tmp_path / "run")}}
    (epsilon,) = fedtorch.privacy_cost({**plain, **private, **how}).values()
    assert 0.1 < epsilon < 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("column: patient", "column: patent", r"privacy\.unit\.column: .* no column `patent`; did you mean `patient`"),
        (", shop: 8}", "}", r"privacy\.units has no number for .*'shop'"),
        ("shop: 8}", "shop: 8, ship: 2}", r"privacy\.units names 'ship', which is no client"),
        ("weights: equal", "weights: size", r"weighs clients by size, which depends on their rows"),
        ("name: fedavg, weights: equal", "name: fedavg, weights: lorar", r"weighs clients by lorar"),
        ("name: fedavg, weights: equal", "name: scaffold, force: true, option: I", r"scaffold, which trains clients"),
        ("name: fedavg, weights: equal", "name: pfedme", r"pfedme, which trains clients in a way of its own"),
        ("name: fedavg, weights: equal", "name: ditto", r"ditto, which weighs clients by size"),
        ("epochs: 1}", "epochs: 1, accumulation: 2}", r"client\.accumulation is 2: a step has one batch"),
        ("epochs: 1}", "epochs: 1, group_by_length: true}", r"client\.group_by_length is True"),
        ("epochs: 1}", "epochs: 1, max_tokens_per_batch: 64}", r"client\.max_tokens_per_batch is 64"),
        ("batch_size: 4", "batch_size: 9", r"client\.batch_size is 9 but privacy\.units\.bank is 8"),
        ("max_length: 16", "max_length: 16\n  max_train: 5", r"task\.max_train is 5: one row more would change"),
        ("max_length: 16", "max_length: 16\n  long: windows", r"task\.long is windows"),
        ("max_length: 16", "max_length: 16\n  class_weights: balanced", r"task\.class_weights is balanced"),
        (", labels: [bad, good]", "", r"task\.data\.labels is not set"),
        ("  tokenizer: ", "  # ", r"task\.tokenizer is not set, so a vocabulary would be made of silos' rows"),
        ("delta: 0.01", "delta: 0.2", r"privacy\.delta is 0\.2 for the silo 'bank', which declares 8 units"),
        ("rounds: 2", "rounds: 2\nparadigm: centralized", r"paradigm is centralized, where rows leave their silos"),
        ("rounds: 2", "rounds: 2\neval: {point: trained}", r"eval\.point is trained, which shows how"),
        ("rounds: 2", "rounds: 2\nengine: {precision: fp16}", r"engine\.precision is fp16"),
        ("rounds: 2", "rounds: 2\nsystem: {ranks_per_worker: 2}", r"system\.ranks_per_worker is 2|ranks_per_worker"),
        ("clip: 1.0", "clip: {adaptive: {}}", r"privacy\.clip moves but privacy\.kind is record"),
        ("clip: 1.0", "clip: 1.0\n  reveal: [losses]", r"privacy\.reveal is \['losses'\] .* only `scores`"),
        ("clip: 1.0", "clip: 1.0\n  secure_sum: {}", r"privacy\.secure_sum is set but privacy\.kind is record"),
        ("clip: 1.0", "clip: 1.0\n  per_silo: {ship: {delta: 0.1}}", r"privacy\.per_silo names 'ship'"),
        ("noise_multiplier: 1.0", "noise_multiplier: 0.05", r"below 0\.1 next to nothing is promised"),
        ("kind: record", "kind: client", r"privacy\.unit is set but privacy\.kind is client"),
    ],
)  # fmt: skip
def test_what_would_break_the_promise_is_refused(old: str, new: str, words: str, tmp_path: Path) -> None:
    path = config(tmp_path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=words):
        fedtorch.run(str(path))
    assert not (tmp_path / "silos").exists()


def test_declared_weights_need_declared_numbers(tmp_path: Path) -> None:
    plain = {"task": {"name": "toy:Quadratic", "clients": {"a": [1, 1, 4]}}, "run": {"dir": str(tmp_path / "run")}}
    with pytest.raises(ConfigError, match=r"algorithm\.weights is declared but privacy\.kind is not record"):
        fedtorch.run({**plain, "algorithm": {"name": "fedavg", "weights": "declared"}})


def test_persons_are_for_rows_with_columns(tmp_path: Path) -> None:
    toy = {"name": "toy:Quadratic", "clients": {"a": [1, 1, 4]}}
    privacy: dict[str, Any] = {"kind": "record", "units": {"a": 4}, "clip": 1.0, "delta": 0.01, "epsilon": 3.0}
    privacy["unit"] = {"column": "who"}
    how = {"algorithm": {"name": "fedavg", "weights": "equal"}, "run": {"dir": str(tmp_path / "run")}}
    with pytest.raises(ConfigError, match=r"privacy\.unit names the column 'who' but the rows of the task Quadratic"):
        fedtorch.run({"task": toy, "privacy": privacy, **how})


def test_what_is_no_name_of_a_person_is_refused(tmp_path: Path) -> None:
    path = config(tmp_path)
    source = tmp_path / "rows" / "text_classification.jsonl"
    bad = {"text": "sun", "label": "good", "silo": "bank", "patient": True}
    source.write_text(source.read_text() + json.dumps(bad))
    with pytest.raises(fedtorch.DataError, match=r"jsonl:46: what names a person is a bool; expected"):
        fedtorch.run(str(path))


@pytest.mark.parametrize("reveal", [False, True])
def test_sizes_of_held_back_rows_are_told_with_the_scores_alone(reveal: bool) -> None:
    about: dict[str, Any] = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 0.1, "units": {"a": 8}}
    promise = PrivacyConfig("record", reveal=("scores",) if reveal else (), **about)
    task = declared(Quadratic(clients={"a": (1.0, 1.0, 6)}), promise)
    assert task.manifest() == {"a": {"train": 8, **({"dev": 3, "test": 3} if reveal else {})}}
    assert len(task.load("a", "train")) == 6 and task.cost("a") == 1.0


def test_a_person_in_two_silos_is_told_at_the_lesser_delta(tmp_path: Path) -> None:
    each = {"units": 100, "rate": 0.5, "steps": 4, "noise_multiplier": 2.0, "epsilon": 1.0}
    silos = {"a": {**each, "delta": 0.01}, "b": {**each, "delta": 0.001}}
    said = {"kind": "record", "simulated": False, "unit": "row", "silos": silos, "outside": ["what is outside"]}
    (tmp_path / "results.json").write_text(json.dumps({"privacy": said}))
    text = records_markdown([tmp_path])
    assert f"A person in all of them: epsilon {epsilon_of([(0.5, 2.0, 8)], 0.001):.4f} at delta 0.001." in text
    (tmp_path / "results.json").write_text(json.dumps({"privacy": {**said, "silos": {"a": silos["a"]}}}))
    assert "A person in all" not in records_markdown([tmp_path])


def test_a_row_of_nobody_is_refused_with_its_line(tmp_path: Path) -> None:
    path = config(tmp_path)
    source = tmp_path / "rows" / "text_classification.jsonl"
    source.write_text(source.read_text() + json.dumps({"text": "sun", "label": "good", "silo": "bank", "patient": ""}))
    with pytest.raises(fedtorch.DataError, match=r"text_classification\.jsonl:46: `patient` is missing or empty"):
        fedtorch.run(str(path))


def test_a_report_has_a_line_for_each_silo_and_a_silo_its_own_total(tmp_path: Path, capsys: Any) -> None:
    path = config(tmp_path, promise="per_silo: {shop: {noise_multiplier: 2.0}}")
    assert main(["--config", str(path)]) == 0
    assert main(["--config", str(path), "--set", f"run.dir={tmp_path / 'again'}", "client.lr=0.02"]) == 0
    capsys.readouterr()
    report(
        ["privacy", str(tmp_path / "run"), str(tmp_path / "silos" / "shop" / "ledger.jsonl"), "--out", str(tmp_path)]
    )
    said = capsys.readouterr().out
    silos = results(tmp_path)["privacy"]["silos"]
    for silo in SILOS:
        assert f"| {silo} | 8 | 4 | 0.5 | {2 if silo == 'shop' else 1} | 0.01 | {silos[silo]['epsilon']:.4f} |" in said
    every = epsilon_of([(0.5, 1.0, 8), (0.5, 2.0, 4)], 0.01)
    assert f"A person in all of them: epsilon {every:.4f} at delta 0.01." in said
    assert f"ledger.jsonl | 2 | 8 | 0 | 0.01 | {epsilon_of([(0.5, 2.0, 8)], 0.01):.4f} |" in said
    assert "of each person (column patient, 2 rows at most), against the server, the other silos" in said
    assert (tmp_path / "privacy.md").read_text() in said


def test_a_silo_of_which_nothing_left_has_spent_nothing(tmp_path: Path, capsys: Any) -> None:
    Silo.open(tmp_path / "silo", "run")
    report(["privacy", str(tmp_path / "silo" / "ledger.jsonl"), "--out", str(tmp_path)])
    assert "ledger.jsonl | 0 | 0 | 0 | 1 | 0.0000 |" in capsys.readouterr().out


def test_a_silo_looks_at_its_units_before_it_declares_them(tmp_path: Path, capsys: Any) -> None:
    path = config(tmp_path, promise="per_silo: {shop: {noise_multiplier: 2.0}}")
    path.write_text(path.read_text().replace("clinic: 8", "clinic: 4").replace("batch_size: 4", "batch_size: 2"))
    assert data_check([str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "client units declared units here rows of a unit, median most" in said
    assert "bank 8 8 2 3 clinic 4 8 2 3 shop 8 8 2 3" in said
    assert "clinic has 200% of the units that it declares; rates and noise follow from those" in said
    assert "bank: if the unit were a row, the person with 3 rows would pay epsilon" in said
    rows = epsilon_of_rows(3, rate=0.25, noise_multiplier=1.0, steps=8, delta=0.01, interval=0.01)
    assert f"pay epsilon {rows:.2f} and not {epsilon_of([(0.25, 1.0, 8)], 0.01):.2f}" in said
    path.write_text(path.read_text().replace("clinic: 4", "clinic: 3"))
    assert data_check([str(path)]) == 0
    assert "clinic has more than twice the units that it declares, and would not train" in capsys.readouterr().out
    path.write_text(path.read_text().replace("bank: 8,", "bank: 16,"))
    assert data_check([str(path)]) == 0
    assert "bank has" not in capsys.readouterr().out  # half as many as it declares


def test_a_model_of_two_sides_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quadratic, "passes_together", lambda self, ranks: True, raising=False)
    toy = {"name": "toy:Quadratic", "clients": {"a": [1, 1, 4]}, "double": False}
    privacy = {"kind": "record", "units": {"a": 4}, "clip": 1.0, "delta": 0.01, "noise_multiplier": 3.0}
    how = {"algorithm": {"name": "fedavg", "weights": "equal"}, "run": {"dir": str(tmp_path / "run")}}
    with pytest.raises(ConfigError, match="has two sides, between which keys and values of each row pass"):
        fedtorch.run({"task": toy, "privacy": privacy, "client": {"batch_size": 2}, **how})
