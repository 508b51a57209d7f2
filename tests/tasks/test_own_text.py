"""Texts from texts and continued texts, over files of one's own: the bits of a bare loop, hand-made labels, metrics."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from fedtorch.config.load import load
from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.seeds import generator_for, seed_for
from fedtorch.main import main

pytestmark = pytest.mark.long

GPT2 = {"random": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 48}
GPT2 |= {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
T5 = {"random": "t5", "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
LLAMA = {"random": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
LLAMA |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 48}
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sums as prompts and completions, echoes as sources and targets, and conversations, of two clients."""
    monkeypatch.chdir(tmp_path)
    sums = [f"{a} plus {b},{a + b},{'ns'[a % 2]}" for a in range(4) for b in range(5)]
    Path("sums.csv").write_text("\n".join(["question,answer,site", *sums]) + "\n")
    words = ["red", "green blue", "blue red", "green", "red red", "blue"]
    echoes = [f"say {word} {i}\t{word} {i}" for i, word in enumerate(2 * words)]
    Path("echo.tsv").write_text("\n".join(["source\ttarget", *echoes]) + "\n")
    with Path("chat.jsonl").open("w") as file:
        for i in range(12):
            turns = [{"role": "user", "content": f"number {i}"}, {"role": "assistant", "content": f"it is {i}"}]
            file.write(json.dumps({"messages": turns, "who": "ns"[i % 2]}) + "\n")
    Path("chat.jinja").write_text(TEMPLATE)
    return tmp_path


SUMS: dict[str, Any] = {
    "name": "causal_lm",
    "model": GPT2,
    "template": "Q: {question} A:",
    "data": {"source": "sums.csv", "columns": {"completion": "answer"}, "clients": {"iid": 1}, "tokenizer_size": 300},
    "max_length": 48,
}
ECHO: dict[str, Any] = {
    "name": "seq2seq",
    "model": T5,
    "data": {"source": "echo.tsv", "clients": {"iid": 1}, "tokenizer_size": 300},
    "max_length": 48,
    "generate": {"max_new_tokens": 8},
}
CHAT: dict[str, Any] = {
    "name": "causal_lm",
    "rows_are": "messages",
    "chat_template": "chat.jinja",
    "model": LLAMA,
    "data": {"source": "chat.jsonl", "clients": {"by": "who"}, "tokenizer_size": 300},
    "max_length": 48,
}


def config(task: dict[str, Any], **changes: Any) -> Path:
    text = {"run": {"name": "own"}, "task": task, "rounds": 2, "track": {"tensorboard": False, "progress": "off"}}
    text |= {"client": {"optimizer": "sgd", "lr": 0.1, "batch_size": 4}}
    Path("own.yaml").write_text(yaml.safe_dump({**text, **changes}))
    return Path("own.yaml")


def task_of(task: dict[str, Any]) -> Any:
    return load(config(task)).task


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(("task", "auto"), [(SUMS, AutoModelForCausalLM), (ECHO, AutoModelForSeq2SeqLM)])
def test_one_client_has_the_bits_of_a_bare_loop(task: dict[str, Any], auto: Any, optimizer: str, place: Path) -> None:
    """The loop is what one would write by hand, with the labels that transformers takes the mean loss of."""
    client = {"optimizer": optimizer, "lr": 0.01, "batch_size": 4}
    path = config(task, client=client, run={"name": "own", "seed": 3}, eval={"every": 0})  # the last model is evaluated
    assert main(["--config", str(path)]) == 0
    loaded = load(path)
    (client,) = loaded.task.manifest()
    examples = loaded.task.load(client, "train")
    model = loaded.task.build_model(3)
    for round in range(2):
        kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.AdamW
        options = {} if optimizer == "sgd" else {"weight_decay": loaded.client.weight_decay}
        optimiser = kind(model.parameters(), lr=0.01, **options)  # made anew every round
        order = torch.randperm(
            len(examples), generator=generator_for(seed_for(3, "train"), "order", client, round)
        ).tolist()
        model.train()
        for start in range(0, len(order), 4):
            batch = loaded.task.collate([examples[i] for i in order[start : start + 4]], True)
            optimiser.zero_grad()
            model(**batch).loss.backward()
            optimiser.step()
    saved = auto.from_pretrained(place / "runs" / "own" / "model")
    for name, parameter in model.state_dict().items():
        # what a server adds to its weights is rounded once more; AdamW follows gradients of 1e-9, as of key biases
        torch.testing.assert_close(
            saved.state_dict()[name], parameter, rtol=2e-4, atol=1e-4 if optimizer == "adamw" else 2e-6
        )


