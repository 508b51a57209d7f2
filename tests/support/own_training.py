"""A training function of a user's own, for `client.trainer`."""

from __future__ import annotations

from typing import Any

import torch


def train(model: Any, rows: Any, context: Any) -> dict[str, float]:
    """Steps of momentum, which begin where the client's last training ended."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.02, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        loss_sum, count = context.task.loss(model, context.task.collate(rows[step : step + 4], True))
        (loss_sum / count).backward()
        optimizer.step()
        context.on_step(step + 1)
    context.state["trainings"] = context.state.get("trainings", 0) + 1
    return {"loss": float(loss_sum.detach() / count), "trainings": context.state["trainings"]}
