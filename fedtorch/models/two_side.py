"""Dialog models: one GPT-2 per side (FedAssistant), or one for both as its baseline; the same losses from either.

A turn with tokens U is the segment: input [separator] + U, target U + [separator]. All segments' inputs one after
the other are exactly the one model's sequence, so with equal weights both give the same likelihoods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtorch.core import devices
from fedtorch.core.moved import moved
from fedtorch.core.seeds import seed_for, seed_torch
from fedtorch.models.link import Link, Peer, RankLink, Traffic, link_pair
from fedtorch.models.side import Passing, Side

USER, ASSISTANT = 0, 1


@dataclass
class Losses:
    """Negative log-likelihoods of a batch of B dialogs."""

    sums: Tensor
    """shape (2,), over the tokens of the user's and of the assistant's turns, with a graph"""
    tokens: tuple[int, int]
    """their numbers"""
    rows: Tensor
    """float64, shape (B, 2): the sums per dialog, without a graph"""
    row_tokens: Tensor
    """shape (B, 2): their numbers"""


class TwoSide(nn.Module):
    """The user's model and the assistant's, and the link between them.

    Parameters are called `user.…` and `assistant.…`, so that a partition can tell them apart. After `join` this process
    computes one of the sides: the worker's first rank the assistant's, the other the user's. Both have the same
    batches; what passes between them is keys and values, their gradients with `through`, and sums of losses. The other
    side's parameters are never read.
    """

    def __init__(self, user: nn.Module, assistant: nn.Module, passing: Passing | None = None) -> None:
        super().__init__()
        self.user, self.assistant = user, assistant
        self.passing = passing or Passing()
        self.traffic = Traffic()
        """what crossed the link since `take_traffic`"""
        self.peer: Peer | None = None
        """the worker's other rank after `join`"""
        self.computes_again = False
        self._dropout = 0  # the seed of this batch

    def compute_activations_again(self) -> None:
        """Keep no activations of a turn but its keys and values; the models' own way would keep no keys and values."""
        self.computes_again = True

    def join(self, peer: Peer | None) -> None:
        """Share the sides out between this rank and `peer`, the other one of its worker; None: both are here."""
        self.peer = peer

    @staticmethod
    def side_of_rank(rank: int) -> int:
        """The side that a rank of a worker of two computes."""
        return ASSISTANT if rank == 0 else USER

    @property
    def here(self) -> tuple[int, ...]:
        """The sides that are computed in this process."""
        return (USER, ASSISTANT) if self.peer is None else (self.side_of_rank(0 if self.peer.leads else 1),)

    def links(self) -> dict[int, Link]:
        """The ends of a new link, of the sides that are here."""
        if self.peer is None:
            return dict(enumerate(link_pair(self.traffic)))
        return {side: RankLink(self.peer, self.traffic) for side in self.here}

    @contextmanager
    def own_dropout(self, *turn: int) -> Iterator[None]:
        """Dropout of one turn, drawn from a generator of its own: a side's does not depend on what the other drew."""
        if not self.training:
            yield
            return
        device = next(self.parameters()).device
        with devices.same_numbers_again(device):
            seed_torch(seed_for(self._dropout, "turn", *turn), device)
            yield

    def take_traffic(self) -> Traffic:
        """Return what crossed the link since the last call."""
        traffic, self.traffic = self.traffic, Traffic()
        return traffic

    def forward(self, groups: Sequence[Mapping[str, Any]], size: int) -> Losses:
        """The losses of a batch that `collate_turns` made of `size` dialogs."""
        losses = Losses(torch.zeros(2), (0, 0), torch.zeros(size, 2, dtype=torch.float64), torch.zeros(size, 2))
        if self.training:
            self._dropout = int(torch.randint(2**62, ()))
        sums, told = [], list[tuple[Tensor, int]]()
        heard, counted = list[Tensor](), list[Tensor]()
        for place, group in enumerate(groups):
            walk = Walk(self, group, place)
            sums.append(walk.forward())
            for turn, (side, nll) in enumerate(zip(group["sides"], walk.nll, strict=True)):
                told.append((torch.tensor(group["rows"][: len(nll)]), side))
                heard.append(nll.detach().sum(1))
                counted.append((group["segments"][turn]["targets"] != -100).sum(1))
        parts = zip(told, moved(heard, devices.CPU), moved(counted, devices.CPU), strict=True)
        for (places, side), nll, tokens in parts:
            losses.rows[places, side] += nll.double()
            losses.row_tokens[places, side] += tokens
        losses.sums = torch.stack(sums).sum(0)
        user, assistant = losses.row_tokens.sum(0).tolist()
        losses.tokens = int(user), int(assistant)
        if self.peer is not None:
            self._complete(losses, self.peer)
        return losses

    def _complete(self, losses: Losses, peer: Peer) -> None:
        """Exchange the sums of losses of the side that is here for those of the other."""
        (own,) = self.here
        values = [float(losses.sums[own].detach()), *losses.rows[:, own].tolist()]
        theirs = peer.all_gather_floats(values)[1 if peer.leads else 0]
        others = torch.zeros_like(losses.sums)
        others[1 - own] = theirs[0]
        losses.sums = losses.sums + others  # 0 + x is x: the bits of one process
        losses.rows[:, 1 - own] = torch.tensor(theirs[1:], dtype=torch.float64)


