"""FedAssistant's rounds: sparse exchange equals dense, one rank equals many, nothing is lost, replicas stay equal."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from ranks import expect_exit, run_ranks
from torch import Tensor, nn
from toy import Point, Quadratic

from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.local import LocalUpdates
from fedtorch.comm.sparse.messages import sum_of_messages
from fedtorch.compression import eight_bits, slices
from fedtorch.compression.compressors import Quantise, TopK
from fedtorch.compression.payload import HEADER_BYTES, Sparse, decode, encode
from fedtorch.config.schema import (
    CheckpointConfig,
    ClientConfig,
    ClientsConfig,
    EvalConfig,
    PartitionConfig,
    ServerConfig,
)
from fedtorch.core.errors import ConfigError
from fedtorch.core.norms import norm_and_max
from fedtorch.core.state_keys import LEFT_OUT, SERVER_STEPS
from fedtorch.core.update import Report, UpdateBuffer
from fedtorch.core.weights import Layout
from fedtorch.rounds.runner import Runner
from fedtorch.tasks.base import Task

pytestmark = pytest.mark.long

CLIENTS = {f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(5)}
TASK = Quadratic(
    clients=CLIENTS, start=tuple(0.1 * i for i in range(50)), head=(0.5, -0.5), noise=0.7, dropout=0.2, double=False
)
STEP = ClientConfig(
    optimizer="adamw", lr=0.05, batch_size=4, steps=1, optimizer_state="keep", schedule="linear", schedule_span="run"
)
ADAMW = ServerConfig(
    optimizer="adamw", lr=0.05, beta2=0.999, weight_decay=0.01, schedule="linear", warmup_ratio=0.1, no_decay=("h*",)
)
HEAD = PartitionConfig(private=("head",))
TOP = TopK(ratio=0.1)
ROUNDS = 4

# every row is a setting whose `exchange` may be any of the four, or any but `allreduce` where messages are not sparse
RULES: dict[str, FedAssistant] = {
    "top": FedAssistant(compression="topk", topk=TOP),
    "top_half": FedAssistant(compression="topk", topk=TopK(ratio=0.1, values="bf16", scope="global")),
    "top_eight": FedAssistant(compression="topk", topk=TopK(ratio=0.3, values="int8")),
    "delta_eight": FedAssistant(
        payload="delta", compression="topk", topk=TopK(ratio=0.3, values="int8", scope="global")
    ),
    "all_eight": FedAssistant(compression="topk", topk=TopK(ratio=0.3, values="int8"), second_selection=False),
    "top_literal": FedAssistant(compression="topk", topk=TOP, error_feedback="literal", server_residual="none"),
    "top_forgetful": FedAssistant(compression="topk", topk=TOP, error_feedback="none", server_residual="none"),
    "quantised": FedAssistant(compression="quantise", quantise=Quantise(bucket=16)),
    "delta": FedAssistant(payload="delta", compression="topk", topk=TOP),
    "all": FedAssistant(compression="topk", topk=TOP, second_selection=False),
    "all_half": FedAssistant(compression="topk", topk=replace(TOP, values="fp16"), second_selection=False),
    "returned": FedAssistant(compression="topk", topk=TOP, server_residual="returned", exchange="star"),
}
EXCHANGES = ("dense", "star", "replicated", "allreduce")


def exchanges_of(name: str) -> list[str]:
    cannot = {"quantised": "allreduce", "returned": "dense"}
    return [exchange for exchange in EXCHANGES if exchange != cannot.get(name)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fifty numbers, so that each of five ranks has several of them."""
    monkeypatch.setattr(slices, "BLOCK", 3)
    monkeypatch.setattr(eight_bits, "STRETCH", 7)


def settings_of(rule: FedAssistant) -> dict[str, Any]:
    if rule.payload == "gradient":
        return {"client": STEP, "server": ADAMW, "partition": HEAD}
    return {"client": replace(STEP, steps=3), "partition": HEAD}


def runner(folder: Path | str, rule: FedAssistant, comm: Communicator | None = None, **changes: Any) -> Runner:
    task = changes.pop("task", TASK)
    settings = {"rounds": ROUNDS, "eval": EvalConfig(every=2), **settings_of(rule), **changes}
    return make_runner(make_config(Path(folder), task, rule, **settings), comm)


