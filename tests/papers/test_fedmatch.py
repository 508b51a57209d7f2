"""Oracles of FedMatch that concern the task; models, data and metrics have files of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from torch import Tensor, nn

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.comm.local import LocalCommunicator
from fedtorch.config.schema import ClientConfig, ClientsConfig, EvalConfig, PartitionConfig
from fedtorch.core.client import ClientState
from fedtorch.core.weights import Layout
from fedtorch.data.synthetic_qa import prepare
from fedtorch.models.bert import BertEncoder
from fedtorch.models.patch import Patch
from fedtorch.rounds.private_weights import private_weights
from fedtorch.tasks.qa import QA, hinge

PATCH = PartitionConfig(private=("patch.*",))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> QA:
    folder = tmp_path_factory.mktemp("qa") / "data"
    prepare(folder)
    model = BertEncoder(hidden=8, layers=2, heads=2, ffn=16, positions=64, patch=Patch("horizontal", "lr", 4))
    return QA(data=str(folder), model=model, max_lengths=(12, 20), max_train=2, max_dev=2, max_test=2)


def test_hinge_and_its_gradient() -> None:
    positive = torch.tensor([1.2, 0.3, -0.5], dtype=torch.float64, requires_grad=True)
    negative = torch.tensor([0.1, 0.9, -2.0], dtype=torch.float64, requires_grad=True)
    loss = hinge(positive, negative).mean()
    loss.backward()
    assert loss.item() == pytest.approx(0.5333333, abs=1e-7)
    assert positive.grad is not None and negative.grad is not None
    assert positive.grad.tolist() == pytest.approx([0, -1 / 3, 0]) and negative.grad.tolist() == pytest.approx(
        [0, 1 / 3, 0]
    )


def test_hinge_of_two_class_probabilities() -> None:
    positive = torch.tensor([[0.2, 1.0], [0, 0]], dtype=torch.float64).softmax(-1)[:, 1]
    negative = torch.tensor([[1.5, -0.5], [0.3, 0.1]], dtype=torch.float64).softmax(-1)[:, 1]
    assert hinge(positive, negative).mean().item() == pytest.approx(0.6896972, abs=1e-7)


def test_ranking_with_and_without_questions_that_have_no_positive(task: QA) -> None:
    from fedtorch.tasks.qa_examples import Question

    def question(labels: list[int]) -> Question:
        return Question([], [[]] * len(labels), labels, [f"d{i + 1}" for i in range(len(labels))])

    examples = [question([0, 1, 0, 1, 0]), question([1, 0, 0]), question([0, 0]), question([0, 1, 1, 0])]
    scores = [[0.9, 0.8, 0.7, 0.6, 0.1], [0.2, 0.5, 0.5], [0.3, 0.4], [0.5, 0.5, 0.1, 0.5]]
    zero, skip = task.score(examples, scores), replace(task, no_positive="skip").score(examples, scores)
    for metric in ("map", "mrr"):
        assert zero[metric][0] / zero[metric][1] == pytest.approx(0.3333333, abs=1e-7) and zero[metric][1] == 4
        assert skip[metric][0] / skip[metric][1] == pytest.approx(0.4444444, abs=1e-7) and skip[metric][1] == 3


class Watched(LocalCommunicator):
    """Remembers every tensor that the federation is given."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(names)
        self.seen: list[Tensor] = []

    def broadcast(self, flat: Tensor, **how: Any) -> None:
        self.seen.append(flat.clone())
        super().broadcast(flat, **how)


