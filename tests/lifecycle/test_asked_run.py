"""What a config asks of a silo, as a policy is compared with it: nobody is met."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from own_rows import BERT, weather, write_rows

from fedtorch.config.load import load
from fedtorch.lifecycle.asked_run import asked_of
from fedtorch.privacy.record.silo import Silo, Training
from fedtorch.text.byte_bpe import train_subwords
from fedtorch.trust.policy.asked import Asked

pytestmark = pytest.mark.long

PINNED = {"north": 1, "south": 2, "west": 3}
SECURE = {"privacy": {"clip": 0.5, "secure_sum": {"threshold": 1.0}}}
CLIENT = {"kind": "client", "clip": 0.25, "noise_multiplier": 1.0, "delta": 1e-3}
RECORD: dict[str, Any] = {"kind": "record", "clip": 0.5, "noise_multiplier": 4.0, "delta": 1e-3}
RECORD |= {"units": dict.fromkeys(PINNED, 12), "noise_at": "shared", "secure_sum": {"threshold": 1.0}}
ONE_STEP = {"algorithm": {"name": "fedavg", "weights": "declared"}, "client": {"batch_size": 4, "steps": 1}}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    train_subwords([row["text"] for row in weather()], folder, size=270)
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Path) -> None:
    """A folder with the tokenizer and the rows of one silo."""
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", [row for row in weather() if row["home"] == "south"])
    (tmp_path / "words").symlink_to(words)


def asked(tmp_path: Path, *, is_new: bool = False, **changes: Any) -> Asked:
    data = {"source": "rows.jsonl", "clients": {"by": "home"}, "labels": ["good", "bad"]}
    config = {
        "task": {"name": "text_classification", "model": BERT, "tokenizer": "words", "max_length": 32, "data": data},
        "run": {"dir": "run", "name": "asked"},
        "rounds": 5,
        "algorithm": {"name": "fedavg", "weights": "equal"},
        "client": {"batch_size": 4, "optimizer": "adamw", "lr": 0.01},
        "system": {"placement": "pinned", "pinned": PINNED},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**config, **changes}))
    return asked_of(load([tmp_path / "config.yaml"]), ["south"], 4, is_new=is_new)


def test_a_plain_run_sends_everything_and_promises_nothing(tmp_path: Path) -> None:
    found = asked(tmp_path)
    assert found.kinds == ("status", "steps", "examples", "losses", "norms", "seconds", "figures", "scores")
    names = [name for name, _ in found.parameters]
    assert "classifier.weight" in names and (found.vectors, found.rounds, found.clients) == (1, 5, 1)
    assert found.bytes_per_round == 8 * sum(size for _, size in found.parameters)
    assert (found.parties, found.promise, found.epsilon, found.delta, found.clip) == (None, "none", None, None, None)
    assert found.initial.startswith("sha256:") and len(found.initial) == 71 and found.verified == 0.0


def test_it_survives_the_way_between_two_processes(tmp_path: Path) -> None:
    found = asked(tmp_path)
    assert json.loads(json.dumps(asdict(found)))["kinds"] == list(found.kinds)


def test_only_shared_parameters_leave(tmp_path: Path) -> None:
    found = asked(tmp_path, partition={"private": ["classifier.*"]}, client={"batch_size": 4})
    assert not any(name.startswith("classifier") for name, _ in found.parameters) and "states" in found.kinds


def test_an_algorithm_that_sends_nothing_asks_for_no_parameter(tmp_path: Path) -> None:
    found = asked(tmp_path, paradigm="local")
    assert (found.parameters, found.vectors, found.bytes_per_round, found.initial) == ((), 0, 0, "")


def test_a_control_variate_doubles_what_leaves_and_is_a_state(tmp_path: Path) -> None:
    plain, found = asked(tmp_path), asked(tmp_path, algorithm={"name": "scaffold"}, client={"optimizer": "sgd"})
    assert found.vectors == 2 and found.bytes_per_round == 2 * plain.bytes_per_round and "states" in found.kinds
    assert found.initial != plain.initial


def test_a_secure_sum_hides_losses_and_norms_and_has_a_least_number_of_parties(tmp_path: Path) -> None:
    found = asked(tmp_path, **SECURE)
    assert found.kinds == ("status", "steps", "examples", "seconds", "scores") and found.parties == 3
    assert found.clip == 0.5 and found.clips_updates
    two = {"privacy": {"clip": 0.5, "secure_sum": {"threshold": 0.6}}}
    assert asked(tmp_path, **two).parties == 2


def test_privacy_of_clients_leaves_a_status(tmp_path: Path) -> None:
    clients = {"sampling": {"name": "poisson", "rate": 1.0}}
    found = asked(tmp_path, privacy=CLIENT, clients=clients)
    assert found.kinds == ("status", "steps", "examples") and (found.promise, found.delta, found.clip) == (
        "client",
        1e-3,
        0.25,
    )
    assert found.epsilon is not None and 5 < found.epsilon < 20
    adaptive = {**CLIENT, "clip": {"adaptive": {}}}
    moving = asked(tmp_path, privacy=adaptive, clients=clients)
    assert moving.clip is None and "figures" in moving.kinds
    shown = asked(tmp_path, privacy={**CLIENT, "reveal": ["losses", "scores"]}, clients=clients)
    assert {"losses", "scores"} <= set(shown.kinds)


def test_privacy_of_rows_leaves_declared_numbers_alone(tmp_path: Path) -> None:
    found = asked(tmp_path, privacy=RECORD, **ONE_STEP)
    assert found.kinds == ("status", "steps", "states") and found.declared == (12,) and not found.clips_updates
    assert found.promise == "record" and found.parties == 3
    with_ledger = asked(tmp_path, privacy={**RECORD, "ledger": "l"}, **ONE_STEP)
    ((client, folder, kind, exponent, (((start, stop, deviation),),)),) = with_ledger.noise
    assert (start, stop) == (0, sum(size for _, size in found.parameters))
    assert (client, Path(folder), kind) == ("south", tmp_path / "l" / "south", "normal")
    assert math.ldexp(deviation, -exponent) == pytest.approx(4.0 * 0.5 / math.sqrt(3 - 1))  # zC/√(t − a)
    assert Asked.read(json.loads(json.dumps(asdict(found)))).noise == found.noise
    local = {key: value for key, value in RECORD.items() if key not in ("noise_at", "secure_sum")}
    alone = asked(tmp_path, privacy=local, **ONE_STEP)
    assert alone.kinds == ("status", "steps", "norms", "states") and not alone.noise
    simulated = asked(tmp_path, privacy={**RECORD, "simulate": True, "seed": 1}, **ONE_STEP)
    assert (simulated.promise, simulated.epsilon, simulated.noise) == ("none", None, ())


def test_of_counts_each_table_has_its_noise_and_that_a_silo_takes_part_is_public(tmp_path: Path) -> None:
    stats = {"words": {"longest": 3}, "privacy": {"noise_multiplier": 2.0, "delta": 1e-5, "ledger": "l"}}
    found = asked(tmp_path, paradigm="stats", stats=stats)
    assert "figures" not in found.kinds and found.figures == ("releases",) and found.promise == "record"
    ((client, folder, kind, exponent, rounds),) = found.noise
    assert (client, Path(folder), kind, exponent) == ("south", tmp_path / "l" / "south", "normal", 20)
    assert len(rounds) == found.rounds > 1
    for (mark, *tables), round in zip(rounds, range(found.rounds), strict=True):
        assert mark == (3 * round + 1, 3 * round + 2, 0.0)
        assert tables and all(math.ldexp(deviation, -20) >= 2.0 for *_, deviation in tables)
    assert not asked(tmp_path, paradigm="stats", stats={"labels": {"longest": 3}}).noise


def test_noised_scores_of_a_silo_are_scores(tmp_path: Path) -> None:
    eval_ = {"noise_multiplier": 5.0, "units": {"south": {"test": 4}}}
    assert "scores" in asked(tmp_path, privacy={**RECORD, "eval": eval_}, **ONE_STEP).kinds
    others = {"noise_multiplier": 5.0, "units": {"north": {"test": 4}}}
    assert "scores" not in asked(tmp_path, privacy={**RECORD, "eval": others}, **ONE_STEP).kinds


def test_scores_of_single_examples_and_few_bits_are_kinds_that_no_line_names(tmp_path: Path) -> None:
    assert "scores of single examples" in asked(tmp_path, eval={"per_example": True}).kinds
    assert "messages" in asked(tmp_path, exchange={"bits": 4}).kinds and "messages" not in asked(tmp_path).kinds


def test_updates_of_some_places_alone_are_a_kind_that_no_line_names(tmp_path: Path) -> None:
    streamed = {"name": "streaming_diloco", "fragments": [["classifier.*"], ["*"]]}
    assert "messages" in asked(tmp_path, algorithm=streamed, client={"batch_size": 4, "steps": 2}).kinds


def test_epsilon_is_that_of_all_runs_in_the_silos_own_ledger(tmp_path: Path) -> None:
    private = {**RECORD, "ledger": "ledger"}
    alone = asked(tmp_path, privacy=private, **ONE_STEP).epsilon
    silo = Silo.open(tmp_path / "ledger" / "south", "another run")
    for round in range(5):
        silo.enter(Training("another run", round, "", 0, f"begun {round}", f"ended {round}", 1, 4 / 12, 4.0, 1e-3))
    both = asked(tmp_path, privacy=private, **ONE_STEP).epsilon
    twice = asked(tmp_path, privacy=RECORD, rounds=10, **ONE_STEP).epsilon
    assert alone is not None and both is not None and twice is not None
    assert alone < both == pytest.approx(twice, rel=1e-9)


def test_a_run_that_goes_on_is_counted_once_and_one_that_begins_anew_is_not(tmp_path: Path) -> None:
    private, run = {**RECORD, "ledger": "ledger"}, str((tmp_path / "run").resolve())
    alone = asked(tmp_path, privacy=private, **ONE_STEP).epsilon
    silo = Silo.open(tmp_path / "ledger" / "south", run)
    silo.enter(Training(run, 0, "", 0, "begun", "ended", 1, 4 / 12, 4.0, 1e-3))
    anew = asked(tmp_path, privacy=private, is_new=True, **ONE_STEP).epsilon
    assert asked(tmp_path, privacy=private, **ONE_STEP).epsilon == alone
    assert alone is not None and anew is not None and anew > alone


def test_a_silo_that_rests_in_time_does_not_pass_its_limit(tmp_path: Path) -> None:
    whole = asked(tmp_path, privacy=RECORD, **ONE_STEP).epsilon
    assert whole is not None
    assert asked(tmp_path, privacy={**RECORD, "max_epsilon": whole / 2}, **ONE_STEP).epsilon == whole / 2
