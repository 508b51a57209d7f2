"""Every numeric oracle of the federated algorithms: values computed in exact arithmetic, tolerance 1e-9 in fp64."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SGD, make_config, make_runner
from torch import Tensor, nn
from toy import Quadratic
from transformers.optimization import Adafactor

from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fednova import FedNova, normaliser
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.algorithms.pfedme import PFedMe
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.algorithms.weighting import normalised
from fedtorch.config.schema import ClientsConfig, ServerConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.server import ServerOptimizer, ServerState
from fedtorch.core.update import Report
from fedtorch.core.weights import Partition
from fedtorch.rounds.runner import Runner
from fedtorch.train.engine import Engine
from fedtorch.train.optim import OPTIMIZERS

close = {"rel": 1e-9, "abs": 1e-9}

N = [100, 300, 50, 50]
DELTA_L = [0.5, 0.1, 0.0, 1.2]
W_T = [1.0, -2.0]
CLIENT_W = [[0.8, -1.8], [1.1, -2.5], [5.0, 5.0], [0.4, -1.0]]
WEIGHTED = {
    "size": ([0.2, 0.6, 0.1, 0.1], [1.36, -1.46], [-0.36, -0.54]),
    "equal": ([0.25, 0.25, 0.25, 0.25], [1.825, -0.075], [-0.825, -1.925]),
    "loss_reduction": ([0.2777777778, 0.0555555556, 0.0, 0.6666666667], [0.55, -1.3055555556], [0.45, -0.6944444444]),
    "lorar": (
        [0.3571428571, 0.2142857143, 0.0, 0.4285714286],
        [0.6928571429, -1.6071428571],
        [0.3071428571, -0.3928571429],
    ),
}


@pytest.mark.parametrize("mode", WEIGHTED)
def test_weights_and_pseudo_gradient_follow_section_4(mode: str) -> None:
    p, w_next, pseudo_gradient = WEIGHTED[mode]
    reports = [Report(str(i), examples=n, extra={"loss_reduction": d}) for i, (n, d) in enumerate(zip(N, DELTA_L))]
    weights = normalised(mode, reports)
    assert weights == pytest.approx(p, abs=1e-9)
    w = torch.tensor(W_T, dtype=torch.float64)
    differences = w - torch.tensor(CLIENT_W, dtype=torch.float64)
    grad = torch.tensor(weights, dtype=torch.float64) @ differences
    assert grad.tolist() == pytest.approx(pseudo_gradient, abs=1e-9)
    server = ServerState({"weights": w})
    ServerOptimizer().step(server, grad)
    assert server.weights.tolist() == pytest.approx(w_next, abs=1e-9)


@pytest.mark.parametrize(
    ("mode", "n", "reductions", "expected", "is_fallback"),
    [
        ("lorar", [10, 30], [0.0, 0.0], [0.25, 0.75], True),
        ("loss_reduction", [10, 30], [0.0, 0.0], [0.25, 0.75], True),
        ("lorar", [10, 30, 60], [0.0, math.nan, 0.0], [0.1428571429, 0.0, 0.8571428571], True),
        ("lorar", [10, 30, 60], [1.0, math.nan, 0.5], [0.25, 0.0, 0.75], False),
        ("size", [10, 30, 60], [1.0, math.nan, 0.5], [0.1428571429, 0.0, 0.8571428571], False),
        ("equal", [10, 30, 60], [1.0, math.inf, 0.5], [0.5, 0.0, 0.5], False),
    ],
)
def test_guards_of_the_weights(
    mode: str, n: list[int], reductions: list[float], expected: list[float], is_fallback: bool, caplog: Any
) -> None:
    reports = [Report(str(i), examples=k, extra={"loss_reduction": d}) for i, (k, d) in enumerate(zip(n, reductions))]
    with caplog.at_level("WARNING", "fedtorch"):
        assert normalised(mode, reports) == pytest.approx(expected, abs=1e-9)
    assert ("using training sizes" in caplog.text) == is_fallback


DELTAS = [[0.2, -0.1], [-0.1, 0.3], [0.05, 0.0]]
ADAPTIVE = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}
SERVER_RULES: dict[str, tuple[dict[str, Any], list[dict[str, list[float]]]]] = {
    "fedavgm": (
        {"optimizer": "sgd", "lr": 1.0, "momentum": 0.9},
        [
            {"momentum": [-0.2, 0.1], "weights": [1.2, -1.1]},
            {"momentum": [-0.08, -0.21], "weights": [1.28, -0.89]},
            {"momentum": [-0.122, -0.189], "weights": [1.402, -0.701]},
        ],
    ),
    "fedadam": (
        {"optimizer": "adam", **ADAPTIVE},
        [
            {
                "first_moment": [0.02, -0.01],
                "second_moment": [0.00040099, 0.00010099],
                "weights": [1.0951260517, -1.0905028312],
            },
            {
                "first_moment": [0.008, 0.021],
                "second_moment": [0.0004969801, 0.0009999801],
                "weights": [1.1294710594, -1.0261300072],
            },
            {
                "first_moment": [0.0122, 0.0189],
                "second_moment": [0.000517010299, 0.000989980299],
                "weights": [1.1808657503, -0.9679115877],
            },
        ],
    ),
    "fedyogi": (
        {"optimizer": "yogi", **ADAPTIVE},
        [
            {
                "first_moment": [0.02, -0.01],
                "second_moment": [0.000401, 0.000101],
                "weights": [1.095124922, -1.0904987562],
            },
            {
                "first_moment": [0.008, 0.021],
                "second_moment": [0.000501, 0.001001],
                "weights": [1.1293377688, -1.0261577297],
            },
            {
                "first_moment": [0.0122, 0.0189],
                "second_moment": [0.000526, 0.001001],
                "weights": [1.1803098101, -0.9682508059],
            },
        ],
    ),
    "fedadagrad": (
        {"optimizer": "adagrad", "lr": 0.1, "beta1": 0.0, "tau": 1e-3},
        [
            {
                "first_moment": [0.2, -0.1],
                "second_moment": [0.040001, 0.010001],
                "weights": [1.09950125, -1.0990049999],
            },
            {
                "first_moment": [-0.1, 0.3],
                "second_moment": [0.050001, 0.100001],
                "weights": [1.0549794432, -1.0044361957],
            },
            {
                "first_moment": [0.05, 0.0],
                "second_moment": [0.052501, 0.100001],
                "weights": [1.076706202, -1.0044361957],
            },
        ],
    ),
    "fedadam_bias_corrected": (
        {"optimizer": "adam", **ADAPTIVE, "bias_correction": True},
        [
            {
                "first_moment": [0.02, -0.01],
                "second_moment": [0.0004, 0.0001],
                "weights": [1.0952380952, -1.0909090909],
            },
            {
                "first_moment": [0.008, 0.021],
                "second_moment": [0.000496, 0.000999],
                "weights": [1.1207619818, -1.0430921372],
            },
            {
                "first_moment": [0.0122, 0.0189],
                "second_moment": [0.00051604, 0.00098901],
                "weights": [1.1534753472, -1.0060511093],
            },
        ],
    ),
}


@pytest.mark.parametrize("name", SERVER_RULES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_server_rule(name: str, dtype: torch.dtype, tolerance: float) -> None:
    settings, rounds = SERVER_RULES[name]
    server = ServerState({"weights": torch.tensor([1.0, -1.0], dtype=dtype)})
    rule = ServerOptimizer(ServerConfig(**settings))
    for delta, expected in zip(DELTAS, rounds, strict=True):
        rule.step(server, -torch.tensor(delta, dtype=dtype))
        for key, values in expected.items():
            assert server.tensors[key].tolist() == pytest.approx(values, rel=tolerance, abs=tolerance), key


class Bowl(nn.Module):
    """½·w'Aw − b'w, the FedProx oracle's loss."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))