def test_private_tensors_never_reach_the_communicator(task: QA, tmp_path: Path) -> None:
    """All that travels: the shared vector, over names without a patch; updates have its size too."""
    hp = ClientConfig(optimizer="adamw", lr=0.01, batch_size=4, optimizer_state="keep")
    watched = Watched(tuple(task.manifest()))
    config = make_config(tmp_path, task, FedAvg(weights="equal"), client=hp, partition=PATCH, rounds=2)
    runner = make_runner(config, watched)
    watched.seen.clear()
    runner.run()
    engine = runner.components.engine
    assert engine.private.size and not any("patch" in name for name in engine.shared.names)
    assert all(name.startswith("patch.") for name in engine.private.names)
    trained = [runner.context.store.get(name).tensors["private"] for name in task.manifest()]
    large = [tensor for tensor in watched.seen if tensor.numel() >= engine.shared.size]
    assert large and all(tensor.numel() == engine.shared.size for tensor in large)
    assert runner.context.updates.size == engine.shared.size
    for private in trained:
        sample = private[private.abs() > 1e-4][:50]
        assert not any(torch.isin(sample, tensor).any() for tensor in large)


def test_a_private_tensor_changes_only_by_the_clients_own_steps(task: QA, tmp_path: Path) -> None:
    hp = ClientConfig(optimizer="adamw", lr=0.01, batch_size=4, optimizer_state="keep")
    config = make_config(
        tmp_path, task, client=hp, partition=PATCH, rounds=3, clients=ClientsConfig(per_round=2), eval=EvalConfig()
    )
    runner = make_runner(config)
    runner._share_initial_weights()
    for _ in range(3):
        before = {
            name: private_weights(runner.components, name, runner.context.store.get(name)) for name in task.manifest()
        }
        runner._one_round()
        after = {
            name: private_weights(runner.components, name, runner.context.store.get(name)) for name in task.manifest()
        }
        changed = [name for name in before if not _equal(before[name], after[name])]
        assert len(changed) == 2


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    assert one is not None and other is not None
    return torch.equal(one, other)


def test_clients_draw_different_patches_around_one_backbone(task: QA, tmp_path: Path) -> None:
    runner = make_runner(make_config(tmp_path, task, partition=PATCH))
    drawn = [private_weights(runner.components, name, ClientState()) for name in task.manifest()]
    assert all(not _equal(drawn[0], other) for other in drawn[1:])
    layout: Layout = runner.components.engine.private
    assert drawn[0] is not None
    views = layout.view(drawn[0])
    assert all((views[name] == 0).all() for name in views if name.endswith("bias"))
    weights = torch.cat([views[name].flatten() for name in views if name.endswith("weight")])
    assert weights.std().item() == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize(
    ("partition", "shared"),
    [
        ((), {"bert", "head", "patch"}),
        (("head.*",), {"bert", "patch"}),
        (("bert.*",), {"head", "patch"}),
        (("patch.*",), {"bert", "head"}),
    ],
    ids=["fedavg", "fedper", "lg_fedavg", "fedmatch"],
)
def test_the_methods_are_patterns(task: QA, tmp_path: Path, partition: tuple[str, ...], shared: set[str]) -> None:
    runner = make_runner(make_config(tmp_path, task, partition=PartitionConfig(private=partition)))
    assert {name.split(".")[0] for name in runner.components.engine.shared.names} == shared


def test_the_paper_sizes_at_bert_base() -> None:
    """LG-FedAvg shares 1,538 numbers with two classes; 11 of 12 layers without the pooler 101,803,776."""
    from transformers import BertConfig, BertModel

    from fedtorch.config.load import load
    from fedtorch.core.weights import Partition
    from fedtorch.models.networks.patched_bert import Ranker

    with torch.device("meta"):
        model: nn.Module = Ranker(BertModel(BertConfig()), patch=None, head="two_class", head_dropout=0.2)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}

    def shared(row: str) -> int:
        private = tuple(p for p in load(f"fedmatch/{row}").partition.private if p != "patch.*")
        return sum(sizes[name] for name in Partition(private).split(sizes)[0])

    head = 768 * 2 + 2
    assert shared("lg_fedavg") == head == 1538
    assert shared("fedper") == 109_482_240 and shared("fm_h_lr") == 109_482_240 + head
    counts = {11: 101_803_776, 10: 94_715_904, 6: 66_364_416, 1: 30_925_056}
    assert {n: shared(f"layers_{n:02d}") - head for n in counts} == counts
