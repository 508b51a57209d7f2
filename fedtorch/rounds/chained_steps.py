"""A chain of records of rounds with the server's own noise (`privacy.kind: client`): sums and steps are unchecked.

A sum before that noise must not leave the server, nor 61 bits of it in tags, nor who was drawn. So a record has none of
these. What silos check is that all get the same weights, those that the record names; that their own receipts are in
it; that every silo has sent a part, one of nothing too; and that there is one past.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedtorch.comm.job.witness import Exchanged
from fedtorch.rounds.aggregation import Decision
from fedtorch.rounds.checked_steps import CheckedSteps
from fedtorch.trust.receipts import Signed


class ChainedSteps(CheckedSteps):
    """Each silo has the records, and looks at nothing that is behind the server's noise."""

    def _of_sum(self, exchanged: Exchanged, decision: Decision) -> dict[str, Any]:
        return {}

    def _check_terms(self, about: Mapping[str, Any], receipts: Sequence[Signed], sent: Exchanged | None) -> None:
        there = {name for name in self.witness.identity.parties.values() if name != self.chain.server}
        lost = {self.witness.identity.parties[rank] for rank in self.context.comm.lost}
        if missing := sorted(there - lost - about["receipts"].keys()):
            raise self.wrong(f"the record has no receipt of `{missing[0]}`, though every silo sends a part")
        if told := about.keys() & {"accepted", "scale", "sum", "tags", "weights"}:
            raise self.wrong(f"the record tells `{min(told)}` of a sum that must stay the server's secret")

    def _look(self, record: Signed, receipts: Sequence[Signed], sums: Tensor | None) -> None:
        self.chain.receipts.add([*self.kept_receipts(receipts), record.found_right()])
