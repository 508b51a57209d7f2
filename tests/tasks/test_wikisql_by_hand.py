"""Which tokens of a question are masked, and what a run records of the questions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_pool import SIZES, tiny_pool

from fedtorch.models.encoder import EncoderModel
from fedtorch.tasks import wikisql
from fedtorch.tasks.wikisql import WikiSQL


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> WikiSQL:
    return WikiSQL(
        data=str(tiny_pool(tmp_path_factory.mktemp("tiny") / "data")),
        encoder=EncoderModel(width=16, layers=1, heads=2, feed_forward=32),
        max_length=40,
        masked_words=True,
        server_labelled=30,
        num_clients=6,
        client_size=(3, 6),
        parts=2,
    )


def test_the_words_of_a_question_are_masked_and_no_column(task: WikiSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a share of 1 all of them, and nothing else: neither the column before it nor the separators."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    monkeypatch.setattr(wikisql, "masked_word_loss", lambda model, batch, *of: seen.append(of))
    units: Any = task.load("client0", "train")
    rows = [row for unit in units for row in unit]
    batch = task.collate(units, True)
    task.masked_word_loss(task.build_model(0), batch, share=1.0, masked=1.0, random=0.0)
    ((changed, chosen),) = seen
    for row, ids, words in zip(rows, changed.tolist(), chosen.tolist(), strict=True):
        expected = [row.first <= place < row.last for place in range(len(words))]
        assert words == expected and 0 < sum(words) < len(row.ids)
        mask = task.vocabulary.mask_token_id
        assert [id == mask for id in ids] == expected


def test_a_record_counts_the_questions(task: WikiSQL) -> None:
    clients = [sizes["train"] for sizes in task.manifest().values() if "train" in sizes]
    record = task.record()
    assert record["usable_train"] == SIZES["train"] and record["dealt_to_clients"] == sum(clients)
    assert record["vocabulary"] == len(task.vocabulary) and set(record["data"]) >= {"dropped", "tables"}
    assert len(clients) == 6 and record["clients_sharing_a_question"] <= 6
