"""FewFedWeight: figures worked out by hand, and what must hold for personal models and pseudo labels."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from torch import Tensor
from toy import Quadratic

from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fewfedweight import FewFedWeight, SiloAugmented
from fedtorch.algorithms.metaweighting import MetaWeighting, meta_weights
from fedtorch.algorithms.token_weights import token_weights
from fedtorch.config.schema import ClientConfig, EngineConfig, EvalConfig
from fedtorch.core.client import ClientState
from fedtorch.core.errors import ConfigError
from fedtorch.core.histograms import read
from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.update import Report
from fedtorch.data.synthetic.gym import prepare
from fedtorch.models.encoder_decoder import EncoderDecoder
from fedtorch.models.generation import token_energies
from fedtorch.rounds.runner import Runner
from fedtorch.tasks.fewshot import FewShotTasks

pytestmark = pytest.mark.long

NAN = math.nan
FOUR = [[5, 3, 1, 0, -2, -4], [2, 1.9, 1.8, 0.5, 0.1, 0], [9, 0, -1, -1.5, -3, 2], [1, 0.5, 0.25, 0, -0.5, 0.75]]
SIGN = [-4.84439666, 2.02592302, -1.30318605]
SGD = ClientConfig(optimizer="sgd", lr=0.1, batch_size=8)
LIMITS: dict[str, Any] = {"output_max_length": 6, "max_train": 5, "max_dev": 2, "max_test": 3}


@pytest.fixture(scope="module")
def gym(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gym") / "data"
    prepare(folder)
    return folder


def small(gym: Path, **changes: Any) -> FewShotTasks:
    model = EncoderDecoder(d_model=16, d_ff=32, num_heads=2, num_layers=1, max_positions=64, dropout=0.1)
    return FewShotTasks(data=str(gym), **{"model": model, **LIMITS, **changes})


class Notes:
    """In place of a tracker: keeps each client's last report, and no client may fail unnoticed."""

    def round(self, round: int, facts: RoundFacts) -> None:
        assert {report.status for report in facts.reports or ()} == {"ok"}

    def evaluation(self, *_: Any, **__: Any) -> None: ...

    def examples(self, *_: Any, **__: Any) -> None: ...

    def working(self, text: str) -> None: ...

    def end(self, *_: Any) -> None: ...


def run(folder: Path, task: FewShotTasks, algorithm: FedAvg, rounds: int = 2, **changes: Any) -> Runner:
    config = make_config(folder, task, algorithm, rounds=rounds, **{"client": SGD, **changes})
    runner = make_runner(config, tracker=Notes())
    runner.result = runner.run()
    return runner


def personal(runner: Runner) -> dict[str, Tensor]:
    return {name: runner.context.store.get(name).tensors["personal"] for name in runner.context.store.clients()}


# energies and weights ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("energies", "how", "expected", "clamped"),
    [
        ([-5.1429316, -3.0019429, -9.0010348, -1.8693381], "clamp", [0.2704636, 0.1578703, 0.4733588, 0.0983073], 0),
        ([-5.8152119, -4.0988909, -9.0809521, -2.9576277], "clamp", [0.2648976, 0.1867148, 0.4136603, 0.1347274], 0),
        (SIGN, "literal", [1.17535096, -0.49153088, 0.31617992], 0),
        (SIGN, "clamp", [0.78788835, 0.00016264, 0.21194902], 1),
        ([-12.0, -7.2, -15.0], "clamp", [0.35087719, 0.21052632, 0.43859649], 0),
        ([3.0, 2.0], "clamp", [0.5, 0.5], 2),
        ([-2.0, NAN, -6.0], "clamp", [0.25, 0.0, 0.75], 0),
        ([NAN, 4.0, 9.0], "uniform", [0.0, 0.5, 0.5], 0),
        ([NAN, -math.log(3.0), 0.0], "softmax", [0.0, 0.75, 0.25], 0),
        ([2.0, -2.0], "literal", [0.5, 0.5], 0),
        ([NAN], "softmax", [0.0], 0),
        ([NAN], "clamp", [0.0], 0),
    ],
)  # fmt: skip
def test_token_weights(energies: list[float], how: Any, expected: list[float], clamped: int) -> None:
    weights, count = token_weights([energies], how)
    assert weights[0] == pytest.approx(expected, abs=1e-6) and count == clamped


