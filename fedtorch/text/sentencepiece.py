"""Vocabularies for T5: training a small SentencePiece one, and loading any so that a broken one is noticed."""

from __future__ import annotations

import io
import json
import string
from collections.abc import Iterable, Sequence
from pathlib import Path

import sentencepiece
from transformers import PreTrainedTokenizerBase

from fedtorch.core.errors import ConfigError
from fedtorch.text.pretrained import load_tokenizer_as

# Every printable ASCII character, alone and in a word: a character that the training text lacks would become
# unknown and vanish on decoding.
_SYMBOLS = (" ".join(string.punctuation + string.digits + string.ascii_letters), string.punctuation, "<= >= <> != ||")
_PROBE = "select a from b"  # nothing that T5's own vocabulary lacks (it has no `<`, `{`, `}`)
_LONGEST_LINE_BYTES = 1 << 20  # SentencePiece drops longer lines without a word; its default is 4192, a schema's length


def train_vocabulary(texts: Iterable[str], folder: Path, *, size: int = 4000) -> None:
    """Trains a unigram vocabulary and writes it to `folder`, from where `load_tokenizer` reads it.

    The folder gets `spiece.model` and a `tokenizer_config.json` that switches off T5's 100 sentinel tokens. Ids: pad
    0, eos 1, unknown 2, no bos, as in T5. Same texts in the same order give the same bytes (one thread, nothing
    sampled, no path in the file). Characters are kept as they are (T5's own vocabulary applies NFKC).

    Args:
        texts: one text each; all their characters get into the vocabulary.
        size: at most this many entries; fewer if the texts do not support that many.

    Raises:
        ConfigError: `size` is too small for the characters of the texts.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*texts, *_SYMBOLS]),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            max_sentence_length=_LONGEST_LINE_BYTES,
            shuffle_input_sentence=False,
            num_threads=1,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"no vocabulary of size {size} could be trained: {error}; choose a larger size") from None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spiece.model").write_bytes(model.getvalue())
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_tokenizer(
    folder_or_name: str | Path, add_tokens: Sequence[str] = (), *, probe: str = _PROBE, key: str = ""
) -> PreTrainedTokenizerBase:
    """A usable T5 tokenizer from a folder (`spiece.model`, ours or T5's, is enough), or of a hub name: see `located`.

    `probe` must come back from encoding and decoding unchanged.

    Args:
        add_tokens: appended to the vocabulary unless they are in it; the model's embedding must follow. What stands
            right behind an added token comes back with a blank before it (transformers 5.23): with ` <` alone, `<>`
            is decoded as `< >`. So with Lorar's ` <` and ` <=` add ` <>` too; a trained vocabulary needs none of them.

    Raises:
        ConfigError: no such folder or name, or what is there is no usable tokenizer.
    """
    tokenizer = load_tokenizer_as("T5", folder_or_name, lambda loaded: _problem(loaded, probe), key=key)
    if add_tokens:
        tokenizer.add_tokens(list(add_tokens))
    return tokenizer


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Text of the ids without special tokens; transformers' clean-up of spaces is off, it would change SQL."""
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def _problem(tokenizer: PreTrainedTokenizerBase, probe: str) -> str | None:
    ids = tokenizer(probe).input_ids
    if not ids or ids[-1] != tokenizer.eos_token_id:
        return "it does not end a text with the end token"
    if tokenizer.pad_token_id is None:
        return "it has no padding token"
    if tokenizer.unk_token_id in ids:
        return f"it does not know parts of {probe!r}"
    back = decode(tokenizer, ids)
    return None if back == probe else f"{probe!r} comes back as {back!r}"
