"""Scores of silos' own held-out units, with noise: the account, the noise, what is told, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks
from record_rows import config
from supervisor import as_rank

import fedtorch
from fedtorch.core.errors import ConfigError
from fedtorch.main import main
from fedtorch.privacy.record import held_out as module
from fedtorch.privacy.record.held_out import counts_of, noised_count, numbers_of
from fedtorch.privacy.record.level import RecordLevel
from fedtorch.privacy.record.silo import Silo, Training
from fedtorch.privacy.record.terms import HeldOut, SiloTerms, epsilon_of
from fedtorch.privacy.settings import PrivacyConfig
from fedtorch.report.command_line import main as report
from fedtorch.setup.data_check import main as data_check

ROWS, PERSONS = "unit: row", "unit: {column: patient, max_rows: 2}"
SCORES = "eval: {noise_multiplier: 2, units: {bank: {dev: 4, test: 4}, clinic: {dev: 4}}}"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared rows go below data/."""
    monkeypatch.chdir(tmp_path)


def terms(units: int = 50) -> SiloTerms:
    """Counts of so many units of `dev` with noise of 10."""
    scores = HeldOut(10.0, {"dev": units}, ("accuracy",), 1, False, "dev", "test", apart=False)
    return SiloTerms("a", 500, 16, 32, 10, 1.0, 1.0, 1e-4, None, held_out=scores)


def configured(folder: Path, unit: str = PERSONS, scores: str = SCORES, more: str = "", kind: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    path = config(folder, kind or "text_classification", promise=scores, more=more)
    text = path.read_text().replace("splits: {dev: 0, test: 0}", "splits: {dev: 0.2, test: 0.2}")
    path.write_text(text.replace(PERSONS, unit))
    return path


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "results.json").read_text())
    return found


def lines(folder: Path, silo: str) -> list[Training]:
    return Silo.open(folder / "silos" / silo, "").trainings()


# --- the noise


def test_a_units_number_is_the_mean_over_its_rows_from_0_to_1() -> None:
    values = [1.0, 0.0, 1.0, float("nan"), 7.0, -3.0]
    assert numbers_of(values, [(0, 1, 2), (3,), (4,), (5, 0)]) == [2 / 3, 0.0, 1.0, 0.5]
    assert numbers_of((), ()) == []


def count(silo: Silo, numbers: list[float], *facts: bytes, metric: str = "accuracy") -> float:
    said = {"round": 1, "split": "dev", "metric": metric, "noise": "normal"}
    found, line = noised_count(silo, terms(), numbers, **said, facts=facts)  # type: ignore[arg-type]
    assert (line.rate, line.noise_multiplier, line.steps, line.split) == (1.0, 10.0, 1, "dev")
    return found


def test_noise_has_the_deviation_that_is_paid_for() -> None:
    silo = Silo(bytes(32), None, "run")
    found = np.array([count(silo, [0.5, 1.0], str(number).encode()) for number in range(2000)])
    assert abs(found.mean() - 1.5) < 4 * 10 / 2000**0.5
    assert found.std() == pytest.approx(10.0, rel=4 / 4000**0.5)


