"""Vocabularies for T5: training a small SentencePiece one, and loading any so that a broken one is noticed."""

from __future__ import annotations

import io
import json
import string
from collections.abc import Iterable, Sequence
from pathlib import Path

import sentencepiece
from transformers import AutoTokenizer, PreTrainedTokenizerBase, T5Tokenizer

from fedtorch.errors import ConfigError

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
    folder_or_name: str | Path, add_tokens: Sequence[str] = (), *, probe: str = _PROBE
) -> PreTrainedTokenizerBase:
    """A usable T5 tokenizer from a folder or, for anything that cannot be a path, from the Hugging Face hub.

    transformers 5 returns a toy tokenizer without any error for an empty folder, or for a hub name when offline; so
    `probe` must come back from encoding and decoding unchanged.

    Args:
        folder_or_name: a folder with `spiece.model` (ours or T5's) or one written by `save_pretrained`; or a name
            like `t5-base`. A `Path`, an absolute or dotted name, more than one `/`, or a first part that exists on
            disk is taken for a path, and no network is tried.
        add_tokens: appended to the vocabulary unless they are in it; the model's embedding must follow. What stands
            right behind an added token comes back with a blank before it (transformers 5.23): with ` <` alone, `<>`
            is decoded as `< >`. So with Lorar's ` <` and ` <=` add ` <>` too; a trained vocabulary needs none of them.

    Raises:
        ConfigError: no such folder or name, or what is there is no usable tokenizer.
    """
    name = str(folder_or_name)
    folder = Path(folder_or_name).expanduser()
    if not name or (_is_path(folder_or_name) and not folder.is_dir()):
        raise ConfigError(
            f"{name!r} is not a folder; expected one with `spiece.model`, such as the `tokenizer` folder that "
            f"`python -m fedtorch.data prepare` writes, or a hub name like `t5-base`"
        )
    loader = T5Tokenizer
    if folder.is_dir():
        if not any((folder / file).is_file() for file in ("spiece.model", "tokenizer.json")):
            raise ConfigError(f"{name} has neither `spiece.model` nor `tokenizer.json`; it is not a tokenizer's folder")
        name = str(folder)
        is_named = any((folder / file).is_file() for file in ("tokenizer_config.json", "config.json"))
        loader = AutoTokenizer if is_named else T5Tokenizer
    try:
        tokenizer: PreTrainedTokenizerBase = loader.from_pretrained(name)
    except Exception as error:  # whatever the file's parser or the hub client raises; none of it names the remedy
        raise ConfigError(
            f"no tokenizer could be loaded from {name} ({type(error).__name__}: {str(error)[:200]}); give the folder "
            f"of a downloaded model, or download the hub model before going offline"
        ) from error
    _check(tokenizer, name, probe)
    if add_tokens:
        tokenizer.add_tokens(list(add_tokens))
    return tokenizer


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Text of the ids without special tokens; transformers' clean-up of spaces is off, it would change SQL."""
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def _check(tokenizer: PreTrainedTokenizerBase, name: str, probe: str) -> None:
    ids = tokenizer(probe).input_ids
    problem = None
    if not ids or ids[-1] != tokenizer.eos_token_id:
        problem = "it does not end a text with the end token"
    elif tokenizer.pad_token_id is None:
        problem = "it has no padding token"
    elif tokenizer.unk_token_id in ids:
        problem = f"it does not know parts of {probe!r}"
    elif decode(tokenizer, ids) != probe:
        problem = f"{probe!r} comes back as {decode(tokenizer, ids)!r}"
    if problem:
        raise ConfigError(
            f"{name}: not a usable T5 tokenizer ({len(tokenizer)} entries): {problem}; check that its `spiece.model` "
            f"or `tokenizer.json` is complete"
        )


def _is_path(folder_or_name: str | Path) -> bool:
    if isinstance(folder_or_name, Path) or Path(folder_or_name).exists():
        return True
    first = folder_or_name[:1]
    return (
        first in ("", ".", "/", "~")
        or "\\" in folder_or_name
        or folder_or_name.count("/") > 1
        or folder_or_name.endswith("/")
        or ("/" in folder_or_name and Path(folder_or_name.split("/")[0]).exists())
    )
