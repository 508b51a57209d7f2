"""Several texts in one row, none of which sees another; and what a decoder must not do with its texts.

B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedtorch.core.shapes import has_values
from fedtorch.models.padding import pad

PADDING = -1
"""The segment of a place that no text has."""
_LEAK = 1e-3
"""The part of a text's influence on the next one that may be left, for rounding: 1e-7 to 1e-5 of it, measured; a mask
that is not heeded leaves 5e-3 and more."""


def bins(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Which texts share a row of at most `most` tokens: each goes into the first row with room."""
    rows: list[list[int]] = []
    taken: list[int] = []
    for text, length in enumerate(lengths):
        place = next((row for row, size in enumerate(taken) if size + length <= most), len(rows))
        if place == len(rows):
            rows.append([])
            taken.append(0)
        rows[place].append(text)
        taken[place] += length
    return rows


def shared_rows(lengths: Sequence[int], most: int) -> list[list[int]]:
    """`bins`, or nothing where a row for each text is as short, padding counted."""
    rows = bins(lengths, most)
    longest = max(sum(lengths[text] for text in row) for row in rows)
    return rows if len(rows) * longest < len(lengths) * max(lengths) else []


def packed(texts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], pad_id: int) -> dict[str, Tensor]:
    """input_ids, position_ids that begin anew with each text, segments (B, T), int64; rows: see `bins`."""
    ids = [[token for text in row for token in texts[text]] for row in rows]
    places = [[place for text in row for place in range(len(texts[text]))] for row in rows]
    numbers = [[number for number, text in enumerate(row) for _ in texts[text]] for row in rows]
    return {"input_ids": pad(ids, pad_id), "position_ids": pad(places, 0), "segments": pad(numbers, PADDING)}


def packed_logits(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Logits (B, T, vocabulary) of texts that `packed` made, each as if it stood alone."""
    mask = block_mask(batch["segments"], next(model.parameters()).dtype)
    inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
    found: Tensor = model(**inputs, attention_mask=mask, use_cache=False).logits
    return found


def block_mask(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, 1, T, T), to be added to scores: 0 where a place may look, the smallest number elsewhere."""
    size = segments.shape[1]
    is_before = torch.ones(size, size, dtype=torch.bool, device=segments.device).tril()
    may_look = (segments[:, :, None] == segments[:, None, :]) & is_before
    none = torch.zeros((), dtype=dtype, device=segments.device)
    return torch.where(may_look, none, torch.finfo(dtype).min)[:, None]


def why_not_packed(model: nn.Module, length: int) -> str:
    """Why texts of this model cannot share a row of `length` tokens; empty if they can. Tried on two texts.

    The first has all tokens of the row but two, so that a window of attention that is shorter shows. Nothing is tried
    on a model without values, which is only counted.
    """
    if length < 4:
        return f"rows of {length} tokens hold no two texts"
    if not has_values(model):
        return ""
    ids = _some_tokens(model, length)
    texts = [ids[:-2], ids[-2:]]
    with _quiet(model) as device:
        alone = torch.cat([_logits(model, text, device) for text in texts], 1)
        together = _logits(model, ids, device)
        batch = {name: value.to(device) for name, value in packed(texts, [[0, 1]], 0).items()}
        try:
            found = packed_logits(model, batch).float()
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            return f"it takes no mask of blocks ({type(error).__name__})"
    left, whole = float((found - alone).abs().max()), float((together - alone).abs().max())
    return "" if left <= _LEAK * whole else f"texts that share a row differ by {left:.1e} from texts alone"


def looks_ahead(model: nn.Module, length: int = 6) -> bool:
    """Do a text's first tokens depend on its last one? Then what is to be foretold is seen. length: tokens to try.

    False for a model without values, which is only counted.
    """
    if length < 2 or not has_values(model):
        return False
    ids = _some_tokens(model, length)
    with _quiet(model) as device:
        one, other = (_logits(model, [*ids[:-1], last], device)[:, :-1] for last in (ids[-1], ids[0]))
    return bool((one - other).abs().max() > 1e-5 * one.abs().max())


def _some_tokens(model: Any, length: int) -> list[int]:
    size = int(model.config.get_text_config().vocab_size)
    return [(7 * place + 3) % size for place in range(length)]


def _logits(model: Any, ids: Sequence[int], device: torch.device) -> Tensor:
    found: Tensor = model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits
    return found.float()


@contextmanager
def _quiet(model: nn.Module) -> Iterator[torch.device]:
    """Without dropout and gradients; afterwards the model is as it was."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        model.train(was_training)
