"""The page on models: how a row of WikiSQL is made, so that who follows it asks the model what the run asked it."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer

from fedtorch.data.hydranet import Rows
from fedtorch.text.byte_bpe import train_subwords

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()


def test_a_row_as_the_page_makes_it_is_that_of_the_run(tmp_path: Path) -> None:
    assert "but `</s></s>` of RoBERTa and of the vocabulary that `fedtorch data prepare wikisql` trains" in PAGE
    train_subwords(["which films are long", "text title", "real length"] * 5, tmp_path / "tokenizer", size=300)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer(f" {text}", add_special_tokens=False).input_ids
        return found

    question = "which films are long"
    asked = {"question": question, "types": ["text", "real"], "header": ["title", "length"]}
    pieces = [piece for word in question.split() for piece in ids(word)]
    start, stop = tokenizer.cls_token_id, tokenizer.sep_token_id
    for row, column in zip(Rows(tokenizer, 96).unlabelled(asked).rows, ("text title", "real length"), strict=True):
        assert row.ids == [start, *ids(column), stop, stop, *pieces, stop]
        assert row.ids.count(stop) == 3
