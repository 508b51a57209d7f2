"""What is in `model/` loads where fedtorch is not installed, as docs/models.md says, and scores the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from safetensors.torch import load_file
from smoke_runs import CONFIGS, run_config

from fedtorch import open_run
from fedtorch.config import load as yaml_config
from fedtorch.metrics.perplexity import OWN
from fedtorch.tasks.dialog import SIDES
from fedtorch.text.sentencepiece import decode

pytestmark = pytest.mark.processes

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()


def shown(heading: str, *numbers: int) -> str:
    """The pieces of Python under a heading of the page."""
    section = PAGE.partition(f"### {heading}\n")[2].partition("\n##")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return "\n".join(blocks[number] for number in numbers or range(len(blocks)))


ANSWERS = """
import json, sys
from pathlib import Path

given, answers = json.loads(Path(sys.argv[1]).read_text()), {}
for client, (folder, rows) in given["clients"].items():
    space = {"folder": folder, "rows": rows}
    exec(given["script"], space)
    answers[client] = space["answer"]
Path(sys.argv[1]).with_suffix(".answers").write_text(json.dumps(answers))
"""


def answer_without_fedtorch(file: str) -> None:
    """In a process that cannot import fedtorch any more."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("fedtorch", "launchers")]:
        del sys.modules[name]
    sys.modules["fedtorch"] = None  # type: ignore[assignment]
    sys.argv = ["", file]
    with pytest.raises(ImportError):
        exec("import fedtorch.models.t5")
    exec(ANSWERS, {})


Rows = list[Any]
Ask = tuple[str, Callable[[Any, Sequence[Any]], Rows], Callable[[Any, Sequence[Any], Rows], Mapping[str, float]]]
"""What the other process runs, what it is given of a client's examples, and the sums that follow from its answers."""


def t5_rows(task: Any, examples: Sequence[Any]) -> Rows:
    return [(example.source, example.target) for example in examples]


def few_shot_rows(task: Any, examples: Sequence[Any]) -> Rows:
    return [(example.source, example.targets[0]) for example in examples]


T5_LOSS = """
import torch

answer = []
with torch.no_grad():
    for source, target in rows:
        ids = torch.tensor([source])
        loss = float(model(input_ids=ids, labels=torch.tensor([target])).loss)
        made = model.generate(input_ids=ids, max_new_tokens=LONGEST, num_beams=1, do_sample=False)
        answer.append((loss, made[0, 1:].tolist()))
"""


def t5_scores(task: Any, examples: Sequence[Any], answers: Rows) -> Mapping[str, float]:
    scores = task.score(examples, [decode(task.vocabulary, ids) for _, ids in answers])
    total = sum(loss * len(example.target) for example, (loss, _) in zip(examples, answers))
    return {"loss": total, "exact_match": scores["exact_match"][0]}


def few_shot_scores(task: Any, examples: Sequence[Any], answers: Rows) -> Mapping[str, float]:
    return {"loss": sum(loss for loss, _ in answers)}


def as_lists(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part.tolist() if isinstance(part, torch.Tensor) else part for name, part in batch.items()}


def pair_rows(task: Any, examples: Sequence[Any]) -> Rows:
    batches = [[(e.question, answer) for answer in e.answers] for e in examples]
    return [as_lists(task.model.collate(task.vocabulary, pairs)) for pairs in batches]


PAIRS = """
import torch

with torch.no_grad():
    batches = [{name: torch.tensor(part) for name, part in row.items()} for row in rows]
    answer = [model.scores(model(**batch)).tolist() for batch in batches]
"""


def pair_scores(task: Any, examples: Sequence[Any], answers: Rows) -> Mapping[str, float]:
    return {metric: total for metric, (total, _) in task.score(examples, answers).items()}


def hydranet_rows(task: Any, examples: Sequence[Any]) -> Rows:
    return [as_lists(task.collate([example], False)) for example in examples]