@pytest.mark.parametrize("name", RULES)
def test_messages_to_the_server_or_to_all_give_the_bits_of_dense_vectors(name: str, tmp_path: Path) -> None:
    found = []
    for exchange in exchanges_of(name):
        rule = replace(RULES[name], exchange=exchange)  # type: ignore[arg-type]
        result = runner(tmp_path / exchange, rule).run()
        found.append((result.digest, result.scores))
    assert len(found) > 2 and all(each == found[0] for each in found)


def test_replicas_of_a_server_with_nesterovs_momentum_give_the_bits_of_dense_vectors(tmp_path: Path) -> None:
    server = ServerConfig(optimizer="sgd", lr=0.7, momentum=0.9, nesterov=True)
    rules = [replace(RULES["delta"], exchange=exchange) for exchange in EXCHANGES]  # type: ignore[arg-type]
    first, *others = [runner(tmp_path / rule.exchange, rule, server=server).run().digest for rule in rules]
    assert others == [first] * 3
    assert first != runner(tmp_path / "heavy", rules[0], server=replace(server, nesterov=False)).run().digest


@pytest.mark.parametrize("exchange", ["star", "replicated", "allreduce"])
def test_at_ratio_one_sparse_equals_the_plain_average(exchange: Any, tmp_path: Path) -> None:
    sparse = runner(tmp_path / "a", FedAssistant(compression="topk", topk=TopK(ratio=1.0), exchange=exchange))
    dense = runner(tmp_path / "b", FedAssistant())
    start = dense.components.engine.initial_shared
    for each in (sparse, dense):
        each.run()
    assert torch.equal(sparse.context.server.weights, dense.context.server.weights)
    assert not torch.equal(dense.context.server.weights, start)


def run_rule(name: str, exchange: str, folder: str, comm: Communicator | None = None) -> Any:
    rule = replace(RULES[name], exchange=exchange, check_every=2)  # type: ignore[arg-type]
    each = runner(folder, rule, comm, clients=ClientsConfig(per_round=4))
    before = each.context.comm.meter.totals()  # ranks keep one communicator for all cases
    result = each.run()
    after = each.context.comm.meter.totals()
    names = ("aggregate/bytes_up", "aggregate/bytes_down", "broadcast/bytes_down")
    return result.digest, result.scores, {name: after.get(name, 0) - before.get(name, 0) for name in names}


RANKED = [("top", "dense"), ("top", "star"), ("top", "replicated"), ("quantised", "replicated"), ("delta", "star")]
RANKED += [("all", "star"), ("top_eight", "star"), ("delta_eight", "replicated")]


def run_all(folder: str) -> list[Any]:
    eight_bits.STRETCH = 7
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        return [run_rule(name, exchange, f"{folder}/{name}_{exchange}", comm) for name, exchange in RANKED]


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 4])
def test_one_process_and_many_ranks_give_the_same_bits_and_bytes(size: int, tmp_path: Path) -> None:
    alone = [run_rule(name, exchange, str(tmp_path / f"{name}_{exchange}")) for name, exchange in RANKED]
    assert run_ranks(run_all, size, str(tmp_path / "many"))[0] == alone


def run_slices(folder: str) -> list[Any]:
    slices.BLOCK, eight_bits.STRETCH = 3, 7
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        return [run_rule(name, "allreduce", f"{folder}/{name}", comm)[:2] for name in SLICED]


SLICED = ("all", "top_half", "returned", "top_eight", "delta_eight", "all_eight")


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 3, 5])
def test_any_number_of_ranks_that_own_slices_gives_the_bits_of_star(size: int, tmp_path: Path) -> None:
    """With and without a second selection, which is of all slices together."""
    star = [run_rule(name, "star", str(tmp_path / name))[:2] for name in SLICED]
    assert run_ranks(run_slices, size, str(tmp_path / "many"))[0] == star


def broken_replica(folder: str) -> None:
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        rule = replace(RULES["top"], exchange="star", check_every=2)
        each = runner(folder, rule, comm)
        if comm.rank == 1:
            each.context.server.tensors["first_moment"] = torch.full((50,), 1e-3)  # as if a bit had flipped
        each.run()


