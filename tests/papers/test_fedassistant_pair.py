"""FedAssistant with a user rank and an assistant rank per client: the same bits as one process."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import make_config, make_runner
from ranks import run_ranks
from safetensors import safe_open
from transformers import GPT2Config, GPT2LMHeadModel

from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.local import Local
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.compression.compressors import TopK
from fedtorch.config.schema import (
    CheckpointConfig,
    ClientConfig,
    Config,
    EngineConfig,
    EvalConfig,
    PartitionConfig,
    ServerConfig,
    SystemConfig,
)
from fedtorch.core.errors import ConfigError, Interrupted
from fedtorch.core.weights import digest_of
from fedtorch.data.dialog_folder import write_dialogs
from fedtorch.models import link
from fedtorch.models.gpt2 import GPT2Model
from fedtorch.models.side import Passing, Side
from fedtorch.models.turns import collate_turns
from fedtorch.models.two_side import TwoSide
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import build
from fedtorch.tasks.dialog import Dialog
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.tracker import Tracker
from fedtorch.train.precision import autocast, has_fp16

BATCH = [
    [(0, [3, 5, 7]), (1, [4, 9]), (0, [11, 2, 6, 8]), (1, [13, 1])],
    [(1, [2]), (0, [19, 3, 3]), (1, [5, 5, 5, 5, 5])],
    [(0, [1]), (1, [1])],
    [(0, [4, 4, 4, 4, 4, 4]), (1, [9]), (0, [8, 7])],
]
MODES = [(grad, way, "fp32") for grad in ("detached", "own", "through") for way in ("increment", "full")]
MODES += [("own", "full", "bf16"), ("through", "increment", "bf16")]


def model_of(kv_grad: Any, kv_transfer: Any) -> TwoSide:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=20, n_embd=8, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0, pad_token_id=0,
        embd_pdrop=0.1, attn_pdrop=0.1, resid_pdrop=0.1,
    )  # fmt: skip
    return TwoSide(GPT2LMHeadModel(config), GPT2LMHeadModel(config), Passing(kv_grad, kv_transfer))


def step(model: TwoSide, precision: str) -> dict[str, Any]:
    """Losses of a batch with dropout, digests of each side's gradients, what crossed."""
    model.train()
    torch.manual_seed(5)
    batch = collate_turns(BATCH, 0)
    with autocast(precision, torch.device("cpu")):
        found = model(batch["groups"], batch["size"])
    (found.sums.sum() / sum(found.tokens)).backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    traffic = model.take_traffic()
    return {
        "sums": found.sums.tolist(),
        "rows": found.rows.tolist(),
        "tokens": (found.tokens, found.row_tokens.tolist()),
        "bytes": (traffic.messages, traffic.data_bytes, traffic.overhead_bytes),
        **{side: digest_of({n: g for n, g in grads.items() if n.startswith(side)}) for side in ("user", "assistant")},
        "physical": traffic.physical_bytes,
    }


def watched() -> list[tuple[str, torch.Tensor]]:
    """Everything that this rank gives to its worker's group from now on."""
    seen: list[tuple[str, torch.Tensor]] = []
    send, all_gather = dist.send, dist.all_gather

    def watch_send(tensor: torch.Tensor, to: int) -> None:
        """An increment's message is its numbers' bytes and its mask's, as the row before it says."""
        _, rows, tokens, *_, kind = seen[-1][1].tolist()[5:]
        numbers, mask = tensor.clone().tensor_split([tensor.numel() - rows * tokens])
        seen.extend([("send", numbers.view(link._DTYPES[kind])), ("send", mask)])
        send(tensor, to)

    def watch_gather(everyone: list[torch.Tensor], mine: torch.Tensor) -> None:
        seen.append(("gather", mine.clone()))
        all_gather(everyone, mine)

    dist.send, dist.all_gather = watch_send, watch_gather
    return seen


def sides() -> tuple[list[dict[str, Any]], list[Any]]:
    with DistributedCommunicator.join(("a",), timeout_s=60) as comm:
        worker = comm.join_worker((0, 1))
        seen = watched()
        results = []
        for *mode, precision in MODES:
            model = model_of(*mode)
            model.join(worker)
            results.append(step(model, precision))
        return results, [
            (how, str(t.dtype), t.numel(), t.tolist() if how == "gather" else t.unique().numel()) for how, t in seen
        ]


