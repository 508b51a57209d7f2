"""FedAssistant's task, metrics and configs: domains as clients, perplexities, the compared systems."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from few_rows import prepare_few
from prepared_files import seal

from fedtorch.config.find import shipped
from fedtorch.config.load import load
from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.dialog_folder import write_dialogs
from fedtorch.data.prepare import main as data_main
from fedtorch.main import main
from fedtorch.metrics.perplexity import perplexity, table
from fedtorch.models.gpt2 import GPT2Model
from fedtorch.models.turns import collate_turns, collate_whole, fit, lengths
from fedtorch.models.two_side import TwoSide
from fedtorch.tasks.dialog import Dialog
from fedtorch.train.batches import Batching
from fedtorch.train.lengths import padded

pytestmark = pytest.mark.long

CONFIGS = shipped()
TINY = GPT2Model(width=8, layers=1, heads=2, positions=64, dropout=0.0)
SMOKE = [
    path.stem for path in sorted((CONFIGS / "smoke").glob("[!_]*.yaml")) if path.stem.split("_")[0] in ("feda", "gpt")
]


# --- perplexity


def test_perplexities_of_the_specification() -> None:
    scores = {"one": {"log_likelihood": (-395.0, 180), "log_likelihood_assistant": (-165.0, 80)}}
    rows = table(scores, ["one"])
    assert rows["perplexity"]["one"] == pytest.approx(8.9750136, abs=1e-7)
    assert rows["perplexity_assistant"]["one"] == pytest.approx(7.8656093, abs=1e-7)
    assert "All" not in rows["perplexity"]


def test_all_is_the_mean_over_domains_and_then_over_clients() -> None:
    domains = ["a", "b", "c", "d", "e", "f"]
    values = (8, 10, 9, 12, 9, 12)

    def client(scale: float) -> dict[str, tuple[float, int]]:
        pairs = {f"log_likelihood/{i}": (-math.log(scale * v) * (i + 1), i + 1) for i, v in enumerate(values)}
        return {"log_likelihood": (-math.log(scale * 8), 1), "log_likelihood_assistant": (0.0, 1), **pairs}

    row = table({"a": client(1)}, domains)["perplexity"]
    assert row["All"] == pytest.approx(10.0) and row["a"] == pytest.approx(8.0)
    assert row["union"] == pytest.approx(math.exp(sum(math.log(v) * (i + 1) for i, v in enumerate(values)) / 21))
    assert table({"a": client(1), "b": client(2)}, domains)["perplexity"]["All"] == pytest.approx(15.0)


def test_a_client_without_test_dialogs_has_no_column() -> None:
    pairs = {"log_likelihood": (-1.0, 1), "log_likelihood/0": (-1.0, 1), "log_likelihood/1": (0.0, 0)}
    row = table({"a": pairs, "b": {"log_likelihood": (0.0, 0)}}, ["a", "b"])["perplexity"]
    assert set(row) == {"a", "All", "union"} and row["All"] == pytest.approx(math.e)
    with pytest.raises(ValueError, match="the perplexity of 0 tokens is not defined"):
        perplexity(0.0, 0)


# --- data of the task


def dialogs(*numbers: int) -> list[Any]:
    return [[["user", f"number {n}"], ["assistant", "fine"], ["user", "bye " * n]] for n in numbers]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    clients = {
        "pizza": {"train": dialogs(1, 2, 3), "dev": dialogs(4), "test": dialogs(5, 6)},
        "ride": {"train": dialogs(7), "dev": [], "test": dialogs(8)},
        "movie": {"train": dialogs(9), "dev": dialogs(1), "test": []},
    }
    write_dialogs(tmp_path / "data", clients, {}, vocab_size=300)
    return tmp_path / "data"


def test_the_split_of_all_test_dialogs_says_whose_they_are(folder: Path) -> None:
    task = Dialog(data=str(folder), model=TINY, max_length=64)
    assert task.manifest()["movie"] == {"train": 1, "dev": 1, "test": 0, "test_all": 3}
    found = task.load("ride", "test_all")
    assert [(example.domain, example.is_own) for example in found] == [(0, False), (0, False), (1, True)]
    assert [example.is_own for example in task.load("movie", "test_all")] == [False] * 3
    ids = task.load("pizza", "dev")[0].turns
    assert [side for side, _ in ids] == [0, 1, 0]
    assert task.vocabulary.decode(ids[0][1]) == "number 4" and task.separator == 0


@pytest.mark.parametrize("sides", ["one", "two"])
def test_scores_are_of_the_own_domain_and_of_every_one(folder: Path, sides: Any) -> None:
    task = Dialog(data=str(folder), model=TINY, sides=sides, max_length=64)
    model = task.build_model(0).eval()
    examples = task.load("ride", "test_all")
    with torch.no_grad():
        scores = task.score(examples, task.predict(model, examples, 2))
        alone = task.score(examples[2:], task.predict(model, examples[2:], 1))
    tokens = sum(len(ids) + 1 for _, ids in examples[2].turns)
    assert scores["log_likelihood"] == scores["log_likelihood/1"] and scores["log_likelihood"][1] == tokens
    assert scores["log_likelihood"][0] == pytest.approx(alone["log_likelihood"][0], rel=1e-5)
    assert scores["log_likelihood_assistant"][1] == len(examples[2].turns[1][1]) + 1
    assert scores["dialog_perplexity"][1] == 1
    assert scores["dialog_perplexity"][0] == pytest.approx(math.exp(-scores["log_likelihood"][0] / tokens), rel=1e-5)
    assert "log_likelihood/0" in scores and "log_likelihood/2" not in scores


def test_both_sides_start_alike_and_their_losses_count_as_two_means(folder: Path) -> None:
    task = Dialog(data=str(folder), model=TINY, max_length=64)
    model = task.build_model(3)
    assert isinstance(model, TwoSide)
    for a, b in zip(model.user.parameters(), model.assistant.parameters()):
        assert torch.equal(a, b) and a.data_ptr() != b.data_ptr()
    examples = task.load("pizza", "train")
    batch = task.collate(examples, True)
    total, count = task.loss(model, batch)
    losses = model(batch["groups"], batch["size"])
    assert total.item() == pytest.approx(losses.sums.sum().item(), rel=1e-6) and count == sum(losses.tokens)
    (total / count).backward()
    name = "transformer.ln_f.weight"
    found = dict(model.assistant.named_parameters())[name].grad.clone()
    model.zero_grad()
    (losses.sums[1] / losses.tokens[1]).backward()
    torch.testing.assert_close(dict(model.assistant.named_parameters())[name].grad, found, rtol=1e-5, atol=1e-8)


def test_evaluating_does_not_count_as_a_rounds_traffic(folder: Path) -> None:
    task = Dialog(data=str(folder), model=TINY, max_length=64)
    model, examples = task.build_model(0), task.load("pizza", "train")
    batch = task.collate(examples, True)
    task.loss(model, batch)
    with torch.no_grad():
        task.predict(model, examples, 4)
    measured = task.pop_counters(model)
    columns = sum(segment["inputs"].shape[1] * len(examples) for segment in batch["groups"][0]["segments"][:-1])
    assert measured["kv_bytes"] == columns * 2 * 1 * 8 * 4
    assert task.pop_counters(model)["kv_bytes"] == 0


def turns(*lengths: int, start: int = 0) -> list[tuple[int, list[int]]]:
    return [((start + i) % 2, [7] * n) for i, n in enumerate(lengths)]


def test_lengths_are_those_that_batches_are_padded_to() -> None:
    def said(*sizes: int) -> list[Any]:
        return [(place % 2, [5] * size) for place, size in enumerate(sizes)]

    dialogs = [said(3, 1, 4), said(2, 6, 4), said(1, 1, 1)]
    each, whole = lengths(dialogs, each=True), lengths([*dialogs, said(2, 2)], each=False)
    assert each == [(4, 2, 5), (3, 7, 5), (2, 2, 2)]
    assert whole == [(11,), (15,), (6,), (6,)]
    (group,) = collate_turns(dialogs, 0)["groups"]
    assert padded(range(3), each) == sum(part["inputs"].numel() for part in group["segments"]) == 3 * (4 + 7 + 5)
    (group,) = collate_whole(dialogs, 0)["groups"]
    assert padded(range(3), whole) == group["inputs"].numel() == 3 * 15
    # a dialog that ends early is in no later segment: less is padded than is counted
    short = [*dialogs, said(2, 2)]
    assert lengths(short, each=True)[3] == (3, 3, 0)
    (group,) = collate_turns(short, 0)["groups"]
    assert (
        sum(part["inputs"].numel() for part in group["segments"])
        == 4 * (4 + 7) + 3 * 5
        < padded(range(4), lengths(short, each=True))
    )
    assert lengths([], each=True) == []


@pytest.mark.parametrize("sides", ["one", "two"])
def test_a_client_trains_in_batches_within_a_budget(sides: Any, folder: Path) -> None:
    task = Dialog(data=str(folder), model=TINY, max_length=64, sides=sides)
    examples = [example for client in task.manifest() for example in task.load(client, "train")]
    each = task.example_lengths(examples)
    assert [sum(one) for one in each] == [sum(len(ids) + 1 for _, ids in example.turns) for example in examples]
    assert {len(one) > 1 for one in each} == {sides == "two"}
    budget = 2 * max(map(sum, each))
    plans = Batching(8, by_length=True, max_tokens=budget, lengths=each).epochs(
        len(examples), first=0, count=1, seed=1, client="a"
    )
    for (picked,) in (plan.micro_batches for plan in plans):
        groups = task.collate([examples[i] for i in picked], True)["groups"]
        parts = groups if sides == "one" else [part for group in groups for part in group["segments"]]
        assert sum(part["inputs"].numel() for part in parts) <= padded(picked, each) <= budget


@pytest.mark.parametrize(
    ("lengths", "limit", "kept"),
    [
        ((3, 2, 4), 12, [3, 2, 4]),
        ((3, 2, 4), 11, [3, 2]),
        ((3, 2, 4), 7, [3, 2]),
        ((3, 2, 4), 6, [2, 2]),
        ((50, 1, 1), 10, [4, 1]),
        ((1, 50), 10, [1, 4]),
        ((0, 0), 4, [0, 0]),
    ],
)
def test_a_long_dialog_is_cut_at_a_whole_turn_but_keeps_both_sides(
    lengths: tuple[int, ...], limit: int, kept: list[int]
) -> None:
    found = fit(turns(*lengths, start=1), limit)
    assert [len(ids) for _, ids in found] == kept
    assert sum(len(ids) + 1 for _, ids in found) <= limit and found[0][0] == 1


def test_many_turns_of_one_side_first_are_cut_too() -> None:
    found = fit([(0, [1] * 3)] * 9 + [(1, [2] * 3)], 10)
    assert {side for side, _ in found} == {0, 1} and sum(len(ids) + 1 for _, ids in found) <= 10


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"turns": [["user", "secret"], ["user", "words"]]}, "dialog 1: only one side speaks"),
        ({"turns": [["user", "secret"], ["robot", "words"]]}, r"dialog 1: a turn is not \[side, text\]"),
        ({"turns": [["user"], 3]}, r"dialog 1: a turn is not \[side, text\]"),
        ({"turns": []}, "dialog 1: only one side speaks"),
        ({"text": "secret"}, "the field 'turns' is missing"),
    ],
)
def test_a_row_that_is_no_dialog_is_named_not_quoted(folder: Path, row: Any, problem: str) -> None:
    (folder / "ride" / "train.jsonl").write_text(json.dumps(row) + "\n")
    seal(folder)
    with pytest.raises(DataError, match=problem) as caught:
        Dialog(data=str(folder), model=TINY, max_length=64).check("ride")
    assert "secret" not in str(caught.value)


def test_settings_that_do_not_fit_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="task.sides is one, which passes nothing"):
        Dialog(sides="one", kv_grad="own")
    with pytest.raises(ConfigError, match="task.max_length is 1024 but task.model.positions is 64"):
        Dialog(model=TINY)
    with pytest.raises(ConfigError, match="two turns of a word and a separator need 4"):
        Dialog(model=TINY, max_length=3)
    with pytest.raises(ConfigError, match="task.model.width is 9 but task.model.heads is 2"):
        GPT2Model(width=9, heads=2)
    task = Dialog(data=str(folder), model=TINY, max_length=64)
    with pytest.raises(ConfigError, match="from which no GPT-2 could be loaded"):
        GPT2Model(name=str(folder)).build(0, task.vocabulary)
    task.save_model(task.build_model(0), folder / "saved")
    short = Dialog(data=str(folder), model=GPT2Model(name=str(folder / "saved" / "user")), max_length=65)
    with pytest.raises(ConfigError, match="has 64 positions"):
        short.build_model(0)


def test_a_saved_side_can_be_the_next_runs_start(folder: Path) -> None:
    task = Dialog(data=str(folder), model=TINY, max_length=64)
    model = task.build_model(5)
    assert isinstance(model, TwoSide)
    task.save_model(model, folder / "saved")
    again = Dialog(data=str(folder), model=GPT2Model(name=str(folder / "saved" / "assistant")), max_length=64)
    assert len(again.vocabulary) == len(task.vocabulary)
    for a, b in zip(model.parameters(), again.build_model(0).parameters()):
        assert torch.equal(a, b)


# --- configs


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fedtorch.data.synthetic.dialogs import prepare

    work = tmp_path_factory.mktemp("work")
    prepare(work / "data" / "synthetic_dialog")
    return work


# config -> mean over the clients' last losses of the round, and then All
LOSSES = {
    "feda": (6.191995, 478.8959),
    "feda_freeze": (6.191995, 484.5357),
    "feda_top50": (6.191995, 483.8376),
    "gpt_all": (6.173129, 468.7049),
    "gpt_local": (6.159799, 471.7146),
}


@pytest.mark.parametrize("stem", SMOKE)
def test_a_smoke_config_trains_and_evaluates(stem: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    shrunk = ["task.max_train=4", "rounds=1", "track.tensorboard=false"]
    assert main(["--config", f"smoke/{stem}", "--set", *shrunk]) == 0
    run = workplace / "runs" / stem
    row = json.loads((run / "results.json").read_text())["summary"]["perplexity"]
    assert list(row) == ["repair", "coffee", "movie", "restaurant", "pizza", "ride", "All", "union"]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [record["loss_last"] for record in records if record["kind"] == "client" and record["status"] == "ok"]
    # not the bits: other processors sum in another order
    assert (fmean(trained), row["All"]) == pytest.approx(LOSSES[stem], rel=1e-4)
    rounds = [record for record in records if record["kind"] == "round"]
    assert stem.startswith("gpt") or (rounds[0]["kv_bytes"] > 0 and rounds[0]["bytes_up"] > 0)


PAPER = {
    "gpt_local": ("local", 0),
    "gpt_all": ("centralized", 0),
    "feda_both": ("federated", 0),
    "feda": ("federated", 0),
    "feda_freeze": ("federated", 0),
    **{f"feda_top{n}{end}": ("federated", n) for n in (12, 25, 50, 100) for end in ("", "_freeze")},
}


@pytest.mark.parametrize("row", PAPER)
def test_a_row_has_the_values_of_the_paper(row: str) -> None:
    config = load(f"fedassistant/{row}")
    paradigm, one_in = PAPER[row]
    assert config.paradigm == paradigm and config.task.model.name == "microsoft/DialoGPT-small"
    client, server = config.client, config.server
    assert (client.optimizer, client.lr, client.batch_size, client.schedule_span) == ("adamw", 3e-5, 8, "run")
    assert config.eval.final_split == "test_all"
    steps = config.rounds * client.steps
    assert steps * 8 == 10 * 1800 * (6 if row == "gpt_all" else 1)  # ten epochs
    if paradigm == "federated":
        assert (server.optimizer, server.lr, server.beta2, server.schedule) == ("adamw", 3e-5, 0.999, "linear")
        assert (server.weight_decay, server.no_decay) == (client.weight_decay, client.no_decay)
        assert config.partition.frozen == (("user.*",) if "freeze" in row else ())
        assert config.partition.private == (() if "freeze" in row or "both" in row else ("user.*",))
        assert config.algorithm.compression == ("topk" if one_in else "none")
    if one_in:
        top = config.algorithm.topk
        assert counts_of(top, one_in) == [1, 2, 1]
        assert (top.scope, config.algorithm.error_feedback, config.algorithm.server_residual) == (
            "tensor",
            True,
            "server",
        )


def counts_of(top: Any, one_in: int) -> list[int]:
    """k of tensors with exactly one_in, one more, and one less numbers."""
    from fedtorch.core.weights import Layout

    return top.counts(Layout(("a", "b", "c"), ((one_in,), (one_in + 1,), (one_in - 1,))))  # type: ignore[no-any-return]


FEEDBACK = [f"feda_top{n}{end}" for n in (12, 25, 50, 100) for end in ("", "_literal", "_none")]
SYSTEMS = ["gpt_local", "gpt_all", "feda_both", "feda", "feda_freeze", *FEEDBACK]


def test_every_system_and_ratio_has_a_small_row_for_real_dialogs() -> None:
    own = {path.stem for path in (CONFIGS / "fedassistant" / "small").iterdir()}
    assert own == {"real_small_coffee", "real_small_gpt_local", "real_small_gpt_all"}
    rows = {path.stem for path in (CONFIGS / "fedassistant" / "rows").iterdir()}
    assert {*SYSTEMS, *PAPER} == rows  # over which the small settings can be laid


@pytest.mark.parametrize("row", SYSTEMS)
def test_a_small_row_is_its_paper_row_on_less_data_with_a_smaller_model(row: str) -> None:
    ending = row.rpartition("_")[2] if row.rpartition("_")[2] in ("literal", "none") else ""
    small_settings = Path("overlays/fedassistant_small")
    is_gpt = row.startswith("gpt")  # which has values of its own on top
    small = load(f"fedassistant/real_small_{row}" if is_gpt else [Path("fedassistant", row), small_settings])
    whole = load(f"fedassistant/{row.removesuffix(f'_{ending}')}")
    expected = whole.algorithm
    if ending:
        expected = replace(expected, error_feedback=ending, server_residual="none")
    assert (small.algorithm, small.partition, small.paradigm) == (expected, whole.partition, whole.paradigm)
    assert small.task == replace(
        whole.task,
        data="data/dialog_small",
        model=replace(whole.task.model, name="runs/real_small_coffee/model", dropout=0.0),
        max_length=96,
        max_test=40,
        max_dev=8,
    )
    batches = small.rounds * small.client.steps * small.client.accumulation
    assert batches == (6 * 150 if row == "gpt_all" else 150) and small.client.lr == 0.01
    assert small.server.lr == (0.01 if row.startswith("feda") else None)


def test_a_client_without_test_dialogs_trains_and_is_evaluated_on_the_others(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shrunk = ["rounds=1", "track.tensorboard=false", f"task.data={folder}"]
    assert main(["--config", "smoke/feda_top50", "--set", *shrunk]) == 0
    run = tmp_path / "runs" / "feda_top50"
    row = json.loads((run / "results.json").read_text())["summary"]["perplexity"]
    assert list(row) == ["pizza", "ride", "All", "union"]  # movie has none
    evaluated = [record for line in (run / "metrics.jsonl").read_text().splitlines() for record in [json.loads(line)]]
    finals = {r["client"]: r["metrics"] for r in evaluated if r["kind"] == "eval" and r["label"] == "final"}
    assert set(finals) == {"pizza", "ride", "movie"} and finals["movie"]["log_likelihood"][1] == 0
    assert finals["movie"]["log_likelihood/1"][1] > 0


@pytest.mark.data
@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_six_real_domains_train(
    is_whole: bool, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if is_whole:
        raw = str(shared_data / "dialog" / "sgd")
        assert data_main(["prepare", "dialog", "--raw", raw, "--source", "sgd", "--out", "data/sgd"]) == 0
    else:
        prepare_few("dialog", shared_data, "data/sgd", "--source", "sgd")
    shrunk = ["task.data=data/sgd", "task.max_train=2", "task.max_test=1", "rounds=1", "track.tensorboard=false"]
    model = ["task.model.positions=512", "task.max_length=512"]
    assert main(["--config", "smoke/feda_top50", "--set", *shrunk, *model]) == 0
    row = json.loads((tmp_path / "runs" / "feda_top50" / "results.json").read_text())["summary"]["perplexity"]
    assert list(row)[:6] == ["flights", "events", "services", "hotels", "restaurants", "movies"]


def test_a_run_whose_optimiser_never_had_anything_to_keep_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With frozen users every gradient is taken away, and the state of the clients' optimisers is all zero."""
    monkeypatch.chdir(tmp_path)
    found = {}
    for name, rounds in (("whole", [2]), ("parts", [1, 2])):
        for each in rounds:
            words = [f"run.dir=runs/{name}", f"rounds={each}"]
            assert main(["--config", "smoke/feda_freeze", "--set", *words]) == 0
        found[name] = json.loads(Path("runs", name, "results.json").read_text())["digest"]
    assert found["whole"] == found["parts"]
