"""FewFedWeight's tables 1 to 4 as printed, by the names of our configs in configs/fewfedweight/rows."""

from __future__ import annotations

from typing import NamedTuple

from fedtorch.report.published.table import row_names


class Published(NamedTuple):
    """A row of tables 1 to 3."""

    table: str
    """where it stands"""
    title: str
    """the method, as the paper calls it"""
    apir: float
    """in percent, over the Data Silo models"""
    win: int
    """compared tasks that became better"""
    lose: int
    """compared tasks that became worse"""
    tie: int
    """compared tasks that stayed as they were"""


METHODS, ABLATION, CLIENTS = "Table 1, methods", "Table 2, ablation", "Table 3, number of clients"

BASE = "ffw_silo"
"""the row that all others are compared with; of table 3 it is the one with as many clients"""

ROWS: dict[str, Published] = {
    "ffw_silo_da": Published(METHODS, "Data Silo DA", 8.2, 44, 29, 45),
    "ffw_fedavg": Published(METHODS, "FedAvg", 5.1, 40, 41, 37),
    "ffw_ditto": Published(METHODS, "Ditto", 14.1, 45, 34, 39),
    "ffw_meta": Published(METHODS, "Meta Weighting", 22.6, 49, 32, 37),
    "ffw_full": Published(METHODS, "FewFedWeight", 30.5, 72, 7, 39),
    "ffw_central": Published(METHODS, "Centralized", 36.9, 65, 16, 37),
    "abl_da": Published(ABLATION, "FedAvg + data augmentation", 11.5, 43, 33, 42),
    "abl_da_w": Published(ABLATION, "+ pseudo data weighting", 27.0, 74, 6, 38),
    "abl_da_dyn": Published(ABLATION, "+ dynamic aggregation", 21.0, 64, 16, 38),
    "clients_2": Published(CLIENTS, "2 clients", 23.2, 8, 0, 2),
    "clients_4": Published(CLIENTS, "4 clients", 29.5, 12, 5, 3),
    "clients_8": Published(CLIENTS, "8 clients", 29.8, 24, 9, 7),
    "clients_12": Published(CLIENTS, "12 clients", 22.8, 37, 9, 14),
}

COSTS: dict[str, tuple[float, float]] = {
    "ffw_silo_da": (13, 4),
    "ffw_fedavg": (0, 2),
    "ffw_ditto": (0, 2),
    "ffw_meta": (13, 8),
    "ffw_full": (13, 4),
}
"""Table 4: (generating, training) per client and epoch, in a unit the paper does not name."""


def row_of(name: str) -> tuple[str, Published] | None:
    """The published row of a run: the one that ends its name, or one of `row_names` (`real_small_ffw_meta`)."""
    for wanted in row_names(name):
        for row in sorted(ROWS, key=len, reverse=True):
            if wanted == row or wanted.endswith((f"_{row}", f"-{row}")):
                return row, ROWS[row]
    return None