@pytest.mark.processes
def test_two_ranks_give_the_bits_of_one_process_and_only_numbers_cross() -> None:
    (assistant, sent), (user, heard) = run_ranks(sides, 2)
    for mode, of_assistant, of_user in zip(MODES, assistant, user, strict=True):
        alone = step(model_of(*mode[:2]), mode[2])
        for key in ("sums", "rows", "tokens", "bytes"):
            assert of_assistant[key] == of_user[key] == alone[key], (mode, key)
        assert of_assistant["assistant"] == alone["assistant"] and of_user["user"] == alone["user"], mode
        empty = digest_of({})
        assert of_assistant["user"] == of_user["assistant"] == empty  # nothing of the other side was computed
        assert of_user["physical"] == alone["bytes"][1] + alone["bytes"][2] and alone["physical"] == 0
    for how, dtype, count, values in (*sent, *heard):
        if how == "send":  # keys, values and their gradients, or a mask of zeros and ones
            assert dtype in ("torch.float32", "torch.bfloat16") or (dtype == "torch.uint8" and values <= 2)
        else:  # a row of sizes and counters, or the sums of losses of four dialogs
            assert (dtype, count) in (("torch.int64", 13), ("torch.float64", 1 + len(BATCH)))
    rows = [values for how, dtype, _, values in (*sent, *heard) if dtype == "torch.int64" and how == "gather"]
    assert {row[2] for row in rows} <= {3, 4, 5}  # numbers, send, receive
    assert max(max(row[5:]) for row in rows) <= 24  # turns, rows, tokens, layers, heads and widths of this batch


# --- whole runs


DIALOGS = {
    client: {
        split: [
            [["user", f"{client} {n} please"], ["assistant", "yes " * (1 + n % 3)], ["user", "bye"]][: 2 + n % 2]
            for n in range(first, first + count)
        ]
        for split, first, count in (("train", 0, 7 + 2 * place), ("dev", 20, 2), ("test", 30, 3))
    }
    for place, client in enumerate(("pizza", "ride", "movie"))
}
NAMES = tuple(DIALOGS)
STEP = ClientConfig(
    optimizer="adamw", lr=0.02, batch_size=2, steps=1, accumulation=2, optimizer_state="keep", schedule="linear",
    schedule_span="run", weight_decay=0.01, no_decay=("*bias",), max_grad_norm=0.5,
)  # fmt: skip
ADAMW = ServerConfig(optimizer="adamw", lr=0.02, beta2=0.999, weight_decay=0.01, schedule="linear", warmup_ratio=0.3)
PRIVATE = PartitionConfig(private=("user.*",))
TOP = FedAssistant(compression="topk", topk=TopK(ratio=0.1), exchange="replicated", check_every=2)
DELTA = replace(STEP, steps=3, accumulation=1, schedule="constant")