def test_tau_divides_the_energies_and_is_1_where_nothing_is_said() -> None:
    # exp(2 ln 3 / 2) = 3, and 9 undivided
    energies = [[-2 * math.log(3.0), 0.0]]
    assert token_weights(energies, "softmax", tau=2.0)[0][0] == pytest.approx([0.75, 0.25])
    assert token_weights(energies, "softmax")[0][0] == pytest.approx([0.9, 0.1])


def test_clamped_weights_are_those_of_equation_4_where_all_energies_are_negative() -> None:
    energies = [[-5.1429316, -3.0019429, -9.0010348, -0.001], [-0.5]]
    assert token_weights(energies, "clamp") == token_weights(energies, "literal")


@pytest.mark.parametrize(
    ("logits", "k", "temperature", "how", "nll", "loss"),
    [
        ("four", 3, 1.0, "clamp", [0.15, 1.2, 0.002, 1.6], 0.38825233),
        ("four", 3, 2.0, "clamp", [0.15, 1.2, 0.002, 1.6], 0.48018355),
        ("sign", 2, 1.0, "clamp", [0.7, 2.1, 0.9], 0.74261750),
    ],
)
def test_loss_of_a_pseudo_row(logits: str, k: int, temperature: float, how: Any, nll: list[float], loss: float) -> None:
    rows = {"four": FOUR, "sign": [[4.2, 4.1, -1, 0.3, 2.2], [-3, -2.5, -4, -6, -5], [0.9, 0.2, 0.1, -0.4, 0]]}
    energies = token_energies(torch.tensor(rows[logits], dtype=torch.float64), k, temperature)
    (weights,), _ = token_weights([energies.tolist()], how)
    assert sum(w * x for w, x in zip(weights, nll)) == pytest.approx(loss, abs=1e-6)


# aggregation ---------------------------------------------------------------------------------------------------------

MODELS = torch.tensor([[1.0, -2.0], [0.5, 0.0], [3.0, 1.0], [-1.0, 4.0]], dtype=torch.float64)


def reports(losses: list[float], **extra: float) -> list[Report]:
    parts = [{"pseudo_loss": 0.25 * loss, "annotated_loss": 0.75 * loss, **extra} for loss in losses]
    return [Report(str(i), examples=n, extra=part) for i, (n, part) in enumerate(zip((29, 29, 29, 31), parts))]


def test_weights_by_loss_and_by_size_are_the_specifications() -> None:
    by_loss = FewFedWeight().weigh(reports([2.0, 3.0, 1.0, 4.0]))
    assert by_loss == pytest.approx([0.2, 0.3, 0.1, 0.4], abs=1e-12)
    assert (torch.tensor(by_loss, dtype=torch.float64) @ MODELS).tolist() == pytest.approx([0.25, 1.3], abs=1e-12)
    for by_size in (
        FewFedWeight(weights="size").weigh(reports([2.0, 3.0, 1.0, 4.0])),
        FewFedWeight().weigh(reports([2.0, 3.0, 1.0, 4.0], by_size=1.0)),
    ):
        average = torch.tensor(by_size, dtype=torch.float64) @ MODELS
        assert average.tolist() == pytest.approx([0.84322034, 0.80508475], abs=1e-8)


def test_weights_where_no_loss_is_left_or_one_is_not_finite() -> None:
    assert FewFedWeight().weigh(reports([0.0, 0.0, 0.0])) == [1 / 3] * 3
    with pytest.raises(ValueError, match="the losses of the clients are"):
        FewFedWeight().weigh(reports([1.0, NAN]))


class Uneven(FewShotTasks):
    """The first client has two training rows, every other one a row more than the one before."""

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        return {client: {**sizes, "train": 2 + i} for i, (client, sizes) in enumerate(super().manifest().items())}

    def load(self, client: str, split: str) -> Any:
        return super().load(client, split)[: self.manifest()[client][split]]


