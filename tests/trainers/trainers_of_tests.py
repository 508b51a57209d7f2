"""Functions that train, or that do what they should not."""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch

calls = {"count": 0}


def sgd(model: Any, rows: Any, context: Any) -> dict[str, float]:
    """Plain steps; it counts its rounds where it may."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=context.args.get("lr", 0.1))
    total = 0.0
    for step in range(context.steps):
        loss_sum, count = context.task.loss(model, context.task.collate(rows[step : step + 2], True))
        (loss_sum / count).backward()
        optimizer.step()
        optimizer.zero_grad()
        total += float(loss_sum / count)
        context.on_step(step + 1)
    context.state["rounds"] = context.state.get("rounds", 0) + 1
    context.state["last"] = torch.tensor([total])
    return {"loss": total / context.steps, "rounds": context.state["rounds"]}


def nothing_told(model: Any, rows: Any, context: Any) -> None:
    context.on_step(1)


def raises(model: Any, rows: Any, context: Any) -> None:
    if context.client == "north":
        raise KeyError("a secret of north")
    sgd(model, rows, context)


def exits(model: Any, rows: Any, context: Any) -> None:
    if context.client == "north":
        sys.exit(3)
    sgd(model, rows, context)


def not_finite(model: Any, rows: Any, context: Any) -> None:
    sgd(model, rows, context)
    if context.client == "north":
        with torch.no_grad():
            next(iter(model.parameters())).fill_(float("nan"))


def resizes(model: Any, rows: Any, context: Any) -> None:
    if context.client == "north":
        model.resize_token_embeddings(len(context.tokenizer) + 3)
    else:
        sgd(model, rows, context)


def casts(model: Any, rows: Any, context: Any) -> None:
    if context.client == "north":
        model.to(torch.bfloat16)
    else:
        sgd(model, rows, context)


def adds(model: Any, rows: Any, context: Any) -> None:
    if context.client == "north":
        model.register_parameter("more", torch.nn.Parameter(torch.zeros(2)))
    else:
        sgd(model, rows, context)


def tells_text(model: Any, rows: Any, context: Any) -> dict[str, Any]:
    return {"note": "a secret"}


def keeps_text(model: Any, rows: Any, context: Any) -> None:
    context.state["note"] = "a secret"


def leaves_things(model: Any, rows: Any, context: Any) -> None:
    """Hooks, modes, seeds, an environment, a folder, grads, dropout off, another config."""
    import os
    import random

    sgd(model, rows, context)
    model.register_forward_hook(lambda *args: None)
    model.config.use_cache, model.config.n_head, model.note = False, 77, "mine"
    for part in model.modules():
        part.eval()
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.9
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    os.environ["MY_NOTE"] = "1"
    os.chdir("/")
    random.seed(1), torch.manual_seed(1), torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64), torch.set_grad_enabled(False)


def leaves_a_thread(model: Any, rows: Any, context: Any) -> None:
    sgd(model, rows, context)
    threading.Thread(target=threading.Event().wait, args=(20,), daemon=True, name="left-by-a-test").start()


def remembers(model: Any, rows: Any, context: Any) -> None:
    calls["count"] += 1
    with torch.no_grad():
        next(iter(model.parameters())).add_(0.01 * calls["count"])
    context.on_step(1)


def sees_ranks(model: Any, rows: Any, context: Any) -> dict[str, float]:
    import os

    names = [name for name in os.environ if name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") or name.startswith("MASTER_")]
    sgd(model, rows, context)
    return {"loss": 1.0, "variables": len(names)}


def two_arguments(model: Any, rows: Any) -> None:
    pass


def keeps_all_kinds(model: Any, rows: Any, context: Any) -> None:
    """Names that the package has for things of its own, and numbers that are no counts."""
    kept = {
        "epoch": 0.5, "steps": -1, "best": float("inf"), "optimizer/m": torch.arange(6.0).view(2, 3).t(),
        "flag": torch.tensor([True]), "nothing": torch.zeros(0), "half": torch.ones(2, dtype=torch.bfloat16),
        "large": 2**53,
    }  # fmt: skip
    if context.round:
        assert sorted(context.state) == sorted({*kept, "seen"})
        assert all(torch.equal(torch.as_tensor(context.state[name]), torch.as_tensor(kept[name])) for name in kept)
    context.state.update(kept)
    sgd(model, rows, context)
    del context.state["rounds"], context.state["last"]
    context.state["seen"] = context.round


def keeps_sparse(model: Any, rows: Any, context: Any) -> None:
    context.state["m"] = torch.eye(3).to_sparse()


def keeps_too_large(model: Any, rows: Any, context: Any) -> None:
    context.state["m"] = 2**53 + 1