@pytest.mark.parametrize(("declared", "exponent"), [(50, 32), (2**21, 29)])
def test_sums_are_exact_for_twice_as_many_units_as_declared(
    declared: int, exponent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice 2^21 times 2^29 is 2^51, which float64 has room for."""
    seen = []
    monkeypatch.setattr(module, "ADD", {"normal": lambda total, deviation, _: seen.append((total[0], deviation))})
    about = terms(declared)
    said = {"round": 1, "split": "dev", "metric": "accuracy", "noise": "normal"}
    found, line = noised_count(Silo(bytes(32), None), about, [0.5, 1 / 3], **said, facts=[])  # type: ignore[arg-type]
    third = int(2.0**exponent / 3)
    assert seen == [(2.0 ** (exponent - 1) + third, 10.0 * 2.0**exponent)]
    assert found == 0.5 + third / 2.0**exponent and line.attempt == 0


def test_scores_that_were_told_count_once_by_split() -> None:
    line = Training("run", 1, "accuracy", 0, "s" * 64, "s" * 64, 1, 1.0, 10.0, 1e-4, "dev")
    other, later, test = ("t" * 64, 1), ("s" * 64, 9), ("u" * 64, 1)
    lines = [line, *(replace(line, start=end, end=end, round=round) for end, round in (other, later))]
    lines += [replace(line, start=test[0], end=test[0], split="test"), replace(line, end="v" * 64, split="")]
    assert counts_of(lines) == {"dev": 2, "test": 1}
    assert Training.of(json.loads(json.dumps(line.line()))) == line and "split" not in lines[-1].line()


def test_the_same_score_has_the_same_noise_and_no_other_score_has_it() -> None:
    silo = Silo(bytes(32), None, "run")
    assert count(silo, [0.5, 1.0], b"w") == count(silo, [1.0, 0.5], b"w")
    noises = {
        count(silo, [0.5], b"w") - 0.5,
        count(silo, [1.0], b"w") - 1.0,
        count(silo, [0.5], b"v") - 0.5,
        count(silo, [0.5], b"w", metric="exact_match") - 0.5,
        count(Silo(bytes(31) + b"1", None), [0.5], b"w") - 0.5,
    }
    assert len(noises) == 5 and min(np.diff(sorted(noises))) > 1e-3


def test_other_weights_rows_or_bases_have_other_noise_on_the_same_sum() -> None:
    settings = PrivacyConfig("record", clip=1.0, delta=1e-4, noise_multiplier=1.0, units={"a": 500})

    def score(rows: str = "xy", weight: float = 0.0, basis: str = "base") -> float:
        about = {"a": terms()}, settings, lambda client: Silo(bytes(32), None), lambda *_: [(0,), (1,)], (), basis
        vector = torch.full((3,), weight)
        found = RecordLevel(*about).counted("a", 1, "dev", {"accuracy": [1.0, 0.0]}, [[*rows], vector])
        (total, declared) = found["accuracy"]
        assert declared == 50
        return total

    assert score() == score()
    assert len({score(), score(rows="xz"), score(weight=1.0), score(basis="another")}) == 4


# --- runs


@pytest.mark.long
def test_a_run_tells_noised_scores_over_declared_numbers(tmp_path: Path, capsys: Any) -> None:
    path = configured(tmp_path)
    assert main(["--config", str(path), "--dry-run"]) == 0
    said = capsys.readouterr().out
    alone = epsilon_of([(1.0, 2.0, 3)], 0.01)
    planned = "bank: 2 of 4 units of dev, 1 of 4 units of test noised scores (accuracy), noise 2"
    assert f"{planned}: epsilon {alone:.4f} by themselves" in said
    assert "a person may be trained on and scored, so the table has both together" in said
    cost = fedtorch.privacy_cost(str(path))
    assert cost["bank"] == epsilon_of([(0.5, 1.0, 4), (1.0, 2.0, 3)], 0.01) > cost["clinic"] > cost["shop"]

    assert main(["--config", str(path)]) == 0
    found = results(tmp_path)
    silos = found["privacy"]["silos"]
    assert {name: silo["epsilon"] for name, silo in silos.items()} == cost
    assert silos["bank"]["held_out"]["counts"] == {"dev": 2, "test": 1} and "held_out" not in silos["shop"]
    assert counts_of(lines(tmp_path, "bank")) == {"dev": 2, "test": 1}
    assert counts_of(lines(tmp_path, "clinic")) == {"dev": 2} and counts_of(lines(tmp_path, "shop")) == {}
    assert list(found["clients"]["bank"]["scores"]) == ["accuracy"]  # no loss, no counts of labels
    assert found["clients"]["bank"]["scores"]["accuracy"][1] == found["averages"]["accuracy"]["count"] == 4
    assert found["summary"] == {"pooled": {}, "clients": {"bank": {}}}
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rounds = [each["extra"] for each in records if each["kind"] == "round"]
    assert rounds[0]["privacy/epsilon/bank"] == epsilon_of([(0.5, 1.0, 2), (1.0, 2.0, 1)], 0.01)


@pytest.mark.long
def test_card_report_and_data_check_say_it(tmp_path: Path, capsys: Any) -> None:
    path = configured(tmp_path)
    assert main(["--config", str(path)]) == 0
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "noise multiplier 1, 3 scores of its held-out units with noise of 2 units)" in card
    capsys.readouterr()
    assert report(["privacy", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "bank: noised scores 2 of dev, 1 of test, noise 2, epsilon" in said and "both together are above" in said
    parts = [(0.5, 1.0, 4)] * 3 + [(1.0, 2.0, 5)]
    assert f"A person in all of them: epsilon {epsilon_of(parts, 0.01):.4f}" in said
    ledger = tmp_path / "silos" / "bank" / "ledger.jsonl"
    assert report(["privacy", str(ledger)]) == 0
    assert f"{ledger} | 1 | 4 | 3 | 0.01 | " in capsys.readouterr().out
    assert data_check([str(path)]) == 0
    assert "bank, dev 4 2" in " ".join(capsys.readouterr().out.split())


def test_rows_are_trained_on_or_scored(tmp_path: Path, capsys: Any) -> None:
    path = configured(tmp_path, unit=ROWS)
    cost = fedtorch.privacy_cost(str(path))
    assert cost["bank"] == cost["shop"] == epsilon_of([(0.5, 1.0, 4)], 0.01)
    assert main(["--config", str(path), "--dry-run"]) == 0
    assert "the larger epsilon is in the table; a silo's ledger adds both up" in capsys.readouterr().out


@pytest.mark.processes
def test_the_same_again_on_any_ranks_has_the_same_scores_and_is_no_release(tmp_path: Path) -> None:
    path = configured(tmp_path)
    assert main(["--config", str(path)]) == 0
    before = {name: Silo.open(tmp_path / "silos" / name, "").parts() for name in ("bank", "clinic", "shop")}
    first, elsewhere = results(tmp_path), tmp_path / "ranks" / "run"
    run_ranks(as_rank, 3, ["--config", str(path), "--set", f"run.dir={elsewhere}"], timeout=120)
    again = results(tmp_path / "ranks")
    for key in ("digest", "clients", "averages"):
        assert again[key] == first[key]
    assert again["privacy"]["silos"] == first["privacy"]["silos"]
    assert {name: Silo.open(tmp_path / "silos" / name, "").parts() for name in before} == before


def test_a_score_that_would_pass_the_limit_is_not_told(tmp_path: Path) -> None:
    steps, scores = (0.5, 1.0, 4), (1.0, 2.0, 1)
    limit = epsilon_of([steps, scores], 0.01) + 1e-6  # of both rounds and one score
    path = configured(tmp_path, scores=f"{SCORES}\n  max_epsilon: {limit}")
    assert main(["--config", str(path)]) == 0
    found = lines(tmp_path, "bank")
    assert sum(one.steps for one in found if not one.split) == 4 and counts_of(found) == {"dev": 1}
    assert results(tmp_path)["clients"] == {}
    assert results(tmp_path)["privacy"]["silos"]["bank"]["held_out"]["counts"] == {"dev": 1}


def test_an_epsilon_has_room_for_the_scores(tmp_path: Path) -> None:
    path = configured(tmp_path, scores=SCORES.replace("noise_multiplier: 2", "noise_multiplier: 8"))
    path.write_text(path.read_text().replace("  noise_multiplier: 1.0", "  epsilon: 3.0"))
    cost = fedtorch.privacy_cost(str(path))
    assert all(2.99 < epsilon <= 3.0 for epsilon in cost.values())
    path.write_text(path.read_text().replace("noise_multiplier: 8", "noise_multiplier: 1"))
    with pytest.raises(ConfigError, match=r"privacy\.eval\.noise_multiplier is 1, with which scores of silo bank come"):
        fedtorch.privacy_cost(str(path))


def test_patience_goes_by_noised_scores(tmp_path: Path) -> None:
    path = configured(tmp_path, more="eval: {patience: 1}")
    assert main(["--config", str(path)]) == 0


@pytest.mark.slow
def test_silos_that_train_alone_and_texts_that_must_be_exact(tmp_path: Path) -> None:
    path = configured(tmp_path / "local", more="paradigm: local")
    assert main(["--config", str(path)]) == 0
    assert counts_of(lines(tmp_path / "local", "bank"))["dev"] == 2
    path = configured(tmp_path / "texts", kind="seq2seq", more="eval: {select_by: exact_match}")
    assert main(["--config", str(path)]) == 0
    assert list(results(tmp_path / "texts")["clients"]["bank"]["scores"]) == ["exact_match"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("clinic: {dev: 4}", "ship: {dev: 4}", r"privacy\.eval\.units names 'ship', which privacy\.units does not"),
        ("clinic: {dev: 4}", "clinic: {later: 4}", r"privacy\.eval\.units\.clinic names 'later', of which"),
        ("clip: 1.0", "clip: 1.0\n  reveal: [scores]", r"privacy\.eval is set but privacy\.reveal has scores"),
        ("multiplier: 2,", "multiplier: 2, metrics: [loss],", r"the score loss is no number .* has accuracy"),
        ("rounds: 2", "rounds: 2\neval: {select_by: loss}", r"the score loss is no number from 0 to 1 for each row"),
        ("rounds: 2", "rounds: 2\neval: {metrics: [macro_f1]}", r"the score macro_f1 is no number from 0 to 1"),
        ("rounds: 2", "rounds: 2\neval: {point: trained}", r"eval\.point is trained, which shows how"),
        ("rounds: 2", "rounds: 2\neval: {per_example: true}", r"eval\.per_example is true, which shows how"),
        ("max_length: 16", "max_length: 16\n  max_dev: 2", r"task\.max_dev is 2: one row more would change"),
        ("kind: record", "kind: none", r"privacy\.\w+ is set but privacy\.kind is none"),
        ("dev: 0.2, ", "dev: shared.jsonl, ", r"the rows of dev are one file for all clients"),
    ],
)  # fmt: skip
def test_what_cannot_be_counted_is_refused(old: str, new: str, words: str, tmp_path: Path) -> None:
    path = configured(tmp_path)
    text = path.read_text()
    assert old in text
    rows = [json.loads(line) for line in (tmp_path / "rows" / "text_classification.jsonl").read_text().splitlines()]
    shared = [{key: value for key, value in row.items() if key != "silo"} for row in rows[:5]]
    (tmp_path / "shared.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shared))
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=words):
        fedtorch.run(str(path))
    assert not (tmp_path / "silos").exists()


@pytest.mark.long
def test_a_split_in_a_file_of_its_own_says_whose_its_rows_are_or_belongs_to_nobody(tmp_path: Path) -> None:
    path = configured(tmp_path, scores="eval: {noise_multiplier: 2, units: {bank: {dev: 3}}}")
    rows = [json.loads(line) for line in (tmp_path / "rows" / "text_classification.jsonl").read_text().splitlines()]
    dealt = "".join(json.dumps(row) + "\n" for row in rows[::4])
    (tmp_path / "dev.jsonl").write_text(dealt)
    path.write_text(path.read_text().replace("splits: {dev: 0.2, ", f"splits: {{dev: {tmp_path / 'dev.jsonl'}, "))
    assert main(["--config", str(path)]) == 0
    assert counts_of(lines(tmp_path, "bank")) == {"dev": 2}
    (tmp_path / "dev.jsonl").write_text(dealt.replace('"patient"', '"nobody"'))
    with pytest.raises(ConfigError, match=r"rows of dev have no column 'patient', which privacy\.unit\.column names"):
        fedtorch.run(str(path), overrides=[f"run.dir={tmp_path / 'later' / 'run'}"])
    path.write_text(path.read_text().replace("eval: {noise_multiplier: 2, units: {bank: {dev: 3}}}", ""))
    assert main(["--config", str(path), "--set", f"run.dir={tmp_path / 'public' / 'run'}"]) == 0


def test_more_than_twice_the_declared_units_end_the_run(tmp_path: Path) -> None:
    path = configured(tmp_path, unit=ROWS, scores=SCORES.replace("bank: {dev: 4,", "bank: {dev: 1,"))
    with pytest.raises(ConfigError, match=r"client bank has 3 units, and privacy\.eval\.units\.bank\.dev declares 1"):
        fedtorch.run(str(path))