def bowl_loss(model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
    assert isinstance(model, Bowl)
    a = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    b = torch.tensor([1.0, -1.0], dtype=torch.float64)
    return 0.5 * model.w @ a @ model.w - b @ model.w, 1


def test_fedprox_on_a_quadratic() -> None:
    from fedtorch.algorithms.fedprox import proximal

    engine = Engine(Bowl(), Partition(), torch.device("cpu"))
    start = engine.initial_shared
    engine.start(start, None, SGD, steps=3, seed=0)
    pull = proximal(engine, start, 0.1)
    seen: list[tuple[float, float, list[float]]] = []

    def observed(engine: Engine) -> Tensor | None:
        assert pull is not None
        penalty = pull(engine)
        seen.append((0.0, float(penalty), engine.shared_gradients()[0].tolist()))  # type: ignore[arg-type]
        return penalty

    losses = [float(engine.step(bowl_loss, [torch.zeros(1)], 1, observed)[0]) for _ in range(3)]
    assert losses == pytest.approx([5.0, 3.51125, 2.47783425], **close)
    assert [penalty for _, penalty, _ in seen] == pytest.approx([0.0, 0.008125, 0.027019625], **close)
    gradients = [[2.0, 3.5], [1.405, 3.015], [0.9592, 2.6131]]
    assert [g for _, _, grad in seen for g in grad] == pytest.approx([g for grad in gradients for g in grad], **close)
    assert engine.flat.tolist() == pytest.approx([0.56358, 1.08719], **close)


def test_fedprox_pulls_with_any_strength_but_none() -> None:
    from fedtorch.algorithms.fedprox import proximal

    engine = Engine(Bowl(), Partition(), torch.device("cpu"))
    engine.start(engine.initial_shared, None, SGD, steps=1, seed=0)
    assert proximal(engine, engine.initial_shared, 0.0) is None
    pull = proximal(engine, engine.initial_shared - 1, 1.0)
    assert pull is not None
    engine.shared_gradients()[0].zero_()
    assert float(pull(engine)) == pytest.approx(1.0)  # half of 1² + 1²
    assert engine.shared_gradients()[0].tolist() == [1.0, 1.0]


def rounds_of(runner: Runner) -> Any:
    """The runner after each further round."""
    runner._share_initial_weights()
    while True:
        runner._one_round()
        yield runner


def test_scaffold_two_clients_three_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Quadratic(clients={"0": (1.0, 0.0, 4), "1": (2.0, 3.0, 4)}, start=(1.0,))
    config = make_config(
        tmp_path, task, Scaffold(), rounds=3, client=replace(SGD, epochs=2), clients=ClientsConfig(min=1)
    )
    runner = make_runner(config)
    cohorts = [[0, 1], [0], [0, 1]]
    clients = runner.components.clients
    monkeypatch.setattr(
        "fedtorch.rounds.cohort.cohort", lambda *args, round, **kw: [(clients[i], 1) for i in cohorts[round]]
    )
    expected = [
        ({"0": 0.95, "1": -3.6}, 1.265, -1.325),
        ({"0": 1.3155, "1": -3.6}, 1.4569, -1.14225),
        ({"0": 1.5069425, "1": -3.023355}, 1.60854125, -0.75820625),
    ]
    for (controls, x, c), state in zip(expected, rounds_of(runner)):
        assert state.context.server.weights.item() == pytest.approx(x, **close)
        assert state.context.server.tensors["control"].item() == pytest.approx(c, **close)
        for name, control in controls.items():
            assert state.context.store.get(name).tensors["control"].item() == pytest.approx(control, **close)


# what neither S·lr of SCAFFOLD nor FedNova's normaliser is the scale of
NOT_COVERED = [
    {"optimizer": "adamw"}, {"schedule": "linear"}, {"weight_decay": 0.1}, {"warmup_steps": 1}, {"warmup_ratio": 0.5},
    {"max_grad_norm": 1.0},
]  # fmt: skip


@pytest.mark.parametrize("setting", NOT_COVERED, ids=lambda setting: next(iter(setting)))
@pytest.mark.parametrize("algorithm", [Scaffold(), FedNova()], ids=["scaffold", "fednova"])
def test_what_the_formula_does_not_cover_is_refused(algorithm: FedAvg, setting: dict[str, Any]) -> None:
    algorithm.check(SGD, None)
    with pytest.raises(ConfigError, match="algorithm.name is `"):
        algorithm.check(replace(SGD, **setting), None)


def test_fednova_covers_momentum_or_a_proximal_term_and_scaffold_no_momentum() -> None:
    FedNova().check(replace(SGD, momentum=0.9), None)
    FedNova(mu=0.1).check(SGD, None)
    with pytest.raises(ConfigError, match="not both client.momentum and algorithm.mu"):
        FedNova(mu=0.1).check(replace(SGD, momentum=0.9), None)
    with pytest.raises(ConfigError, match="or algorithm.force: true"):
        Scaffold().check(replace(SGD, momentum=0.9), None)
    Scaffold(force=True).check(replace(SGD, momentum=0.9), None)


def test_scaffold_takes_gradients_outside_a_step_with_option_one_alone() -> None:
    first, second = Scaffold(option="I").limits, Scaffold(option="II").limits
    assert first.engines == ("torch",) and "deepspeed" in second.engines
    assert first.precisions == ("fp32", "bf16") and "fp16" in second.precisions


NOVA_Y = [[0.5, 1.0], [1.5, 2.5], [0.0, 2.0]]
NOVA_TAU = [5, 2, 10]


@pytest.mark.parametrize(
    ("rho", "sizes", "tau_eff", "x_new"),
    [
        (0.0, [5.0, 2.0, 10.0], 7.1, [1.0355, 2.3905]),
        (0.9, [13.1441, 2.9, 41.381059609], 27.0130457654, [1.9027965944, 3.1917118958]),
    ],
)
def test_fednova_normalisers_and_step(rho: float, sizes: list[float], tau_eff: float, x_new: list[float]) -> None:
    measured = [normaliser(tau, momentum=rho) for tau in NOVA_TAU]
    assert measured == pytest.approx(sizes, rel=1e-9)
    reports = [
        Report(str(i), examples=n, extra={"normaliser": size})
        for i, (n, size) in enumerate(zip([10, 30, 60], measured))
    ]
    assert sum(n / 100 * s for n, s in zip([10, 30, 60], measured)) == pytest.approx(tau_eff, rel=1e-9)
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    grad = torch.tensor(FedNova().weigh(reports), dtype=torch.float64) @ (x - torch.tensor(NOVA_Y, dtype=torch.float64))
    assert (x - grad).tolist() == pytest.approx(x_new, abs=1e-9)


def test_fednova_proximal_normaliser() -> None:
    # (1 - (1 - 0.05)^3) / 0.05 = 1 + 0.95 + 0.9025
    assert normaliser(3, alpha=0.05) == pytest.approx(2.8525, rel=1e-12)


@pytest.mark.parametrize(("form", "lam"), [("full", 0.5), ("simplified", 0.25)])  # λ/2 ‖v − w‖², λ ‖v − w‖²
def test_ditto_personal_steps(form: Any, lam: float, tmp_path: Path) -> None:
    task = Quadratic(clients={"a": (2.0, 3.0, 1)}, start=(0.0,))
    expected = [0.65, 1.1375, 1.503125]
    for steps, value in enumerate(expected, start=1):
        runner = make_runner(make_config(tmp_path, task, Ditto(lam=lam, form=form, personal_epochs=steps)))
        runner._share_initial_weights()
        runner.context.vectors.weights.fill_(1.0)  # received w = 1, while v starts at w^0 = 0
        runner._one_round()
        assert runner.context.store.get("a").tensors["personal"].item() == pytest.approx(value, **close)


def test_ditto_trains_a_global_model_too_and_both_for_as_many_epochs_unless_said_otherwise(tmp_path: Path) -> None:
    """v: 0, 0.65, 1.1375 as above with λ = 0.5; w: 1, then 1 + 0.2·2 = 1.4, then 1.4 + 0.2·1.6 = 1.72."""
    task = Quadratic(clients={"a": (2.0, 3.0, 1)}, start=(0.0,))
    runner = make_runner(make_config(tmp_path, task, Ditto(lam=0.5), client=replace(SGD, epochs=2)))
    runner._share_initial_weights()
    runner.context.vectors.weights.fill_(1.0)
    runner.context.server.weights.fill_(1.0)
    runner._one_round()
    assert runner.context.store.get("a").tensors["personal"].item() == pytest.approx(1.1375, **close)
    assert runner.context.server.weights.item() == pytest.approx(1.72, abs=1e-9)


def test_pfedme_with_the_inner_problem_solved_exactly(tmp_path: Path) -> None:
    # one step of rate 1/(a + lambda) solves the quadratic inner problem
    task = Quadratic(clients={"a": (2.0, 3.0, 1)}, start=(1.0,))
    expected = [(1.6666666667, 1.2666666667), (1.8444444444, 1.4977777778), (1.9985185185, 1.6980740741)]
    for count, (theta, w) in enumerate(expected, start=1):
        algorithm = PFedMe(lam=4.0, eta=0.1, inner_steps=1)
        config = make_config(tmp_path, task, algorithm, client=replace(SGD, lr=1 / 6, epochs=count))
        runner = make_runner(config)
        next(rounds_of(runner))
        assert runner.context.store.get("a").tensors["personal"].item() == pytest.approx(theta, abs=1e-9)
        assert runner.context.server.weights.item() == pytest.approx(w, abs=1e-9)


def test_adafactor_with_an_external_rate() -> None:
    matrix = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64))
    vector = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    hp = replace(SGD, optimizer="adafactor", lr=0.01)
    optimizer = OPTIMIZERS["adafactor"]([matrix, vector], hp)
    assert isinstance(optimizer, Adafactor)
    matrix_grads = [[[0.1, -0.2], [0.3, 0.4]], [[-0.5, 0.1], [0.2, 0.2]], [[0.05, 0.3], [-0.1, 0.7]]]
    vector_grads = [[0.1, 0.2, -0.3], [0.4, -0.1, 0.2], [0.3, 0.3, 0.1]]
    matrices = [
        [[0.9922540333, 2.0109544512], [2.9896076952, 3.990202041]],
        [[1.0072973263, 2.0068767509], [2.983240136, 3.98157195]],
        [[1.0048129098, 1.9972776179], [2.9866309382, 3.9662872526]],
    ]
    vectors = [
        [0.99, -2.01, 0.51],
        [0.977100289, -2.0033729077, 0.5019209255],
        [0.9672943587, -2.0166981428, 0.4969201623],
    ]
    for matrix_grad, vector_grad, expected_matrix, expected_vector in zip(
        matrix_grads, vector_grads, matrices, vectors, strict=True
    ):
        matrix.grad = torch.tensor(matrix_grad, dtype=torch.float64)
        vector.grad = torch.tensor(vector_grad, dtype=torch.float64)
        optimizer.step()
        assert matrix.flatten().tolist() == pytest.approx(sum(expected_matrix, []), abs=1e-9)
        assert vector.tolist() == pytest.approx(expected_vector, abs=1e-9)