def test_size_weights_come_first_where_the_config_says_so(gym: Path, tmp_path: Path) -> None:
    task = small(gym)
    uneven = Uneven(data=task.data, model=task.model, **LIMITS)

    def weights(**changes: Any) -> list[float]:
        runner = run(tmp_path / str(changes), uneven, FewFedWeight(**changes), rounds=2)
        return list(runner.weights.values())

    by_size = [2 / 14, 3 / 14, 4 / 14, 5 / 14]
    assert weights(size_rounds=2) == pytest.approx(by_size, abs=1e-12)
    by_loss = weights(size_rounds=1)
    # random models: the clients' losses are within a few per cent of one another
    assert by_loss == pytest.approx([0.25] * 4, abs=0.03) and len(set(by_loss)) == 4


# meta weights --------------------------------------------------------------------------------------------------------

THETA = torch.tensor([0.5, -0.25], dtype=torch.float64)
PSEUDO = ([[1.0, 2.0], [-1.0, 0.5], [2.0, -1.0], [0.0, 1.0]], [1.0, 0.0, 1.0, 1.0])
GOLD = ([[1.0, -1.0], [-2.0, 1.0]], [1.0, 0.0])


def logistic(rows: tuple[list[list[float]], list[float]]) -> Any:
    x, y = (torch.tensor(part, dtype=torch.float64) for part in rows)
    return lambda p: torch.nn.functional.binary_cross_entropy_with_logits(x @ p["theta"], y, reduction="none")


@pytest.mark.parametrize(
    ("eps", "u"),
    [
        (0.0, [0.00802053, -0.01809437, -0.02311588, 0.01527775]),
        (1.0, [0.00795048, -0.01699006, -0.02170510, 0.01453398]),
    ],
)
def test_meta_weights_are_the_specifications(eps: float, u: list[float]) -> None:
    pseudo_losses, gold_losses = logistic(PSEUDO), logistic(GOLD)
    weights, slopes = meta_weights(pseudo_losses, gold_losses, {"theta": THETA}, alpha=0.1, eps_init=eps)
    assert slopes.tolist() == pytest.approx(u, abs=1e-7)
    assert weights.tolist() == pytest.approx([0.0, 0.43907455, 0.56092545, 0.0], abs=1e-7)
    theta = THETA.clone().requires_grad_()
    loss = (weights * pseudo_losses({"theta": theta})).sum() + gold_losses({"theta": theta}).mean()
    loss.backward()
    assert loss.item() == pytest.approx(0.64894504, abs=1e-7)
    assert (theta - 0.1 * theta.grad).tolist() == pytest.approx([0.57860283, -0.29732195], abs=1e-7)


def test_meta_weights_equal_a_derivative_of_second_order() -> None:
    """The same u from a graph through the virtual step, as the cited code has it."""
    pseudo_losses, gold_losses = logistic(PSEUDO), logistic(GOLD)
    for eps in (0.0, 1.0):
        epsilon = torch.full((4,), eps, dtype=torch.float64, requires_grad=True)
        theta = THETA.clone().requires_grad_()
        (slope,) = torch.autograd.grad((epsilon * pseudo_losses({"theta": theta})).sum(), theta, create_graph=True)
        (u,) = torch.autograd.grad(gold_losses({"theta": theta - 0.1 * slope}).mean(), epsilon)
        found = meta_weights(pseudo_losses, gold_losses, {"theta": THETA}, alpha=0.1, eps_init=eps)[1]
        assert found.tolist() == pytest.approx(u.tolist(), abs=1e-12)


def test_the_printed_algorithm_gives_no_row_a_weight() -> None:
    weights, u = meta_weights(logistic(PSEUDO), logistic(GOLD), {"theta": THETA}, alpha=0.1, rule="printed")
    assert weights.tolist() == [0.0, 0.0] and min(u.tolist()) > 0