CASES: dict[str, dict[str, Any]] = {
    "feda": {"algorithm": FedAssistant(), "partition": PRIVATE},
    "feda_both": {"algorithm": FedAssistant()},
    "feda_freeze": {"algorithm": FedAssistant(), "partition": PartitionConfig(frozen=("user.*",))},
    "feda_top": {"algorithm": TOP, "partition": PRIVATE, "task": {"kv_grad": "through"}},
    "both_top_own": {"algorithm": TOP, "task": {"kv_grad": "own", "kv_transfer": "full"}},
    "fedavg_both": {"algorithm": FedAvg(), "client": DELTA, "server": ServerConfig(), "task": {"kv_grad": "through"}},
    "scaffold": {
        "algorithm": Scaffold(option="I"), "client": ClientConfig(optimizer="sgd", lr=0.05, batch_size=2, steps=2),
        "server": ServerConfig(), "task": {"kv_grad": "through"}, "rounds": 2,
    },
    "local": {
        "algorithm": Local(), "paradigm": "local", "client": DELTA, "server": ServerConfig(), "partition": PRIVATE,
        "eval": EvalConfig(every=2, final_split="test_all"),
    },
    "bf16": {
        "algorithm": TOP, "partition": PRIVATE, "task": {"kv_grad": "through"},
        "engine": EngineConfig(precision="bf16"),
    },
    "fp16": {  # with a scale at which some first steps overflow
        "algorithm": FedAvg(), "client": DELTA, "server": ServerConfig(), "task": {"kv_grad": "through"},
        "partition": PRIVATE, "engine": EngineConfig(precision="fp16", initial_scale_power=18), "rounds": 2,
    },
}  # fmt: skip
PAIRS = SystemConfig(ranks_per_worker=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("dialogs") / "data"
    write_dialogs(folder, DIALOGS, {}, vocab_size=300)
    return str(folder)


def config_of(name: str, folder: Path | str, data: str, **changes: Any) -> Config:
    settings = {"client": STEP, "server": ADAMW, **CASES[name], **changes}
    model = GPT2Model(width=8, layers=2, heads=2, positions=64, dropout=0.1)
    task = Dialog(data=data, model=model, max_length=64, **settings.pop("task", {}))
    evaluation = EvalConfig(every=2, final_split="test_all", best="per_client")
    settings = {"rounds": 3, "eval": evaluation, "system": PAIRS, "checkpoint": CheckpointConfig(every=2), **settings}
    return make_config(Path(folder) / name, task, settings.pop("algorithm"), **settings)


def runner(config: Config, comm: Communicator | None = None, **changes: Any) -> Runner:
    tracker = None
    if comm is None or comm.is_server:
        tracker = Tracker(
            config.folder, clients=NAMES, rounds=config.rounds, settings=TrackConfig(tensorboard=False, progress="off")
        )
    return make_runner(config, comm, tracker=tracker, **changes)


def outcome(config: Config, comm: Communicator | None = None, resume: int | None = None) -> tuple[str, Any]:
    run = runner(config, comm)
    result = run.run(resume)
    run.export(config.folder / "model")
    return result.digest, result.scores


def models_of(folder: Path) -> dict[str, bytes]:
    """The files that the run has exported."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in (folder / "model").rglob("*.safetensors")}


def all_cases(folder: str, data: str, names: Sequence[str], system: SystemConfig = PAIRS) -> Any:
    with DistributedCommunicator.join(NAMES, timeout_s=90) as comm:
        return {name: outcome(config_of(name, folder, data, system=system), comm) for name in names}


def bytes_of(folder: Path) -> list[tuple[float, float, float]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rounds = [record for record in records if record["kind"] == "round"]
    return [(r["kv_bytes"], r["kv_overhead_bytes"], r["kv_physical_bytes"]) for r in rounds]


@pytest.mark.processes
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "names",
    [
        ("feda", "feda_top"),
        pytest.param(
            ("feda_both", "feda_freeze", "both_top_own", "fedavg_both", "scaffold", "local"), marks=pytest.mark.slow
        ),
        pytest.param(("bf16", *(["fp16"] if has_fp16(torch.device("cpu")) else [])), marks=pytest.mark.slow),
    ],
    ids=["paper", "others", "mixed precision"],
)
def test_a_server_and_two_pairs_give_the_bits_of_one_process(names: Sequence[str], data: str, tmp_path: Path) -> None:
    server, *others = run_ranks(all_cases, 5, str(tmp_path / "many"), data, names, timeout=300)
    for name in names:
        alone = outcome(config_of(name, tmp_path / "one", data))
        assert server[name] == alone, name
        assert not any(each[name][0] for each in others)
        models = models_of(tmp_path / "many" / name)  # each side is written by the rank that computes it
        assert models == models_of(tmp_path / "one" / name)
        assert len(models) == 2 * len(NAMES), name
        many, one = bytes_of(tmp_path / "many" / name), bytes_of(tmp_path / "one" / name)
        assert len(one) == config_of(name, tmp_path, data).rounds and all(
            0 < kv and physical == 0 for kv, _, physical in one
        )
        assert [(kv, more, kv + more) for kv, more, _ in one] == many, name


@pytest.mark.processes
@pytest.mark.timeout(280)
def test_a_pair_beside_a_rank_with_both_sides_gives_the_bits_of_one_process(data: str, tmp_path: Path) -> None:
    names = ("feda_both", "feda_freeze")
    server = run_ranks(all_cases, 4, str(tmp_path / "many"), data, names, SystemConfig(ranks_per_worker=(2, 1)))[0]
    for name in names:
        assert server[name] == outcome(config_of(name, tmp_path / "one", data)), name


# --- interruption, and what stays where


def stopped_at(folder: str, data: str, name: str, who: int) -> str:
    """Rank `who` alone hears a signal in the third round."""
    with DistributedCommunicator.join(NAMES, timeout_s=90) as comm:
        stop = lambda: comm.rank == who and each.context.round == 2  # noqa: E731
        each = runner(config_of(name, folder, data), comm, stop=stop)
        try:
            each.run()
        except Interrupted:
            return "interrupted"
        return "finished"


def resumed(folder: str, data: str, name: str, round: int) -> Any:
    with DistributedCommunicator.join(NAMES, timeout_s=90) as comm:
        return outcome(config_of(name, folder, data), comm, round)


@pytest.mark.processes
@pytest.mark.timeout(400)
def test_a_run_of_pairs_goes_on_in_pairs_or_in_one_process(data: str, tmp_path: Path) -> None:
    name = "feda_top"
    expected = outcome(config_of(name, tmp_path / "whole", data))
    assert run_ranks(stopped_at, 5, str(tmp_path), data, name, 2, timeout=200) == ["interrupted"] * 5
    files = {path.name: path for path in (tmp_path / name / "checkpoints/clients").iterdir()}
    assert len(files) == 2 * len(NAMES)
    for file, path in files.items():
        with safe_open(path, "pt") as content:
            entries = set(content.keys())
        if "-part1" in file:  # the user rank's: what is private, and the optimiser of that
            assert entries and all(entry in ("private", "best/private") or "/user." in entry for entry in entries)
        else:
            assert "residual" in entries and not [entry for entry in entries if "private" in entry or "user." in entry]
    shutil.copytree(tmp_path / name, tmp_path / "again" / name)
    assert run_ranks(resumed, 5, str(tmp_path), data, name, 2, timeout=200)[0] == expected
    assert outcome(config_of(name, tmp_path / "again", data), resume=2) == expected


@pytest.mark.processes
@pytest.mark.timeout(400)
def test_a_run_of_one_process_goes_on_in_pairs(data: str, tmp_path: Path) -> None:
    expected = outcome(config_of("feda", tmp_path / "whole", data))
    found = Checkpoints(tmp_path / "whole/feda/checkpoints", keep=2).at(2)
    assert run_ranks(resumed, 3, str(tmp_path / "whole"), data, "feda", found.round, timeout=200)[0] == expected


def starved(folder: str, data: str, name: str, where: Sequence[int]) -> tuple[str, list[str]]:
    """In the second round the ranks `where` run out of memory in the middle of `ride`'s first forward pass."""
    with DistributedCommunicator.join(NAMES, timeout_s=90) as comm:
        each = runner(config_of(name, folder, data), comm)
        deliver, write, calls = each.trainer._train_client, Side._run, [0]

        def delivering(client: Any, parts: int) -> Any:
            calls[0] = 1 if (client.name, each.context.round, parts) == ("ride", 1, 1) and comm.rank in where else 0
            return deliver(client, parts)

        def writing(side: Side, *args: Any, **kwargs: Any) -> Any:
            calls[0] += calls[0] > 0
            if calls[0] == 3:
                raise torch.OutOfMemoryError("injected")
            return write(side, *args, **kwargs)

        each.trainer._train_client, Side._run = delivering, writing  # type: ignore[method-assign]
        digest = each.run().digest
        return digest, [report.status for report in each.context.server.accepted]


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["feda_both", "feda_top"])
def test_a_pair_of_which_one_is_out_of_memory_tries_again_together(
    name: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, statuses = run_ranks(starved, 5, str(tmp_path / "many"), data, name, (2, 4), timeout=200)[0]
    assert statuses == ["ok"] * 3
    plain = outcome(config_of(name, tmp_path / "plain", data))[0]
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    monkeypatch.setenv("FEDTORCH_FAULTS", "oom:client=ride,round=1")
    assert found == outcome(config_of(name, tmp_path / "one", data))[0] != plain


def leaving(folder: str, data: str) -> Any:
    """What this rank gives to its worker and to the federation, and its private weights at the end."""
    with DistributedCommunicator.join(NAMES, timeout_s=90) as comm:
        each = runner(config_of("feda", folder, data), comm)
        seen = watched()
        each.run()
        private = [each.context.store.get(name).tensors["private"] for name in each.context.store.clients()]
        has_moved = any(not torch.equal(one, each.components.engine.initial_private) for one in private)
        known = torch.cat([one[one != 0].view(torch.int32) for one in private]) if private else None
        shares = [
            torch.isin(t.flatten().view(torch.int32), known).float().mean().item()
            for how, t in seen
            if how == "send" and t.is_floating_point() and known is not None
        ]
        kinds = sorted({(how, str(t.dtype)) for how, t in seen})
        return has_moved, shares, kinds, comm.meter.totals().get("physical_up", 0)


@pytest.mark.processes
@pytest.mark.timeout(400)
def test_the_users_private_weights_stay_on_its_rank(data: str, tmp_path: Path) -> None:
    server, assistant, user = run_ranks(leaving, 3, str(tmp_path), data, timeout=200)
    assert user[0] and not assistant[0]  # only the user rank has a user model that learned
    assert len(user[1]) > 10 and max(user[1]) < 0.01
    assert user[3] == 0 < assistant[3]  # nothing goes from the user rank to the server
    expected = [
        ("gather", "torch.float64"),
        ("gather", "torch.int64"),
        ("send", "torch.float32"),
        ("send", "torch.uint8"),
    ]
    assert user[2] == assistant[2] == expected


# --- settings that cannot work


@pytest.mark.parametrize(
    ("changes", "ranks", "message"),
    [
        ({"task": {"sides": "one"}, "partition": PartitionConfig()}, 5, "task.sides is one"),
        ({"system": SystemConfig(ranks_per_worker=3)}, 4, "system.ranks_per_worker is 3 and task.sides is two"),
        ({"partition": PartitionConfig(private=("*.ln_f.*",))}, 5, "`user.transformer.ln_f.weight` and `assistant."),
        ({}, 4, "system.ranks_per_worker is 2 but 3 of 4 ranks train"),
    ],
)
def test_what_cannot_be_a_pair_is_refused_before_the_ranks_meet(
    changes: dict[str, Any], ranks: int, message: str, data: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        build(config_of("feda", tmp_path, data, **changes), num_ranks=ranks, rank=0)