# Lorar, Algorithm 1: whole rounds on scalar quadratics
TOY = {"c0": (1.0, 1.0, 100, 6, 0.1), "c1": (2.0, -1.0, 300, 9, 0.05), "c2": (1.0, 0.0, 50, 4, 0.1)}
TOY_ROUNDS: dict[str, list[dict[str, Any]]] = {
    "fedavg/size": [
        {
            "local_w": [0.468559, -0.612579511, 0.0],
            "delta_L": [0.3052135875, 0.8146979811, 0.0],
            "p": [0.2222222222, 0.6666666667, 0.1111111111],
            "w": -0.3042621184,
        },
        {
            "local_w": [0.3068616355, -0.7304568897, -0.1996263759],
            "delta_L": [0.519198734, 0.3943555353, 0.01546718],
            "p": [0.2222222222, 0.6666666667, 0.1111111111],
            "w": -0.4409604937,
        },
    ],
    "fedavg/lorar": [
        {
            "local_w": [0.468559, -0.612579511, 0.0],
            "delta_L": [0.3052135875, 0.8146979811, 0.0],
            "p": [0.1110147134, 0.8889852866, 0.0],
            "w": -0.4925572291,
        },
        {
            "local_w": [0.2067938936, -0.8034062736, -0.323166798],
            "delta_L": [0.6799325747, 0.2097832358, 0.0405348681],
            "p": [0.5114006392, 0.4733555276, 0.0152438331],
            "w": -0.2794685719,
        },
    ],
    "fedopt/size": [
        {
            "local_w": [0.468559, -0.612579511, 0.0],
            "delta_L": [0.3052135875, 0.8146979811, 0.0],
            "p": [0.2222222222, 0.6666666667, 0.1111111111],
            "w": -0.3042621184,
        },
        {
            "local_w": [0.3068616355, -0.7304568897, -0.1996263759],
            "delta_L": [0.519198734, 0.3943555353, 0.01546718],
            "p": [0.2222222222, 0.6666666667, 0.1111111111],
            "w": -0.7147964003,
        },
    ],
    "fedopt/lorar": [
        {
            "local_w": [0.468559, -0.612579511, 0.0],
            "delta_L": [0.3052135875, 0.8146979811, 0.0],
            "p": [0.1110147134, 0.8889852866, 0.0],
            "w": -0.4925572291,
        },
        {
            "local_w": [0.2067938936, -0.8034062736, -0.323166798],
            "delta_L": [0.6799325747, 0.2097832358, 0.0405348681],
            "p": [0.5114006392, 0.4733555276, 0.0152438331],
            "w": -0.7227700781,
        },
    ],
    "fedprox/size": [
        {
            "local_w": [0.4152336562, -0.5594737589, 0.0],
            "delta_L": [0.2551058451, 0.7055463304, 0.0],
            "p": [0.2222222222, 0.6666666667, 0.1111111111],
            "w": -0.2807083601,
        },
        {
            "local_w": [0.2510848548, -0.6831331577, -0.1912571323],
            "delta_L": [0.4184281541, 0.3650358872, 0.0120677382],
            "p": [0.2222222222, 0.6666666667, 0.1111111111],
            "w": -0.4208762632,
        },
    ],
    "fedprox/lorar": [
        {
            "local_w": [0.4152336562, -0.5594737589, 0.0],
            "delta_L": [0.2551058451, 0.7055463304, 0.0],
            "p": [0.1075604092, 0.8924395908, 0.0],
            "w": -0.4546338305,
        },
        {
            "local_w": [0.1493790934, -0.7597518914, -0.3097590775],
            "delta_L": [0.5397936571, 0.2098465944, 0.0316547351],
            "p": [0.4554602663, 0.5311851177, 0.0133546161],
            "w": -0.3396693697,
        },
    ],
}


