"""FedAssistant: two models that pass keys and values, and a worked example (docs/fedassistant.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from fedtorch.config.schema import ClientConfig
from fedtorch.core.errors import FedtorchError
from fedtorch.core.weights import Partition
from fedtorch.models import two_side
from fedtorch.models.link import Increment, Traffic, link_pair
from fedtorch.models.side import KvGrad, Passing, Side
from fedtorch.models.turns import collate_turns, collate_whole
from fedtorch.models.two_side import OneModel, TwoSide
from fedtorch.train.engine import Engine
from fedtorch.train.precision import has_fp16

DIALOG = [(0, [3, 5, 7]), (1, [4, 9]), (0, [11, 2, 6, 8]), (1, [13, 1])]
# ragged turns and lengths, both starting sides, one dialog of a single word a turn
BATCH = [
    DIALOG,
    [(1, [2]), (0, [19, 3, 3]), (1, [5, 5, 5, 5, 5])],
    [(0, [1]), (1, [1])],
    [(0, [4, 4, 4, 4, 4, 4]), (1, [9]), (0, [8, 7])],
    [(1, [17, 16]), (0, [])],
]
GRADS: tuple[KvGrad, ...] = ("detached", "own", "through")


def tiny(offset: float) -> GPT2LMHeadModel:
    """The worked example's tiny GPT-2, every weight given by a rule."""
    config = GPT2Config(
        vocab_size=20, n_embd=8, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0, pad_token_id=0,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            phase = (sum(name.encode()) % 101) / 7 + offset
            wave = torch.sin(phase + 0.7 * torch.arange(parameter.numel(), dtype=torch.float64)).view_as(parameter)
            is_norm = "ln_" in name
            parameter.copy_((0.1 if is_norm else 0.3) * wave + (1.0 if is_norm and name.endswith("weight") else 0.0))
    return model


def pair(same: bool = False, **passing: Any) -> TwoSide:
    return TwoSide(tiny(0.0), tiny(0.0 if same else 1.3), Passing(**passing))


def losses(model: nn.Module, dialogs: Sequence[Any], **options: Any) -> two_side.Losses:
    collate = collate_turns if isinstance(model, TwoSide) else collate_whole
    batch = collate(dialogs, 0, **options)
    result = model(batch["groups"], batch["size"])
    assert isinstance(result, two_side.Losses)
    return result


def norm(model: nn.Module) -> float:
    return math.sqrt(sum(float((p.grad**2).sum()) for p in model.parameters() if p.grad is not None))


def test_likelihoods_of_the_worked_example() -> None:
    model = pair()
    batch = collate_turns([DIALOG], 0)
    walk = two_side.Walk(model, batch["groups"][0])
    walk.forward()
    sums = [nll.sum().item() for nll in walk.nll]
    assert sums == pytest.approx([16.14173234, 13.85662385, 19.90875698, 10.54729179], abs=1e-6)
    assert [nll.numel() for nll in walk.nll] == [4, 3, 5, 3]
    found = losses(model, [DIALOG])
    ppl = [math.exp(float(s) / n) for s, n in zip(found.sums, found.tokens)]
    assert ppl == pytest.approx([54.90530225, 58.40019764], abs=1e-6)
    assert math.exp(float(found.sums.sum()) / sum(found.tokens)) == pytest.approx(56.27743548, abs=1e-6)


def test_with_equal_weights_two_sides_equal_one_model_token_by_token() -> None:
    batch = collate_turns([DIALOG], 0)
    walk = two_side.Walk(pair(same=True), batch["groups"][0])
    walk.forward()
    ids = torch.tensor([[0, 3, 5, 7, 0, 4, 9, 0, 11, 2, 6, 8, 0, 13, 1, 0]])
    logits = tiny(0.0)(input_ids=ids).logits[0, :-1]
    one = nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
    torch.testing.assert_close(torch.cat([nll[0] for nll in walk.nll]), one, rtol=0, atol=1e-12)
    assert math.exp(float(one.mean())) == pytest.approx(43.23562918, abs=1e-6)


@pytest.mark.parametrize("predict_first", [True, False])
def test_a_batch_of_two_sides_equals_a_batch_of_one_model(predict_first: bool) -> None:
    two, one = pair(same=True), OneModel(tiny(0.0))
    a, b = (losses(model, BATCH, predict_first=predict_first) for model in (two, one))
    torch.testing.assert_close(a.sums, b.sums, rtol=0, atol=1e-11)
    torch.testing.assert_close(a.rows, b.rows, rtol=0, atol=1e-11)
    assert a.tokens == b.tokens and a.row_tokens.tolist() == b.row_tokens.tolist()
    assert sum(a.tokens) == sum(len(ids) + predict_first for turns in BATCH for _, ids in turns)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_batch_with_ragged_turns_equals_its_dialogs_one_by_one(attention: str) -> None:
    model = pair()
    for side in (model.user, model.assistant):
        side.set_attn_implementation(attention)
    together = losses(model, BATCH)
    for place, dialog in enumerate(BATCH):
        alone = losses(model, [dialog])
        torch.testing.assert_close(together.rows[place], alone.rows[0], rtol=0, atol=1e-12)
        assert together.row_tokens[place].tolist() == alone.row_tokens[0].tolist()


EXPECTED = {
    "detached": (7.09240589, 2.72082215, 0.23975636, 0.16609234),
    "own": (7.19200469, 2.19837501, 0.36184656, 0.10358643),
    "through": (6.99093202, 4.66355279, 0.37375247, 0.32065104),
}


@pytest.mark.parametrize("kv_grad", GRADS)
def test_gradient_norms_of_the_worked_example(kv_grad: KvGrad) -> None:
    model = pair(kv_grad=kv_grad)
    (losses(model, [DIALOG]).sums.sum() / 15).backward()
    name = "transformer.h.0.attn.c_attn.weight"
    single = [dict(side.named_parameters())[name].grad.norm().item() for side in (model.user, model.assistant)]
    assert [norm(model.user), norm(model.assistant), *single] == pytest.approx(EXPECTED[kv_grad], abs=1e-6)


@pytest.mark.parametrize("transfer", ["increment", "full"])
@pytest.mark.parametrize("dialogs", [[DIALOG], BATCH], ids=["one", "batch"])
def test_with_equal_weights_the_gradients_through_sum_to_the_one_models(dialogs: Any, transfer: str) -> None:
    two, one = pair(same=True, kv_grad="through", kv_transfer=transfer), OneModel(tiny(0.0))
    for model in (two, one):
        found = losses(model, dialogs)
        (found.sums.sum() / sum(found.tokens)).backward()
    sides = zip(two.user.parameters(), two.assistant.parameters(), one.model.parameters())
    for user, assistant, whole in sides:
        torch.testing.assert_close(user.grad + assistant.grad, whole.grad, rtol=1e-10, atol=1e-12)


def test_the_loss_depends_neither_on_kv_grad_nor_on_what_is_transferred() -> None:
    values = [
        losses(pair(kv_grad=grad, kv_transfer=transfer), BATCH).sums.tolist()
        for grad in GRADS
        for transfer in ("increment", "full")
    ]
    assert all(value == pytest.approx(values[0], abs=1e-12) for value in values)


@pytest.mark.parametrize("kv_grad", ["detached", "own"])
@pytest.mark.parametrize("kept", [0, 1])
def test_a_sides_gradient_does_not_depend_on_the_other_sides_loss(kv_grad: KvGrad, kept: int) -> None:
    both, alone = pair(kv_grad=kv_grad), pair(kv_grad=kv_grad)
    losses(both, BATCH).sums.sum().backward()
    losses(alone, BATCH).sums[kept].backward()
    sides = ("user", "assistant")
    for a, b in zip(getattr(both, sides[kept]).parameters(), getattr(alone, sides[kept]).parameters()):
        assert torch.equal(a.grad, b.grad)
    assert norm(getattr(alone, sides[1 - kept])) == 0


def test_through_reaches_the_other_side() -> None:
    model = pair(kv_grad="through")
    losses(model, BATCH).sums[1].backward()
    assert norm(model.user) > 0.1


@pytest.mark.parametrize("kv_grad", GRADS)
def test_a_frozen_user_model_is_no_obstacle(kv_grad: KvGrad) -> None:
    model, free = pair(kv_grad=kv_grad), pair(kv_grad=kv_grad)
    model.user.requires_grad_(False)
    for each in (model, free):
        losses(each, BATCH).sums.sum().backward()
    for a, b in zip(model.assistant.parameters(), free.assistant.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=1e-14)


def test_utterances_of_one_side_in_a_row_may_stay_apart() -> None:
    dialogs = [[(0, [3]), (0, [4, 5]), (1, [6]), (1, [7])], [(0, [3]), (1, [9])], [(0, [8]), (0, [2])]]
    two, one = pair(same=True, kv_grad="through"), OneModel(tiny(0.0))
    for model in (two, one):
        losses(model, dialogs).sums.sum().backward()
    torch.testing.assert_close(losses(two, dialogs).rows, losses(one, dialogs).rows, rtol=0, atol=1e-11)
    for user, assistant, whole in zip(two.user.parameters(), two.assistant.parameters(), one.model.parameters()):
        torch.testing.assert_close(user.grad + assistant.grad, whole.grad, rtol=1e-10, atol=1e-12)


# --- what crosses the link


def test_increments_of_the_worked_example_have_3072_bytes_and_through_doubles_them() -> None:
    model = pair()
    losses(model, [DIALOG])
    assert (model.traffic.messages, model.traffic.data_bytes) == (3, (4 + 3 + 5) * 256)
    model = pair(kv_grad="through")
    losses(model, [DIALOG]).sums.sum().backward()
    assert (model.traffic.messages, model.traffic.data_bytes) == (6, 2 * 3072)


def test_the_papers_wording_sends_every_column_again() -> None:
    model = pair(kv_transfer="full")
    losses(model, [DIALOG])
    assert model.traffic.data_bytes == (4 + 7 + 12) * 256
    turns = [(t % 2, [1] * 11) for t in range(22)]  # 22 turns of 12 tokens
    for transfer, columns in (("full", 12 * sum(range(1, 22))), ("increment", 252)):
        with torch.no_grad():
            model = pair(kv_transfer=transfer)
            for side in (model.user, model.assistant):
                side.config.n_positions = 264
                side.transformer.wpe.weight = nn.Parameter(torch.zeros(264, 8, dtype=torch.float64))
            losses(model, [turns])
        assert model.traffic.data_bytes == columns * 256
    assert columns == 252 and 12 * sum(range(1, 22)) == 2772


@pytest.mark.parametrize(("dtype", "item_bytes", "tolerance"), [("fp32", 4, 1e-5), ("fp16", 2, 0.02), ("bf16", 2, 0.2)])
def test_fewer_bits_on_the_wire(dtype: Any, item_bytes: int, tolerance: float) -> None:
    model = pair(kv_dtype=dtype, kv_grad="through")
    found = losses(model, [DIALOG])
    found.sums.sum().backward()
    assert model.traffic.data_bytes == 2 * 12 * 32 * item_bytes
    exact = losses(pair(), [DIALOG]).sums
    assert 0 < (found.sums - exact).abs().max() < tolerance
    assert norm(model.assistant) / 15 == pytest.approx(EXPECTED["through"][1], rel=tolerance)


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.05), ("fp16", 0.01)])
@pytest.mark.parametrize("kv_grad", GRADS)
def test_keys_values_and_gradients_in_16_bits_stay_close(kv_grad: KvGrad, precision: str, tolerance: float) -> None:
    """The loss scale of fp16 goes over the link with the gradients, and out of them at the end."""
    if precision == "fp16" and not has_fp16(torch.device("cpu")):
        pytest.skip("this CPU has no fp16")
    found = {}
    for kind in ("fp32", precision):
        engine = Engine(pair(kv_grad=kv_grad).float(), Partition(), torch.device("cpu"), precision=kind)
        engine.start(engine.initial_shared, None, ClientConfig(optimizer="sgd", lr=1.0), steps=1, seed=0)
        with engine.autocast():
            seen = losses(engine.module, BATCH)
        traffic = engine.module.take_traffic()

        def loss(model: nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
            made = model(batch["groups"], batch["size"])
            return made.sums.sum(), sum(made.tokens)

        engine.step(loss, [collate_turns(BATCH, 0)], 1)
        found[kind] = engine.flat - engine.initial_shared, seen.sums, traffic.data_bytes
        back = engine.module.take_traffic().data_bytes - found[kind][2]
        assert back == (found[kind][2] if kv_grad == "through" else 0)
    (exact, sums, sent), (mixed, near, sent_mixed) = found["fp32"], found[precision]
    assert 2 * sent_mixed == sent
    assert torch.allclose(sums, near, rtol=tolerance) and not torch.equal(sums, near)
    assert 0 < (mixed - exact).norm() < tolerance * exact.norm()


class Watched:
    """A link's end that keeps what was sent over it."""

    def __init__(self, end: Any, seen: list[Increment]) -> None:
        self.end, self.seen = end, seen

    def send(self, increment: Increment) -> None:
        self.seen.append(increment)
        self.end.send(increment)

    def receive(self) -> Increment:
        received = self.end.receive()
        assert isinstance(received, Increment)
        return received


@pytest.mark.parametrize("kv_grad", GRADS)
def test_no_token_crosses_the_link(kv_grad: KvGrad, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Increment] = []
    monkeypatch.setattr(two_side, "link_pair", lambda traffic: tuple(Watched(end, seen) for end in link_pair(traffic)))
    model = pair(kv_grad=kv_grad)
    losses(model, BATCH).sums.sum().backward()
    assert len(seen) == model.traffic.messages > 0
    for increment in seen:
        assert set(vars(increment)) == {"turn", "is_last", "mask", "data"}
        assert increment.data.shape[:2] == (2, 2) and increment.data.shape[3:] == (2, increment.mask.shape[1], 4)
        assert increment.data.is_floating_point() and not increment.data.requires_grad
        assert increment.mask.dtype == torch.uint8 and int(increment.mask.max()) == 1
    forward = seen[: model.traffic.messages // (2 if kv_grad == "through" else 1)]
    assert [i.turn for i in forward if i.data.shape[2] == 3] == [0]  # three dialogs of the first group have turn 1
    assert [i.is_last for i in forward] == [False, True, True, True, True]


def test_sides_that_are_out_of_step_are_noticed() -> None:
    one, other = link_pair(Traffic())
    side = Side(tiny(0.0), other, Passing())
    data = torch.zeros(2, 2, 1, 2, 3, 4, dtype=torch.float64)
    mask = torch.ones(1, 3, dtype=torch.uint8)
    for wrong in (Increment(1, False, mask, data), Increment(0, False, mask[:, :2], data)):
        one.send(wrong)
        with pytest.raises(FedtorchError, match="do not walk through the same batch"):
            side.hear(0, 1)
    one.send(Increment(0, False, mask, data))
    with pytest.raises(FedtorchError, match="expected turn 0 with 2 rows"):
        side.hear(0, 2)


# --- generation


def speak(side: Side, turn: int, ids: list[int]) -> None:
    segment = collate_turns([[(0, ids)]], 0)["groups"][0]["segments"][0]
    with torch.no_grad():
        side.speak(turn, segment, 1, is_last=False)


def test_a_generated_turn_is_the_one_models_continuation_and_leaves_the_same_context() -> None:
    model = pair(same=True)
    user, assistant = (Side(m, e, model.passing) for m, e in zip((model.user, model.assistant), link_pair(Traffic())))
    speak(user, 0, [3, 5, 7])
    assistant.hear(0, 1)
    ids = assistant.generate(1, 0, max_tokens=6)
    user.hear(1, 1)
    sequence = torch.tensor([[0, 3, 5, 7, 0]])
    expected: list[int] = []
    while len(expected) < 6:
        word = int(tiny(0.0)(input_ids=sequence).logits[0, -1].argmax())
        if word == 0:
            break
        expected.append(word)
        sequence = torch.cat([sequence, torch.tensor([[word]])], dim=1)
    assert ids == expected and len(ids) > 0
    other = [Side(m, e, model.passing) for m, e in zip((model.user, model.assistant), link_pair(Traffic()))]
    speak(other[0], 0, [3, 5, 7])
    other[1].hear(0, 1)
    speak(other[1], 1, ids)
    for a, b in zip(assistant.context(1) or (), other[1].context(1) or ()):
        torch.testing.assert_close(a.double(), b.double(), rtol=0, atol=1e-12)
    for a, b in zip(assistant.context(1) or (), user.context(1) or ()):
        assert torch.equal(a, b)


def test_drawn_words_depend_on_the_seed_only_and_the_last_position_is_the_end() -> None:
    def drawn(seed: int) -> list[int]:
        side = Side(tiny(0.0), link_pair(Traffic())[0], Passing())
        return side.generate(0, 0, max_tokens=20, temperature=2.0, seed=seed)

    assert drawn(1) == drawn(1) and len({tuple(drawn(seed)) for seed in range(5)}) > 1
    side = Side(tiny(0.0), link_pair(Traffic())[0], Passing())
    speak(side, 0, [3] * 62)
    with pytest.raises(FedtorchError, match="the dialog has 63 tokens, the model's limit is 64"):
        side.generate(1, 0, max_tokens=5)


def test_parameters_of_the_sides_are_told_apart_by_name() -> None:
    names = [name for name, _ in pair().named_parameters()]
    assert {name.split(".")[0] for name in names} == {"user", "assistant"}
    assert not any("lm_head" in name for name in names)  # tied to the embedding
