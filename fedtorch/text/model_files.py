"""The only way to classes of transformers that read a folder: local files, no code, safetensors; checked before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from fedtorch.core.errors import ConfigError
from fedtorch.core.model_folder import ADAPTED, CONFIG
from fedtorch.core.regular_file import check_regular, shown_path

_NO_CODE = "fedtorch runs no code of a model's folder; save it with a class that transformers has"
_CONFIGS = (CONFIG, ADAPTED, "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
_INDEX = "*.safetensors.index.json"
_READ = (".json", ".txt", ".model", ".safetensors", ".jinja", ".bin", ".tiktoken", ".vocab")  # what libraries open


def load_from(
    loader: Any, folder: str | Path, *, allows_code: bool = False, advice: str = _NO_CODE, **given: Any
) -> Any:
    """`loader.from_pretrained(folder)`, which asks no network and nobody on the terminal, and unpickles nothing.

    Args:
        loader: a class of transformers; of a model, only safetensors are read.
        allows_code: may files of the folder be run? The user has said so in the config.
        advice, given: see `check_folder`; passed on to `from_pretrained`.

    Raises:
        ConfigError, DataError: as `check_folder`; and whatever the loader raises.
    """
    check_folder(Path(folder), allows_code=allows_code, advice=advice)
    is_model = loader not in (AutoConfig, AutoTokenizer) and not issubclass(loader, PreTrainedTokenizerBase)
    if is_model:
        refuse_quantized(Path(folder))
    weights = {"use_safetensors": True} if is_model else {}  # a tokenizer would keep the word in its own files
    safe = {"local_files_only": True, "trust_remote_code": allows_code}
    return loader.from_pretrained(str(folder), **safe, **weights, **given)


def check_folder(folder: Path, *, allows_code: bool = False, advice: str = _NO_CODE) -> None:
    """Refuse a model's folder that would run code, or whose files are not its own; reads no weights.

    advice: what to do about code, for the message.

    Raises:
        ConfigError: it names code to run (`auto_map`), or parts of the weights that are elsewhere.
        DataError: a file in it is a FIFO, a socket or a device.
    """
    if not folder.is_dir():
        return  # the loader says so
    for file in sorted(folder.iterdir()):
        if file.suffix in _READ and not file.is_dir():
            check_regular(file, "the model's file")
    for name in _CONFIGS if not allows_code else ():
        if code := _code(_parsed(folder / name)):
            raise ConfigError(f"{shown_path(folder / name)} has an auto_map, by which {code} would be run; {advice}")
    for index in folder.glob(_INDEX):
        _check_index(index)


def refuse_quantized(folder: Path) -> None:
    """Refuse a model whose files hold weights that a library has quantised: what is trained and sent are numbers.

    Raises:
        ConfigError: `config.json` says that they are.
    """
    found = _parsed(folder / CONFIG)
    how = found.get("quantization_config") if isinstance(found, dict) else None
    if how:
        method = how.get("quant_method") if isinstance(how, dict) else None
        raise ConfigError(
            f"{shown_path(folder / CONFIG)} has a quantization_config ({shown_path(str(method))}): its weights are "
            "quantised already, which fedtorch does not read; give the folder of the model in fp32, fp16 or bf16, and "
            "set task.model.quantize if it is to be kept in few bits"
        )


def _parsed(file: Path) -> Any:
    """Content of a JSON file; None: it cannot be read, which its reader will say."""
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _code(config: Any) -> str:
    """The files that a configuration, or one within it, would have run."""
    found: set[str] = set()
    waiting = [config]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if each.get("auto_map"):
                found |= _files(each["auto_map"])
            waiting += [value for key, value in each.items() if key != "auto_map"]
        elif isinstance(each, list):
            waiting += each
    return ", ".join(sorted(found)[:5])


def _files(code: Any) -> set[str]:
    """Names of files in an `auto_map`: class -> `file.Class`, or several of these."""
    values = code.values() if isinstance(code, dict) else [code]
    names = [name for value in values for name in (value if isinstance(value, list | tuple) else [value])]
    return {shown_path(str(name).partition(".")[0]) + ".py" for name in names if name is not None}


def _check_index(index: Path) -> None:
    """Raises ConfigError: the index of weights in several files names one that is not beside it."""
    found = _parsed(index)
    parts = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(parts, dict):
        raise ConfigError(f"{shown_path(index)} has no weight_map from tensors to files; write the model again")
    for name in sorted({str(part) for part in parts.values()}):
        if name in ("", "..") or Path(name).name != name or "\\" in name or "\0" in name:
            raise ConfigError(
                f"{shown_path(index)} names the file {shown_path(name)}, which is not in its folder; expected names "
                "such as model-00001-of-00002.safetensors"
            )
        if not _is_within(index.parent / name, _home(index.parent)):
            raise ConfigError(
                f"{shown_path(index.parent / name)} is a link that leads out of its folder; put the file itself there"
            )


def _home(folder: Path) -> Path:
    """The folder that files of a model may be in: a snapshot in the hub's cache has links to the blobs beside it."""
    real = folder.resolve()
    is_cached = real.parent.name == "snapshots" and (real.parent.parent / "blobs").is_dir()
    return real.parent.parent if is_cached else real


def _is_within(file: Path, home: Path) -> bool:
    try:
        return file.resolve().is_relative_to(home)
    except (OSError, RuntimeError):  # a circle of links
        return False