HYDRANET = """
import torch
from network.hydranet import row_losses
from transformers import AutoModel

encoder = AutoModel.from_pretrained(folder)
assert all(torch.equal(own, model.encoder.get_parameter(name)) for name, own in encoder.named_parameters())
answer = []
with torch.no_grad():
    for row in rows:
        batch = {name: torch.tensor(part) for name, part in row.items() if name != "rows_per_example"}
        loss = float(sum(row_losses(model(batch), batch["labels"]).values()).sum())
        (query,) = queries(batch, [(first, last - 1) for first, last in row["first_last"]], row["rows_per_example"])
        answer.append((loss, query.agg, query.sel, query.where, list(query.conditions.items())))
"""


def hydranet_scores(task: Any, examples: Sequence[Any], answers: Rows) -> Mapping[str, float]:
    from fedtorch.models.networks.hydranet import Query

    queries = [
        Query(agg, sel, tuple(where), {column: (op, tuple(span)) for column, (op, span) in conditions})
        for _, agg, sel, where, conditions in answers
    ]
    scores = {metric: total for metric, (total, _) in task.score(examples, queries).items()}
    return {**scores, "loss": sum(loss for loss, *_ in answers)}


def turns(task: Any, examples: Sequence[Any]) -> Rows:
    names = {place: name for name, place in SIDES.items()}
    return [[(names[side], ids) for side, ids in example.turns] for example in examples if example.is_own]


def dialog_scores(task: Any, examples: Sequence[Any], answers: Rows) -> Mapping[str, float]:
    return {OWN: sum(answers)}


ONE_MODEL = """
from transformers import AutoModelForCausalLM, AutoTokenizer

sides = dict.fromkeys(("user", "assistant"), AutoModelForCausalLM.from_pretrained(folder).eval())
tokenizer = AutoTokenizer.from_pretrained(folder)
"""
LIKELIHOODS = "\nanswer = [log_likelihood(row) for row in rows]\n"
T5, QA, DIALOGS = "Text to SQL, few-shot tasks", "Question answering", "Dialogs"


def one_model() -> str:
    """The page's lines on two sides with those on one in place of the first."""
    before, after = shown(DIALOGS).split("sides = {")
    return before + ONE_MODEL + after.partition("\n\n")[2]


ASK: dict[str, Ask] = {
    "text2sql": (shown(T5) + T5_LOSS.replace("LONGEST", "20"), t5_rows, t5_scores),
    "fewshot": (shown(T5) + T5_LOSS.replace("LONGEST", "4"), few_shot_rows, few_shot_scores),
    "qa": (shown(QA, 0, 1) + PAIRS, pair_rows, pair_scores),
    "qa_re2": (shown(QA, 0, 2) + PAIRS, pair_rows, pair_scores),
    "qa_esim": (shown(QA, 0, 2) + PAIRS, pair_rows, pair_scores),
    "wikisql": (shown("WikiSQL") + HYDRANET, hydranet_rows, hydranet_scores),
    "two": (shown(DIALOGS) + LIKELIHOODS, turns, dialog_scores),
    "one": (one_model() + LIKELIHOODS, turns, dialog_scores),
}
"""task, or the sides of a dialog -> how to ask its model"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


OWN_MODELS = ("smoke_ffw_full", "ditto", "pfedme", "local", "fedmatch", "fedper", "re2", "esim", "feda", "gpt_local")
CASES = {
    "fedavg": ("smoke/fedavg.yaml", ()),
    "smoke_ffw_full": ("fewfedweight/small/smoke_ffw_full.yaml", ("algorithm.pseudo_start_round=1",)),
    "fedmatch": ("smoke/fedmatch.yaml", ()),
    "re2": ("smoke/re2.yaml", ()),
    "fedparsing": ("smoke/fedparsing.yaml", ("algorithm.group=fedparsing_ema",)),
    "feda": ("smoke/feda.yaml", ("server.lr=0.02",)),
}
SLOW = {
    **{name: (f"smoke/{name}.yaml", ()) for name in ("ditto", "pfedme", "local", "fedper", "esim")},
    **{name: (f"smoke/{name}.yaml", ()) for name in ("gpt_local", "gpt_all", "feda_freeze", "centralized")},
    "attention": ("smoke/fedparsing.yaml", ("task.attention=true", "task.masked_words=true")),
    **{
        f"{insertion}-{structure}-{on}": (
            "smoke/fedmatch.yaml",
            (f"task.model.patch={{insertion: {insertion}, structure: {structure}, size: 6, heads: 2, scope: {on}}}",),
        )
        for insertion, structure, on in (
            ("inner", "pal", "layer"), ("outer", "lr", "layer"), ("vertical", "pal", "layer"),
            ("horizontal", "lr", "encoder"), ("horizontal", "pal", "layer"),
        )
    },
}  # fmt: skip


def trained(work: Path, name: str) -> tuple[Path, Any]:
    """A run's folder and task."""
    path, settings = {**CASES, **SLOW}[name]
    run_config(CONFIGS / path, work, f"run.name={name}", "client.lr=0.02", *settings)  # a round makes models differ
    return work / "runs" / name, yaml_config.load(work / "runs" / name / "config.yaml")