def test_prompt_and_completion_are_cut_into_tokens_together(place: Path) -> None:
    """Apart, the border gives other tokens; the completion and the end token are learned, and nothing else."""
    task = task_of(
        SUMS | {"template": None, "data": SUMS["data"] | {"columns": {"prompt": "question", "completion": "answer"}}}
    )
    (client,) = task.manifest()
    vocabulary = task.vocabulary
    for example, row in zip(task.load(client, "train"), task.rows(client, "train"), strict=True):
        whole = vocabulary(row["prompt"] + row["completion"], add_special_tokens=False).input_ids
        assert example.ids == [*whole, vocabulary.eos_token_id]
        learned = [i for i, is_learned in zip(example.ids, example.is_learned, strict=True) if is_learned]
        assert learned[-1] == vocabulary.eos_token_id
        assert vocabulary.decode(learned[:-1]).endswith(row["completion"])


def test_padding_that_is_the_end_token_hides_no_end(place: Path) -> None:
    task = task_of(SUMS)
    (client,) = task.manifest()
    task.vocabulary.pad_token = task.vocabulary.eos_token
    batch = task.collate(task.load(client, "train")[:4], True)
    ends = (batch["labels"] == task.vocabulary.eos_token_id).sum(1)
    assert ends.tolist() == [1] * 4
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()


@pytest.mark.parametrize("task", [SUMS, ECHO, CHAT])
def test_a_batch_has_the_loss_of_its_rows_one_by_one(task: dict[str, Any], place: Path) -> None:
    built = task_of(task)
    model = built.build_model(0).eval()
    examples = built.load(next(iter(built.manifest())), "train")[:5]
    total, count = built.loss(model, built.collate(examples, False))
    singles = [built.loss(model, built.collate([example], False)) for example in examples]
    assert int(count) == sum(int(n) for _, n in singles)
    assert float(total) == pytest.approx(sum(float(value) for value, _ in singles), rel=1e-5)


@pytest.mark.parametrize("task", [SUMS, ECHO])
def test_generated_texts_do_not_depend_on_the_batch(task: dict[str, Any], place: Path) -> None:
    built = task_of(task | {"measures": ["exact_match"], "generate": {"max_new_tokens": 6}})
    model = built.build_model(0).eval()
    examples = built.load(next(iter(built.manifest())), "train")[:7]
    texts = [[getattr(found, "text", found) for found in built.predict(model, examples, size)]
             for size in (1, 3, 7)]  # fmt: skip
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("clients", [1, 3])
def test_pooled_figures_are_sacrebleus_own(clients: int, place: Path) -> None:
    from sacrebleu.metrics import BLEU, CHRF

    golds = [f"the {i} red and green blue words {i % 3} of it" for i in range(12)]
    found = [gold.replace("green", "grey").replace("it", "all") if i % 2 else gold for i, gold in enumerate(golds)]
    task = task_of(ECHO | {"measures": ["bleu", "chrf", "exact_match", "rouge_l"]})
    scores = {f"c{part}": task.text_scores(found[part::clients], golds[part::clients]) for part in range(clients)}
    pooled = task.summary(scores)["pooled"]
    assert pooled["bleu"] == pytest.approx(BLEU().corpus_score(found, [golds]).score, abs=1e-9)
    assert pooled["chrf"] == pytest.approx(CHRF().corpus_score(found, [golds]).score, abs=1e-9)
    assert sum(score["exact_match"][0] for score in scores.values()) == 6


