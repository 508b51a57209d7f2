"""A training loop as a user of torch and transformers would write it; the order of rows and the seeds are ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from fedtorch.core.seeds import generator_for, seed_for
from fedtorch.tasks.own import OwnTask

Rows = Sequence[Mapping[str, Any]]


def rows_and_tokenizer(task: OwnTask, **options: Any) -> tuple[list[dict[str, Any]], Any]:
    """The rows of the only client, and what reads them; both as they lie on disk."""
    lines = (task.folder / "client_000" / "train.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], AutoTokenizer.from_pretrained(task.folder / "tokenizer", **options)


def random_model(auto: Any, sizes: Mapping[str, Any], tokenizer: Any, num_labels: int) -> Any:
    """A model of transformers with weights drawn by torch. auto: its class; sizes: `random` is the kind."""
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")}
    fields = {key: value for key, value in sizes.items() if key != "random"}
    torch.manual_seed(0)
    return auto.from_config(
        AutoConfig.for_model(sizes["random"], vocab_size=len(tokenizer), num_labels=num_labels, **ids, **fields)
    )


def plain_loop(
    model: Any, rows: Rows, loss: Callable[[Rows], torch.Tensor], optimizer: Callable[..., Any], lr: float, rounds: int
) -> torch.Tensor:
    """What is learned of a model, flat, after so many epochs, each with an optimizer of its own, in batches of four."""
    learned = [parameter for parameter in model.train().parameters() if parameter.requires_grad]
    for round in range(rounds):
        before = [parameter.detach().clone() for parameter in learned]
        stepper = optimizer(learned, lr=lr, weight_decay=0.0)
        torch.manual_seed(seed_for(0, "train/dropout", "client_000", round))
        draw = generator_for(seed_for(0, "train"), "order", "client_000", round)
        order = torch.randperm(len(rows), generator=draw).tolist()
        for start in range(0, len(rows), 4):
            loss([rows[i] for i in order[start : start + 4]]).backward()
            stepper.step()
            stepper.zero_grad()
        with torch.no_grad():  # what travels is the difference of a round
            for parameter, value in zip(learned, before, strict=True):
                parameter.copy_(value + (parameter - value))
    return torch.cat([parameter.detach().flatten() for parameter in learned])


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor, most: float = 1e-16) -> None:
    """Sums of clients keep 51 bits below the largest difference: too few for a bias whose gradient is rounding error.

    most: by which such a one may differ.
    """
    visible = expected.abs() > 1e-9
    assert torch.equal(found[visible], expected[visible]) and (found - expected).abs().max() < most