@pytest.mark.processes
def test_a_replica_that_differs_is_noticed_on_schedule(tmp_path: Path) -> None:
    outcomes = expect_exit(broken_replica, 3, str(tmp_path))
    assert "round 2: the replicas of the server's state on ranks [1] differ from rank 0's" in outcomes[0].error
    assert all("differ from rank 0's" in outcome.error for outcome in outcomes)


@pytest.mark.parametrize("name", ["top", "top_eight"])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_run_goes_on_after_a_stop_with_residuals_and_both_optimisers(
    exchange: Any, name: str, tmp_path: Path
) -> None:
    rule = replace(RULES[name], exchange=exchange)
    saved = CheckpointConfig(every=2)
    whole = runner(tmp_path, rule, checkpoint=saved).run()
    again = runner(tmp_path, rule, checkpoint=saved)
    found = again.components.checkpoints.at(2)
    assert again.run(found.round).digest == whole.digest


def resumed(folder: str, exchange: str, resume: int | None) -> str:
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        rule = replace(RULES["top"], exchange=exchange)  # type: ignore[arg-type]
        return runner(folder, rule, comm, checkpoint=CheckpointConfig(every=2)).run(resume).digest


@pytest.mark.processes
@pytest.mark.parametrize("exchange", ["star", "allreduce"])
def test_ranks_take_their_replicas_from_the_checkpoint(exchange: Any, tmp_path: Path) -> None:
    rule = replace(RULES["top"], exchange=exchange)
    whole = runner(tmp_path / "whole", rule).run().digest
    runner(tmp_path / "parts", rule, checkpoint=CheckpointConfig(every=2)).run()
    assert run_ranks(resumed, 3, str(tmp_path / "parts"), exchange, 4)[0] == whole


@pytest.mark.processes
def test_a_checkpoint_of_many_ranks_has_what_was_left_out_in_all_slices(tmp_path: Path) -> None:
    """Three ranks save after four rounds, from where one process goes on; and it is what that one has by itself."""
    rule = replace(RULES["top"], exchange="allreduce")
    saved = CheckpointConfig(every=2)
    whole = runner(tmp_path / "whole", rule, checkpoint=saved)
    digest = whole.run().digest
    assert run_ranks(resumed, 3, str(tmp_path / "parts"), "allreduce", None)[0] == digest
    again = runner(tmp_path / "parts", rule, checkpoint=saved)
    checkpoints = [each.components.checkpoints for each in (whole, again)]
    residuals = [own.load_server(own.at(4)).tensors["residual"] for own in checkpoints]
    assert torch.equal(*residuals) and residuals[0].count_nonzero() > 20
    assert again.run(4).digest == digest


# --- conservation, on a loss whose gradients do not depend on the weights


@dataclass(frozen=True)
class Slopes(Task):
    """Each example is a slope g, its loss g·w."""

    clients: Mapping[str, Sequence[Sequence[float]]]

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        return {name: {"train": len(rows), "test": 1} for name, rows in self.clients.items()}

    def check(self, client: str) -> None:
        """Nothing to check."""

    def load(self, client: str, split: str) -> Sequence[Any]:
        return self.clients[client]

    def build_model(self, seed: int) -> nn.Module:
        return Point([0.0] * 6, (), torch.float64)

    def collate(self, examples: Sequence[Any], train: bool) -> Tensor:
        return torch.tensor(examples, dtype=torch.float64)

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        assert isinstance(model, Point)
        return (batch @ model.w).sum(), len(batch)

    def predict(self, model: nn.Module, examples: Sequence[Any], batch_size: int) -> list[float]:
        return [0.0] * len(examples)

    def score(self, examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, tuple[float, int]]:
        return {"accuracy": (0.0, len(examples))}


ONE = [
    [4, -1, 0.5, 2, 0, -3],
    [1, -2, 0.25, 0.5, 1.5, -0.5],
    [0, -1.5, 3, 0.2, -0.4, 1],
    [-2.3, 0.6, 1, -1.25, 0.3, 0.1],
]
TWO = [
    [-1, 2.5, 0.1, -2.2, 0.7, 0],
    [0.3, 1, -4, 0.9, 0, 2],
    [1.2, 0, -0.6, 2.1, 1.1, -0.8],
    [0.5, -3, 0.4, 0, 2.4, 1.3],
]
SLOPES = Slopes({"one": ONE, "two": TWO})
SINGLE = ClientConfig(optimizer="sgd", lr=0.0, batch_size=1, steps=1)