def test_perplexity_is_pooled_over_tokens(place: Path) -> None:
    assert main(["--config", str(config(CHAT))]) == 0
    results = json.loads((place / "runs" / "own" / "results.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(place / "runs" / "own" / "model")
    tokenizer = AutoTokenizer.from_pretrained(place / "runs" / "own" / "model")
    assert tokenizer.chat_template == TEMPLATE
    task, total, tokens = task_of(CHAT), 0.0, 0
    for client in task.manifest():
        for example in task.load(client, "test"):
            labels = torch.tensor([[i if k else -100 for i, k in zip(example.ids, example.is_learned, strict=True)]])
            with torch.no_grad():
                loss = model(input_ids=torch.tensor([example.ids]), labels=labels).loss
            count = int((labels[:, 1:] != -100).sum())
            total, tokens = total + float(loss) * count, tokens + count
    assert results["summary"]["pooled"]["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-4)


def test_long_rows_are_cut_where_the_config_says_or_refused(place: Path) -> None:
    long = {"role": "user", "content": "word " * 60}
    rows = [{"messages": [long, {"role": "assistant", "content": f"it is {i}"}], "who": "n"} for i in range(6)]
    Path("chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"rows have no token to learn within task.max_length = 48"):
        task_of(CHAT).load("n", "train")
    with pytest.raises(DataError, match="train of client n has a row of .* tokens, task.max_length leaves 48"):
        task_of(CHAT | {"truncate": "refuse"}).load("n", "train")
    left = task_of(CHAT | {"truncate": "left"}).load("n", "train")
    assert all(len(example.ids) == 48 and example.is_learned[-1] for example in left)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"template": "{question"}, "task.template is no template"),
        ({"template": "{question.upper} A:"}, "task.template names 'question.upper'"),
        ({"template": "{questoin} A:"}, "has no column `questoin`; did you mean `question`"),
        ({"model": {"random": "gtp2"}}, "task.model.random is 'gtp2'.*did you mean.*gpt2"),
        (
            {"model": {"random": "gpt2", "n_layers": 1}},
            "task.model.n_layers: the configuration of gpt2 has no such field",
        ),
        ({"model": {}}, "task.model has neither path nor random"),
        ({"model": {"random": "bert"} | {"num_hidden_layers": 1}, "max_length": 600}, "has 512 positions; lower"),
        ({"rows_are": "text"}, "task.rows_are is text, which has no prompt"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(change: dict[str, Any], said: str, place: Path) -> None:
    with pytest.raises((ConfigError, DataError), match=said):
        task_of(SUMS | change).build_model(0)


@pytest.mark.parametrize(
    ("task", "model"),
    [
        (ECHO, {"random": "bart", "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
                "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}),
        (SUMS, {"random": "qwen3", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
                "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64}),
        (SUMS, {"random": "gemma", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
                "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64}),
    ],
    ids=["bart", "qwen3", "gemma"],
)  # fmt: skip
def test_an_architecture_that_no_config_names_trains(task: dict[str, Any], model: dict[str, Any], place: Path) -> None:
    assert main(["--config", str(config(task | {"model": model}, rounds=1))]) == 0
    loader = AutoModelForSeq2SeqLM if task is ECHO else AutoModelForCausalLM
    assert loader.from_pretrained(place / "runs" / "own" / "model").config.model_type == model["random"]


def test_generated_answers_are_measured_by_what_is_chosen(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else asks for them; the figure of all rows is sacrebleu's, not a mean of the clients'."""
    monkeypatch.syspath_prepend(".")
    Path("answers.py").write_text("def spoken(found, true):\n    return sum(map(bool, found)) / len(true)\n")
    task = SUMS | {"data": SUMS["data"] | {"clients": {"by": "site"}}, "generate": {"max_new_tokens": 4}}
    chosen = {"metrics": ["perplexity", "bleu", "rouge_2", "answers:spoken"], "select_by": "spoken"}
    assert main(["--config", str(config(task, eval=chosen, rounds=1))]) == 0
    results = json.loads(Path("runs/own/results.json").read_text())
    assert set(results["averages"]) == {"log_likelihood", "loss", "perplexity", "bleu", "rouge_2", "spoken"}
    for name in ("perplexity", "bleu"):
        assert results["averages"][name]["micro"] == pytest.approx(results["summary"]["pooled"][name], rel=1e-12)
    each = [found["perplexity"] for found in results["summary"]["clients"].values()]
    assert results["averages"]["perplexity"]["macro"] == pytest.approx(sum(each) / 2)


def test_plain_texts_have_no_answers_to_compare(place: Path) -> None:
    task = SUMS | {"rows_are": "text", "template": None, "data": SUMS["data"] | {"columns": {"text": "question"}}}
    assert load(config(task, eval={"metrics": ["perplexity"]})).eval.metrics == ("perplexity",)
    for name in ("bleu", "json:dumps"):
        with pytest.raises(ConfigError, match="rows of another kind|task.rows_are is text, which has no answers"):
            load(config(task, eval={"metrics": [name]}))


def test_the_answer_that_is_generated_is_the_last_of_a_conversation(place: Path) -> None:
    """It is the one that is compared with: of two turns the first would be evaluated by the second's words."""
    said = ["one ?", "it is one", "two ?", "it is two"]
    turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
    Path("chat.jsonl").write_text("".join(json.dumps({"messages": turns, "who": who}) + "\n" for who in "nnnnnnnnnn"))
    task = task_of({**CHAT, "measures": ["exact_match"]})
    example, *_ = task.load("n", "train")
    asked = task.vocabulary.apply_chat_template(turns[:3], add_generation_prompt=True, return_dict=False)
    assert (example.prompt, example.gold) == (asked, "it is two")
    assert [i for i, learned in enumerate(example.is_learned) if learned][0] < len(asked)  # both answers are learned
