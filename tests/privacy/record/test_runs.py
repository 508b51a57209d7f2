"""Whole runs with noise of each silo's own: the bits of one process on any ranks, kills, copies, budgets, records."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from safetensors import safe_open
from safetensors.torch import load_file
from supervisor import PHASES, as_rank, at, supervise, toy_config

import fedtorch
from fedtorch.checkpoint.under_way import FOLDER
from fedtorch.core.errors import FedtorchError
from fedtorch.main import main
from fedtorch.privacy.record import steps as module
from fedtorch.privacy.record.silo import Silo, Step, Training
from fedtorch.privacy.record.steps import NoisedSteps
from fedtorch.privacy.record.terms import SiloTerms
from fedtorch.train.moment import GENERATOR, LOSSES, NOISED

UNITS = {"a": 6, "b": 9, "c": 5, "d": 7}
STEPS = {name: -(-units // 4) for name, units in UNITS.items()}
PATIENT = ("system.timeout=60",)


def config_for(folder: Path, promise: str = "", **changes: str) -> Path:
    """The toy run with privacy of rows; keys and ledgers in `folder`/silos. promise: further keys of `privacy`."""
    units = ", ".join(f"{name}: {number}" for name, number in UNITS.items())
    privacy = f"{{kind: record, units: {{{units}}}, clip: 0.5, delta: 0.01, ledger: {folder / 'silos'}, "
    privacy += promise + ("" if "epsilon" in promise.split("max_")[0] else ", noise_multiplier: 1.0") + "}"
    settings = {"algorithm": "{name: fedavg, weights: declared}", "privacy": privacy.replace(", , ", ", ")}
    return toy_config(folder, **{**settings, **changes})


def with_keys(config: Path, like: Path) -> Path:
    """The config, whose silos have the keys of another run and nothing in their ledgers."""
    shutil.copytree(like / "silos", config.parent / "silos", copy_function=shutil.copy2)
    for path in (config.parent / "silos").glob("*/ledger.jsonl"):
        path.write_text('{"form": 1}\n')
    return config


def lines(config: Path) -> dict[str, list[Training]]:
    return {name: Silo.open(config.parent / "silos" / name, "").trainings() for name in UNITS}


def essence(config: Path) -> dict[str, set[tuple[int, int, str, str, int]]]:
    """Of each silo what has left it."""
    found = lines(config)
    return {n: {(t.round, t.attempt, t.start, t.end, t.steps) for t in each} for n, each in found.items()}


def results(config: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((config.parent / "run" / "results.json").read_text())
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run in one process, with nothing in its way."""
    config = config_for(tmp_path_factory.mktemp("undisturbed"))
    assert main(["--config", str(config)]) == 0
    return config


def same(config: Path, other: Path) -> bool:
    keys = ("digest", "privacy")
    return essence(config) == essence(other) and all(results(config)[k] == results(other)[k] for k in keys)


@pytest.mark.processes
def test_three_ranks_give_the_bits_of_one_process(undisturbed: Path, tmp_path: Path) -> None:
    config = with_keys(config_for(tmp_path), undisturbed.parent)
    run_ranks(as_rank, 3, ["--config", str(config)], timeout=120)
    assert same(config, undisturbed)


def test_what_results_say(undisturbed: Path) -> None:
    said, drawn = results(undisturbed)["privacy"], lines(undisturbed)
    assert sum(map(len, drawn.values())) == 9  # three of four clients in each of three rounds
    for name, units in UNITS.items():
        terms = SiloTerms(name, units, 4, STEPS[name], 3, 1.0, 0.5, 0.01, None)
        assert said["silos"][name]["epsilon"] == terms.epsilon(len(drawn[name]))
        assert said["silos"][name]["steps"] == len(drawn[name]) * STEPS[name]
        assert all(one.steps == STEPS[name] for one in drawn[name])
    assert said["unit"] == "row" and not said["simulated"]
    assert results(undisturbed)["clients"] == {}


