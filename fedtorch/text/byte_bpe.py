"""Sub-word vocabularies over bytes, in which nothing is unknown: training BPE or WordPiece, and loading any checked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from fedtorch.core.errors import ConfigError
from fedtorch.text.pretrained import load_tokenizer_as

Kind = Literal["bpe", "wordpiece"]
"""BPE merges pairs in the order in which they were learned; WordPiece takes the longest piece that fits."""
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # RoBERTa's, with its ids 0 to 3
_BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LONGEST_WORD = 64
"""Bytes of a word for WordPiece, whose time is the cube of a word's length; a longer one is cut into several."""
_PROBE = " select name"


def train_subwords(
    texts: Iterable[str] | Iterable[list[str]],
    folder: Path,
    *,
    size: int,
    kind: Kind = "bpe",
    min_frequency: int = 0,
    prefix_space: bool = False,
    lower: bool = False,
) -> None:
    """Train a byte-level vocabulary of at most `size` entries on `texts` and write it to `folder`.

    Nothing is ever unknown: all 256 bytes are entries. Same texts in the same order give the same file.

    Args:
        texts: one by one, or lists of them, which are read faster.
        kind: `bpe` has RoBERTa's special tokens and frames texts as RoBERTa does, `wordpiece` as BERT does.
        min_frequency: pieces that occur less often are not joined.
        prefix_space: read a text as if a space stood before it, so that its first word is as any other.
        lower: read capitals as small letters.

    Raises:
        ConfigError: `size` has no room for bytes and special tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    least = least_size(kind)
    if size < least:
        raise ConfigError(f"a byte-level vocabulary of size {size} was asked for; its bytes alone need {least}")
    learns: Any = {"vocab_size": size, "initial_alphabet": alphabet, "show_progress": False}
    learns["min_frequency"] = min_frequency
    is_bpe = kind == "bpe"
    trained, named = (_bpe if is_bpe else _wordpiece)(prefix_space)
    if lower:
        trained.normalizer = normalizers.Lowercase()
    if is_bpe:
        trainer: Any = trainers.BpeTrainer(special_tokens=list(_SPECIAL), **learns)
    else:
        # given beforehand, as tokenizers numbers them by a hash map that differs from run to run
        inside: list[str | AddedToken] = [f"##{byte}" for byte in alphabet]
        trainer = trainers.WordPieceTrainer(special_tokens=[*_BERT_SPECIAL, *inside], **learns)
    trained.train_from_iterator(texts, trainer)
    if not is_bpe:  # anew, as entries that were given beforehand would be cut out of texts and left out of answers
        learned = models.WordPiece(trained.get_vocab(), unk_token="[UNK]")
        normalizer = trained.normalizer
        trained, _ = _wordpiece(prefix_space)
        trained.model, trained.normalizer = learned, normalizer
    vocabulary = PreTrainedTokenizerFast(tokenizer_object=trained, **named)
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary.save_pretrained(folder)


def least_size(kind: Kind = "bpe") -> int:
    """Entries of a vocabulary that has learned nothing: special tokens and bytes; of WordPiece also those in a word."""
    bytes_ = len(pre_tokenizers.ByteLevel.alphabet())
    return bytes_ + len(_SPECIAL) if kind == "bpe" else 2 * bytes_ + len(_BERT_SPECIAL)


def _bpe(prefix_space: bool) -> tuple[Tokenizer, dict[str, str]]:
    """An untrained tokenizer, and which special token plays which part."""
    empty = Tokenizer(models.BPE())
    empty.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    empty.decoder = decoders.ByteLevel()
    empty.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=prefix_space)
    named = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), _SPECIAL, strict=True))
    return empty, {**named, "cls_token": "<s>", "sep_token": "</s>"}


def _wordpiece(prefix_space: bool) -> tuple[Tokenizer, dict[str, str]]:
    """As `_bpe`; a word's pieces after the first begin with `##`."""
    empty = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    signs = pre_tokenizers.Split("#", "isolated")  # so that `##` at the start of a piece never stands for itself
    empty.pre_tokenizer = pre_tokenizers.Sequence([words, signs, pre_tokenizers.FixedLength(_LONGEST_WORD)])
    empty.decoder = decoders.Sequence([decoders.Replace(Regex("^##"), ""), decoders.ByteLevel()])
    empty.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return empty, dict(zip(names, _BERT_SPECIAL, strict=True))


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