@pytest.mark.parametrize("exchange", ["star", "allreduce"])
@pytest.mark.parametrize(("server", "kept"), [("server", True), ("returned", True), ("none", False)])
def test_what_was_stepped_and_what_is_kept_make_all_gradients(
    server: Any, kept: bool, exchange: Any, tmp_path: Path
) -> None:
    rule = FedAssistant(compression="topk", topk=TopK(ratio=1 / 3), server_residual=server, exchange=exchange)
    changes = {"task": SLOPES, "client": SINGLE, "server": ServerConfig(), "partition": PartitionConfig()}
    each = runner(tmp_path, rule, rounds=4, eval=EvalConfig(every=0), **changes)
    each.run()
    assert each.context.server.numbers[SERVER_STEPS] == 4
    total = -each.context.server.weights  # w = 0 - ΣG
    if "residual" in each.context.server.tensors:
        total = total + each.context.server.tensors["residual"]
    for name in ("one", "two"):
        state = each.context.store.get(name)
        total = total + state.tensors["residual"] / 2
        if server == "returned":  # what the last step left out is still on its way back
            sent = decode(state.tensors["sent"], 6).dense()
            total = total + torch.where(each.context.server.tensors["step"] == 0, sent, 0.0) / 2
    given = torch.tensor(ONE + TWO, dtype=torch.float64).sum(0) / 2
    assert torch.allclose(total, given, rtol=0, atol=1e-12) == kept


def test_accumulated_batches_are_one_gradient(tmp_path: Path) -> None:
    changes = {"task": SLOPES, "server": ServerConfig(), "partition": PartitionConfig(), "eval": EvalConfig(every=0)}
    each = runner(tmp_path, FedAssistant(), rounds=1, client=replace(SINGLE, accumulation=4), **changes)
    each.run()
    given = torch.tensor(ONE + TWO, dtype=torch.float64).mean(0)
    torch.testing.assert_close(each.context.server.weights, -given, rtol=0, atol=1e-12)


# --- the server's AdamW, and what clients do beside


def test_the_servers_adamw_is_torchs_with_the_schedule_of_transformers(tmp_path: Path) -> None:
    from transformers import get_scheduler

    weights = nn.Parameter(torch.zeros(6, dtype=torch.float64))
    mean = torch.tensor(ONE + TWO, dtype=torch.float64).mean(0)
    rule = torch.optim.AdamW([weights], lr=0.1, weight_decay=0.1)
    schedule = get_scheduler("linear", rule, num_warmup_steps=2, num_training_steps=20)
    server = ServerConfig(optimizer="adamw", lr=0.1, beta2=0.999, weight_decay=0.1, schedule="linear", warmup_ratio=0.1)
    changes = {"task": SLOPES, "partition": PartitionConfig(), "eval": EvalConfig(every=0)}
    each = runner(tmp_path, FedAssistant(), rounds=20, server=server, client=replace(SINGLE, batch_size=4), **changes)
    each.run()
    for _ in range(20):
        weights.grad = mean.clone()
        rule.step()
        schedule.step()
    torch.testing.assert_close(each.context.server.weights, weights.data, rtol=1e-12, atol=1e-14)


def test_parameters_spared_from_decay_are_known_to_the_server(tmp_path: Path) -> None:
    found = []
    for spared in ((), ("w",)):
        server = ServerConfig(optimizer="adamw", lr=0.1, weight_decay=0.5, no_decay=spared)
        each = runner(tmp_path / str(len(spared)), FedAssistant(), server=server, partition=PartitionConfig())
        each.run()
        found.append(each.context.server.weights.clone())
    views = [each.components.engine.shared.view(weights) for weights in found]
    assert not torch.equal(views[0]["w"], views[1]["w"]) and torch.equal(views[0]["head"], views[1]["head"])


