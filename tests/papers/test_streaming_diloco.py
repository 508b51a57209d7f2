"""Streaming DiLoCo (2501.18512): fragments, delay and mixing by hand, its limits, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import interrupted_and_resumed, make_config, make_runner
from ranks import run_ranks
from torch import Tensor, nn
from toy import Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fragments import ByLayers, Fragments, names_of
from fedtorch.algorithms.streaming import OWN, StreamingDiLoCo
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.compression.payload import HEADER_BYTES
from fedtorch.compression.settings import ExchangeConfig
from fedtorch.config.load import load
from fedtorch.config.schema import CheckpointConfig, ClientConfig, ClientsConfig, Config, ServerConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.state_keys import LEFT_OUT, MOMENTUM
from fedtorch.rounds.runner import Runner
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules import clients as rules

BOTH = {"a": (1.0, 0.0, 8), "b": (1.0, 0.0, 8)}


class Layers(nn.Module):
    """So many parameters of `width` numbers, all 1, under the names of layers."""

    def __init__(self, count: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.ParameterList([nn.Parameter(torch.ones(width, dtype=dtype)) for _ in range(count)])


@dataclass(frozen=True)
class Lines(Quadratic):
    """A loss whose gradient is 2 everywhere; with `curved` one that depends on rows, weights and dropout."""

    count: int = 2
    curved: bool = False
    numbers: int = 3

    def build_model(self, seed: int) -> nn.Module:
        dtype = torch.float64 if self.double else torch.float32
        return Layers(self.count, self.numbers if self.curved else 1, dtype)

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        assert isinstance(model, Layers)
        point = torch.cat([*model.layers])
        if not self.curved:
            return 2 * point.sum() * len(batch), len(batch)
        point = nn.functional.dropout(point, 0.2, model.training)
        return (0.5 * batch[:, :1] * (point - batch[:, 1:]) ** 2).sum(), len(batch)

    def predict(self, model: nn.Module, examples: Any, batch_size: int) -> list[float]:
        return [-float(sum(p.detach().abs().sum() for p in model.parameters())) for _ in examples]


def oracle(folder: Path, count: int, steps: int, delay: int, mixing: float, rounds: int) -> tuple[Any, Any]:
    """The server's weights and the first replica's own, after each round; every number a fragment."""
    rule = StreamingDiLoCo(fragments=ByLayers(1), delay=delay, mixing=mixing)
    client = ClientConfig(optimizer="sgd", lr=1.0, batch_size=2, steps=steps, epochs=None)
    config = make_config(
        folder, Lines(clients=BOTH, count=count), rule, client=client, rounds=rounds,
        server=ServerConfig(optimizer="sgd", lr=2.0),
    )  # fmt: skip
    runner, found, own = make_runner(config), [], []
    one_round = runner._one_round

    def watched() -> None:
        one_round()
        found.append(runner.context.server.weights.tolist())
        own.append(runner.context.store.get("a").tensors[OWN].tolist())

    runner._one_round = watched  # type: ignore[method-assign]
    runner.run()
    return found, own


# torchft's fixtures: two replicas, H 6 of which a round has 3; global 0 after 3 and 9 steps, global 1 after 6 and 12,
# local 0 after 3, 9, 15, local 1 after 6, 12
TORCHFT = {
    (0, 0.0): ((-11, -35), (-23, -47), (-11, -35, -59), (-23, -47)),
    (0, 0.5): ((-11, -29), (-23, -35), (-8, -24.5, -40.25), (-17, -32)),
    (0, 1.0): ((-11, -23), (-23, -23), (-5, -17, -29), (-11, -23)),
    (1, 0.0): ((-7, -27), (-19, -39), (-7, -27, -47), (-19, -39)),
    (1, 0.5): ((-7, -25), (-19, -31), (-6, -21.5, -35.75), (-15, -29)),
    (1, 1.0): ((-7, -23), (-19, -23), (-5, -17, -29), (-11, -23)),
}


@pytest.mark.parametrize(("delay", "mixing"), TORCHFT)
def test_torchfts_fixtures(delay: int, mixing: float, tmp_path: Path) -> None:
    found, own = oracle(tmp_path, 2, 3, delay, mixing, 6)
    global_0, global_1, local_0, local_1 = TORCHFT[delay, mixing]
    assert [found[0][0], found[2][0]] == list(global_0) and [found[1][1], found[3][1]] == list(global_1)
    # what is mixed at the end of a round is where the next one begins; each has three steps of 2
    assert [own[place][0] + 6 for place in (1, 3, 5)] == list(local_0)
    assert [own[place][1] + 6 for place in (2, 4)] == list(local_1)


def test_three_fragments_by_the_recurrence(tmp_path: Path) -> None:
    found, _ = oracle(tmp_path, 3, 2, 1, 0.5, 6)
    assert [found[round][round % 3] for round in range(6)] == [-3, -11, -19, -23, -27, -31]
    for before, after in zip(found, found[1:]):
        assert sum(x != y for x, y in zip(before, after)) == 1  # the others rest


CURVED = Lines(clients={"a": (1.0, 1.0, 8), "b": (2.0, -1.0, 8), "c": (0.5, 3.0, 6)}, count=5, curved=True, noise=0.5)
INNER = ClientConfig(
    optimizer="adamw", lr=0.05, batch_size=2, steps=4, epochs=None, optimizer_state="keep",
    schedule="cosine", schedule_span="run",
)  # fmt: skip
OUTER = ServerConfig(optimizer="sgd", lr=0.7, momentum=0.9, nesterov=True)
OUTRIGHT: dict[str, Any] = {"server": ServerConfig()}
"""What clients send is subtracted."""
STREAMED = StreamingDiLoCo(fragments=ByLayers(2), delay=1, mixing=0.5)


def config_of(folder: Path, rule: FedAvg = STREAMED, **changes: Any) -> Config:
    settings = {"client": INNER, "server": OUTER, "rounds": 5, **changes}
    return make_config(folder, settings.pop("task", CURVED), rule, **settings)


def ran(config: Config, comm: Communicator | None = None) -> Runner:
    runner = make_runner(config, comm)
    runner.run()
    return runner


def test_one_fragment_without_delay_and_mixing_is_diloco_to_the_bit(tmp_path: Path) -> None:
    whole = StreamingDiLoCo(fragments=(("*",),))
    found = [ran(config_of(tmp_path / str(n), rule)) for n, rule in enumerate((FedAvg(weights="equal"), whole))]
    for name in ("weights", MOMENTUM):
        assert torch.equal(*(runner.context.server.tensors[name] for runner in found))


def test_a_delay_alone_is_what_was_trained_so_many_steps_before(tmp_path: Path) -> None:
    """With mixing 0 the steps after the sending are lost: rounds of fewer steps, but for the place in the data."""
    delayed = StreamingDiLoCo(fragments=(("*",),), delay=1)
    plain = replace(INNER, optimizer="sgd", optimizer_state="reset", schedule="constant", schedule_span="round")
    still = replace(CURVED, curved=False)
    one = ran(config_of(tmp_path / "1", delayed, client=plain, task=still)).context.server.weights
    other = config_of(tmp_path / "2", FedAvg(weights="equal"), client=replace(plain, steps=3), task=still)
    assert torch.equal(one, ran(other).context.server.weights)


PACKED: dict[str, Any] = {
    "task": replace(CURVED, numbers=3000, double=False),
    "exchange": ExchangeConfig(bits=4, error_feedback=True),
}
"""Three fragments, of 6000, 6000 and 3000 numbers, in 4 bits."""


def on_ranks(folder: str) -> list[str]:
    """Digests of a run as it is, and of one in 4 bits."""
    with DistributedCommunicator.join(tuple(CURVED.clients), timeout_s=30) as comm:
        return [make_runner(config_of(Path(folder) / str(len(how)), **how), comm).run().digest for how in ({}, PACKED)]


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_the_same_bits_on_any_number_of_ranks(size: int, tmp_path: Path) -> None:
    alone = [ran(config_of(tmp_path / str(len(how)), **how)).result.digest for how in ({}, PACKED)]
    assert run_ranks(on_ranks, size, str(tmp_path / "ranks"))[0] == alone


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """Digests of runs that nobody interrupts: number of changes -> that of the run as it is, or in 4 bits."""
    folder = tmp_path_factory.mktemp("whole")
    return cache(lambda number: ran(config_of(folder / str(number), **(PACKED if number else {}))).result.digest)


@pytest.mark.long
@pytest.mark.parametrize("how", [{}, PACKED], ids=["32 bits", "4 bits"])
@pytest.mark.parametrize("every_steps", [None, 1])
@pytest.mark.parametrize("calls", [11, 23, 29])
def test_interrupted_and_resumed(
    calls: int, every_steps: int | None, how: dict[str, Any], whole: Callable[[int], str], tmp_path: Path
) -> None:
    expected = whole(len(how))
    saving = CheckpointConfig(every=1, every_steps=every_steps)
    assert interrupted_and_resumed(config_of(tmp_path / "parts", checkpoint=saving, **how), calls).digest == expected


def fragment(runner: Runner, round: int) -> Tensor:
    """Which numbers are exchanged in a round, shape (numbers,)."""
    places = STREAMED.places("sent", runner.components.engine.shared, "a", round)
    assert places is not None
    return places.spread(torch.ones(len(places))).bool()


def test_half_a_byte_of_each_number_of_a_fragment_travels(tmp_path: Path) -> None:
    runner = ran(config_of(tmp_path, **PACKED))
    sizes = [6000, 6000, 3000, 6000, 6000]  # of five rounds
    assert [int(fragment(runner, round).sum()) for round in range(5)] == sizes
    sent = runner.context.comm.meter.totals()["aggregate/bytes_up"]
    assert sent == len(CURVED.clients) * sum(HEADER_BYTES + size // 2 + -(-size // 4096) for size in sizes)


def test_4096_numbers_of_what_is_sent_share_a_power(tmp_path: Path) -> None:
    """One replica: the server moves by whole multiples of it, the first of a fragment of two layers in both layers."""
    task = replace(CURVED, clients={"a": (1.0, 1.0, 8)}, count=4, numbers=3000, double=False)
    how: dict[str, Any] = {"task": task, "rounds": 1, "server": ServerConfig()}
    plain = ran(config_of(tmp_path / "plain", **how))
    packed = ran(config_of(tmp_path / "packed", exchange=ExchangeConfig(bits=4, rounding="nearest"), **how))
    full, sent = (1 - runner.context.server.weights for runner in (plain, packed))
    there = fragment(packed, 0)
    assert not sent[~there].any() and int(there.sum()) == 6000
    for was, found in zip(full[there].split(4096), sent[there].split(4096), strict=True):
        step = 2.0 ** torch.ceil(torch.log2(was.abs().max() / 7))
        torch.testing.assert_close(found, (was / step).round() * step, atol=3e-7, rtol=0)


def test_what_a_fragment_lost_waits_for_its_next_turn(tmp_path: Path) -> None:
    runner, left = make_runner(config_of(tmp_path, **PACKED)), []
    one_round = runner._one_round

    def watched() -> None:
        one_round()
        left.append(runner.context.store.get("b").tensors[LEFT_OUT].clone())

    runner._one_round = watched  # type: ignore[method-assign]
    runner.run()
    before = torch.zeros_like(left[0])
    for round, after in enumerate(left):
        there = fragment(runner, round)
        assert torch.equal(after[~there], before[~there])
        assert float((after != before)[there].float().mean()) > 0.9
        before = after
    dense = ran(config_of(tmp_path / "dense", **{**PACKED, "exchange": ExchangeConfig(), "rounds": 1, **OUTRIGHT}))
    packed = ran(config_of(tmp_path / "packed", **{**PACKED, "rounds": 1, **OUTRIGHT}))
    lost = torch.stack([packed.context.store.get(name).tensors[LEFT_OUT] for name in CURVED.clients]).mean(0)
    weights = packed.context.server.weights - lost
    torch.testing.assert_close(weights, dense.context.server.weights, atol=1e-6, rtol=0)


def test_only_the_fragment_travels_and_moves(tmp_path: Path) -> None:
    runner = make_runner(config_of(tmp_path, rounds=1))
    before = runner.components.engine.initial_shared.clone()
    runner.run()
    moved = runner.context.server.weights != before
    parts = names_of(STREAMED.fragments, runner.components.engine.shared.names)
    assert [len(part) for part in parts] == [2, 2, 1] and int(moved.sum()) == 6
    momentum = runner.context.server.tensors[MOMENTUM]
    assert torch.equal(momentum != 0, moved)


GPT = ("wte.weight", *(f"h.{i}.{part}.weight" for i in range(7) for part in ("attn.1", "mlp")), "ln_f.weight")


def layers_of(fragments: Fragments, names: tuple[str, ...] = GPT) -> list[str]:
    """The layers of each fragment, and what is in none."""
    return [
        "".join(dict.fromkeys(name.split(".")[1] if name[0] == "h" else name[0] for name in part))
        for part in names_of(fragments, names)
    ]


def test_fragments_by_layers() -> None:
    assert layers_of(ByLayers(3)) == ["036", "14", "w25l"]
    assert layers_of(ByLayers(3, "sequential")) == ["012", "345", "w6l"]
    assert layers_of(ByLayers(7)) == ["w0123456l"]
    assert layers_of(ByLayers(1), ("h.0.a", "h.1.a")) == ["0", "1"]
    stacks = ("encoder.block.0.q", "encoder.block.1.q", "decoder.block.0.q", "decoder.block.1.q", "head")
    assert names_of(ByLayers(2), stacks) == ((stacks[0], stacks[2]), (stacks[1], stacks[3], "head"))


def test_fragments_that_cannot_be() -> None:
    for fragments, words in (
        ((("h.0.*",), ("h.*", "wte*")), "is in 2 fragments; each belongs in exactly one"),
        ((("h.*",), ("wte*",)), "the parameter `ln_f.weight` is in no fragment"),
        ((("*",), ("nothing.*",)), "no parameter fits a pattern of fragment 2 (nothing.*); correct it"),
    ):
        with pytest.raises(ConfigError) as raised:
            names_of(fragments, GPT)
        assert words in str(raised.value)
    with pytest.raises(ConfigError, match="no parameter's name has a layer's number, such as `w`"):
        names_of(ByLayers(), ("w", "head"))


@pytest.mark.parametrize(
    ("changes", "rule", "words"),
    [
        (
            {"client": replace(INNER, steps=None, epochs=1)},
            STREAMED,
            "whose rounds are counted in steps; set",
        ),
        ({}, replace(STREAMED, delay=4), "algorithm.delay is 4 but client.steps is 4"),
        ({"server": ServerConfig(optimizer="adam", lr=0.1)}, STREAMED, "server.optimizer is adam, which counts steps"),
        ({"clients": ClientsConfig(per_round=2)}, STREAMED, "clients.per_round is 2 but algorithm.name is"),
        ({"clients": ClientsConfig(sampling="poisson", rate=0.5)}, STREAMED, "clients.sampling is Poisson but"),
        ({}, replace(STREAMED, fragments=(("layers.0",),)), "is in no fragment"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], rule: FedAvg, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        make_runner(config_of(tmp_path, rule, **changes))


def test_a_robust_rule_is_refused_when_the_config_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("algorithm: {name: streaming_diloco, robust: median, fragments: [['layers.*'], ['*']]}\n")
    with pytest.raises(ConfigError, match="but `streaming_diloco` sends one fragment a round"):
        load(path)


def test_all_clients_in_every_round_are_taken(tmp_path: Path) -> None:
    for clients in (ClientsConfig(), ClientsConfig(per_round=3)):
        rules.all_clients_take_part_where_they_must(Plan.of(config_of(tmp_path, clients=clients), 1))
    rules.all_clients_take_part_where_they_must(
        Plan.of(config_of(tmp_path, FedAvg(), clients=ClientsConfig(per_round=1)), 1)
    )