class Walk:
    """The walk of the sides that are here through one group of dialogs with the same order of speakers; see `Side`."""

    def __init__(self, model: TwoSide, group: Mapping[str, Any], place: int = 0) -> None:
        models = (model.user, model.assistant)
        self.model, self.place = model, place
        self.sides = {
            side: Side(models[side], link, model.passing, model.computes_again) for side, link in model.links().items()
        }
        self.speakers: list[int] = group["sides"]
        self.segments: list[dict[str, Tensor]] = group["segments"]
        rows = [len(segment["inputs"]) for segment in self.segments]
        self.rows_after = [*rows[1:], 0]
        self.nll: list[Tensor] = []

    def forward(self) -> Tensor:
        """Sums of the losses of both sides, shape (2,); `nll` then has those of every token (0: not computed here)."""
        dtype = next(self.model.parameters()).dtype
        for turn, (speaker, segment) in enumerate(zip(self.speakers, self.segments, strict=True)):
            after = self.rows_after[turn]
            if speaker in self.sides:
                is_last = speaker not in self.speakers[turn + 1 : -1]
                with self.model.own_dropout(self.place, turn):
                    self.nll.append(self.sides[speaker].speak(turn, segment, after, is_last=is_last))
            else:
                self.nll.append(torch.zeros(segment["targets"].shape, dtype=dtype, device=segment["targets"].device))
            if after and 1 - speaker in self.sides:
                self.sides[1 - speaker].hear(turn, after)
        zero = self.nll[0].new_zeros(())
        sums = torch.stack(
            [sum((n.sum() for n, s in zip(self.nll, self.speakers, strict=True) if s == side), zero) for side in (0, 1)]
        )
        if next(iter(self.sides.values())).mode != "through":
            return sums
        anchor = torch.zeros((), requires_grad=True)  # makes autograd call the protocol's backward
        result: Tensor = _Through.apply(anchor, self, sums)
        return result

    def backward(self, scales: Tensor) -> None:
        """The backward protocol: from the last turn to the first, gradients of what was heard go back over the link."""
        for turn in reversed(range(len(self.speakers))):
            speaker, was_sent = self.speakers[turn], self.rows_after[turn] > 0
            if was_sent and 1 - speaker in self.sides:
                self.sides[1 - speaker].return_gradient(turn)
            if speaker in self.sides:
                self.sides[speaker].backward(turn, scales[speaker], was_sent=was_sent)


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, walk: Walk, sums: Tensor) -> Tensor:
        ctx.walk = walk
        return sums.clone()

    @staticmethod
    def backward(ctx: Any, *scales: Tensor) -> tuple[Tensor, None, None]:
        ctx.walk.backward(scales[0])
        return torch.zeros(()), None, None


class OneModel(nn.Module):
    """One GPT-2 that learns both sides' turns, separated by the separator (GPT_local, GPT_all)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, groups: Sequence[Mapping[str, Any]], size: int) -> Losses:
        """The losses of a batch that `collate_whole` made of `size` dialogs."""
        (batch,) = groups
        logits = self.model(input_ids=batch["inputs"], attention_mask=batch["mask"], use_cache=False).logits
        nll = functional.cross_entropy(
            logits.flatten(0, 1), batch["targets"].flatten(), ignore_index=-100, reduction="none"
        ).view(batch["targets"].shape)
        own = [(batch["sides"] == side) & (batch["targets"] != -100) for side in (USER, ASSISTANT)]
        counts = torch.stack([mask.sum(1) for mask in own], dim=1).cpu()
        user, assistant = counts.sum(0).tolist()
        return Losses(
            torch.stack([(nll * mask).sum() for mask in own]),
            (user, assistant),
            torch.stack([(nll.detach() * mask).sum(1) for mask in own], dim=1).cpu().double(),
            counts,
        )