def test_private_parameters_learn_by_the_clients_own_optimiser(tmp_path: Path) -> None:
    """The head of each client is that of a client that trains alone; its shared part is what it received."""
    task = Quadratic(clients={"a": (1.0, 2.0, 4)}, start=(0.0,), head=(0.0,))
    each = runner(tmp_path, FedAssistant(), task=task, client=replace(STEP, schedule="constant"), server=ServerConfig())
    each.run()
    head = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    rule = torch.optim.AdamW([head], lr=0.05, weight_decay=0.0)
    for _ in range(ROUNDS):
        head.grad = head.detach() - 2.0
        rule.step()
    state = each.context.store.get("a")
    torch.testing.assert_close(state.tensors["private"], head.data, rtol=1e-12, atol=0)
    assert not [name for name in state.tensors if "optimizer/w/" in name]  # nothing is kept for the shared part
    w = 0.0
    for _ in range(ROUNDS):
        w -= w - 2.0
    assert each.context.server.weights.item() == pytest.approx(w)


def test_clipping_is_of_the_gradient_that_is_sent(tmp_path: Path) -> None:
    changes = {"task": SLOPES, "server": ServerConfig(), "partition": PartitionConfig(), "eval": EvalConfig(every=0)}
    each = runner(tmp_path, FedAssistant(), rounds=1, client=replace(SINGLE, max_grad_norm=0.5), **changes)
    each.run()
    assert all(report.norm == pytest.approx(0.5) for report in each.context.server.accepted)


# --- what is counted


