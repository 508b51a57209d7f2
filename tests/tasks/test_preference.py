"""Preferences in federations over data of one's own: what rows may be, the first losses of rounds, what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from judged_rows import DROPPED, judge, pairs, verdicts, write_both
from own_rows import CLIENTS, GPT2, write_rows

from fedtorch.algorithms.adapters.stacks import FLoRA
from fedtorch.algorithms.local import Local
from fedtorch.config.load import load
from fedtorch.config.schema import ClientConfig, Config, EvalConfig, SystemConfig
from fedtorch.core.errors import ConfigError, DataError, FedtorchError
from fedtorch.data.own.first_config import CHAT
from fedtorch.data.own.keys import SplitRule
from fedtorch.main import main
from fedtorch.models.dropout import without_dropout
from fedtorch.rounds.evaluation import Evaluation
from fedtorch.rounds.runner import Runner
from fedtorch.setup.data_check import main as check_main
from fedtorch.setup.init import write
from fedtorch.setup.predict import main as predict_main
from fedtorch.tasks.continued import Continued
from fedtorch.tasks.judged import Judged, Likelihoods, Pairs, Verdicts, both_texts
from fedtorch.tasks.preference import Preference
from fedtorch.train import saved_loop

LORA = {**GPT2, **DROPPED, "adapter": {"r": 2, "dropout": 0.1}}
FULL = {**GPT2, **DROPPED}
FIRST = {"dpo": math.log(2), "ipo": 25.0, "kto": 0.5}


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("preference"))
        write_both()
        Path("chat.jinja").write_text(CHAT)
        yield


def config_of(folder: Path, task: Preference, **changes: Any) -> Config:
    client = ClientConfig(optimizer="adamw", lr=2e-2, batch_size=4)
    usual: dict[str, Any] = {"rounds": 2, "client": client, "system": SystemConfig(oom_retry=False)}
    usual["eval"] = EvalConfig(every=1, on_start=True)
    return make_config(folder, task, changes.pop("algorithm", None), **{**usual, **changes})


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, ...]]:
    """The losses of each training, step by step."""
    found, given = list[tuple[float, ...]](), saved_loop.train

    def train(*args: Any, **keys: Any) -> Any:
        curve = given(*args, **keys)
        found.append(curve.losses)
        return curve

    monkeypatch.setattr(saved_loop, "train", train)
    return found


# --- rounds


@pytest.mark.parametrize("model", [FULL, LORA], ids=["all weights", "lora"])
@pytest.mark.parametrize("kind", ["dpo", "ipo", "kto"])
def test_the_first_step_knows_no_preference_and_the_second_round_begins_with_one(
    kind: str, model: dict[str, Any], tmp_path: Path, curves: list[tuple[float, ...]]
) -> None:
    """In spite of the dropout that the model comes with."""
    make_runner(config_of(tmp_path, judge(kind=kind, model=model))).run()
    assert len(curves) == 4  # two clients, two rounds
    assert [curve[0] for curve in curves[:2]] == pytest.approx([FIRST[kind]] * 2, rel=2e-6)
    assert all(abs(curve[0] - FIRST[kind]) > 1e-4 * FIRST[kind] for curve in curves[2:])


@pytest.mark.parametrize("model", [FULL, LORA], ids=["all weights", "lora"])
@pytest.mark.parametrize("kind", ["dpo", "ipo", "kto"])
def test_with_the_rounds_own_reference_every_round_begins_with_none(
    kind: str, model: dict[str, Any], tmp_path: Path, curves: list[tuple[float, ...]]
) -> None:
    runner = make_runner(config_of(tmp_path, judge(kind=kind, model=model, reference="round")))
    scores = runner.run().scores
    assert [curve[0] for curve in curves] == pytest.approx([FIRST[kind]] * 4, rel=2e-6)
    assert all(found["margin"][0] != 0 for found in scores.values()), "scores are by the start"


@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_at_the_start_nobody_wins_and_the_margin_is_0_to_the_bit(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluations = list[Any]()
    finish = Evaluation.finish
    monkeypatch.setattr(Evaluation, "finish", lambda self: evaluations.append(finish(self)) or evaluations[-1])
    make_runner(config_of(tmp_path, judge(kind=kind), rounds=1)).run()
    start, later = evaluations
    for found in start.values():
        assert found["reward_accuracy"][0] == found["margin"][0] == 0.0
        assert found["loss"][0] / found["loss"][1] == pytest.approx(FIRST[kind], abs=1e-7)
    assert all(found["margin"][0] != 0.0 for found in later.values())


def test_dropout_that_is_asked_for_is_on(tmp_path: Path, curves: list[tuple[float, ...]]) -> None:
    make_runner(config_of(tmp_path, judge(model=FULL, dropout=True), rounds=1)).run()
    assert all(abs(curve[0] - math.log(2)) > 1e-5 for curve in curves)


def test_rates_of_fused_attention_are_dropout_too_and_the_configuration_stays() -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_dropout, self.scaling, self.drop = 0.1, 0.5, torch.nn.Dropout(0.2)

    found = without_dropout(torch.nn.Sequential(Attention()))[0]
    assert (found.attention_dropout, found.scaling, found.drop.p) == (0.0, 0.5, 0.0)
    model: Any = judge(model=FULL).build_model(0)
    assert model.config.attn_pdrop == 0.1


@pytest.mark.parametrize("kind", ["dpo", "ipo", "kto"])
def test_a_preference_is_learned(kind: str, tmp_path: Path) -> None:
    runner = make_runner(config_of(tmp_path, judge(kind=kind), rounds=6))
    scores = runner.run().scores
    wins, rows = (sum(found["reward_accuracy"][place] for found in scores.values()) for place in (0, 1))
    assert wins == rows == 6 and all(found["margin"][0] > 0 for found in scores.values())


@pytest.mark.parametrize("paradigm", ["centralized", "local"])
def test_one_client_with_all_rows_and_clients_alone_have_a_reference_too(
    paradigm: Any, tmp_path: Path, curves: list[tuple[float, ...]]
) -> None:
    make_runner(config_of(tmp_path, judge(kind="kto"), paradigm=paradigm)).run()
    assert curves[0][0] == pytest.approx(0.5, abs=1e-6)


def test_what_a_rank_keeps_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """9 rows of train at two clients in batches of 4, 3 of dev and test in one batch; predictions are asked apart."""
    task, calls = judge(), list[int]()
    given = Preference.reference_of

    def reference_of(self: Preference, model: Any, examples: Any) -> Any:
        calls.append(0 if torch.is_inference_mode_enabled() else len(examples))
        return given(self, model, examples)

    monkeypatch.setattr(Preference, "reference_of", reference_of)
    sizes = task.manifest()["north"]
    assert (sizes["train"], sizes["dev"], sizes["test"]) == (6, 3, 3)
    make_runner(config_of(tmp_path, task, rounds=3)).run()
    assert sorted(filter(None, calls)) == sorted([4, 2] * 2 + [3, 3] * 2)


# --- rows


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


ASKED, GOOD, BAD = turn("user", "a sunny day"), turn("assistant", "go out"), turn("assistant", "stay in")


def test_two_conversations_have_what_they_begin_with_as_prompt() -> None:
    before = [turn("system", "be kind"), ASKED, GOOD, turn("user", "and now")]
    row = Pairs().convert({"chosen": [*before, GOOD], "rejected": [*before, BAD], "prompt": None, "tools": None})
    assert row == {"prompt": before, "chosen": [GOOD], "rejected": [BAD]}
    assert Pairs().convert({"prompt": before, "chosen": [GOOD], "rejected": [BAD]}) == row
    assert list(Pairs().texts(row)) == ["be kind", "a sunny day", "go out", "and now", "go out", "stay in"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"chosen": "a", "rejected": "b"}, "are texts, which need a `prompt`"),
        ({"prompt": "p", "chosen": "a", "rejected": "a"}, "are the same, so nothing is preferred"),
        ({"prompt": "p", "chosen": "a", "rejected": 1}, "`rejected` is a int, expected a string"),
        ({"chosen": [ASKED, GOOD], "rejected": "b"}, "`messages` is a str"),
        ({"chosen": [ASKED, GOOD], "rejected": [BAD]}, "no common beginning"),
        ({"chosen": [ASKED, GOOD], "rejected": [ASKED, GOOD]}, "after the prompt come 0 messages"),
        ({"chosen": [ASKED, GOOD, ASKED], "rejected": [ASKED, BAD]}, "after the prompt come 2 messages"),
        ({"prompt": "p", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]}, "`messages` is a str"),
    ],
)
def test_pairs_that_cannot_be_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pairs().convert(values)


@pytest.mark.parametrize(
    ("label", "is_good"),
    [
        (True, True),
        (False, False),
        (1, True),
        (0, False),
        (1.0, True),
        ("true", True),
        ("False", False),
        ("1", True),
        (" 0", False),
    ],
)
def test_a_verdict_is_true_or_false(label: Any, is_good: bool) -> None:
    row = Verdicts().convert({"prompt": "p", "completion": "c", "label": label})
    assert row == {"prompt": "p", "completion": "c", "label": is_good}
    assert judge(kind="kto").label_of(row) == ("desirable" if is_good else "undesirable")
    assert judge().label_of({"prompt": "p"}) is None


@pytest.mark.parametrize("label", [2, 0.5, "good", [True], -1])
def test_other_verdicts_are_refused(label: Any) -> None:
    with pytest.raises(ValueError, match="`label` is neither true nor false"):
        Verdicts().convert({"prompt": "p", "completion": "c", "label": label})


def test_an_answer_is_learned_with_its_end_token_whether_text_or_message() -> None:
    task = judge(chat_template=Path("chat.jinja"))
    end = task.vocabulary.eos_token
    for row in (
        {"prompt": "what?", "chosen": " it is", "rejected": " no"},
        {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
    ):
        (found,) = task.examples([task.form().convert(row)], "here")
        said = []
        for text in (found.first, found.second):
            learned = [token for token, is_learned in zip(text.ids, text.is_learned, strict=True) if is_learned]
            said.append(task.vocabulary.decode(learned))
        assert said == ([" it is" + end, " no" + end] if "prompt" in row else ["go out" + end, "stay in" + end])
        assert task.supervised(found) == sum(found.first.is_learned) + sum(found.second.is_learned)


CHANGING = (
    "{% for message in messages %}{% if loop.last or message.role != 'assistant' %}{{ message.role }}{{ eos_token }}"
    "{{ message.content }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant{{ eos_token }}{% endif %}"
)
"""A template that writes no earlier answers, as some leave out earlier reasoning."""


@pytest.mark.parametrize("template", [CHAT, CHANGING], ids=["plain", "that drops earlier answers"])
def test_an_earlier_answer_is_part_of_the_prompt(template: str, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(template)
    task = judge(chat_template=tmp_path / "chat.jinja")
    before = [ASKED, turn("assistant", "earlier"), turn("user", "and now")]
    (found,) = task.examples([task.form().convert({"chosen": [*before, GOOD], "rejected": [*before, BAD]})], "here")
    learned = [token for token, is_learned in zip(found.first.ids, found.first.is_learned, strict=True) if is_learned]
    assert task.vocabulary.decode(learned) == "go out" + task.vocabulary.eos_token
    assert ("earlier" in task.vocabulary.decode(found.first.ids)) == (template == CHAT)


@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_likelihoods_are_those_of_a_bare_loop(kind: str) -> None:
    """Texts of unlike length, each by itself and without padding."""
    task = judge(kind=kind)
    net, examples = task.build_model(1).eval(), task.load("north", "train")
    with torch.no_grad():
        found = task.reference_of(net, examples)
    assert found.shape == (len(examples), 2) and found.dtype == torch.float32
    for example, pair in zip(examples, found.tolist(), strict=True):
        for text, total in zip((example.first, example.second), pair, strict=True):
            with torch.no_grad():
                logs = net(torch.tensor([text.ids])).logits[0].double().log_softmax(-1)
            answer = [place for place, is_learned in enumerate(text.is_learned) if is_learned]
            assert total == pytest.approx(sum(float(logs[place - 1, text.ids[place]]) for place in answer), rel=1e-5)


def test_both_texts_of_a_row_stand_beside_each_other_to_the_longest_of_the_batch() -> None:
    short, long = Continued([4, 5], [False, True], [], ""), Continued([4, 6, 7], [False, True, True], [], "")
    found = both_texts([Judged(short, long), Judged(short, short)], pad_id=9)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "input_ids": [[[4, 5, 9], [4, 6, 7]], [[4, 5, 9], [4, 5, 9]]],
        "attention_mask": [[[1, 1, 0], [1, 1, 1]], [[1, 1, 0], [1, 1, 0]]],
        "labels": [[[-100, 5, -100], [-100, 6, 7]], [[-100, 5, -100], [-100, 5, -100]]],
    }


def test_a_row_is_as_good_as_its_first_answer_unless_it_is_said() -> None:
    text = judge().load("north", "train")[0].first
    assert Judged(text, text) == Judged(text, text, is_desirable=True, has_other=True, reference=None)


def test_a_verdict_on_a_text_and_a_message_is_refused() -> None:
    for prompt, completion in (([ASKED], "c"), ("p", [GOOD])):
        with pytest.raises(ValueError, match="`messages` is a str"):
            Verdicts().convert({"prompt": prompt, "completion": completion, "label": True})


def test_kto_pairs_a_prompt_with_the_answer_of_the_row_before() -> None:
    task = judge(kind="kto")
    rows = [task.form().convert(row) for row in verdicts()[:6:2]]
    found = task.examples(rows, "here")
    for place, one in enumerate(found):
        text = rows[place]["prompt"] + rows[place - 1]["completion"] + task.vocabulary.eos_token
        assert task.vocabulary.decode(one.second.ids) == text and one.has_other
    assert all(one.has_other for one in task.examples(rows[:2], "here"))
    assert found[0].first.prompt == []
    (alone,) = task.examples(rows[:1], "here")
    assert not alone.has_other and alone.second == alone.first
    assert task.supervised(found[0]) == sum(found[0].first.is_learned)
    assert task.example_lengths(found) == [(2 * max(len(one.first.ids), len(one.second.ids)),) for one in found]
    assert task.read_lengths(found) == [(len(one.first.ids),) for one in found]
    assert (task.max_learned, judge().max_learned) == (64, 128)


def test_a_last_batch_of_one_row_has_a_z_of_its_own(tmp_path: Path, curves: list[tuple[float, ...]]) -> None:
    """Nine rows in batches of four: the last one is compared with its prompt's other answer alone."""
    write_rows(Path("nine.jsonl"), [{**row, "home": "n"} for row in verdicts(9)])
    task = judge("nine.jsonl", kind="kto", data={"splits": SplitRule(0, 0)})
    make_runner(config_of(tmp_path, task, eval=EvalConfig(every=0))).run()
    assert [len(curve) for curve in curves] == [3, 3] and all(map(math.isfinite, sum(curves, ())))