@pytest.mark.parametrize("name", ["bart-random", "t5-random"])
@pytest.mark.parametrize(
    "changes", [{}, {"meta_eps_init": 1, "meta_lr": 1e-3}, {"meta_gold_on": "Bhat"}, {"meta_rule": "printed"}]
)
def test_meta_weighting_trains_an_encoder_decoder(name: str, changes: Any, gym: Path, tmp_path: Path) -> None:
    task = small(gym, model=EncoderDecoder(name, d_model=16, d_ff=32, num_heads=2, num_layers=1, max_positions=64))
    found = run(tmp_path, task, MetaWeighting(**changes), rounds=1).result.reports
    report = found["client1"]
    assert report.steps == 2 and report.extra["rows"] == 20  # 10 pairs, of which 8 make a step
    assert any(report.extra["used"] > 0 for report in found.values()) == (changes != {"meta_rule": "printed"})
    assert report.extra["pseudo_loss"] > 0 < report.extra["annotated_loss"]


@pytest.mark.parametrize(
    "algorithm", [MetaWeighting(), FewFedWeight(energy_from="client")], ids=lambda a: type(a).__name__
)
def test_labels_weights_and_training_in_bf16_stay_close_to_fp32(algorithm: Any, gym: Path, tmp_path: Path) -> None:
    """The answers may differ from the first near-tie on, so only what all of them share is compared."""
    found = {
        kind: run(tmp_path / kind, small(gym), algorithm, rounds=1, engine=EngineConfig(precision=kind)).result
        for kind in ("fp32", "bf16")
    }
    for name, report in found["bf16"].reports.items():
        exact = found["fp32"].reports[name]
        assert report.extra["annotated_loss"] == pytest.approx(exact.extra["annotated_loss"], rel=0.02)
        assert report.extra["rows"] == exact.extra["rows"]
    assert found["bf16"].digest != found["fp32"].digest


# Ditto ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "rounds", "w", "v"),
    [
        ("full", 1, 0.05, [0.3, -0.2]),
        ("full", 2, 0.0925, [0.545, -0.335]),
        ("simplified", 1, 0.05, [0.3, -0.2]),
        ("simplified", 2, 0.105, [0.52, -0.31]),
    ],
)
def test_both_forms_of_ditto(form: Any, rounds: int, w: float, v: list[float], tmp_path: Path) -> None:
    task = Quadratic(clients={"a": (1.0, 3.0, 4), "b": (2.0, -1.0, 4)})
    runner = make_runner(make_config(tmp_path, task, Ditto(lam=1.0, form=form), rounds=rounds))
    runner.run()
    assert runner.context.vectors.weights.tolist() == pytest.approx([w], abs=1e-9)
    assert [float(tensor) for tensor in personal(runner).values()] == pytest.approx(v, abs=1e-9)


# invariants ----------------------------------------------------------------------------------------------------------


class Watch(FewFedWeight):
    """Notes each client's model as the round hands it over, before anything is trained."""

    seen: list[tuple[str, int, Tensor, Tensor]] = []  # noqa: RUF012

    def client_update(self, job: Any) -> Report:
        kept = job.state.tensors.get("personal", job.initial).clone()
        self.seen.append((job.client.name, job.round, kept, job.received["weights"].clone()))
        return super().client_update(job)


def test_a_clients_model_is_bit_identical_across_a_broadcast(gym: Path, tmp_path: Path) -> None:
    Watch.seen.clear()
    models = {rounds: personal(run(tmp_path / str(rounds), small(gym), FewFedWeight(), rounds)) for rounds in (1, 2)}
    run(tmp_path / "3", small(gym), Watch(), rounds=3)
    for name, number, kept, received in Watch.seen:
        if number:
            assert torch.equal(kept, models[number][name])
            assert not torch.equal(kept, received)


class Alone(FewShotTasks):
    """Only the first client."""

    def manifest(self) -> Any:
        return {"client1": super().manifest()["client1"]}


