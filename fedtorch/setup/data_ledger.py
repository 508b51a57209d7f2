"""Where the releases of all runs on a plan's data are added up, and what a run, or many, add to them."""

from __future__ import annotations

from pathlib import Path

from fedtorch.privacy.data_ledger import SUFFIX, DataLedger
from fedtorch.setup.plan import Plan
from fedtorch.tasks.prepared import InFolder


def data_ledger(plan: Plan) -> DataLedger | None:
    """The ledger that `privacy.ledger` names, or the one beside the prepared data, whichever way leads there.

    None where privacy is simulated, and where data lie in no folder here: made up by a task, or on other machines.
    """
    config = plan.config.privacy
    if config.kind == "none" or config.simulate:
        return None
    if config.ledger is not None:
        return DataLedger(Path(config.ledger))
    if not isinstance(plan.task, InFolder) or plan.config.system.placement == "pinned":
        return None
    folder = plan.task.folder.resolve()
    return DataLedger(folder.with_name(folder.name + SUFFIX))
