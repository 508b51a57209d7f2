"""What sets two configs apart."""

from __future__ import annotations

from fedtorch.config.load import record_difference, to_dict
from fedtorch.config.schema import Config


def difference(old: Config, new: Config) -> list[str]:
    """`record_difference` of two configs."""
    return record_difference(to_dict(old), to_dict(new))