@pytest.mark.processes
@pytest.mark.parametrize("victim", [pytest.param(1, id="worker"), pytest.param(0, id="server", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "phase", [*(pytest.param(p, marks=pytest.mark.slow) for p in PHASES if p != "payload"), "payload"]
)
def test_a_kill_in_any_phase_costs_no_release(phase: str, victim: int, undisturbed: Path, tmp_path: Path) -> None:
    config = with_keys(config_for(tmp_path), undisturbed.parent)
    ended = supervise(config, faults=at(phase, victim), sets=PATIENT, timeout=200)
    assert ended.codes[0][victim] == -9 and ended.code == 0, ended.codes
    assert same(config, undisturbed)


def test_the_same_run_again_costs_nothing_and_another_rate_has_batches_and_noise_of_its_own(
    undisturbed: Path, tmp_path: Path
) -> None:
    config = config_for(tmp_path)
    shutil.copytree(undisturbed.parent / "silos", tmp_path / "silos")  # with what was released
    assert main(["--config", str(config)]) == 0
    assert results(config)["digest"] == results(undisturbed)["digest"]
    assert essence(config) == essence(undisturbed)
    before = {name: sum(s for *_, s in Silo.open(tmp_path / "silos" / name, "").parts()) for name in UNITS}
    other = ["client.lr=0.05", f"run.dir={tmp_path / 'other'}"]
    assert main(["--config", str(config), "--set", *other]) == 0
    after = {name: sum(s for *_, s in Silo.open(tmp_path / "silos" / name, "").parts()) for name in UNITS}
    assert {name: after[name] - before[name] for name in UNITS} == before
    for name, found in essence(config).items():
        starts = [start for _, _, start, _, _ in found]
        assert len(set(starts)) == len(starts), name


def test_what_another_run_had_from_the_same_start_does_not_leave_twice(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine whose arithmetic differs: the same start, other sums."""
    from fedtorch.privacy.record import steps

    config = config_for(tmp_path)
    shutil.copytree(undisturbed.parent / "silos", tmp_path / "silos")
    add, moved = steps.add_bounded, []

    def added(total: Any, gradient: Any, clip: float, exponent: int) -> float:
        norm = add(total, gradient, clip, exponent)
        if not moved:
            total[0] += 1
            moved.append(norm)
        return norm

    monkeypatch.setattr(steps, "add_bounded", added)
    assert main(["--config", str(config)]) == 0
    first = {name: [t for t in each if t.round == 0] for name, each in lines(config).items()}
    changed = [name for name, each in first.items() if any(t.attempt for t in each)]
    assert len(changed) == 1  # the client that trained first was trained again, with batches and noise of its own
    opened, released = [t for t in first[changed[0]] if t.attempt == 1]
    assert (opened.steps, opened.is_open) == (0, True) and released.steps == STEPS[changed[0]]
    steps_of = results(config)["privacy"]["silos"][changed[0]]["steps"]
    assert steps_of == sum(t.steps for t in lines(config)[changed[0]] if t.run == str(tmp_path / "run"))


def test_a_silo_whose_budget_is_used_up_rests_and_the_others_go_on(tmp_path: Path) -> None:
    one = SiloTerms("b", 9, 4, 3, 3, 1.0, 0.5, 0.01, None).epsilon(1)
    promise = f"per_silo: {{b: {{max_epsilon: {one + 1e-6}}}}}"
    config = config_for(tmp_path, promise, clients="{per_round: 4}")
    assert main(["--config", str(config)]) == 0
    assert {name: len(each) for name, each in lines(config).items()} == {"a": 3, "b": 1, "c": 3, "d": 3}
    silos = results(config)["privacy"]["silos"]
    assert silos["b"]["epsilon"] == pytest.approx(one) and silos["b"]["steps"] == 3
    again = Silo.open(tmp_path / "silos" / "b", "").parts()
    assert again == [(4 / 9, 1.0, 3)]


@pytest.mark.processes
@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_ends_with_10_where_too_few_silos_may_go_on_and_goes_on_with_a_larger_budget(
    ranks: int, tmp_path: Path
) -> None:
    limits = {n: SiloTerms(n, u, 4, STEPS[n], 3, 1.0, 0.5, 0.01, None).epsilon(2) + 1e-6 for n, u in UNITS.items()}
    promise = "per_silo: {" + ", ".join(f"{n}: {{max_epsilon: {v}}}" for n, v in limits.items()) + "}"
    config = config_for(tmp_path, promise, clients="{per_round: 4, min: 4}")
    if ranks == 1:
        assert main(["--config", str(config)]) == 10
    else:
        assert supervise(config, ranks, sets=PATIENT, max_restarts=0).codes == [[10] * ranks]
    assert {name: len(each) for name, each in lines(config).items()} == dict.fromkeys(UNITS, 2)
    more = [f"privacy.per_silo.{name}.max_epsilon=100" for name in UNITS]
    assert main(["--config", str(config), "--set", *more]) == 0
    assert {name: len(each) for name, each in lines(config).items()} == dict.fromkeys(UNITS, 3)


@pytest.mark.processes
@pytest.mark.slow
def test_a_round_that_is_done_again_at_the_end_of_a_budget_is_paid_once(tmp_path: Path) -> None:
    """A kill after the line of the last round that fits: the same round is no second one."""
    limits = {n: SiloTerms(n, u, 4, STEPS[n], 3, 1.0, 0.5, 0.01, None).epsilon(3) + 1e-6 for n, u in UNITS.items()}
    promise = "per_silo: {" + ", ".join(f"{n}: {{max_epsilon: {v}}}" for n, v in limits.items()) + "}"
    config = config_for(tmp_path / "one", promise, clients="{per_round: 4}")
    assert main(["--config", str(config)]) == 0
    again = with_keys(config_for(tmp_path / "two", promise, clients="{per_round: 4}"), tmp_path / "one")
    ended = supervise(again, faults=at("payload", 1).replace("round=1", "round=2"), sets=PATIENT, timeout=200)
    assert ended.codes[0][1] == -9 and ended.code == 0, ended.codes
    assert essence(again) == essence(config) and results(again)["digest"] == results(config)["digest"]


def test_another_attempt_that_would_pass_the_budget_leaves_nothing(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedtorch.privacy.record import steps

    one = SiloTerms("b", 9, 4, 3, 3, 1.0, 0.5, 0.01, None).epsilon(3)
    config = config_for(tmp_path, f"per_silo: {{b: {{max_epsilon: {one + 1e-6}}}}}", clients="{per_round: 4}")
    assert main(["--config", str(config)]) == 0
    assert len(lines(config)["b"]) == 3
    add = steps.add_bounded

    def added(total: Any, gradient: Any, clip: float, exponent: int) -> float:
        norm = add(total, gradient, clip, exponent)
        total[0] += 1
        return norm

    monkeypatch.setattr(steps, "add_bounded", added)
    assert main(["--config", str(config), "--set", f"run.dir={tmp_path / 'other'}"]) == 0
    released = [one for one in lines(config)["b"] if not one.is_open]
    assert len(released) == 3  # nothing more left it, while the others released anew
    assert len([one for one in lines(config)["a"] if not one.is_open]) == 6


def test_what_was_paid_is_known_after_the_end_of_a_run_without_a_server(tmp_path: Path) -> None:
    config = config_for(tmp_path, paradigm="local", clients="{}")
    assert main(["--config", str(config)]) == 0
    said = results(config)["privacy"]
    (tmp_path / "run" / "results.json").unlink()
    assert main(["--config", str(config)]) == 0
    assert results(config)["privacy"] == said and said["silos"]["a"]["steps"] == 6


def test_more_rows_than_twice_the_declared_number_end_the_run(tmp_path: Path, capsys: Any) -> None:
    config = config_for(tmp_path)
    text = config.read_text().replace("b: 9,", "b: 4,")
    config.write_text(text)
    assert main(["--config", str(config)]) == 2
    assert "client b has 9 units, and privacy.units declares 4" in capsys.readouterr().err
    config.write_text(text.replace("b: 4,", "b: 5,"))
    assert main(["--config", str(config)]) == 0


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_no_file_of_the_run_has_a_key(undisturbed: Path) -> None:
    for name in UNITS:
        key = (undisturbed.parent / "silos" / name / "key").read_bytes()
        for path, content in files(undisturbed.parent / "run").items():
            assert key not in content and key.hex().encode() not in content, path


def shape(value: Any) -> Any:
    """Which keys there are, and numbers but for floats."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value]
    return "" if isinstance(value, float | str) else value


def test_one_row_more_changes_no_public_number(undisturbed: Path, tmp_path: Path) -> None:
    """Rates, steps, denominators, the manifest that ranks know, and all keys of records."""
    config = with_keys(config_for(tmp_path), undisturbed.parent)
    config.write_text(config.read_text().replace("b: [2.0, -1.0, 9]", "b: [2.0, -1.0, 10]"))
    assert main(["--config", str(config)]) == 0
    assert results(config)["digest"] != results(undisturbed)["digest"]
    traffic = "traffic"  # whose digits are those of noised numbers
    said = [{k: v for k, v in results(each).items() if k != traffic} for each in (config, undisturbed)]
    assert shape(said[0]) == shape(said[1])
    assert results(config)["privacy"] == results(undisturbed)["privacy"]
    records = [
        [json.loads(line) for line in (each.parent / "run" / "metrics.jsonl").read_text().splitlines()]
        for each in (config, undisturbed)
    ]
    kept = [[shape(record) for record in each if record["kind"] in ("run", "round")] for each in records]
    assert kept[0] == kept[1]
    checkpoints = [
        {name: len(content) for name, content in files(each.parent / "run" / "checkpoints").items()}
        for each in (config, undisturbed)
    ]
    assert set(checkpoints[0]) == set(checkpoints[1])


def test_what_is_simulated_says_so_and_writes_nothing(tmp_path: Path) -> None:
    config = config_for(tmp_path, "simulate: true, seed: 3")
    config.write_text(config.read_text().replace(f"ledger: {tmp_path / 'silos'}, ", ""))
    assert main(["--config", str(config)]) == 0
    said = results(config)["privacy"]
    assert said["simulated"] and "epsilon" not in said["silos"]["a"]
    assert not (tmp_path / "silos").exists() and not (tmp_path / "run" / "privacy").exists()
    digest = results(config)["digest"]
    assert main(["--config", str(config), "--resume", "never"]) == 0
    assert results(config)["digest"] == digest


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedtorch.privacy.record import silo

    monkeypatch.setitem(silo.ADD, "normal", lambda total, deviation, stream: None)  # type: ignore[index]


def test_without_noise_and_with_every_unit_in_the_batch_it_is_plain_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clip that nobody reaches, batches of all: the mean of the rows' gradients, up to 2^-e."""
    without_noise(monkeypatch)
    how = "{optimizer: sgd, lr: 0.1, batch_size: 6, steps: 4}"
    found = {}
    for name, privacy in (
        ("private", "{kind: record, units: {a: 6}, clip: 100.0, noise_multiplier: 1.0, delta: 0.01}"),
        ("plain", "{}"),
    ):
        changes = {"algorithm": "{name: fedavg, weights: equal}", "clients": "{}", "server": "{optimizer: none}"}
        config = toy_config(tmp_path / name, client=how, privacy=privacy, **changes)
        text = config.read_text().replace(", b: [2.0, -1.0, 9], c: [0.5, 3.0, 5], d: [1.5, 0.2, 7]}", "}")
        config.write_text(text.replace("dropout: 0.2", "dropout: 0.0"))
        assert main(["--config", str(config)]) == 0
        (path,) = (tmp_path / name / "run" / "checkpoints").glob("round_000003/server.safetensors")
        found[name] = load_file(path)["weights"]
    assert found["private"].tolist() == pytest.approx(found["plain"].tolist(), abs=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("algorithm", "client"),
    [
        ("{name: fedprox, mu: 0.1, weights: equal}", ""),
        ("{name: scaffold}", "optimizer: sgd"),
        ("{name: fednova, weights: declared}", "optimizer: sgd"),
        ("{name: feddyn}", ""),
        ("{name: ditto, weights: equal, form: simplified}", ""),
        ("{name: fedavg, weights: equal, robust: median}", ""),
    ],
)
def test_algorithms_that_only_look_at_noised_steps(algorithm: str, client: str, tmp_path: Path) -> None:
    changes = {"algorithm": algorithm, "clients": "{per_round: 4}"}
    if client:
        changes["client"] = f"{{{client}, lr: 0.1, batch_size: 4}}"
    config = config_for(tmp_path, **changes)
    assert main(["--config", str(config)]) == 0
    assert {name: sum(t.steps for t in each) for name, each in lines(config).items()} == {
        name: 3 * steps for name, steps in STEPS.items()
    }


def messages(how: str, exchange: str) -> str:
    return f"{{name: fedassistant, {how}, exchange: {exchange}}}"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("how", "client"),
    [
        ("payload: delta, compression: topk, topk: {ratio: 0.5}", "{lr: 0.1, batch_size: 4}"),
        ("compression: topk, topk: {ratio: 0.5, values: int8}", "{lr: 0.1, batch_size: 4, steps: 1}"),
        pytest.param("payload: delta, compression: quantise", "{lr: 0.1, batch_size: 4}", marks=pytest.mark.slow),
    ],
    ids=["largest numbers of what training changed", "8 bits of the largest of one gradient", "8 bits of all"],
)
def test_messages_are_made_of_noised_vectors_and_their_ways_have_the_same_bits(
    how: str, client: str, tmp_path: Path
) -> None:
    changes = {"clients": "{per_round: 4}", "client": client, "server": "{optimizer: sgd, lr: 1.0}"}
    (tmp_path / "dense").mkdir()
    dense = config_for(tmp_path / "dense", algorithm=messages(how, "dense"), **changes)
    assert main(["--config", str(dense)]) == 0
    for exchange, ranks in (("star", 3), ("replicated", 1)):
        folder = tmp_path / exchange
        folder.mkdir()
        config = with_keys(config_for(folder, algorithm=messages(how, exchange), **changes), dense.parent)
        run_ranks(as_rank, ranks, ["--config", str(config)], timeout=120)
        assert same(config, dense), exchange
        assert all(silo["steps"] for silo in results(config)["privacy"]["silos"].values())


def test_both_passes_of_ditto_are_on_the_account(tmp_path: Path) -> None:
    config = config_for(tmp_path, algorithm="{name: ditto, weights: equal}", clients="{per_round: 4}")
    assert main(["--config", str(config)]) == 0
    assert {name: sum(t.steps for t in each) for name, each in lines(config).items()} == {
        name: 2 * 3 * steps for name, steps in STEPS.items()
    }
    terms = SiloTerms("b", 9, 4, 2 * STEPS["b"], 3, 1.0, 0.5, 0.01, None)
    assert results(config)["privacy"]["silos"]["b"]["epsilon"] == terms.epsilon(3)


def test_clients_that_train_alone_keep_their_promise_too(tmp_path: Path) -> None:
    config = config_for(tmp_path, paradigm="local", clients="{}")
    assert main(["--config", str(config)]) == 0
    assert all(len(each) == 3 for each in lines(config).values())


def test_a_private_part_is_in_the_clipped_and_noised_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedtorch.privacy.record import steps

    sizes, add = set(), steps.add_bounded

    def seen(total: Any, gradient: Any, clip: float, exponent: int) -> float:
        sizes.add(gradient.numel())
        return add(total, gradient, clip, exponent)

    monkeypatch.setattr(steps, "add_bounded", seen)
    config = config_for(tmp_path, partition="{private: [head]}")
    config.write_text(config.read_text().replace("  noise: 0.5", "  head: [0.1]\n  noise: 0.5"))
    assert main(["--config", str(config)]) == 0
    assert sizes == {4}


EVERY, TAKEN = 4, 12
LONG = f"{{optimizer: adamw, lr: 0.1, batch_size: 4, optimizer_state: keep, steps: {TAKEN}, schedule: cosine}}"


def saving(folder: Path, like: Path, **changes: str) -> Path:
    """The run of `steps_saved`, with its keys, which is saved after every four steps."""
    changes = {"client": LONG, "checkpoint": f"{{every_steps: {EVERY}}}", **changes}
    return with_keys(config_for(folder, **changes), like.parent)


@pytest.fixture(scope="module")
def long_rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of twelve steps a round in one process, of which nothing is saved inside a round."""
    config = config_for(tmp_path_factory.mktemp("long"), client=LONG)
    assert main(["--config", str(config)]) == 0
    return config


@pytest.mark.processes
@pytest.mark.parametrize(
    ("step", "phase"),
    [
        (EVERY + 1, "train"),
        *(pytest.param(step, "train", marks=pytest.mark.slow) for step in (1, EVERY, TAKEN - 1, TAKEN)),
        pytest.param(2 * EVERY, "save", marks=pytest.mark.slow),
    ],
)
def test_a_kill_within_a_round_repeats_at_most_n_steps_and_releases_nothing_more(
    step: int, phase: str, long_rounds: Path, tmp_path: Path
) -> None:
    config = saving(tmp_path, long_rounds)
    fault = f"kill:phase={phase},client=b,step={step},round=1,attempt=0"
    ended = supervise(config, faults=fault, sets=PATIENT, timeout=200)
    assert -9 in ended.codes[0] and ended.code == 0, ended.codes
    assert same(config, long_rounds)
    logs = "".join(path.read_text() for path in sorted(ended.folder.glob("log.rank*.txt")))
    after = max([0, *(int(n) for n in re.findall(r"client b goes on after step (\d+) of round 2", logs))])
    assert 0 < step - after <= EVERY and after % EVERY == 0
    assert not (tmp_path / "run" / FOLDER).exists()


class HaltedError(FedtorchError):
    """Ends a run in the midst of a training."""


def stopped(config: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are left of a run that failed after so many steps of all clients."""
    release, left = NoisedSteps.release, [step]

    def releasing(self: NoisedSteps, total: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise HaltedError("ends here")
        return release(self, total)

    with monkeypatch.context() as patch:
        patch.setattr(NoisedSteps, "release", releasing)
        with pytest.raises(HaltedError):
            fedtorch.run(str(config))
    return sorted((config.parent / "run" / FOLDER).iterdir())


def test_a_step_that_comes_to_another_sum_after_a_kill_has_a_noise_of_its_own_and_is_paid_once(
    long_rounds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a run goes on on a machine whose arithmetic differs."""
    config = saving(tmp_path, long_rounds)
    assert stopped(config, 10, monkeypatch)
    add, moved, streams = module.add_bounded, [], []
    stream, noise = NoisedSteps._stream, list[tuple[int, int]]()
    add_noise = Silo.add_noise

    def noised(self: Silo, step: Step, *about: Any) -> str:
        noise.append((step.round, step.number))
        return add_noise(self, step, *about)

    def added(total: Any, gradient: Any, clip: float, exponent: int) -> float:
        norm = add(total, gradient, clip, exponent)
        if not moved:
            total[0] += 1
            moved.append(norm)
        return norm

    def drawn(self: NoisedSteps, purpose: str) -> Any:
        streams.append((self._place.round, self._step, purpose, self._start, self._last))
        return stream(self, purpose)

    monkeypatch.setattr(module, "add_bounded", added)
    monkeypatch.setattr(NoisedSteps, "_stream", drawn)
    monkeypatch.setattr(Silo, "add_noise", noised)
    assert main(["--config", str(config)]) == 0
    first = next(name for name, each in lines(config).items() if streams[0][3] in {t.start for t in each})
    assert [step for round, step in noise if round == 0][:4] == [8, 9, 10, 11]
    ends = {name: [t for t in each if t.round == 0] for name, each in lines(config).items()}
    known = {name: [t for t in each if t.round == 0] for name, each in lines(long_rounds).items()}
    assert [name for name in UNITS if ends[name] != [replace(t, run=str(tmp_path / "run")) for t in known[name]]] == [
        first
    ]
    (one,) = ends[first]
    assert one.attempt == 0 and one.steps == TAKEN and one.start == known[first][0].start


def test_a_save_of_one_attempt_is_not_taken_up_by_the_next(
    long_rounds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run left with another end from the same start meanwhile: all steps are taken anew, and paid."""
    config = saving(tmp_path, long_rounds)
    stopped(config, 10, monkeypatch)
    name = next(name for name, each in lines(long_rounds).items() if each and each[0].start in started(config))
    known = next(t for t in lines(long_rounds)[name] if t.round == 0)
    silo = Silo.open(tmp_path / "silos" / name, "elsewhere")
    assert silo.enter(replace(known, run="elsewhere", end="0" * 64))
    assert not silo.enter(replace(known, run="elsewhere"))
    assert main(["--config", str(config)]) == 0
    said = "".join(path.read_text() for path in (tmp_path / "run").glob("log*.txt"))
    assert f"client {name}: a saved training is not used" in said and "is of another attempt, whose" in said
    own = [t for t in lines(config)[name] if t.round == 0 and t.run == str(tmp_path / "run")]
    assert [(t.attempt, t.steps) for t in own] == [(1, TAKEN)]


def started(config: Path) -> set[str]:
    """h_0 of the trainings that were saved in a run's folder."""
    found = set()
    for path in (config.parent / "run" / FOLDER).iterdir():
        found.add(bytes(load_file(path)[NOISED].tolist()).decode().split()[1])
    return found


def test_a_save_has_nothing_of_the_rows_that_did_not_go_through_the_noise(
    long_rounds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = stopped(saving(tmp_path, long_rounds), 10, monkeypatch)
    keys = [path.read_bytes() for path in (tmp_path / "silos").glob("*/key")]
    for path in files:
        held = load_file(path)
        assert not held[LOSSES].any() and len(held[LOSSES]) == 8
        assert held[GENERATOR].equal(torch.Generator().manual_seed(0).get_state())
        content = path.read_bytes()
        assert not any(key in content or key.hex().encode() in content for key in keys)
        with safe_open(path, "pt") as file:
            numbers = json.loads(file.metadata()["state"])["numbers"]
        assert {name.split("/")[0] for name in numbers} <= {"optimizer", "step"}


@pytest.mark.long
@pytest.mark.parametrize("form", ["{name: ditto, weights: equal, form: simplified}", "{name: scaffold}"])
def test_of_two_trainings_in_a_round_and_of_hooks_each_goes_on(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"algorithm": form, "client": "{optimizer: sgd, lr: 0.1, batch_size: 4, steps: 6}"}
    whole = config_for(tmp_path / "whole", **changes)
    assert main(["--config", str(whole)]) == 0
    config = saving(tmp_path / "parts", whole, **changes, checkpoint="{every_steps: 1}")
    stopped(config, 9, monkeypatch)
    assert main(["--config", str(config)]) == 0
    assert same(config, whole)
