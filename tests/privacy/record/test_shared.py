"""Noise that silos share under a secure sum: one gradient a round, and noise enough whoever is there."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks
from supervisor import as_rank, at, supervise, toy_config

import fedtorch
from fedtorch.config.load import load
from fedtorch.core.errors import ConfigError
from fedtorch.main import main
from fedtorch.privacy.record import silo as noising
from fedtorch.privacy.record.silo import Silo
from fedtorch.privacy.record.steps import NoisedSteps, Place
from fedtorch.privacy.record.terms import SiloTerms, epsilon_of
from fedtorch.privacy.secure_sum.terms import threshold_of
from fedtorch.setup.plan import Plan
from fedtorch.setup.record import silo_terms
from fedtorch.setup.rules import check_plan
from fedtorch.tracking.privacy_statement import promise

UNITS = {"a": 6, "b": 9, "c": 5, "d": 7}
PATIENT = ("system.timeout=60",)
SUM = "{threshold: 1.0}"


def config_for(folder: Path, promise: str = "", secure: str = SUM, **changes: str) -> Path:
    units = ", ".join(f"{name}: {number}" for name, number in UNITS.items())
    privacy = f"{{kind: record, noise_at: shared, units: {{{units}}}, clip: 0.5, delta: 0.01, secure_sum: {secure}, "
    privacy += f"ledger: {folder / 'silos'}, noise_multiplier: 1.0{', ' + promise if promise else ''}}}"
    usual = {
        "algorithm": "{name: fedavg, weights: declared}",
        "privacy": privacy,
        "server": "{optimizer: sgd, lr: 0.5}",
        "client": "{batch_size: 4, steps: 1}",
        "clients": "{per_round: all}",
    }
    return toy_config(folder, **{**usual, **changes})


def results(config: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((config.parent / "run" / "results.json").read_text())
    return found


def seen(config: str, folder: str, quiet: bool) -> None:
    """One rank; what it sends and, on the server, what it steps along, are in files."""
    from fedtorch.privacy.record.shared import SharedNoise
    from fedtorch.train import job

    if quiet:
        noising.ADD = {"normal": lambda total, deviation, stream: None}  # type: ignore[dict-item]
    made, release = job.noised_sum, SharedNoise.release

    def noised(training: Any) -> Any:
        part, curve = made(training)
        path = Path(folder) / f"{training.client}.{len(list(Path(folder).glob(training.client + '.*')))}.pt"
        torch.save(part, path)
        return part, curve

    def released(self: Any, round: int, total: Any, server: Any, places: Any) -> Any:
        torch.save(total.clone(), Path(folder) / f"total.{round}.pt")
        grad = release(self, round, total, server, places)
        torch.save(grad, Path(folder) / f"grad.{round}.pt")
        return grad

    job.noised_sum, SharedNoise.release = noised, released  # type: ignore[method-assign]
    as_rank(["--config", config])


@pytest.mark.processes
@pytest.mark.parametrize("quiet", [True, False], ids=["no noise", "noise"])
def test_the_server_gets_the_sum_of_all_parts_to_the_bit_over_public_numbers(quiet: bool, tmp_path: Path) -> None:
    config = config_for(tmp_path)
    (tmp_path / "seen").mkdir()
    run_ranks(seen, 4, str(config), str(tmp_path / "seen"), quiet, timeout=120)
    terms = SiloTerms("a", 6, 4, 1, 3, 1.0, 0.5, 0.01, None, pool=27, honest=2)
    for round in range(3):
        parts = [torch.load(tmp_path / "seen" / f"{name}.{round}.pt").numpy() for name in UNITS]
        total, grad = (torch.load(tmp_path / "seen" / f"{what}.{round}.pt").numpy() for what in ("total", "grad"))
        whole = [np.ldexp(part, terms.exponent) for part in parts]
        assert all((part == np.rint(part)).all() for part in whole)
        assert (total == sum(whole)).all()
        assert grad.dtype == np.float32
        assert (grad == (total * 2.0**-terms.exponent / 16).astype(np.float32)).all()
        if quiet:
            assert np.linalg.norm(total) <= 27 * 0.5 * 2.0**terms.exponent
    said = results(config)["privacy"]
    assert (said["noise_at"], said["threshold"], said["colluders"]) == ("shared", 3, 1)
    words = promise(said)
    assert "it is opened with 3 parts or more" in words and "against the server together with 1 silo, any 1 " in words
    nobody = promise({**said, "colluders": 0})  # a silo takes its own share off the model that all receive
    assert "the server and everybody who sees the model and the records, but not against a silo" in nobody
    for name, units in UNITS.items():
        assert said["silos"][name]["epsilon"] == epsilon_of([(4 / units, 1.0, 3)], 0.01)
        assert [(t.steps, t.noise_multiplier) for t in Silo.open(tmp_path / "silos" / name, "").trainings()] == [
            (1, 1.0)
        ] * 3
    records = (config.parent / "run" / "metrics.jsonl").read_text()
    assert "privacy/norm" not in records and "privacy/epsilon/a" in records


@pytest.mark.parametrize(
    ("silos", "share", "colluders", "left"),
    [(8, 0.51, 0, 5), (8, 0.51, 1, 4), (8, 0.51, 2, 3), (8, 0.51, 4, 1), (3, 1.0, 1, 2), (6, 0.7, 0, 5)],
)
def test_shares_come_to_the_noise_whoever_is_there(silos: int, share: float, colluders: int, left: int) -> None:
    """t − a parts have zC, more have more."""
    honest = threshold_of(share, silos) - colluders
    assert honest == left
    terms = SiloTerms("a", 100, 10, 1, 1, 2.0, 1.0, 1e-4, None, pool=800, honest=honest)
    parts = []
    for silo in range(silos):
        begun = NoisedSteps(Silo(bytes([silo]) * 32, None), terms, Place(0, "train"), "normal", [b"w"])
        parts.append(begun.release(np.zeros(200_000)))
    least = sum(parts[:left])
    assert least.var() == pytest.approx(4.0, rel=2e-2)
    assert sum(parts).var() == pytest.approx(4.0 * silos / left, rel=2e-2)


def test_the_account_of_shares_against_traps() -> None:
    assert epsilon_of([(1.0, 4.0, 20)], 1e-4) == pytest.approx(4.3456, abs=1e-3)
    assert epsilon_of([(1.0, 4.0 * math.sqrt(6 / 5), 20)], 1e-4) == pytest.approx(3.8978, abs=1e-3)
    assert epsilon_of([(1.0, 4.0 * math.sqrt(8 / 5), 20)], 1e-4) == pytest.approx(3.2879, abs=1e-3)
    assert epsilon_of([(1.0, 4.0 * math.sqrt(6 / 8), 20)], 1e-4) == pytest.approx(5.1671, abs=1e-3)


@pytest.mark.slow
def test_the_account_of_shares_against_colluders() -> None:
    assert epsilon_of([(1.0, 4.0 * math.sqrt(4 / 5), 20)], 1e-4) == pytest.approx(4.9694, abs=1e-3)
    assert epsilon_of([(1.0, 4.0 * math.sqrt(1 / 5), 20)], 1e-4) == pytest.approx(11.8138, abs=1e-3)


def with_keys(config: Path, like: Path) -> Path:
    shutil.copytree(like / "silos", config.parent / "silos", copy_function=shutil.copy2)
    for path in (config.parent / "silos").glob("*/ledger.jsonl"):
        path.write_text('{"form": 1}\n')
    return config


PLACES = (("train", 2), ("aggregate", 0), ("sum_reveal", 3), ("checkpoint", 0))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("phase", "victim"), [("payload", 1), *(pytest.param(*place, marks=pytest.mark.slow) for place in PLACES)]
)
def test_a_kill_costs_no_release(phase: str, victim: int, tmp_path: Path) -> None:
    one = config_for(tmp_path / "one")
    run_ranks(as_rank, 4, ["--config", str(one)], timeout=120)
    config = with_keys(config_for(tmp_path / "two"), tmp_path / "one")
    ended = supervise(config, 4, faults=at(phase, victim), sets=PATIENT, timeout=200)
    assert ended.code == 0, ended.codes
    assert results(config)["digest"] == results(one)["digest"]
    for name in UNITS:
        essence = [
            {(t.start, t.end, t.attempt) for t in Silo.open(tmp_path / each / "silos" / name, "").trainings()}
            for each in ("one", "two")
        ]
        assert essence[0] == essence[1] and len(essence[0]) == 3


def test_a_dry_run_says_what_is_gained_over_local_noise(tmp_path: Path, capsys: Any) -> None:
    config = config_for(tmp_path)
    assert main(["--config", str(config), "--dry-run", "--ranks", "4"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "a sum is opened with 3 parts or more, 2 of them of silos that do not tell" in said
    assert "(privacy.colluders 1): a round's gradient has 1.414 times less noise than with local noise" in said
    assert "against the server together with 1 of the silos, by shares" in said
    config = config_for(tmp_path, "colluders: 0")
    assert main(["--config", str(config), "--dry-run", "--ranks", "4"]) == 0
    assert "against the server, not against a silo that takes part, by" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("changes", "promise", "secure", "words"),
    [
        ({"client": "{batch_size: 4, steps: 2}"}, "", SUM, r"client\.steps is not 1"),
        ({"client": "{batch_size: 4}"}, "", SUM, r"client\.steps is not 1"),
        ({"algorithm": "{name: fedprox, weights: declared}"}, "", SUM, r"algorithm\.name is fedprox, with which"),
        ({"algorithm": "{name: fedavg, weights: equal}"}, "", SUM, r"algorithm\.weights is equal: a unit counts"),
        ({"server": "{optimizer: none}"}, "", SUM, r"server\.optimizer is none"),
        ({"clients": "{per_round: 3}"}, "", SUM, r"clients\.per_round is 3: all silos have to share"),
        ({}, "colluders: 3", SUM, r"privacy\.colluders is 3 but a sum is opened with 3 parts"),
        ({}, "colluders: 2", "{threshold: 0.6}", r"privacy\.colluders is 2 but a sum is opened with 2 parts"),
        ({}, "", "null", r"privacy\.noise_at is shared but privacy\.secure_sum is not set"),
    ],
)
def test_what_is_more_than_one_sum_is_refused(
    changes: dict[str, str], promise: str, secure: str, words: str, tmp_path: Path
) -> None:
    config = config_for(tmp_path, promise, secure, **changes)
    with pytest.raises(ConfigError, match=words):
        check_plan(Plan.of(load(str(config)), 4))


def test_in_one_process_nobody_is_hidden(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there are 0 workers|a sum is opened with 1 parts"):
        fedtorch.run(str(config_for(tmp_path)))


def test_all_silos_add_as_much_as_the_one_that_needs_most(tmp_path: Path) -> None:
    """A unit is hidden by other silos' shares too: those with less noise would leave it less than it was promised."""
    config = config_for(tmp_path, "per_silo: {b: {noise_multiplier: 3.0}, c: {noise_multiplier: 0.5}}")
    found = silo_terms(Plan.of(load(str(config)), 4))
    assert {terms.noise_multiplier for terms in found.values()} == {3.0}
    assert {(terms.pool, terms.honest) for terms in found.values()} == {(27, 2)}
    assert found["b"].epsilon(3) == epsilon_of([(4 / 9, 3.0, 3)], 0.01) < found["c"].epsilon(3)


def test_a_worker_without_a_silo_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are 5 workers for 4 silos, and one without a silo .* start 5 ranks"):
        check_plan(Plan.of(load(str(config_for(tmp_path))), 6))
