"""What RE2 and ESIM share: words, their vectors, attention and pooling, saving."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedtorch.core.errors import ConfigError
from fedtorch.models.esim import Esim
from fedtorch.models.networks.scoring import align, max_over_words, mean_over_words
from fedtorch.models.re2 import Re2
from fedtorch.models.word_model import WordModel
from fedtorch.text.words import Words

WORDS = Words(("what", "is", "water", "policy", "covers"))
SMALL: list[WordModel] = [Re2(embedding=3, hidden=4), Esim(embedding=3, hidden=4)]
both = pytest.mark.parametrize("sizes", SMALL, ids=lambda sizes: sizes.name)


def vectors(folder: Path, text: str) -> str:
    path = folder / "vectors.txt"
    path.write_text(text)
    return str(path)


@both
def test_texts_are_lower_cased_split_and_cut(sizes: WordModel) -> None:
    texts = ["What  IS zebra\twater", "", " \n"]
    assert sizes.encode(WORDS, texts, 3) == [[2, 3, 1], [1], [1]]


@both
def test_batches_are_padded_side_by_side(sizes: WordModel) -> None:
    batch = sizes.collate(WORDS, [([2, 3], [4]), ([5], [6, 1, 2])])
    assert batch["question_ids"].tolist() == [[2, 3], [5, 0]]
    assert batch["question_mask"].tolist() == [[True, True], [True, False]]
    assert batch["answer_ids"].tolist() == [[4, 0, 0], [6, 1, 2]]
    assert batch["answer_mask"].tolist() == [[True, False, False], [True, True, True]]


# Word vectors


@both
def test_vectors_of_the_file_are_taken_and_stay(sizes: WordModel, tmp_path: Path) -> None:
    path = vectors(tmp_path, "the 9 9 9\nis 1 2 3\nzebra x\ncovers 4 5 6e-1\nis 7 7 7\n")
    table = replace(sizes, vectors=path).build(0, WORDS).get_parameter("embedding.weight")
    assert torch.equal(table[3], torch.tensor([1.0, 2.0, 3.0])) and torch.equal(table[6], torch.tensor([4.0, 5.0, 0.6]))
    assert not table[0].any() and table[[1, 2, 4, 5]].abs().max() < 0.3 and not table.requires_grad
    assert replace(sizes, vectors=path).record(WORDS) == {"word_vectors": "vectors.txt", "words": 5, "coverage": 0.4}
    assert (
        replace(sizes, vectors=path, fix_embeddings=False)
        .build(0, WORDS)
        .get_parameter("embedding.weight")
        .requires_grad
    )


@both
def test_without_a_file_vectors_are_random_trained_and_said_so(sizes: WordModel) -> None:
    table = replace(sizes, embedding=200).build(0, WORDS).get_parameter("embedding.weight")
    assert not table[0].any() and table[1:].std().item() == pytest.approx(0.05, rel=0.1) and table.requires_grad
    assert sizes.record(WORDS) == {"word_vectors": "random", "words": 5, "coverage": 0.0}
    assert not replace(sizes, fix_embeddings=True).build(0, WORDS).get_parameter("embedding.weight").requires_grad


def test_a_missing_file_of_vectors_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"task.model.vectors is '.*', which cannot be read .* or null for random ones"
    ):
        replace(SMALL[0], vectors=str(tmp_path / "none.txt")).build(0, WORDS)


# What the networks share


def test_alignment_by_hand() -> None:
    """Equal attention: the mean of the other side's words, padding left out."""
    left, right = torch.tensor([[[1.0], [3.0]]]), torch.tensor([[[2.0], [4.0], [100.0]]])
    masks = torch.tensor([[True, True]]), torch.tensor([[True, True, False]])
    from_right, from_left = align(torch.zeros(1, 2, 3), left, right, *masks)
    assert from_right.flatten().tolist() == [3.0, 3.0] and from_left.flatten().tolist()[:2] == [2.0, 2.0]
    sharp = torch.tensor([[[0.0, 50.0, 99.0], [50.0, 0.0, 99.0]]])
    from_right, from_left = align(sharp, left, right, *masks)
    assert from_right.flatten().tolist() == [4.0, 2.0] and from_left.flatten().tolist()[:2] == [3.0, 1.0]


def test_pooling_leaves_padding_out() -> None:
    hidden, mask = torch.tensor([[[-1.0], [-3.0], [5.0]]]), torch.tensor([[True, True, False]])
    assert max_over_words(hidden, mask).tolist() == [[-1.0]] and mean_over_words(hidden, mask).tolist() == [[-2.0]]


@both
def test_the_same_seed_builds_the_same_weights(sizes: WordModel) -> None:
    one, same, other = (sizes.build(seed, WORDS).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


@both
@torch.no_grad()
def test_a_saved_model_comes_back_to_the_bit(sizes: WordModel, tmp_path: Path) -> None:
    from fedtorch.core.weights import Partition
    from fedtorch.train.engine import Engine

    sizes = replace(sizes, head="two_class", vectors=vectors(tmp_path, "is 1 2 3\n"))
    model = Engine(sizes.build(3, WORDS), Partition(), torch.device("cpu")).module.eval()
    sizes.save(model, WORDS, tmp_path / "model")  # type: ignore[arg-type]
    (tmp_path / "vectors.txt").unlink()  # not needed any more
    back = type(sizes).load(tmp_path / "model")
    batch = sizes.collate(sizes.tokenizer(tmp_path / "model"), [([2, 3], [4]), ([5], [6, 1, 2])])
    assert torch.equal(back(**batch), model(**batch)) and back(**batch).shape == (2, 2)


def test_loading_something_else_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no model that `save` wrote"):
        Re2.load(tmp_path)
    SMALL[0].save(SMALL[0].build(0, WORDS), WORDS, tmp_path)
    with pytest.raises(ConfigError, match="model.json describes no Esim"):
        Esim.load(tmp_path)
