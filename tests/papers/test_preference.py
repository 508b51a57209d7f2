"""DPO, IPO and KTO: numbers by hand, those of a table, and those of TRL, which is asked where it is installed.

Rafailov et al. 2023, Azar et al. 2023, Ethayarajh et al. 2024.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from own_rows import own, write_rows
from record_rows import vocabulary
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from fedtorch.data.own.keys import SplitRule
from fedtorch.tasks.continued import Continued
from fedtorch.tasks.judged import Judged, Likelihoods
from fedtorch.tasks.preference import Preference
from fedtorch.tasks.preference_losses import dpo, ipo, kl_estimate, kto

TABLE = torch.tensor(
    [
        [-12.322554, -8.635934, -13.736370, -3.619016, 3, 2],
        [-13.469589, -9.585028, -10.764302, -8.570461, 4, 3],
        [-7.339772, -15.314079, -7.725596, -21.653010, 2, 5],
    ],
    dtype=torch.float64,
)
"""log π of the chosen and the rejected answer, by the model and by the reference, and their tokens: of a tiny GPT-2,
given with what TRL 1.16.0 makes of it."""
EACH = [0.422436, 0.781252, 1.034463]


def leads(is_mean: bool = False) -> Tensor:
    """h of each row of the table; is_mean: of log-ratios by token."""
    chosen, rejected = TABLE[:, 0] - TABLE[:, 2], TABLE[:, 1] - TABLE[:, 3]
    return chosen / TABLE[:, 4] - rejected / TABLE[:, 5] if is_mean else chosen - rejected


def test_a_row_by_hand() -> None:
    """π −12 and −15, reference −13 and −14: h = 1 − (−1) = 2, log(1 + e^−0.2) and (2 − 5)²."""
    h = torch.tensor([(-12.0 + 13.0) - (-15.0 + 14.0)])
    assert float(h) == 2
    assert float(dpo(h, 0.1)) == pytest.approx(0.598139, abs=1e-6) == math.log1p(math.exp(-0.2))
    assert float(ipo(h, 0.1)) == pytest.approx(9.0, abs=1e-5)
    assert float(dpo(h, 0.1, 0.25)) == pytest.approx(0.75 * 0.598139 + 0.25 * 0.798139, abs=1e-6)


def test_the_table() -> None:
    """The six figures of the table are rounded: IPO's slope 2 (h − 5) is 22 at most, so its last place is uncertain."""
    each = dpo(leads(), 0.1)
    assert each.tolist() == pytest.approx(EACH, abs=1e-6)
    assert float(each.mean()) == pytest.approx(0.746050, abs=1e-6)
    assert float(ipo(leads(is_mean=True), 0.1).mean()) == pytest.approx(23.160416, abs=1e-5)
    assert float(ipo(leads(), 0.1).mean()) == pytest.approx(55.594434, abs=2e-5)


@pytest.mark.parametrize("kind", ["dpo", "ipo"])
def test_scores_of_the_table(kind: Any) -> None:
    task = Preference(data=own("unread.jsonl"), model={"random": "gpt2"}, kind=kind)
    text = Continued([1, 2], [False, True], [], "")
    rows = TABLE[:, :4].tolist()
    examples = [Judged(text, text, reference=(row[2], row[3])) for row in rows]
    scores = task.score(examples, [Likelihoods(row[0], row[1]) for row in rows])
    assert scores["reward_accuracy"] == (1.0, 3)
    assert scores["margin"][0] / 3 == pytest.approx(-0.040436, abs=1e-6)
    tie = task.score(examples[:1], [Likelihoods(*rows[0][2:])])
    assert tie == {"reward_accuracy": (0.0, 1), "margin": (0.0, 1)}


def test_kto_by_hand() -> None:
    """Log-ratios 2, −1 of a desirable and another answer, z = (3 − 1) / 2 = 1; σ(0.1) = 0.524979, σ(0.2) = 0.549834."""
    z = kl_estimate(torch.tensor([3.0, -1.0]), torch.tensor([True, True]))
    assert float(z) == 1.0
    each = kto(torch.tensor([2.0, -1.0]), z, torch.tensor([True, False]), 0.1, (1.0, 1.0))
    assert each.tolist() == pytest.approx([1 - 0.524979, 1 - 0.549834], abs=1e-6)
    weighed = kto(torch.tensor([2.0, -1.0]), z, torch.tensor([True, False]), 0.1, (1.5, 0.5))
    assert weighed.tolist() == pytest.approx([1.5 * (1 - 0.524979), 0.5 * (1 - 0.549834)], abs=1e-6)


@pytest.mark.parametrize(
    ("ratios", "counts", "z"),
    [([-3.0, 1.0], [True, True], 0.0), ([3.0, 5.0], [True, False], 3.0), ([3.0], [False], 0.0)],
    ids=["never below 0", "only of other rows", "of none"],
)
def test_what_z_is_at_the_edges(ratios: list[float], counts: list[bool], z: float) -> None:
    given = torch.tensor(ratios, requires_grad=True)
    found = kl_estimate(given, torch.tensor(counts))
    assert float(found) == z and not found.requires_grad


