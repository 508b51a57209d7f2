"""What crosses ranks is tensors of weights and plain numbers; no client's text is among it, nor in others' files."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from ranks import run_ranks
from toy import Quadratic

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.options import Network
from fedtorch.comm.transport.group import Group
from fedtorch.comm.transport.mapped_vector import MappedVector
from fedtorch.config.schema import ClientConfig, PartitionConfig
from fedtorch.main import main

CANARIES = {"north": "xylophoneegret", "south": "quartzmarmoset", "west": "vermilionaxolotl"}


def prepare(root: Path) -> None:
    """Three clients with a word of their own in every row, and one whose training raises that word."""
    from fedtorch.data.folder import write_client, write_manifest
    from fedtorch.text.sentencepiece import train_vocabulary

    clients, texts = {}, []
    for name, word in CANARIES.items():
        rows = [
            {"question": f"where is {word} {i} ?", "sql": f"SELECT {word} FROM t WHERE a = {i} ;"} for i in range(8)
        ]
        clients[name] = write_client(
            root, name, {"train": rows[:4], "dev": rows[4:6], "test": rows[6:]}, facts={"schema": f"| t : {word}"}
        )
        texts += [f"{row['question']} {row['sql'].lower()} | t : {word}" for row in rows]
    train_vocabulary(texts, root / "tokenizer", size=150)
    write_manifest(root, "text2sql", clients=clients, record={})


def as_rank(config: str, payloads: str) -> int:
    """A rank that keeps a copy of every byte it sends, and cannot unpickle."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("something was unpickled")

    pickle.Unpickler = pickle.loads = pickle.load = refuse  # type: ignore[assignment, misc]
    log = open(Path(payloads) / f"rank{os.environ['RANK']}.bin", "wb")  # noqa: SIM115
    # everything that is received is sent by one of these, but for digests
    for owner, name in ((DistributedCommunicator, "broadcast"), (Group, "start_send"), (Group, "start_reduce")):
        original = getattr(owner, name)

        def spy(self: Any, tensor: torch.Tensor, _original: Any = original, **options: Any) -> Any:
            assert isinstance(tensor, torch.Tensor)
            log.write(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            return _original(self, tensor, **options)

        setattr(owner, name, spy)
    try:
        return main(["--config", config])
    finally:
        log.close()


@pytest.mark.parametrize("shared_memory", ["auto", "never"])
def test_no_canary_leaves_its_rank(shared_memory: str, tmp_path: Path) -> None:
    prepare(tmp_path / "data")
    config = tmp_path / "c.yaml"
    run = tmp_path / "run"
    config.write_text(
        json.dumps(
            {
                "run": {"dir": str(run)},
                "rounds": 2,
                "task": {
                    "name": "text2sql",
                    "data": str(tmp_path / "data"),
                    "model": {"d_model": 16, "d_ff": 16, "d_kv": 8, "num_heads": 2, "num_layers": 1},
                    "output_max_length": 8,
                },
                "algorithm": {"name": "tests.safety.test_only_numbers_travel:Careless"},
                "client": {"batch_size": 4},
                "system": {"timeout": 30.0, "shared_memory": shared_memory},
            }
        )
    )
    payloads = tmp_path / "payloads"
    payloads.mkdir()
    assert run_ranks(as_rank, 4, str(config), str(payloads)) == [0, 0, 0, 0]
    sent = {path.name: path.read_bytes() for path in payloads.iterdir()}
    assert len(sent) == 4 and sum(map(len, sent.values())) > 10_000
    tokens = _token_ids(tmp_path / "data")
    for word in CANARIES.values():
        for name, data in sent.items():
            assert word.encode() not in data, name
        # the vocabulary that `prepare` trained is common to all ranks before the run, and holds words of all clients
        files = [path for path in run.rglob("*") if path.is_file() and "model" not in path.relative_to(run).parts]
        written = [path for path in files if word.encode() in path.read_bytes()]
        assert len({path.name for path in written}) <= 1 and all(path.name != "log.rank0.txt" for path in written)
        for name, data in sent.items():
            assert not any(ids in data for ids in tokens[word]), name
    # the failure itself was reported, as a word
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert "failed:ValueError" in {record.get("status") for record in records}


def _token_ids(root: Path) -> dict[str, list[bytes]]:
    """The canaries' token ids as int64 and as int32 bytes."""
    from fedtorch.text.sentencepiece import load_tokenizer

    tokenizer = load_tokenizer(root / "tokenizer")
    found = {}
    for word in CANARIES.values():
        ids = torch.tensor(tokenizer(f"where is {word}").input_ids)
        assert len(ids) > 5
        found[word] = [ids.numpy().tobytes(), ids.int().numpy().tobytes()]
    return found


def private_head(folder: str, shares: bool) -> list[int]:
    """Sizes of all tensors of weights that are broadcast or shared."""
    sizes: list[int] = []
    for owner, name in ((DistributedCommunicator, "broadcast"), (MappedVector, "share")):
        original = getattr(owner, name)

        def spy(self: Any, tensor: torch.Tensor, _original: Any = original, **options: Any) -> Any:
            if tensor.is_floating_point():
                sizes.append(tensor.numel())
            return _original(self, tensor, **options)

        setattr(owner, name, spy)
    task = Quadratic(clients={"a": (1.0, 2.0, 5), "b": (2.0, 1.0, 5)}, start=(0.0,) * 11, head=(0.5,) * 7, double=False)
    client = ClientConfig(optimizer="adamw", lr=0.1, batch_size=2, optimizer_state="keep")
    with DistributedCommunicator.join(("a", "b"), timeout_s=20, network=Network(shares_memory=shares)) as comm:
        config = make_config(Path(folder), task, client=client, partition=PartitionConfig(private=("head",)), rounds=3)
        make_runner(config, comm).run()
    return sizes


@pytest.mark.parametrize("shares", [True, False])
def test_private_tensors_never_reach_others_after_the_common_start(shares: bool, tmp_path: Path) -> None:
    for sizes in run_ranks(private_head, 3, str(tmp_path), shares):
        # w^0 is common to all (w: 11, head: 7); from then on only the shared vector travels
        assert sizes[:2] == [11, 7]
        assert set(sizes[2:]) == {11} and len(sizes) > 4


# A user's algorithm whose error message quotes the data, as careless code does
from dataclasses import dataclass  # noqa: E402

from fedtorch.algorithms.fedavg import FedAvg  # noqa: E402
from fedtorch.core.update import Report  # noqa: E402
from fedtorch.train.job import ClientJob  # noqa: E402

pytestmark = pytest.mark.processes


@dataclass(frozen=True)
class Careless(FedAvg):
    """FedAvg that fails on client `west` with its text in the message."""

    def client_update(self, job: ClientJob) -> Report:
        if job.client.name == "west":
            raise ValueError(f"cannot parse {job.examples[0].sql}")
        return super().client_update(job)