def test_one_client_with_uniform_weights_equals_data_silo_da(gym: Path, tmp_path: Path) -> None:
    def one_client(algorithm: FedAvg, name: str) -> Tensor:
        task = Alone(**{key: getattr(small(gym), key) for key in ("data", "model", *LIMITS)})
        return personal(run(tmp_path / name, task, algorithm, rounds=3))["client1"]

    federated = one_client(FewFedWeight(token_weights="uniform"), "federated")
    assert torch.equal(federated, one_client(SiloAugmented(), "silo"))
    assert not torch.equal(federated, one_client(FewFedWeight(), "energy"))


@pytest.mark.parametrize("rounds", [1, 3])
def test_with_one_client_the_global_model_is_the_clients(rounds: int, gym: Path, tmp_path: Path) -> None:
    task = Alone(**{key: getattr(small(gym), key) for key in ("data", "model", *LIMITS)})
    runner = run(tmp_path, task, FewFedWeight(), rounds)
    assert list(runner.weights.values()) == [1.0]
    # received − (received − trained) is rounded to fp32
    torch.testing.assert_close(runner.context.vectors.weights, personal(runner)["client1"], rtol=0, atol=1e-6)


def test_the_global_model_is_the_weighted_average_of_the_clients(gym: Path, tmp_path: Path) -> None:
    runner = run(tmp_path, small(gym), FewFedWeight(), rounds=1)
    average = sum(weight * personal(runner)[name].double() for name, weight in runner.weights.items())
    assert sum(runner.weights.values()) == pytest.approx(1.0, abs=1e-12)
    # received − trained is rounded to fp32 before it is sent
    torch.testing.assert_close(runner.context.vectors.weights.double(), average, rtol=0, atol=1e-6)


def test_pseudo_rows_double_the_row_steps_and_cost_is_accounted(gym: Path, tmp_path: Path) -> None:
    task, begun = small(gym), time.monotonic()
    runner = run(tmp_path / "1", task, FewFedWeight(), rounds=1)
    took = time.monotonic() - begun
    size = runner.components.engine.shared.size
    for name, report in runner.result.reports.items():
        n = task.manifest()[name]["train"]
        assert report.examples == n and report.extra["rows"] == 2 * n and report.steps == math.ceil(2 * n / 8)
        assert report.extra["received_bytes"] == 4 * size and report.extra["sent_bytes"] == 4 * size + 16
        assert report.extra["generate_s"] > 0 < report.extra["train_s"]
        assert report.extra["generate_s"] + report.extra["train_s"] < took
    late = run(tmp_path / "2", task, FewFedWeight(pseudo_start_round=1), rounds=1).result.reports["client1"]
    assert late.extra["rows"] == late.examples and late.extra["pseudo_loss"] == 0.0


def test_the_schedule_spans_the_steps_that_are_taken(gym: Path, tmp_path: Path) -> None:
    """Two rounds without pseudo data, three with: ceil(10 / 8) and ceil(20 / 8) steps each."""
    expected = []

    class Counted(FewFedWeight):
        def steps_of_the_run(self, job: Any) -> int:
            expected.append(super().steps_of_the_run(job))
            return expected[-1]

    client = replace(SGD, schedule="linear", schedule_span="run")
    runner = run(tmp_path, small(gym), Counted(pseudo_start_round=2), rounds=5, client=client)
    assert runner.context.store.get("client1").numbers["train/steps"] == 2 * 2 + 3 * 3
    assert set(expected) == {13}


def test_energies_of_the_client_are_those_of_the_labeller_in_the_first_round_only(gym: Path, tmp_path: Path) -> None:
    """Both start from w^0; batches differ in shape, so sums differ in their last bits."""

    def model(energy_from: Any, rounds: int) -> Tensor:
        folder = tmp_path / f"{energy_from}{rounds}"
        return personal(run(folder, small(gym), FewFedWeight(energy_from=energy_from), rounds))["client1"]

    torch.testing.assert_close(model("global", 1), model("client", 1), rtol=0, atol=1e-6)
    assert (model("global", 3) - model("client", 3)).abs().max() > 1e-6


