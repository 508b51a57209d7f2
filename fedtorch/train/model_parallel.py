"""A module whose parts are computed by different ranks of a worker: whose gradients, norms and state are whose.

The first rank of a worker leads: it puts the update together, so it needs the gradients of all shared parameters. What
is private to another rank stays there; of it only the norms of gradients are sent, for clipping.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fedtorch.comm.worker import WorkerGroup
from fedtorch.core import state_keys as keys

_PRIVATE = (keys.PRIVATE, keys.BEST_PRIVATE)  # flat over the private layout
_NONE = -1.0  # in place of the norm of a gradient that is not there


@dataclass(frozen=True)
class ParameterOwners:
    """Which rank of the worker computes which parameters."""

    owners: Mapping[str, int]
    """Parameter -> rank of the worker."""
    private: frozenset[str]
    """The private parameters, all of one owner."""

    @classmethod
    def of(cls, owners: Mapping[str, int], private: Sequence[str]) -> ParameterOwners | None:
        """None if every rank computes all parameters.

        Raises:
            ValueError: private parameters of different ranks, which are kept in one vector.
        """
        if not owners:
            return None
        first: dict[int, str] = {}
        for name in private:
            first.setdefault(owners[name], name)
        if len(first) > 1:
            raise ValueError(
                f"partition.private has {' and '.join(f'`{name}`' for name in first.values())}, which different ranks "
                "compute; make those of one rank shared or frozen, or set system.ranks_per_worker to 1"
            )
        return cls(owners, frozenset(private))

    def keeper(self, entry: str) -> int | None:
        """The only rank that has an entry of a client's state; None: all have it, and the leader's counts."""
        if entry in _PRIVATE:
            return next((self.owners[name] for name in self.private), None)
        name = entry.partition(keys.OPTIMIZER)[2].rpartition("/")[0]
        return self.owners[name] if name in self.private else None


def collect_shared(
    worker: WorkerGroup, owners: ParameterOwners, trained: Mapping[str, nn.Parameter], shared: Collection[str]
) -> None:
    """Send the leader the gradients of the shared parameters that others computed; all ranks of the worker call it.

    trained: by name, in the same order on every rank. shared: names of the shared ones, whose `grad` the leader sets.
    """
    for owner in range(1, worker.size):
        theirs = [p for name, p in trained.items() if name in shared and owners.owners[name] == owner]
        if not theirs:
            continue
        present = worker.all_gather_floats([float(p.grad is not None) for p in theirs])[owner]
        having = [p for p, is_there in zip(theirs, present, strict=True) if is_there]
        if worker.rank == owner:
            grads = [p.grad.detach().reshape(-1) for p in having if p.grad is not None]
            worker.send(torch.cat(grads) if grads else torch.zeros(0))
        elif worker.leads:
            flat, _ = worker.receive()
            for p, part in zip(having, flat.split([p.numel() for p in having]), strict=True):
                p.grad = part.view(p.shape).to(p.device, p.dtype)


def clip_gradients(
    worker: WorkerGroup | None, owners: ParameterOwners | None, trained: Mapping[str, nn.Parameter], max_norm: float
) -> None:
    """`clip_grad_norm_` over the parameters of all ranks, with the bits of one process; all ranks call it.

    worker, owners: None if this rank computes all gradients. trained: by name, in the same order on every rank.
    """
    parameters = list(trained.values())
    if worker is None or owners is None:
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        return
    present = [torch.linalg.vector_norm(p.grad) for p in parameters if p.grad is not None]
    found = iter(torch.stack(present).tolist() if present else ())  # the device is waited for once
    norms = [_NONE if p.grad is None else next(found) for p in parameters]
    known = worker.all_gather_floats(norms)
    true = [known[owners.owners[name] if name in owners.private else 0][place] for place, name in enumerate(trained)]
    first = parameters[0]
    whole = torch.tensor([norm for norm in true if norm != _NONE], dtype=first.dtype, device=first.device)
    if len(whole):
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, torch.linalg.vector_norm(whole))
