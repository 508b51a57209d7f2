"""`fedtorch.privacy_cost`: the ε that a run will come to, before anything of it runs."""

from __future__ import annotations

from collections.abc import Sequence

from fedtorch.config.load import load
from fedtorch.config.python_configs import Given, Overrides, all_given, assignments
from fedtorch.setup.privacy_cost import epsilon_by_silo


def privacy_cost(config: Given | Sequence[Given] | None = None, overrides: Overrides = ()) -> dict[str, float]:
    """ε of a run whose rounds are all done; empty where nothing is promised. Nothing is trained, no ledger opened.

    With `privacy.kind: record` the ε of each silo at its own δ, if it takes part in every round: `{"bank": 3.0, ...}`.
    With `client` one number, `{"all": 2.1}`.

    Args:
        config: as for `fedtorch.run`.
        overrides: as for `fedtorch.run`.

    Raises:
        ConfigError: a key or value is wrong, or the promise cannot be kept with them.
        DataError: the data are missing or malformed.
    """
    return epsilon_by_silo(load(all_given(config) or None, assignments(overrides)))