def test_texts_and_messages_do_not_mix_in_kto(tmp_path: Path) -> None:
    task = judge(kind="kto", chat_template=Path("chat.jinja"))
    mixed = [
        {"prompt": "p", "completion": "c", "label": True},
        {"prompt": [ASKED], "completion": [GOOD], "label": True},
    ]
    with pytest.raises(DataError, match="here has rows of texts and rows of messages"):
        task.examples([task.form().convert(row) for row in mixed], "here")


def test_an_answer_that_is_cut_away_is_refused_beyond_one_row_of_a_hundred() -> None:
    task = judge(max_length=8)
    long = [task.form().convert({**row, "prompt": "so " * 40}) for row in pairs(2)]
    with pytest.raises(DataError, match="here: 2 of 2 rows have an answer without a token within task.max_length = 8"):
        task.refuse(task.examples(long, "here"), "here")
    short = task.examples([task.form().convert({**row, "prompt": "", "rejected": " no " * 9}) for row in pairs(1)], "")
    task.refuse([*short * 100, *task.examples(long[:1], "here")], "here")
    kept = judge(max_length=8, truncate="left")
    assert kept.unsupervised(kept.examples(long, "here")) == 0


def test_rows_without_a_reference_are_not_trained_on() -> None:
    task = judge()
    with pytest.raises(FedtorchError, match="a row has no reference"):
        task.collate(task.load("north", "train"), True)


