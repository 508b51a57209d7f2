"""WordPiece vocabularies for BERT: training a small one, and loading any so that a broken one is noticed."""

from __future__ import annotations

import string
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken
from tokenizers.implementations import BertWordPieceTokenizer
from transformers import BertTokenizer

from fedtorch.core.errors import ConfigError
from fedtorch.text.wordpieces import load_wordpieces

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# In every vocabulary, also of texts that lack some of them
_ALPHABET = string.ascii_lowercase + string.digits + string.punctuation


def train_wordpiece(texts: Iterable[str], folder: Path, *, size: int = 8000, min_frequency: int = 2) -> None:
    """Trains an uncased vocabulary and writes it to `folder`, from where `load_wordpieces` reads it.

    Lower case, accents stripped, punctuation split off, as BERT's own; all printable ASCII characters are in it. Ids:
    padding 0, unknown 1, `[CLS]` 2, `[SEP]` 3, mask 4. The same texts give the same bytes.

    Args:
        size: at most this many entries; fewer if the texts do not support that many.
        min_frequency: pieces that occur less often are not joined.

    Raises:
        ConfigError: `size` is too small for the characters of the texts, or nothing usable came out.
    """
    texts = list(texts)
    trained = BertWordPieceTokenizer(lowercase=True)
    special: list[str | AddedToken] = [*_SPECIAL, *_continuations(trained, texts)]
    trained.train_from_iterator(
        iter(texts),
        vocab_size=size,
        min_frequency=min_frequency,
        initial_alphabet=list(_ALPHABET),
        special_tokens=special,
        show_progress=False,
    )
    vocabulary = dict(sorted(trained.get_vocab().items(), key=lambda entry: entry[1]))
    if len(vocabulary) > size:
        raise ConfigError(f"the characters alone need {len(vocabulary)} entries, not {size}; choose a larger size")
    BertTokenizer(vocab=vocabulary).save_pretrained(folder)
    loaded = load_wordpieces(folder)
    if len(loaded) != len(vocabulary):
        raise ConfigError(f"{folder}: {len(loaded)} entries were read back of {len(vocabulary)} written")


def _continuations(tokenizer: BertWordPieceTokenizer, texts: Iterable[str]) -> list[str]:
    """`##x` for every character x that can stand inside a word, sorted.

    tokenizers 0.23 numbers them in the order of a hash map that differs from run to run, and settles ties between
    pieces by those numbers: two trainings on the same texts differ. Given beforehand, their numbers are fixed. (No
    longer needed when `test_training_twice_gives_the_same_bytes` passes without.)
    """
    characters = set(_ALPHABET).union(*(tokenizer.normalize(text) for text in texts))
    splits = tokenizer.pre_tokenizer.pre_tokenize_str
    return [f"##{character}" for character in sorted(characters) if len(splits(f"a{character}a")) == 1]