@pytest.mark.parametrize("row", TOY_ROUNDS)
def test_whole_lorar_rounds_on_scalar_quadratics(row: str, tmp_path: Path) -> None:
    name, weights = row.split("/")
    base = FedProx(weights=weights, mu=0.5) if name == "fedprox" else FedAvg(weights=weights)  # type: ignore[arg-type]
    seen: list[tuple[list[Report], list[float], list[float]]] = []
    algorithm = _recording(base, seen)
    task = Quadratic(clients={client: (a, b, n) for client, (a, b, n, _, _) in TOY.items()})
    server = ServerConfig(optimizer="sgd", lr=1.0, momentum=0.9) if name == "fedopt" else ServerConfig()
    per_client = {client: {"epochs": steps, "lr": lr} for client, (_, _, _, steps, lr) in TOY.items()}
    runner = make_runner(make_config(tmp_path, task, algorithm, server=server, per_client=per_client))
    before = 0.0
    for expected, state in zip(TOY_ROUNDS[row], rounds_of(runner)):
        reports, p, updates = seen[-1]
        assert [before - update for update in updates] == pytest.approx(expected["local_w"], abs=1e-9)
        assert [r.extra["loss_reduction"] for r in reports] == pytest.approx(expected["delta_L"], abs=1e-9)
        assert p == pytest.approx(expected["p"], abs=1e-9)
        before = state.context.server.weights.item()
        assert before == pytest.approx(expected["w"], abs=1e-9)


def _recording(base: FedAvg, seen: list[tuple[list[Report], list[float], list[float]]]) -> FedAvg:
    """The same algorithm, noting what it aggregates; reads every update one by one first."""

    class Recording(type(base)):  # type: ignore[misc]
        def aggregate(self, updates: Any, weights: Any) -> Tensor:
            seen.append((list(updates.reports), list(weights), [update.item() for update in updates]))
            result: Tensor = super().aggregate(updates, weights)
            return result

    values = {f.name: getattr(base, f.name) for f in fields(base)}
    result: FedAvg = Recording(**values)
    return result
