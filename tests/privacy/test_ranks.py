"""Privacy on several ranks: the bits of one process, also after kills; what a worker learns; what files hold."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from ranks import expect_exit, run_ranks
from supervisor import PHASES, Ended, at, supervise, toy_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedtorch.comm import mail
from fedtorch.comm.sums.aggregation import Aggregation
from fedtorch.main import main
from fedtorch.privacy.accounting import Accountant
from fedtorch.privacy.ledger import Ledger
from fedtorch.privacy.release import Release
from fedtorch.privacy.stream import Stream, chosen, derived
from fedtorch.rounds.local_training import ClientTrainer

PRIVACY = {
    "algorithm": "{name: fedavg, weights: equal}",
    "clients": "{sampling: poisson, rate: 0.6}",
    "privacy": "{kind: client, clip: 0.3, noise_multiplier: 1.0, delta: 0.1}",
    "track": '{progress: "off", tensorboard: true}',
}
KEY = sha256(b"4").digest()
"""Draws three of the four clients in each of three rounds, so that both workers train in all of them."""
PATIENT = ("system.timeout=60",)  # the server imports the accountant, which takes seconds on a busy machine


def private_toy(folder: Path, like: Path | None = None, **changes: str) -> Path:
    """The toy config with privacy; with the key and the terms of the run `like`, and nothing released."""
    config = toy_config(folder, **{**PRIVACY, **changes})
    if like is not None:
        target = folder / "run" / "privacy"
        target.mkdir(parents=True, mode=0o700)
        shutil.copy(like / "privacy" / "key", target)
        head, *_ = (like / "privacy" / "ledger.jsonl").read_text().splitlines(keepends=True)
        terms = json.loads(head)
        terms.pop("folder")  # no copy of that run, as far as it knows
        (target / "ledger.jsonl").write_text(json.dumps(terms) + "\n")
        (target / "ledger.jsonl").chmod(0o600)
    return config


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The run in one process, with nothing in its way."""
    config = private_toy(tmp_path_factory.mktemp("undisturbed"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedtorch.privacy.ledger.os.urandom", lambda size: KEY[:size])
        assert main(["--config", str(config)]) == 0
    return Ended(config.parent / "run")


def same(ended: Ended, undisturbed: Ended) -> bool:
    """The same weights, ε and releases."""
    results = [json.loads((run.folder / "results.json").read_text()) for run in (ended, undisturbed)]
    ledgers = [Ledger.open(run.folder / "privacy").releases for run in (ended, undisturbed)]
    return ledgers[0] == ledgers[1] and all(results[0][key] == results[1][key] for key in ("digest", "privacy"))


def as_rank(config: str, *words: str) -> dict[str, Any]:
    """One rank of a run; the clients that the server told it of, and the terms that it was asked for."""
    heard: set[str] = set()
    asked: set[str] = set()
    scatter, request = mail.scatter, Aggregation.receive_request

    def hear(group: Any, *rest: Any, **how: Any) -> Any:
        found = scatter(group, *rest, **how)
        heard.update(str(message.client) for message in found if message.client >= 0)
        return found

    def ask(self: Aggregation) -> Any:
        found = request(self)
        asked.update(self.names[term.client] for term in found.terms)
        return found

    mail.scatter, Aggregation.receive_request = hear, ask  # type: ignore[method-assign]
    assert main(["--config", config, *words]) == 0
    return {"heard": sorted(heard), "asked": sorted(asked)}


@pytest.mark.processes
def test_three_ranks_give_the_same_bits_and_learn_of_their_own_clients_alone(
    tmp_path: Path, undisturbed: Ended
) -> None:
    config = private_toy(tmp_path, undisturbed.folder)
    told = run_ranks(as_rank, 3, str(config), timeout=120)
    assert same(Ended(tmp_path / "run"), undisturbed)
    drawn = {place for round in range(3) for place in chosen(Stream(derived(KEY, "cohort", round)), 4, 0.6)}
    heard = [{int(place) for place in rank["heard"]} for rank in told]
    assert not heard[1] & heard[2] and heard[1] | heard[2] == drawn
    assert [{"abcd"[place] for place in each} for each in heard[1:]] == [set(rank["asked"]) for rank in told[1:]]


@pytest.mark.processes
@pytest.mark.slow
def test_exact_noise_has_the_bits_of_one_process_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    promise = {"privacy": "{kind: client, clip: 0.3, noise_multiplier: 1.0, delta: 0.1, noise: discrete}"}
    monkeypatch.setattr("fedtorch.privacy.ledger.os.urandom", lambda size: KEY[:size])
    one = private_toy(tmp_path / "one", **promise)
    assert main(["--config", str(one)]) == 0
    alone = Ended(tmp_path / "one" / "run")
    run_ranks(as_rank, 3, str(private_toy(tmp_path / "three", alone.folder, **promise)), timeout=120)
    assert same(Ended(tmp_path / "three" / "run"), alone)
    assert "discrete" in json.loads((alone.folder / "results.json").read_text())["privacy"]["noise"]


@pytest.mark.processes
@pytest.mark.parametrize("victim", [pytest.param(0, id="server"), pytest.param(2, id="worker", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "phase", [*(pytest.param(p, marks=pytest.mark.slow) for p in PHASES if p != "checkpoint"), "checkpoint"]
)
def test_a_kill_in_any_phase_costs_no_release(phase: str, victim: int, undisturbed: Ended, tmp_path: Path) -> None:
    config = private_toy(tmp_path, undisturbed.folder)
    ended = supervise(config, faults=at(phase, victim), sets=PATIENT, timeout=200)
    assert ended.codes[0][victim] == -9 and ended.code == 0, ended.codes
    assert same(ended, undisturbed)


def as_command(config: str, *words: str) -> None:
    """One rank of a run, as from the command line: its exit code is the process's."""
    sys.exit(main(["--config", config, "--resume", *words]))


def allowing(releases: float) -> str:
    """max_epsilon for so many releases of the toy run and no more."""
    account = Accountant(0.6, 1.0, 0.1)
    return f"privacy.max_epsilon={(account.epsilon(int(releases)) + account.epsilon(int(releases) + 1)) / 2}"


def exits(config: Path, *words: str, faults: str = "", size: int = 3) -> list[int | None]:
    variables = {**os.environ, "FEDTORCH_TESTING": "1", "FEDTORCH_FAULTS": faults}
    outcomes = expect_exit(as_command, size, str(config), *words, timeout=120, environ=variables)
    return [outcome.exit_code for outcome in outcomes]


@pytest.mark.processes
def test_the_end_of_the_budget_is_code_10_on_all_ranks_and_the_run_goes_on_with_a_larger_one(
    tmp_path: Path, undisturbed: Ended
) -> None:
    config, run = private_toy(tmp_path, undisturbed.folder), tmp_path / "run"
    assert exits(config, "auto", "--set", allowing(2)) == [10, 10, 10]
    status = json.loads((run / "status.json").read_text())
    assert status["code"] == 10 and "start the run again with a larger privacy.max_epsilon" in status["reason"]
    assert [r.round for r in Ledger.open(run / "privacy").releases] == [0, 1]
    assert exits(config, "auto", "--set", allowing(3)) == [0, 0, 0]
    assert same(Ended(run), undisturbed)


@pytest.mark.processes
def test_a_round_done_again_that_would_pass_the_budget_is_code_10_on_all_ranks(
    tmp_path: Path, undisturbed: Ended
) -> None:
    """Killed between release and checkpoint, then another rate of learning: a fourth release, where three fit."""
    config, run = private_toy(tmp_path, undisturbed.folder), tmp_path / "run"
    killed = exits(config, "auto", faults="kill:phase=checkpoint,rank=0,round=3")
    assert killed[0] == -9
    assert len(before := Ledger.open(run / "privacy").releases) == 3
    other = ("--set", "client.lr=0.2", allowing(3))
    assert exits(config, "force", *other) == [10, 10, 10]
    assert Ledger.open(run / "privacy").releases == before
    assert exits(config, "force", "--set", "client.lr=0.2", allowing(4)) == [0, 0, 0]
    assert [(r.round, r.attempt) for r in Ledger.open(run / "privacy").releases][3:] == [(2, 1)]


SECURE = "{kind: client, clip: 0.3, noise_multiplier: 1.0, delta: 0.1, secure_sum: {threshold: 0.7}}"


@pytest.mark.processes
def test_with_a_secure_sum_each_attempt_at_a_round_opens_a_sum_of_its_own(tmp_path: Path, undisturbed: Ended) -> None:
    """Killed between release and checkpoint; the same rate gives the same sum then, another one the next attempt."""
    config, run = private_toy(tmp_path, undisturbed.folder, privacy=SECURE), tmp_path / "run"
    killed = exits(config, "auto", faults="kill:phase=checkpoint,rank=0,round=3", size=4)
    assert killed[0] == -9 and len(Ledger.open(run / "privacy").releases) == 3
    shutil.copytree(run, tmp_path / "killed" / "run")
    assert exits(config, "auto", size=4) == [0, 0, 0, 0] and same(Ended(run), undisturbed)
    shutil.rmtree(run)
    shutil.copytree(tmp_path / "killed" / "run", run)
    assert exits(config, "force", "--set", "client.lr=0.2", size=4) == [0, 0, 0, 0]
    assert [(r.round, r.attempt) for r in Ledger.open(run / "privacy").releases] == [(0, 0), (1, 0), (2, 0), (2, 1)]
    lines = [json.loads(line) for line in (run / "privacy" / "openings.jsonl").read_text().splitlines()]
    assert [(line["round"], line.get("attempt", 0)) for line in lines] == [(0, 0), (1, 0), (2, 0), (2, 1)]


def as_mortal(config: str, victim: str, *words: str) -> None:
    """One rank of a run, as from the command line; the victim dies as soon as a cohort trains in place of another."""
    train, rounds = ClientTrainer.train_cohort, list[int]()

    def once(self: ClientTrainer) -> Any:
        if os.environ["RANK"] == victim and self.context.round in rounds:
            os.kill(os.getpid(), signal.SIGKILL)
        rounds.append(self.context.round)
        return train(self)

    ClientTrainer.train_cohort = once  # type: ignore[method-assign]
    as_command(config, *words)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("victim", "on_loss"),
    [("0", "restart"), ("2", "continue"), pytest.param("2", "restart", marks=pytest.mark.slow)],
    ids=["server", "worker, without which the run goes on", "worker"],
)
def test_a_kill_while_the_next_attempts_cohort_trains_costs_no_further_attempt(
    victim: str, on_loss: str, tmp_path: Path, undisturbed: Ended
) -> None:
    clients = f"{{sampling: poisson, rate: 0.6, on_loss: {on_loss}}}"
    config, run = private_toy(tmp_path, undisturbed.folder, clients=clients), tmp_path / "run"
    assert exits(config, "auto", faults="kill:phase=checkpoint,rank=0,round=3")[0] == -9
    words = ("force", "--set", "client.lr=0.2")
    outcomes = expect_exit(as_mortal, 3, str(config), victim, *words, timeout=120, environ=os.environ)
    codes = [outcome.exit_code for outcome in outcomes]
    assert codes[int(victim)] == -9
    if on_loss == "restart":
        assert Ledger.open(run / "privacy").last(2) == Release(2, 1, "", 1)
        assert exits(config, *words) == [0, 0, 0]
    else:
        assert codes == [0, 0, -9]
    releases = Ledger.open(run / "privacy").releases
    assert [(r.round, r.attempt) for r in releases] == [(0, 0), (1, 0), (2, 0), (2, 1)] and not releases[-1].is_open
    assert json.loads((run / "results.json").read_text())["privacy"]["releases"] == 4


def test_no_file_but_the_key_has_the_key_and_none_says_who_took_part(tmp_path: Path) -> None:
    names = [f"participant{letter}" for letter in "ABCD"]
    clients = ", ".join(f"{name}: [1.0, {place}.0, 6]" for place, name in enumerate(names))
    task = f'{{name: "toy:Quadratic", clients: {{{clients}}}, start: [0.3, 0.1], bad: [{names[1]}]}}'
    config = toy_config(tmp_path, **{**PRIVACY, "task": "null"})
    text = config.read_text().partition("\ntask:")
    kept = [line for line in (text[0] + "\n" + text[2]).splitlines() if not line.startswith(("  ", " null", "client:"))]
    config.write_text("\n".join([*kept, f"task: {task}", "client: {optimizer: sgd, lr: 0.1}"]) + "\n")
    assert main(["--config", str(config)]) == 0
    run = tmp_path / "run"
    key = (run / "privacy" / "key").read_bytes()
    forms = [key, key.hex().encode(), key.hex().upper().encode(), base64.b64encode(key), base64.urlsafe_b64encode(key)]
    files = [path for path in run.rglob("*") if path.is_file() and path != run / "privacy" / "key"]
    assert any("tfevents" in path.name for path in files) and any("log.rank0" in path.name for path in files)
    for path in files:
        content = path.read_bytes()
        assert not [form for form in forms if form in content], path
        # the population is in the config, as far as the user has written it there
        if path.name != "config.yaml" and "manifest" not in path.name and "scores" not in path.parts:
            assert not [name for name in names if name.encode() in content], path
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {record["kind"] for record in records} == {"run", "round", "end", "result"}
    rounds = [record for record in records if record["kind"] == "round"]
    assert all(not record["seconds"] and not record["traffic"] and "bytes_up" not in record for record in rounds)
    shown = EventAccumulator(str(run / "tensorboard" / "server"))
    shown.Reload()
    account, tag = Accountant(0.6, 1.0, 0.1), "privacy/epsilon"
    curve = [account.epsilon(count) for count in (1, 2, 3)]
    assert [record["extra"][tag] for record in rounds] == curve
    assert [scalar.value for scalar in shown.Scalars(tag)] == pytest.approx(curve, rel=1e-6)
    assert (
        json.loads((run / "results.json").read_text())["privacy"]["epsilon"] == rounds[-1]["extra"]["privacy/epsilon"]
    )


@pytest.mark.processes
@pytest.mark.slow
def test_the_loss_of_a_worker_is_accounted_for_as_what_was_released(tmp_path: Path, undisturbed: Ended) -> None:
    clients = "{sampling: poisson, rate: 0.6, on_loss: continue}"
    config = private_toy(tmp_path, undisturbed.folder, clients=clients)
    faults = {"FEDTORCH_TESTING": "1", "FEDTORCH_FAULTS": at("payload", 2)}
    outcomes = expect_exit(as_rank, 3, str(config), timeout=120, environ={**os.environ, **faults})
    assert [outcome.exit_code for outcome in outcomes] == [0, 0, -9]
    releases = Ledger.open(tmp_path / "run" / "privacy").releases
    assert [(release.round, release.attempt) for release in releases] == [(0, 0), (1, 0), (2, 0)]
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["privacy"]["releases"] == 3 and results["rounds"] == 3
