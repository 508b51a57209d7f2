"""Limits and equalities between algorithms: where two rules must agree, they agree to the bit unless said otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SGD, make_config, make_runner
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fednova import FedNova
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.algorithms.local import Local
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.algorithms.weighting import normalised
from fedtorch.config.schema import (
    CheckpointConfig,
    ClientConfig,
    ClientsConfig,
    EvalConfig,
    PartitionConfig,
    ServerConfig,
)
from fedtorch.core.errors import ConfigError, FedtorchError, Interrupted, NonFiniteError, QuorumError
from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.update import Report
from fedtorch.rounds.membership import Stopped
from fedtorch.setup.plan import Plan
from fedtorch.setup.remarks import about_decay
from fedtorch.tracking import records
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.tracker import Tracker
from fedtorch.train.job import ClientJob

pytestmark = pytest.mark.long

CLIENTS = {"a": (1.0, 1.0, 10), "b": (2.0, -1.0, 30), "c": (0.5, 3.0, 6)}
TASK = Quadratic(clients=CLIENTS, start=(0.3, -0.7, 1.1), noise=0.5, dropout=0.25, double=False)
SMALL_BATCHES = ClientConfig(optimizer="sgd", lr=0.1, batch_size=4, epochs=2)


def final_weights(folder: Path, algorithm: Algorithm, task: Quadratic = TASK, **changes: Any) -> torch.Tensor:
    changes.setdefault("client", SMALL_BATCHES)
    runner = make_runner(make_config(folder, task, algorithm, **{"rounds": 3, **changes}))
    runner.run()
    return runner.context.server.weights.clone()


def test_server_sgd_with_rate_one_and_no_momentum_equals_fedavg(tmp_path: Path) -> None:
    plain = final_weights(tmp_path / "1", FedAvg())
    sgd = final_weights(tmp_path / "2", FedAvg(), server=ServerConfig(optimizer="sgd", lr=1.0))
    assert torch.equal(plain, sgd)


def test_fedprox_with_mu_zero_equals_fedavg(tmp_path: Path) -> None:
    plain = final_weights(tmp_path / "1", FedAvg())
    assert torch.equal(plain, final_weights(tmp_path / "2", FedProx(mu=0.0)))
    assert not torch.equal(plain, final_weights(tmp_path / "3", FedProx(mu=0.1)))


def test_fednova_with_equal_steps_equals_fedavg(tmp_path: Path) -> None:
    client = replace(SMALL_BATCHES, epochs=None, steps=5)
    plain = final_weights(tmp_path / "1", FedAvg(), client=client)
    nova = final_weights(tmp_path / "2", FedNova(), client=client)
    # its weights are tau·p/tau, which may differ from p in the last bit of fp64
    assert torch.allclose(plain, nova, rtol=1e-6, atol=1e-7)


def test_first_scaffold_round_equals_fedavg_with_equal_weights(tmp_path: Path) -> None:
    plain = final_weights(tmp_path / "1", FedAvg(weights="equal"), rounds=1)
    assert torch.equal(plain, final_weights(tmp_path / "2", Scaffold(), rounds=1))
    plain = final_weights(tmp_path / "3", FedAvg(weights="equal"), rounds=2)
    assert not torch.equal(plain, final_weights(tmp_path / "4", Scaffold(), rounds=2))


def test_scaffold_option_one_measures_the_gradient_at_the_received_weights(tmp_path: Path) -> None:
    task = Quadratic(clients={"a": (2.0, 3.0, 5)}, start=(1.0,))
    runner = make_runner(make_config(tmp_path, task, Scaffold(option="I"), rounds=1, client=replace(SGD, batch_size=2)))
    runner.run()
    assert runner.context.store.get("a").tensors["control"].item() == pytest.approx(2.0 * (1.0 - 3.0), rel=1e-12)


def reports(sizes: list[int], reductions: list[float]) -> list[Report]:
    return [Report(str(i), examples=n, extra={"loss_reduction": d}) for i, (n, d) in enumerate(zip(sizes, reductions))]


def test_lorar_with_equal_reductions_equals_size() -> None:
    equal = reports([10, 30, 60], [0.7, 0.7, 0.7])
    assert normalised("lorar", equal) == pytest.approx(normalised("size", equal), rel=1e-15)


def test_lorar_with_equal_sizes_equals_loss_reduction() -> None:
    equal = reports([20, 20, 20], [0.7, 0.1, 0.4])
    assert normalised("lorar", equal) == pytest.approx(normalised("loss_reduction", equal), rel=1e-15)


def test_scaling_all_reductions_changes_nothing() -> None:
    one = normalised("lorar", reports([10, 30, 60], [0.7, 0.1, 0.4]))
    assert one == normalised("lorar", reports([10, 30, 60], [4 * 0.7, 4 * 0.1, 4 * 0.4]))


def test_permuting_the_clients_changes_nothing(tmp_path: Path) -> None:
    mirrored = replace(TASK, clients=dict(reversed(CLIENTS.items())))
    for weights in ("size", "lorar"):
        one = final_weights(tmp_path / f"1{weights}", FedAvg(weights=weights))  # type: ignore[arg-type]
        other = final_weights(tmp_path / f"2{weights}", FedAvg(weights=weights), mirrored)  # type: ignore[arg-type]
        assert torch.equal(one, other)


def test_one_client_with_kept_optimiser_and_constant_rate_equals_centralized(tmp_path: Path) -> None:
    task = replace(TASK, clients={"all": (2.0, -1.0, 30)}, dropout=0.0)
    client = replace(SMALL_BATCHES, momentum=0.9, optimizer_state="keep")
    federated = final_weights(tmp_path / "1", FedAvg(), task, client=client, rounds=3)
    merged = final_weights(tmp_path / "2", FedAvg(), task, client=client, rounds=3, paradigm="centralized")
    assert torch.equal(federated, merged)
    # the same epochs in one round: what is exchanged is rounded to fp32 once more per round
    whole = final_weights(tmp_path / "3", FedAvg(), task, client=replace(client, epochs=6), rounds=1)
    assert torch.allclose(federated, whole, rtol=1e-5, atol=1e-6)


def test_dittos_global_trajectory_does_not_depend_on_lambda(tmp_path: Path) -> None:
    plain = final_weights(tmp_path / "1", FedAvg())
    for lam in (0.0, 0.1, 5.0):
        assert torch.equal(plain, final_weights(tmp_path / f"d{lam}", Ditto(lam=lam)))


def test_ditto_with_lambda_zero_is_local_training(tmp_path: Path) -> None:
    alike = replace(TASK, dropout=0.0, noise=0.0)  # the two passes have seeds of their own, so let no order matter
    runners = [
        make_runner(make_config(tmp_path / name, alike, algorithm, client=SMALL_BATCHES, rounds=3))
        for name, algorithm in (("ditto", Ditto(lam=0.0)), ("local", Local()))
    ]
    for runner in runners:
        runner.run()
    for client in CLIENTS:
        ditto, local = (runner.context.store.get(client).tensors["personal"] for runner in runners)
        assert torch.equal(ditto, local)


def test_a_clients_head_does_not_leak_into_the_next(tmp_path: Path) -> None:
    task = replace(TASK, head=(0.5,), dropout=0.0)
    runner = make_runner(
        make_config(
            tmp_path, task, FedAvg(), client=SMALL_BATCHES, partition=PartitionConfig(private=("head",)), rounds=1
        )
    )
    runner.run()
    heads = {name: runner.context.store.get(name).tensors["private"].item() for name in CLIENTS}
    assert len(set(heads.values())) == 3
    for name, (a, b, n) in CLIENTS.items():
        alone = make_runner(
            make_config(
                tmp_path / name, replace(task, clients={name: (a, b, n)}), FedAvg(), client=SMALL_BATCHES,
                partition=PartitionConfig(private=("head",)), rounds=1,
            )
        )  # fmt: skip
        alone.run()
        assert alone.context.store.get(name).tensors["private"].item() == heads[name]


def test_a_client_that_raises_is_left_out_and_the_weights_renormalised(tmp_path: Path, caplog: Any) -> None:
    failing = make_runner(make_config(tmp_path / "1", replace(TASK, bad=("b",)), client=SMALL_BATCHES))
    failing.run()
    without = make_runner(
        make_config(
            tmp_path / "2", replace(TASK, clients={k: v for k, v in CLIENTS.items() if k != "b"}), client=SMALL_BATCHES
        )
    )
    without.run()
    assert failing.result.weights == without.result.weights == {"a": 0.625, "c": 0.375}
    assert torch.equal(failing.context.server.weights, without.context.server.weights)
    assert "client b is left out: failed:ValueError" in caplog.text
    assert "must not travel" not in "".join(r.getMessage() for r in caplog.records)


@dataclass(frozen=True)
class FailsLate(FedAvg):
    """One client fails when its update is written already."""

    late: str = ""

    def client_update(self, job: ClientJob) -> Report:
        report = super().client_update(job)
        if job.client.name == self.late:
            job.outgoing["weights"].fill_(1e3)
            raise ValueError("at the last moment")
        return report


def test_what_a_failing_client_wrote_reaches_nobody(tmp_path: Path) -> None:
    late = final_weights(tmp_path / "1", FailsLate(late="b"))
    without = replace(TASK, clients={name: client for name, client in CLIENTS.items() if name != "b"})
    assert torch.equal(late, final_weights(tmp_path / "2", FedAvg(), without))


def test_a_client_that_is_drawn_twice_trains_once_and_counts_twice(tmp_path: Path) -> None:
    clients = ClientsConfig(per_round=3, sampling="size_proportional")
    config = make_config(tmp_path, TASK, FedAvg(weights="equal"), clients=clients, client=SMALL_BATCHES, rounds=1)
    runner = make_runner(config)
    result = runner.run()
    drawn = {report.client: report.draws for report in runner.context.server.accepted}
    assert max(drawn.values()) > 1 and sum(drawn.values()) == 3
    assert result.weights == {name: draws / 3 for name, draws in drawn.items()}


def test_a_client_that_returns_nan_is_left_out(tmp_path: Path, caplog: Any) -> None:
    runner = make_runner(make_config(tmp_path, replace(TASK, poison=("b",)), client=SMALL_BATCHES))
    runner.run()
    assert runner.result.weights == {"a": 0.625, "c": 0.375}
    assert torch.isfinite(runner.context.server.weights).all()
    assert "client b is left out: its update or its loss is not finite" in caplog.text


def test_a_failed_clients_state_stays_as_it_was(tmp_path: Path) -> None:
    runner = make_runner(make_config(tmp_path, replace(TASK, poison=("b",)), Scaffold(), client=SMALL_BATCHES))
    runner.run()
    assert "control" in runner.context.store.get("a").tensors
    assert runner.context.store.get("b").tensors == {}


def test_all_clients_failing_ends_the_run_with_the_weights_unchanged(tmp_path: Path) -> None:
    runner = make_runner(make_config(tmp_path, replace(TASK, poison=tuple(CLIENTS)), client=SMALL_BATCHES, rounds=9))
    start = runner.components.engine.initial_shared
    with pytest.raises(QuorumError, match="clients.min = 1 usable updates in 3 rounds"):
        runner.run()
    assert torch.equal(runner.context.server.weights, start)


def test_on_failure_stop_ends_the_run(tmp_path: Path) -> None:
    config = make_config(tmp_path, replace(TASK, poison=("b",)), clients=ClientsConfig(on_failure="stop"))
    with pytest.raises(NonFiniteError, match=r"clients\.on_failure is stop"):
        make_runner(config).run()


def test_too_few_updates_leave_the_server_as_it_was(tmp_path: Path) -> None:
    config = make_config(tmp_path, replace(TASK, poison=("b",)), clients=ClientsConfig(min=3), rounds=2)
    runner = make_runner(config)
    start = runner.components.engine.initial_shared
    runner.run()
    assert torch.equal(runner.context.server.weights, start)


def test_an_exploding_update_is_left_out(tmp_path: Path, caplog: Any) -> None:
    far = replace(TASK, clients={**CLIENTS, "far": (1.0, 1e6, 10)})
    runner = make_runner(make_config(tmp_path, far, client=SMALL_BATCHES, clients=ClientsConfig(max_update_norm=100.0)))
    runner.run()
    assert set(runner.result.weights) == set(CLIENTS)
    assert "above clients.max_update_norm 100.0" in caplog.text


class Recorder(Tracker):
    """Remembers what a round was recorded with."""

    def round(self, round: int, facts: RoundFacts) -> None:
        self.statuses = {report.client: report.status for report in facts.reports or ()}
        super().round(round, facts)


def test_a_refused_update_counts_as_failed_in_the_records(tmp_path: Path) -> None:
    task = replace(TASK, clients={**CLIENTS, "far": (1.0, 1e6, 10)}, bad=("a",), poison=("b",))
    config = make_config(tmp_path, task, client=SMALL_BATCHES, clients=ClientsConfig(max_update_norm=100.0), rounds=1)
    tracker = Recorder(
        tmp_path, clients=list(task.clients), rounds=1, settings=TrackConfig(tensorboard=False, progress="off")
    )
    make_runner(config, tracker=tracker).run()
    tracker.close()
    (round,) = [record for record in records.read(tmp_path / records.NAME) if record["kind"] == "round"]
    assert (round["clients_ok"], round["clients_failed"], round["examples"]) == (1, 3, 6)
    assert round["update_norm_max"] < 100.0
    assert tracker.statuses == {"a": "failed:ValueError", "b": "refused", "c": "ok", "far": "refused"}


@dataclass(frozen=True)
class Shouting(FedAvg):
    """Reports a number under a name that is not allowed."""

    def client_update(self, job: ClientJob) -> Report:
        return replace(super().client_update(job), extra={"Loss of b": 1.0})


def test_a_report_that_cannot_travel_is_refused_where_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(FedtorchError, match="Shouting made a report that cannot be sent: key 'x.Loss of b' does not"):
        make_runner(make_config(tmp_path, TASK, Shouting(), rounds=1)).run()


@dataclass(frozen=True)
class Renamed(Quadratic):
    """Says that it measures something else."""

    measured: tuple[str, ...] = ()

    def metrics(self) -> tuple[str, ...]:
        return self.measured


@pytest.mark.parametrize(
    ("metric", "problem"),
    [
        ("Rouge-L", "measures 'Rouge-L'; rename it so that"),
        ("f1 score", "measures 'f1 score'; rename it so that"),
        ("m" * 88, "rename it so that"),
        ("loss", "measures `loss`, which every evaluation adds itself"),
    ],
)
def test_a_metric_that_could_not_travel_is_refused_at_the_start(metric: str, problem: str, tmp_path: Path) -> None:
    task = Renamed(clients=CLIENTS, measured=("nearness", metric))
    with pytest.raises(ConfigError, match=problem):
        make_runner(make_config(tmp_path, task))
    make_runner(make_config(tmp_path, replace(task, measured=("nearness", "rouge-l@10"))))


def test_a_pattern_without_weight_decay_that_matches_nothing_is_remarked(tmp_path: Path) -> None:
    hp = ClientConfig(optimizer="adamw", weight_decay=0.1, no_decay=("*w*", "*LayerNorm*"))
    config = make_config(tmp_path, TASK, client=hp)
    engine = make_runner(config).components.engine
    assert list(about_decay(Plan.of(config, 1), engine)) == ["no_decay: the pattern '*LayerNorm*' matches no parameter"]
    config = replace(config, client=replace(hp, weight_decay=0.0))
    assert list(about_decay(Plan.of(config, 1), engine)) == []


def test_a_last_save_that_failed_is_tried_again_before_the_best_weights_are_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bool] = []

    def write_at_the_second_try(context: Any, gathered: Any, is_last: bool) -> str:
        made.append(is_last)
        return "retry" if len(made) == 1 else "ok"

    def stopped(self: Any) -> Any:
        raise Stopped

    monkeypatch.setattr("fedtorch.rounds.checkpointing._write", write_at_the_second_try)
    monkeypatch.setattr("fedtorch.rounds.evaluation.Evaluation.at_the_end", stopped)
    with pytest.raises(Interrupted):
        make_runner(make_config(tmp_path, TASK, rounds=2, checkpoint=CheckpointConfig(every=2))).run()
    # the second try is the last chance; nothing is saved after the best weights took their place
    assert made == [False, True]


def test_local_keeps_each_clients_own_best_and_rests_when_it_stops_gaining(tmp_path: Path) -> None:
    task = replace(TASK, dropout=0.0, noise=0.0)
    runner = make_runner(
        make_config(
            tmp_path, task, paradigm="local", rounds=200, client=replace(SGD, lr=0.5), eval=EvalConfig(patience=2)
        )
    )
    result = runner.run()
    assert result.rounds < 200
    best = {name: runner.context.store.get(name).numbers["best_round"] for name in CLIENTS}
    assert len(set(best.values())) > 1
    assert all(score["nearness"][0] / score["nearness"][1] > -1e-3 for score in result.scores.values())


def test_scaffold_refuses_a_client_optimiser_it_does_not_cover(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs plain SGD"):
        make_runner(make_config(tmp_path, TASK, Scaffold(), client=ClientConfig(optimizer="adamw")))


@pytest.mark.parametrize("ties,best", [("earlier", 1), ("later", 4), ("loss", 4)])
def test_of_equally_good_rounds_the_asked_for_one_is_the_best(tmp_path: Path, ties: Any, best: int) -> None:
    still = replace(TASK, noise=0.0, dropout=0.0)
    config = make_config(tmp_path, still, client=replace(SGD, lr=0.0), rounds=4, eval=EvalConfig(ties=ties))
    assert make_runner(config).run().best_round == best
