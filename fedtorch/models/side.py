"""One side of a dialog: its model, the context that both sides' keys and values make, and its end of the link."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

from fedtorch.core.errors import FedtorchError
from fedtorch.models.link import Increment, Link

KvGrad = Literal["detached", "own", "through"]
KvTransfer = Literal["increment", "full"]
KvDtype = Literal["model", "fp32", "fp16", "bf16"]
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

# Shapes: R rows (dialogs that have this turn), S tokens of the segment, C tokens of the context.
# Keys and values of a segment: (layers, 2, R, heads, S, head_dim), here `kv`.


@dataclass(frozen=True)
class Passing:
    """How keys and values pass between the sides (FedAssistant; each choice: docs/fedassistant.md)."""

    kv_grad: KvGrad = "detached"
    """detached: the whole context is constant; own: gradients flow into keys and values that the same side computed;
    through: also into the other side's, by messages back over the link"""
    kv_transfer: KvTransfer = "increment"
    """increment: the newest segment; full: the whole context each time, as the paper words it"""
    kv_dtype: KvDtype = "model"
    """on the wire; model: the model's own"""


@dataclass
class Side:
    """One side's walk through one batch of dialogs, in which the rows with more turns come first.

    Each turn is either spoken or heard. Rows without another turn drop out: what is kept, sent and received of a
    turn has the rows of the next one. Dropout draws from the global generator.
    """

    model: Any
    """this side's language model, with gradients or in eval mode as the caller has set it"""
    link: Link
    """to the other side"""
    passing: Passing
    """what of keys, values and gradients crosses, and in which form"""
    computes_again: bool = False
    """keep no activations of a segment, compute them again on the way back"""
    segments: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """keys and values of each turn so far, shape (layers, 2, R, heads, S, head_dim), with their mask, (R, S)"""
    _spoken: dict[int, tuple[Tensor, Tensor, Tensor | None]] = field(default_factory=dict)
    """with `kv_grad: through`, own turn -> summed loss, keys and values that were sent, and their leaf in later
    turns"""
    _heard: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """with `kv_grad: through`, heard turn -> keys and values, whose gradient goes back, and their mask"""

    @property
    def mode(self) -> KvGrad:
        """`kv_grad`, or `detached` where no gradients are kept."""
        return self.passing.kv_grad if torch.is_grad_enabled() else "detached"

    @property
    def dtype(self) -> torch.dtype:
        """That of keys and values: the model's own, or what autocast computes in."""
        kind = self.model.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.model.dtype

    def speak(self, turn: int, segment: dict[str, Tensor], rows_after: int, *, is_last: bool) -> Tensor:
        """Run the model over this side's own segment; send its keys and values to the other side.

        segment: `inputs` and `targets` (R, S) int64 (-100: not predicted), `lengths` (R,).
        rows_after: dialogs with another turn; if there are none, nothing is sent.
        Returns the negative log-likelihoods, (R, S), 0 where nothing is predicted. With `through` they are without
        a graph; `backward` has it.
        """
        inputs, targets = segment["inputs"], segment["targets"]
        mask = torch.arange(inputs.shape[1], device=inputs.device) < segment["lengths"].unsqueeze(1)
        logits, kv = self._run(inputs, mask)
        flat = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
        nll = flat.view(targets.shape)
        kept = kv[:, :, :rows_after]
        if rows_after:
            self._send(turn, kept.detach(), mask[:rows_after], is_last)
        if self.mode == "through":
            leaf = kept.detach().requires_grad_() if rows_after else None
            self._spoken[turn] = nll.sum(), kept, leaf
            self.segments.append((kept.detach() if leaf is None else leaf, mask[:rows_after]))
            return nll.detach()
        self.segments.append((kept if self.mode == "own" else kept.detach(), mask[:rows_after]))
        return nll

    def hear(self, turn: int, rows: int) -> None:
        """Receive the keys and values of a turn that the other side spoke, of `rows` dialogs, into the context.

        Raises:
            FedtorchError: what came is of another turn or size; the sides are out of step.
        """
        increment = self.link.receive()
        known = sum(mask.shape[1] for _, mask in self.segments) if self.passing.kv_transfer == "full" else 0
        shape, mask = increment.data.shape, increment.mask[:, known:].bool().to(self.model.device)
        if increment.turn != turn or shape[2] != rows or increment.mask.shape != (rows, shape[4]) or shape[4] <= known:
            raise FedtorchError(
                f"keys and values of turn {increment.turn} with shape {tuple(shape)} arrived; expected turn {turn} "
                f"with {rows} rows and more than {known} tokens: the two sides do not walk through the same batch"
            )
        kv = increment.data[..., known:, :].to(self.model.device, self.dtype)
        if self.mode == "through":
            kv = kv.clone().requires_grad_()
            self._heard[turn] = kv, mask
        self.segments.append((kv, mask))

    def read(self, segment: dict[str, Tensor]) -> None:
        """Take a turn of the other side's words into the context by running this side's own model over them.

        For a dialog whose other side sends words in place of keys and values; without gradients.
        """
        inputs = segment["inputs"]
        mask = torch.arange(inputs.shape[1], device=inputs.device) < segment["lengths"].unsqueeze(1)
        with torch.no_grad():
            _, kv = self._run(inputs, mask)
        self.segments.append((kv, mask))

    def return_gradient(self, turn: int) -> None:
        """Send back the gradient of a heard turn; complete, because all later turns were gone back over."""
        kv, mask = self._heard.pop(turn)
        grad = torch.zeros_like(kv) if kv.grad is None else kv.grad
        self.link.send(Increment(turn, not self._heard, mask.to(torch.uint8), self._to_wire(grad)))

    def backward(self, turn: int, scale: Tensor, *, was_sent: bool) -> None:
        """Go back over a turn that this side spoke: fills gradients of parameters and of earlier segments.

        scale: gradient of the objective with respect to the turn's summed loss, a scalar.

        Raises:
            FedtorchError: the gradient that came back is of another turn.
        """
        loss, kept, leaf = self._spoken.pop(turn)
        roots, gradients = [loss], [scale.to(loss.dtype)]
        if was_sent and leaf is not None:
            returned = self.link.receive()
            if returned.turn != turn or returned.data.shape != kept.shape:
                raise FedtorchError(f"the gradient of turn {returned.turn} came back; expected that of turn {turn}")
            grad = returned.data.to(kept.device, kept.dtype)
            roots.append(kept)
            gradients.append(grad if leaf.grad is None else grad + leaf.grad)
        pairs = [(root, gradient) for root, gradient in zip(roots, gradients, strict=True) if root.requires_grad]
        if pairs:  # a frozen side's first turn reaches no parameter
            torch.autograd.backward([root for root, _ in pairs], [gradient for _, gradient in pairs])

    def context(self, rows: int) -> tuple[Tensor, Tensor] | None:
        """Keys and values, and mask (R, C), of all segments so far, of the first `rows` dialogs."""
        if not self.segments:
            return None
        kv = torch.cat([kv[:, :, :rows] for kv, _ in self.segments], dim=4)
        return kv, torch.cat([mask[:rows] for _, mask in self.segments], dim=1)

    @torch.inference_mode()
    def generate(
        self,
        turn: int,
        separator: int,
        *,
        max_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        is_sent: bool = True,
    ) -> list[int]:
        """Speak a turn of one dialog word by word; ids without the separators.

        temperature 0: the likeliest word each time. Ends with a separator, or after `max_tokens`, or at the model's
        last position. is_sent: are its keys and values sent to the other side?

        Raises:
            FedtorchError: no position is left.
        """
        generator = torch.Generator().manual_seed(seed)
        context = self.context(1)
        cache, device = self._cache(context), self.model.device
        known = torch.ones(1, 0, dtype=torch.bool, device=device) if context is None else context[1]
        start, last = int(known.sum()), self.model.config.n_positions - 1
        if start >= last:
            raise FedtorchError(f"the dialog has {start} tokens, the model's limit is {last + 1}; begin a new dialog")
        ids: list[int] = []
        word = separator
        for place in range(min(max_tokens, last - start) + 1):
            mask = torch.cat([known, known.new_ones(1, place + 1)], dim=1)
            out = self.model(
                input_ids=torch.tensor([[word]], device=device),
                past_key_values=cache,
                attention_mask=mask.long(),
                position_ids=torch.tensor([[start + place]], device=device),
                use_cache=True,
            )
            if place == min(max_tokens, last - start):
                break  # this run was for the last word's keys and values
            word = _choose(out.logits[0, -1], temperature, generator)
            if word == separator:
                break
            ids.append(word)
        kv = _columns(cache, known.shape[1])
        mask = torch.ones(1, kv.shape[4], dtype=torch.bool, device=kv.device)
        if is_sent:
            self._send(turn, kv, mask, is_last=False)
        self.segments.append((kv, mask))
        return ids

    def _run(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (R, S, V), and the segment's own keys and values with their graph."""
        context = self.context(len(inputs))
        if self.computes_again and torch.is_grad_enabled():
            found: tuple[Tensor, Tensor] = checkpoint(self._over, context, inputs, mask, use_reentrant=False)
            return found
        return self._over(context, inputs, mask)

    def _over(self, context: tuple[Tensor, Tensor] | None, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """`_run` behind a context; calling it again changes nothing."""
        known = mask[:, :0] if context is None else context[1]
        positions = known.sum(1, keepdim=True) + torch.arange(inputs.shape[1], device=inputs.device)
        cache = self._cache(context)
        out = self.model(
            input_ids=inputs,
            past_key_values=cache,
            attention_mask=torch.cat([known, mask], dim=1).long(),
            # per row, never the padded length; only padding can lie beyond the model's last position
            position_ids=positions.clamp(max=self.model.config.n_positions - 1),
            use_cache=True,
        )
        return out.logits, _columns(cache, known.shape[1])

    def _cache(self, context: tuple[Tensor, Tensor] | None) -> DynamicCache:
        return DynamicCache() if context is None else DynamicCache([(layer[0], layer[1]) for layer in context[0]])

    def _send(self, turn: int, kv: Tensor, mask: Tensor, is_last: bool) -> None:
        if self.passing.kv_transfer == "full" and (context := self.context(len(mask))):
            kv = torch.cat([context[0].detach(), kv], dim=4)
            mask = torch.cat([context[1], mask], dim=1)
        self.link.send(Increment(turn, is_last, mask.to(torch.uint8), self._to_wire(kv)))

    def _to_wire(self, kv: Tensor) -> Tensor:
        return kv.detach().to(_DTYPES.get(self.passing.kv_dtype, kv.dtype))


def _columns(cache: DynamicCache, start: int) -> Tensor:
    """Keys and values from column `start` on; the call that made them appended to the cache."""
    return torch.stack(
        [torch.stack([layer.keys[..., start:, :], layer.values[..., start:, :]]) for layer in cache.layers]
    )


def _choose(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    shares = torch.softmax(logits.float().cpu() / temperature, dim=0)
    return int(torch.multinomial(shares, 1, generator=generator))