def test_messages_need_a_template() -> None:
    task = judge()
    text = task.form().convert(pairs(1)[0])
    with pytest.raises(ConfigError, match="rows are messages but the tokenizer has no chat template"):
        task.examples([text, task.form().convert({"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]})], "here")


def test_ipo_by_sums_is_another_loss() -> None:
    each = {}
    for length in ("mean", "sum"):
        task = judge(kind="ipo", ipo_length=length)
        net, examples = task.build_model(1), task.load("north", "train")
        with torch.no_grad():
            found: list[Judged] = task.with_reference(examples, task.reference_of(net, examples) - 1.0)
            each[length] = float(task.loss(net, task.collate(found, False))[0]) / len(found)
    assert each["sum"] == pytest.approx(25.0, rel=1e-5), "all log-ratios are 1, so h is 0"
    assert each["mean"] != pytest.approx(25.0, rel=1e-3)


@pytest.mark.parametrize("kind", ["dpo", "ipo", "kto"])
def test_the_loss_of_known_log_ratios_is_that_by_hand(kind: str) -> None:
    """Ratios 1.5 and −0.5 of row 1, −0.5 and 2.5 of row 2; KTO's z is (−0.5 + 2.5) / 2 = 1."""
    task, ratios = judge(kind=kind), torch.tensor([[1.5, -0.5], [-0.5, 2.5]])
    net, examples = task.build_model(1).eval(), task.load("north", "train")[:2]
    with torch.no_grad():
        found: list[Judged] = task.with_reference(examples, task.reference_of(net, examples) - ratios)
        total, count = task.loss(net, task.collate(found, False))

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    pairs_of_tokens = [(one.first.learned, one.second.learned) for one in found]
    by_hand = {
        "dpo": -math.log(sigmoid(0.1 * 2.0)) - math.log(sigmoid(0.1 * -3.0)),
        "ipo": sum((a / m - b / n - 5) ** 2 for (a, b), (m, n) in zip(ratios.tolist(), pairs_of_tokens, strict=True)),
        "kto": sum(1 - sigmoid(0.1 * (r - 1.0) * (1 if one.is_desirable else -1))
                   for r, one in zip((1.5, -0.5), found, strict=True)),
    }  # fmt: skip
    assert count == 2 and float(total) == pytest.approx(by_hand[kind], rel=2e-5)
    scores = task.score(found, task.predict(net, found, 2))
    signs = [1 if one.is_desirable else -1 for one in found]
    leads = [1.5 * signs[0], -0.5 * signs[1]] if kind == "kto" else [2.0, -3.0]
    assert scores["reward_accuracy"] == (sum(lead > 0 for lead in leads), 2)
    assert scores["margin"][0] == pytest.approx(0.1 * sum(leads), abs=1e-5)


def test_an_answer_of_one_token_is_divided_by_one() -> None:
    task, text = judge(kind="ipo"), Continued([4, 5], [False, True], [], "")
    net = task.build_model(1).eval()
    with torch.no_grad():
        ratios = task.reference_of(net, [Judged(text, text)]) - torch.tensor([[1.0, 0.0]])
        total, _ = task.loss(net, task.collate(task.with_reference([Judged(text, text)], ratios), False))
    assert float(total) == pytest.approx(16.0, rel=1e-5)
    empty = Continued([4, 5], [False, False], [], "")
    assert task.unsupervised([Judged(text, empty), Judged(empty, text), Judged(text, text)]) == 2


def test_a_small_lead_wins() -> None:
    task, text = judge(), Continued([1, 2], [False, True], [], "")
    (wins, _), _ = task.score([Judged(text, text, reference=(0.0, 0.0))], [Likelihoods(0.25, 0.0)]).values()
    assert wins == 1


def test_new_rows_are_answered_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, wanted in (("dpo", ("chosen", "rejected")), ("kto", ("prompt", "completion"))):
        task = judge(kind=kind)
        assert tuple(task.new_form().required) == wanted
        given = [task.new_form().convert(row) for row in (pairs if kind == "dpo" else verdicts)(3)]
        net = task.build_model(1).eval()
        answers = task.answers(net, [{**row, "where": "here"} for row in given], 2)
        examples = [task.examples([row], "here")[0] for row in given]
        totals = [task.reference_of(net, [one])[0].tolist() for one in examples]
        for answer, one, (first, second) in zip(answers, examples, totals, strict=True):
            if kind == "kto":
                assert one.is_desirable, "no label: an answer that is to be likely"
                assert answer == {"log_likelihood": pytest.approx(first, rel=1e-5), "tokens": one.first.learned}
                continue
            assert answer["log_likelihoods"] == pytest.approx({"chosen": first, "rejected": second}, rel=1e-5)
            assert answer["likelier"] == ("chosen" if first > second else "rejected")
            assert answer["tokens"] == {"chosen": one.first.learned, "rejected": one.second.learned}
    assert judge().settings()["rows"] == "pairs" and judge(kind="kto").settings()["rows"] == "verdicts"


def test_data_check_counts_the_longer_text() -> None:
    row = {"prompt": "p", "chosen": "a", "rejected": "a longer one"}
    assert judge().texts_read(row) == ["p", "a longer one", ""]
    assert judge(kind="kto").texts_read({"prompt": "p", "completion": "c", "label": True}) == ["p", "c"]


# --- what is refused


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "ipo", "label_smoothing": 0.1}, "task.label_smoothing is 0.1 but task.kind is ipo; it is for dpo"),
        ({"kind": "dpo", "ipo_length": "sum"}, "task.ipo_length is sum but task.kind is dpo; it is for ipo"),
        ({"kind": "dpo", "desirable_weight": 2.0}, "task.desirable_weight is 2.0 but task.kind is dpo; it is for kto"),
        ({"kind": "ipo", "undesirable_weight": 2.0}, "task.undesirable_weight is 2.0 but task.kind is ipo"),
    ],
)
def test_keys_of_another_kind_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        judge("pairs.jsonl", **keys)