def test_the_meter_counts_the_messages_and_they_have_the_formulas_size(tmp_path: Path) -> None:
    size = 50 * 4
    for exchange in EXCHANGES:
        rule = replace(RULES["top"], exchange=exchange)  # type: ignore[arg-type]
        each = runner(tmp_path / exchange, rule, eval=EvalConfig(every=0))
        message = TOP.message_bytes(each.components.engine.shared) + HEADER_BYTES
        assert message == 5 * 4 + 7 + HEADER_BYTES  # at one in ten a bitmap is smaller
        each.run()
        meter = each.context.comm.meter.totals()
        assert meter["aggregate/bytes_up"] == ROUNDS * 5 * (size if exchange == "dense" else message)
        if exchange == "star":  # weights once at the start and once to evaluate at the end, a message in every round
            assert meter["broadcast/bytes_down"] <= ROUNDS * 5 * message + 5 * 3 * (size + 8)
        if exchange == "replicated":
            assert meter["aggregate/bytes_down"] == ROUNDS * 5 * 4 * message
        if exchange == "allreduce":
            assert meter["aggregate/bytes_down"] == ROUNDS * 5 * message


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sum_of_messages_over_windows_is_the_dense_sum(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtorch.comm.sparse.messages.CHUNK", 7)
    generator = torch.Generator().manual_seed(0)
    terms = []
    for _ in range(3):
        indices = torch.randperm(40, generator=generator)[:9].sort().values.to(torch.int32)
        terms.append(Sparse(40, indices, torch.randn(9, generator=generator, dtype=dtype)))
    empty = Sparse(40, torch.zeros(0, dtype=torch.int32), torch.zeros(0, dtype=dtype))
    weights = [0.5, -2.0, 1 / 3, 1.0]
    found = sum_of_messages(
        [encode(term) for term in (*terms, empty)], weights, lambda m: decode(m, 40), torch.empty(40, dtype=dtype)
    )
    expected = sum((w * t.dense().double() for w, t in zip(weights, terms)), torch.zeros(40, dtype=torch.float64))
    torch.testing.assert_close(found, expected.to(dtype), rtol=1e-6 if dtype == torch.float32 else 1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sum_of_messages_has_the_bits_of_the_sum_of_vectors(dtype: torch.dtype, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    vectors = [torch.randn(300, generator=generator, dtype=dtype) * 10.0**power for power in (-30, 0, 3)]
    vectors[0][:50] = -1e-45  # with a weight it is smaller than the least fp32: zero, never -0.0
    weights = [0.1, 1 / 3, -0.7]
    dense = UpdateBuffer(300, dtype, tmp_path / "dense", 1 << 20)
    claims = [norm_and_max(vector) for vector in vectors]
    reports = [Report(f"c{i}", norm=norm, max_abs=max_abs) for i, (norm, max_abs) in enumerate(claims)]
    for report, vector in zip(reports, vectors, strict=True):
        dense.put(report.client, vector)
    expected = LocalUpdates(reports, dense).weighted_sum(weights)
    layout = Layout(("w",), ((300,),), dtype)
    messages = [TopK(ratio=1.0).compress(vector, layout) for vector in vectors]
    found = sum_of_messages(messages, weights, lambda m: decode(m, 300), torch.empty(300, dtype=dtype))
    assert torch.equal(found, expected) and torch.equal(found.signbit(), expected.signbit())
    whole = sum_of_messages(vectors, weights, lambda m: m, torch.empty(300, dtype=dtype))
    assert torch.equal(whole, expected)


def test_a_sum_of_messages_holds_few_dense_vectors_however_many_messages() -> None:
    alive, most = weakref.WeakSet[Tensor](), 0

    def decoded(message: Tensor) -> Tensor:
        nonlocal most
        vector = message.float()
        alive.add(vector)
        most = max(most, len(alive))
        return vector

    messages = [torch.full((10,), value, dtype=torch.uint8) for value in range(20)]
    total = sum_of_messages(messages, [1.0] * 20, decoded, torch.empty(10))
    assert total.tolist() == [190.0] * 10 and most <= 2


def test_messages_are_not_summed_as_if_they_were_vectors(tmp_path: Path) -> None:
    held = UpdateBuffer(8, torch.uint8, tmp_path, 1 << 20)
    held.put("c0", torch.ones(8, dtype=torch.uint8))
    updates = LocalUpdates([Report("c0", max_abs=1.0)], held)
    with pytest.raises(ValueError, match="compressed messages .* use comm.messages.sum_of_messages"):
        updates.weighted_sum([1.0])
    assert [message.tolist() for message in updates] == [[1] * 8]


# --- settings that cannot work


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"exchange": "star"}, "algorithm.exchange is star but algorithm.compression is none"),
        ({"compression": "topk", "error_feedback": "literal"}, "the printed algorithm has none"),
        ({"compression": "topk", "server_residual": "returned"}, "algorithm.exchange is dense, set it to star"),
        ({"compression": "quantise", "exchange": "allreduce"}, "exchange is allreduce but .*set .*compression to topk"),
        ({"compression": "quantise", "second_selection": False}, "second_selection is false but .*is quantise"),
        ({"second_selection": False}, "second_selection is false but algorithm.compression is none"),
        (
            {"compression": "topk", "exchange": "star", "server_residual": "returned", "second_selection": False},
            "set algorithm.server_residual to none",
        ),
        ({"check_every": 0}, "algorithm.check_every is 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FedAssistant(**fields)


def test_a_gradient_is_refused_in_fp16_and_a_difference_is_not() -> None:
    assert FedAssistant().limits.precisions == ("fp32", "bf16")
    assert FedAssistant(payload="delta").limits.precisions == ("fp32", "bf16", "fp16")


def test_a_state_without_what_feedback_needs_is_refused() -> None:
    """A client keeps what it has not sent, the server what it left out; where steps are returned, both keep them."""
    layout, sparse = Layout(("w",), ((4,),)), {"compression": "topk", "exchange": "star"}
    for settings, of_client, of_server in (
        ({}, [], []),
        (sparse, [LEFT_OUT], [LEFT_OUT]),
        ({**sparse, "server_residual": "none"}, [LEFT_OUT], []),
        ({**sparse, "error_feedback": "none"}, [], [LEFT_OUT]),
        ({**sparse, "server_residual": "returned"}, [LEFT_OUT, "sent", "sent/round"], ["step"]),
    ):
        rule: Any = FedAssistant(**settings)  # type: ignore[arg-type]
        found = [list(rule.kept(layout, layout).client), list(rule.kept(layout, layout).server)]
        assert found == [of_client, of_server], settings


@pytest.mark.parametrize("changes", [{"steps": 2}, {"steps": None, "epochs": 1}])
def test_a_gradient_is_of_one_step(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set client.steps to 1"):
        runner(tmp_path, FedAssistant(), client=replace(STEP, **changes))
