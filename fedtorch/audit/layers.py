"""First layers that a text meets in a model of any architecture: a table of embeddings, and the matrix after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedtorch.core.weights import Layout

Listener = Callable[[str, nn.Module, Tensor], None]


class _Seen(Exception):
    """Ends a forward pass that has come as far as it was needed."""


@dataclass(frozen=True)
class FirstLayers:
    """Found by listening to one forward pass."""

    module: nn.Module
    """the model"""
    embedding: str
    """name of the module that tokens are looked up in"""
    embedding_weight: str
    """its parameter among the shared ones; empty: it is not sent"""
    first: str
    """name of the first module that multiplies the embedded text by a shared matrix; empty: there is none"""
    first_weight: str
    """that matrix"""
    vocabulary: int
    """rows of the embedding"""

    @classmethod
    def of(cls, module: nn.Module, shared: Layout, run: Callable[[], Any]) -> FirstLayers | str:
        """run: one forward pass. A text says why nothing was found."""
        calls: list[tuple[str, nn.Module, Tensor]] = []
        with listening(module, lambda *call: calls.append(call)), torch.no_grad():
            run()
        tables = [(name, part) for name, part, _ in calls if isinstance(part, nn.Embedding)]
        if not tables:
            return "the model has no table of embeddings"
        try:
            known = module.get_input_embeddings().weight  # type: ignore[operator]
        except (AttributeError, NotImplementedError):
            known = None
        sent = {id(each): own for own, each in module.named_parameters() if own in shared.names}
        # where the model does not say: one that is sent, and the largest, as there may be more places than tokens
        # (the weight tells, as encoder and decoder may look it up in modules of their own)
        name, table = next((one for one in tables if one[1].weight is known), None) or max(
            tables, key=lambda one: (id(one[1].weight) in sent, one[1].num_embeddings)
        )
        first = weight = ""
        for called, part, given in calls:
            if isinstance(part, nn.Embedding) or given.dim() != 3:
                continue
            found = [
                sent[id(each)]
                for each in part.parameters(recurse=False)
                if id(each) in sent and each.dim() == 2 and given.shape[-1] in each.shape
            ]
            if found:
                first, weight = called, found[0]
                break
        return cls(module, name, sent.get(id(table.weight), ""), first, weight, table.num_embeddings)

    def tokens(self, run: Callable[[], Any]) -> Tensor:
        """The tokens, shape (B, T), that a forward pass looks up first."""
        found: list[Tensor] = []

        def note(name: str, part: nn.Module, given: Tensor) -> None:
            if name == self.embedding:
                found.append(given.detach().clone())
                raise _Seen

        with listening(self.module, note), torch.no_grad():
            _run_until_seen(run)
        return found[0]

    def looked_up(self, run: Callable[[], Any]) -> set[int]:
        """All tokens that a forward pass looks up: of a model with two sides or with a decoder in several places."""
        found: set[int] = set()

        table = self.module.get_submodule(self.embedding).weight

        def note(name: str, part: nn.Module, given: Tensor) -> None:
            if isinstance(part, nn.Embedding) and part.weight is table:
                found.update(given.flatten().tolist())

        with listening(self.module, note), torch.no_grad():
            run()
        return found

    def inputs(self, tokens: Tensor) -> Tensor:
        """Inputs of the first matrix, shape (B, T, width), for tokens of shape (B, T).

        Raises:
            TypeError: the model cannot be asked by `input_ids` alone.
        """
        found: list[Tensor] = []

        def note(name: str, part: nn.Module, given: Tensor) -> None:
            if name == self.first:
                found.append(given.detach().clone())
                raise _Seen

        self.module.eval()
        with listening(self.module, note), torch.no_grad():
            _run_until_seen(lambda: self.module(input_ids=tokens))
        if not found:
            raise TypeError("the model does not come to its first matrix from `input_ids` alone")
        return found[0]


def _run_until_seen(run: Callable[[], Any]) -> None:
    try:
        run()
    except _Seen:
        pass


@contextmanager
def listening(module: nn.Module, listener: Listener) -> Iterator[None]:
    """Calls `listener` with name, module and first input of every module that has parameters of its own."""

    def hook(name: str) -> Callable[..., None]:
        def before(part: nn.Module, args: Sequence[Any], kwargs: Any) -> None:
            given = args[0] if args else kwargs.get("hidden_states", kwargs.get("input"))
            if isinstance(given, Tensor):
                listener(name, part, given)

        return before

    handles = [
        part.register_forward_pre_hook(hook(name), with_kwargs=True)
        for name, part in module.named_modules()
        if any(True for _ in part.parameters(recurse=False))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
