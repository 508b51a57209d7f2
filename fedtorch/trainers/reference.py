"""The start model beside the one that is trained, for losses that compare with it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fedtorch.train.job import ClientJob


@torch.no_grad()
def start_model(job: ClientJob, weights: Tensor | None = None) -> nn.Module:
    """A copy of the module with the run's first weights, in eval mode; what is never trained is shared, not copied.

    weights: flat over the shared layout, in place of w^0.
    """
    engine = job.engine
    memo: dict[int, Any] = {
        id(engine.module.get_parameter(name)): engine.module.get_parameter(name) for name in engine.fixed
    }
    model = copy.deepcopy(engine.module, memo)
    parameters = dict(model.named_parameters())
    private = engine.initial_private if job.first_private is None else job.first_private
    for layout, flat in ((engine.shared, job.initial if weights is None else weights), (engine.private, private)):
        for name, values in layout.view(flat).items():
            parameters[name].copy_(values)
    for name, parameter in parameters.items():
        if name not in engine.fixed:
            parameter.requires_grad_(False)
    return model.eval()