TWO, ONE = (ClientConfig(batch_size=size, optimizer="sgd", lr=0.1) for size in (2, 1))
KTO: dict[str, Any] = {"kind": "kto"}


@pytest.mark.parametrize(
    ("keys", "changes", "message"),
    [
        (KTO, {"client": ONE}, "client.batch_size is 1 but the task .* compares each row with others of its batch"),
        (KTO, {"system": SystemConfig()}, "system.oom_retry is true but the task .* compares each row with others"),
        (KTO, {"client": ClientConfig(max_tokens_per_batch=64)}, "client.max_tokens_per_batch is set but the task"),
        (
            KTO,
            {"per_client": {"south": {"max_tokens_per_batch": 64}}},
            "client.max_tokens_per_batch is set but the task",
        ),
        (KTO, {"per_client": {"south": {"batch_size": 1}}}, "client.batch_size is 1 but the task"),
        ({"reference": "round"}, {"algorithm": Local()}, "task.reference is round but .* clients receive no weights"),
        ({"reference": "round"}, {"paradigm": "local"}, "with paradigm local .* set task.reference to start"),
        ({"model": LORA}, {"algorithm": FLoRA(ranks={"south": 1}, added_rank=4)}, "changes the base of an adapter"),
    ],
    ids=[
        "one row",
        "halves",
        "by tokens",
        "by tokens at one",
        "one row at one",
        "nothing received",
        "alone",
        "another base",
    ],
)
def test_runs_that_cannot_be_are_refused_before_anything_is_built(
    keys: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_runner(config_of(tmp_path, judge(**keys), **changes))


def test_kto_is_not_refused_in_batches_of_two(tmp_path: Path) -> None:
    make_runner(config_of(tmp_path, judge(**KTO), client=TWO))
    make_runner(config_of(tmp_path, judge(**KTO), client=TWO, algorithm=Local()))


def test_dpo_takes_batches_of_one_and_halves(tmp_path: Path) -> None:
    runner: Runner = make_runner(config_of(tmp_path, judge(), client=ONE, system=SystemConfig(), rounds=1))
    assert runner.run().rounds == 1


# --- commands


def settings(folder: Path) -> list[str]:
    return [f"run.dir={folder / 'it'}", "rounds=1", "track.tensorboard=false", "client.epochs=1"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_from_a_file_to_likelihoods_of_new_rows(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, made = ("pairs.jsonl", "dpo") if kind == "dpo" else ("verdicts.jsonl", "kto")
    told = write(source, tmp_path / "it.yaml")
    assert "preference" in told and "2 clients" in told
    config = load(tmp_path / "it.yaml")
    task: Any = config.task
    assert (task.kind, task.truncate, config.system.oom_retry) == (made, "left", made != "kto")
    assert check_main([str(tmp_path / "it.yaml")]) == 0
    capsys.readouterr()
    assert main(["--config", str(tmp_path / "it.yaml"), "--set", *settings(tmp_path)]) == 0
    results = json.loads((tmp_path / "it" / "results.json").read_text())
    assert "reward_accuracy" in json.dumps(results)
    assert "text-generation" in (tmp_path / "it" / "model" / "README.md").read_text()
    capsys.readouterr()
    assert predict_main([str(tmp_path / "it"), source]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == 24
    if kind == "kto":
        assert set(answers[0]) == {"row", "log_likelihood", "tokens"}
    else:
        one = answers[0]["log_likelihoods"]
        assert answers[0]["likelier"] == ("chosen" if one["chosen"] > one["rejected"] else "rejected")
    assert predict_main([str(tmp_path / "it"), source, "--perplexity"]) == 2
    assert "--perplexity is given but the run's task.name is preference" in capsys.readouterr().err


def test_conversations_train_from_a_file(tmp_path: Path) -> None:
    rows = [
        {
            "chosen": [turn("user", f"day {i}"), GOOD],
            "rejected": [turn("user", f"day {i}"), BAD],
            "home": CLIENTS[i % 2],
        }
        for i in range(24)
    ]
    write_rows(tmp_path / "talks.jsonl", rows)
    told = write(str(tmp_path / "talks.jsonl"), tmp_path / "it.yaml")
    assert "columns `chosen` and `rejected` hold answers to compare" in told
    assert (tmp_path / "it.jinja").read_text() == CHAT
    assert main(["--config", str(tmp_path / "it.yaml"), "--set", *settings(tmp_path)]) == 0
