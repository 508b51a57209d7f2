"""What every model that scores pairs of a question and an answer has in common."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

Head = Literal["scalar", "two_class"]


class Scorer(nn.Module):
    """f(question, answer). `forward(**batch)` takes what the model's `collate` made.

    head scalar: it returns f, shape (batch,), any real number. head two_class: logits, shape (batch, 2), and f is
    the probability of class 1.
    """

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.num_outputs = 2 if head == "two_class" else 1

    def shaped(self, output: Tensor) -> Tensor:
        """The last layer's output, (batch, num_outputs), as `forward` returns it: in fp32 at least."""
        output = output.float() if output.dtype.itemsize < 4 else output
        return output if self.num_outputs == 2 else output.squeeze(-1)

    def scores(self, output: Tensor) -> Tensor:
        """f, shape (batch,), from what `forward` returned."""
        return output.softmax(-1)[:, 1] if self.num_outputs == 2 else output

    def draw_private(self, seed: int) -> dict[str, Tensor]:
        """A client's own start of its patch, by parameter name; empty for a model without one."""
        return {}