def test_the_losses_of_no_preference() -> None:
    zero = torch.zeros(1)
    assert float(dpo(zero, 0.1)) == float(dpo(zero, 0.1, 0.3)) == pytest.approx(math.log(2))
    assert float(ipo(zero, 0.1)) == 25.0
    assert float(kto(zero, torch.tensor(0.0), torch.tensor([True]), 0.1, (1.0, 1.0))) == 0.5


# --- beside TRL

WORDS = "rain cold grey storm sun warm blue calm is".split()
PAIRS = [
    {"prompt": f"{WORDS[i]} is", "chosen": " ".join(["", *WORDS[: 1 + i % 3]]), "rejected": " " + " ".join(WORDS[i:]),
     "home": "n"} for i in range(6)
]  # fmt: skip
VERDICTS = [
    {"prompt": row["prompt"], "completion": row["chosen" if i % 2 else "rejected"], "label": i in (1, 2), "home": "n"}
    for i, row in enumerate(PAIRS[:4])
]


def net(seed: int, size: int) -> nn.Module:
    """A GPT-2 whose opinions are strong."""
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=size, n_embd=16, n_layer=1, n_head=2, n_positions=64)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3 + seed)
    return model


def ours(task: Preference, rows: list[dict[str, Any]], model: nn.Module, reference: nn.Module) -> tuple[float, Any]:
    """(mean loss, scores) of rows."""
    examples: Any = task.examples([task.form().convert(row) for row in rows], "here")
    with torch.no_grad():
        examples = task.with_reference(examples, task.reference_of(reference, examples))
        total, count = task.loss(model, task.collate(examples, False))
    return float(total) / count, task.score(examples, task.predict(model, examples, len(examples)))


def asked(
    trainer: Callable[..., Any], config: Callable[..., Any], rows: list[dict[str, Any]], *nets: nn.Module, words: Any,
    **settings: Any,
) -> dict[str, float]:  # fmt: skip
    """Scores by TRL of all rows in one batch."""
    from datasets import Dataset

    table = Dataset.from_list([{name: value for name, value in row.items() if name != "home"} for row in rows])
    sizes = {"per_device_train_batch_size": len(rows), "per_device_eval_batch_size": len(rows), "max_length": 64}
    plain = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": [], "disable_tqdm": True}
    args = config(output_dir="trl", beta=0.1, **sizes, **plain, **settings)
    tables = {"train_dataset": table, "eval_dataset": table}
    found: dict[str, float] = trainer(*nets, args=args, processing_class=words, **tables).evaluate()
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("keys", "theirs"),
    [
        ({"kind": "dpo"}, {"loss_type": "sigmoid"}),
        ({"kind": "ipo"}, {"loss_type": "ipo"}),
        ({"kind": "kto"}, {}),
        ({"kind": "kto", "desirable_weight": 1.5, "undesirable_weight": 0.5},
         {"desirable_weight": 1.5, "undesirable_weight": 0.5}),
    ],
    ids=["dpo", "ipo", "kto", "kto with weights"],
)  # fmt: skip
def test_the_loss_is_that_of_trl(
    keys: dict[str, Any], theirs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trl = pytest.importorskip("trl", minversion="1.16.0")
    monkeypatch.chdir(tmp_path)
    is_kto = keys["kind"] == "kto"
    rows: list[dict[str, Any]] = VERDICTS if is_kto else PAIRS
    write_rows(tmp_path / "rows.jsonl", rows)
    words = str(vocabulary(tmp_path / "words"))
    data = own("rows.jsonl", splits=SplitRule(0, 0))
    task = Preference(data=data, model={"random": "gpt2"}, tokenizer=words, max_length=64, **keys)
    size = len(task.vocabulary)
    with torch.random.fork_rng():
        model, reference = (net(0, size), net(1, size)) if is_kto else (net(1, size), net(0, size))
        loss, scores = ours(task, rows, model, reference)
        maker, config = (trl.KTOTrainer, trl.KTOConfig) if is_kto else (trl.DPOTrainer, trl.DPOConfig)
        order = {"train_sampling_strategy": "sequential"} if is_kto else {}
        found = asked(maker, config, rows, model, reference, words=task.vocabulary, **order, **theirs)
    assert loss == pytest.approx(found["eval_loss"], abs=1e-6 * max(1.0, abs(loss)))
    if is_kto:
        assert found["eval_kl"] > 0.1, "z has to take part"
        return
    assert scores["reward_accuracy"][0] / len(rows) == pytest.approx(found["eval_rewards/accuracies"])
    assert scores["margin"][0] / len(rows) == pytest.approx(found["eval_rewards/margins"], abs=1e-5)
