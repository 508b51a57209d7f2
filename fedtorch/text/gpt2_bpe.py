"""Byte-level BPE vocabularies for GPT-2: training a small one, and loading any so that a broken one is noticed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Tokenizer, PreTrainedTokenizerBase

from fedtorch.core.errors import ConfigError
from fedtorch.text.pretrained import load_tokenizer_as

EOS = "<|endoftext|>"
_BYTES = 256
_PROBE = "Hé, 2 lattes – to go?"


def train_bpe(texts: Iterable[str], folder: Path, *, size: int = 4000) -> None:
    """Train a byte-level vocabulary of at most `size` entries and write it to `folder` for `load_bpe`.

    Entry 0 is the separator; all 256 bytes are in, so that no text is unknown. Same texts, same vocabulary.

    Raises:
        ConfigError: `size` is below 257.
    """
    if size <= _BYTES:
        raise ConfigError(
            f"a vocabulary of {size} entries cannot hold {_BYTES} bytes and the separator; use 300 or more"
        )
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    GPT2Tokenizer(tokenizer_object=trained, bos_token=EOS, eos_token=EOS, unk_token=EOS).save_pretrained(folder)


def load_bpe(folder_or_name: str | Path, *, key: str = "") -> PreTrainedTokenizerBase:
    """A usable GPT-2 tokenizer from a folder, or of a hub name: see `located`. A probe must come back unchanged.

    Raises:
        ConfigError: nothing could be loaded, or what was is no byte-level vocabulary.
    """
    return load_tokenizer_as("GPT-2", folder_or_name, _problem, key=key)


def _problem(tokenizer: PreTrainedTokenizerBase) -> str | None:
    ids = tokenizer(_PROBE).input_ids
    back = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if len(tokenizer) <= _BYTES or not ids or back != _PROBE:
        return f"{_PROBE!r} comes back as {back!r}"
    return "it has no separator" if tokenizer.eos_token_id is None else None