def test_a_round_records_the_energies_of_its_labels_over_top_k_and_over_all_logits(gym: Path, tmp_path: Path) -> None:
    mean: dict[str, dict[str, float]] = {}
    for source in ("global", "client"):
        runner = run(tmp_path / source, small(gym), FewFedWeight(top_k=2, energy_from=source), rounds=1)
        for report in runner.result.reports.values():
            found = read(report.extra)
            assert set(found) == {"energy_top", "energy_all"}
            for name, bins in found.items():
                assert 0 < sum(bins.values()) <= report.extra["pseudo_tokens"]  # without the forced ones
                mean.setdefault(source, {})[name] = sum(k * n for k, n in bins.items()) / sum(bins.values())
        assert sum(found["energy_top"].values()) == sum(found["energy_all"].values())
        # a sum over all of some hundred logits of random weights is far above that of two
        assert mean[source]["energy_all"] < mean[source]["energy_top"] - 2
    assert mean["global"] == pytest.approx(mean["client"], abs=0.2)  # the same model; a bin may differ in last bits
    late = run(tmp_path / "2", small(gym), FewFedWeight(pseudo_start_round=1), rounds=1).result.reports["client1"]
    assert read(late.extra) == {}


def test_what_a_client_is_evaluated_with() -> None:
    own, received = torch.ones(2), torch.zeros(2)
    assert FewFedWeight().eval_weights(received, ClientState({"personal": own})) is own
    assert FewFedWeight().eval_weights(received, ClientState()) is received


def test_a_task_that_cannot_label_is_refused(tmp_path: Path) -> None:
    task = Quadratic(clients={"a": (1.0, 3.0, 4)})
    with pytest.raises(ConfigError, match="needs a task that can make pseudo labels, which Quadratic cannot"):
        make_runner(make_config(tmp_path, task, FewFedWeight()))


def test_a_client_alone_that_ceased_to_gain_rests(gym: Path, tmp_path: Path) -> None:
    runner = make_runner(make_config(tmp_path, small(gym), SiloAugmented(), rounds=1))
    runner.context.store.put("client1", ClientState(numbers={"stopped": 1}))
    assert "client1" not in runner.run().reports
    assert "personal" not in runner.context.store.get("client1").tensors


@pytest.mark.parametrize(
    "algorithm", [FewFedWeight(), SiloAugmented(), MetaWeighting()], ids=lambda a: type(a).__name__
)
def test_dev_scores_choose_a_personal_model(algorithm: Any, gym: Path, tmp_path: Path) -> None:
    runner = run(tmp_path, small(gym), algorithm, rounds=2, eval=EvalConfig(every=1))
    scores = runner.result.scores
    assert set(scores) == {f"client{i}" for i in range(1, 5)}
    assert scores["client1"]["tasks_mean"][1] == 2 and scores["client1"]["made-colour/em"][1] == 3


@pytest.mark.slow
def test_from_a_common_start_the_clients_go_on_learning(gym: Path, tmp_path: Path) -> None:
    """Two minutes. From random weights the average of the clients' models labels with noise, so FedAvg comes first."""
    model = EncoderDecoder("t5-random", d_model=48, d_ff=96, num_heads=4, num_layers=1, dropout=0.0, init="copying")
    client = ClientConfig(
        optimizer="adamw", lr=3e-3, batch_size=8, optimizer_state="keep", max_grad_norm=1.0, betas=(0.9, 0.98)
    )
    start = FewShotTasks(data=str(gym), model=model, output_max_length=8)
    first = run(tmp_path / "start", start, FedAvg(), rounds=6, client=client)
    start.save_model(first.components.engine.module, tmp_path / "model")
    task = FewShotTasks(data=str(gym), model=EncoderDecoder(str(tmp_path / "model")), output_max_length=8)
    second = run(tmp_path / "on", task, FewFedWeight(), rounds=8, client=replace(client, lr=5e-4))

    def mean(runner: Runner) -> float:
        return sum(scores["tasks_mean"][0] for scores in runner.result.scores.values()) / 8

    assert mean(second) > mean(first) + 0.05