def check(work: Path, name: str, monkeypatch: pytest.MonkeyPatch, start: Callable[[str], object]) -> None:
    run, config = trained(work, name)
    monkeypatch.chdir(work)  # where the data are
    script, give, score = ASK[config.task.sides if config.task_name == "dialog" else config.task_name]
    results = json.loads((run / "results.json").read_text())["clients"]
    evaluated = {client: found["scores"] for client, found in results.items() if found["scores"]}
    own = name in OWN_MODELS or "-" in name
    assert evaluated
    if own:
        assert {path.name for path in (run / "model").iterdir()} == set(evaluated)
    examples = {client: config.task.load(client, config.eval.final_split) for client in evaluated}
    given = {
        client: (str(run / "model" / client if own else run / "model"), give(config.task, rows))
        for client, rows in examples.items()
    }
    file = work / f"{name}.json"
    file.write_text(json.dumps({"script": script, "clients": given}))
    start(str(file))
    answers = json.loads(file.with_suffix(".answers").read_text())
    for client, scores in evaluated.items():
        for metric, total in score(config.task, examples[client], answers[client]).items():
            # batches of other sizes: fp32 sums of another order
            assert total == pytest.approx(scores[metric][0], rel=2e-5, abs=1e-6), (client, metric)
    assert not list(run.glob("model*partial*"))
    check_loaded(run, list(evaluated), own)


def check_loaded(run: Path, clients: Sequence[str], own: bool) -> None:
    """`load_model` gives a model of all tensors in the folder, and what makes its input."""
    for client in clients if own else (None,):
        folder = run / "model" / client if client else run / "model"
        model, tokenizer = open_run(run).load_model(client)
        sides = model.values() if isinstance(model, dict) else [model]
        assert not any(side.training for side in sides) and len(tokenizer) > 5
        held = [tensor for side in sides for tensor in side.state_dict().values()]
        files = sorted(folder.rglob("*.safetensors"))
        assert files
        for tensor in (tensor for file in files for tensor in load_file(file).values()):
            assert any(tensor.shape == other.shape and torch.equal(tensor, other) for other in held)


def in_a_fork(file: str) -> None:
    run_ranks(answer_without_fedtorch, 1, file)


@pytest.mark.parametrize("name", CASES)
def test_the_exported_model_scores_as_in_the_run(name: str, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(work, name, monkeypatch, in_a_fork)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_so_has_that_of_every_other_kind(name: str, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(work, name, monkeypatch, in_a_fork)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedmatch", "feda", "fedparsing"])
def test_so_it_has_in_a_new_interpreter(name: str, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = "import sys; sys.modules['fedtorch'] = None\n" + ANSWERS

    def start(file: str) -> None:
        subprocess.run([sys.executable, "-I", "-c", blocked, file], check=True, timeout=120)

    check(work, name, monkeypatch, start)
