"""Sub-word vocabularies for encoders: training a byte-level BPE in RoBERTa's manner, and loading any checked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from fedtorch.core.errors import ConfigError
from fedtorch.text.pretrained import load_tokenizer_as

_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # RoBERTa's, with its ids 0 to 3
_PROBE = " select name"


def train_subwords(texts: Iterable[str], folder: Path, *, size: int) -> None:
    """Train a byte-level BPE of at most `size` entries on `texts` and write it to `folder`.

    Nothing is ever unknown: all 256 bytes are entries. Same texts in the same order give the same file.

    Raises:
        ConfigError: `size` has no room for bytes and special tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if size < len(alphabet) + len(_SPECIAL):
        least = len(alphabet) + len(_SPECIAL)
        raise ConfigError(f"a byte-level vocabulary of size {size} was asked for; its bytes alone need {least}")
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trained.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(_SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    trained.train_from_iterator(texts, trainer)
    named = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), _SPECIAL, strict=True))
    vocabulary = PreTrainedTokenizerFast(tokenizer_object=trained, cls_token="<s>", sep_token="</s>", **named)
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary.save_pretrained(folder)


def load_subwords(name: str | Path, *, key: str = "") -> PreTrainedTokenizerBase:
    """The tokenizer of an encoder, in a folder, an installed package or the hub: see `located`. key: for messages.

    Raises:
        ConfigError: no such folder, package or name, or what is there is no tokenizer with pad, start, end and mask.
    """
    return load_tokenizer_as("encoder's", name, _problem, key=key)


def _problem(tokenizer: PreTrainedTokenizerBase) -> str | None:
    special = ("pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
    if missing := [role for role in special if getattr(tokenizer, role, None) is None]:
        return f"it has no {', '.join(missing)}"
    ids = tokenizer(_PROBE, add_special_tokens=False).input_ids
    return f"it does not know parts of {_PROBE!r}" if not ids or tokenizer.unk_token_id in ids else None
