"""Table 1 of the FedParsing paper: seven measures in percent, on test and on dev, by group and S."""

from __future__ import annotations

TITLE = "FedParsing, table 1; one run per row, no spread reported"
MEASURES = ("overall", "agg", "sel", "wn", "wc", "op", "val")
NAMES = {
    "hydranet": "HydraNet",
    "hydranet_mlm": "HydraNet+MLM",
    "fedparsing": "FedParsing",
    "fedparsing_ema": "FedParsing+EMA",
}
QUESTIONS = {"test": 10107, "dev": 5340}
"""that the paper counts; it does not say which of WikiSQL's 15,878 and 8,421"""
REMARKS = {10000: "its row HydraNet+MLM equals its row HydraNet in all figures and looks copied"}

Figures = tuple[float, float, float, float, float, float, float]

# (group, S) -> (test, dev), each in the order of MEASURES
TABLE: dict[tuple[str, int], tuple[Figures, Figures]] = {
    ("hydranet", 500): ((69.8, 87.3, 95.3, 96.4, 87.9, 97.5, 91.3), (70.1, 87.4, 95.7, 96.9, 88.4, 97.6, 91.6)),
    ("hydranet_mlm", 500): ((50.1, 72.2, 94.5, 87.3, 77.6, 95.5, 89.4), (50.5, 72.5, 94.8, 87.8, 77.3, 95.7, 89.6)),
    ("fedparsing", 500): ((70.2, 88.2, 95.2, 96.4, 87.2, 97.9, 91.4), (70.4, 88.0, 95.7, 96.9, 88.0, 97.8, 91.2)),
    ("fedparsing_ema", 500): ((70.7, 88.7, 95.9, 96.9, 88.0, 97.9, 91.6), (70.4, 88.8, 96.2, 96.9, 88.0, 97.8, 91.5)),
    ("hydranet", 1000): ((72.6, 88.6, 96.3, 96.0, 89.1, 98.2, 92.5), (72.3, 88.2, 96.3, 96.7, 89.7, 98.1, 92.3)),
    ("hydranet_mlm", 1000): ((56.6, 77.9, 95.5, 92.7, 83.9, 94.7, 89.6), (57.3, 76.6, 95.7, 93.4, 84.5, 95.0, 89.0)),
    ("fedparsing", 1000): ((73.4, 88.5, 96.2, 96.7, 89.4, 98.3, 93.5), (73.7, 88.3, 96.2, 97.3, 90.1, 98.3, 93.5)),
    ("fedparsing_ema", 1000): ((74.2, 89.2, 96.3, 96.9, 89.8, 98.3, 93.6), (74.2, 89.1, 96.2, 97.4, 90.3, 98.3, 93.7)),
    ("hydranet", 10000): ((79.1, 90.2, 97.1, 97.6, 93.1, 98.6, 95.4), (79.2, 90.2, 97.4, 98.0, 93.3, 98.6, 95.6)),
    ("hydranet_mlm", 10000): ((79.1, 90.2, 97.1, 97.6, 93.1, 98.6, 95.4), (79.2, 90.2, 97.4, 98.0, 93.3, 98.6, 95.6)),
    ("fedparsing", 10000): ((79.1, 90.2, 97.1, 97.6, 93.1, 98.6, 95.4), (79.2, 90.2, 97.4, 98.0, 93.4, 98.6, 95.7)),
    ("fedparsing_ema", 10000): ((79.2, 90.2, 97.1, 97.6, 93.1, 98.6, 95.5), (79.3, 90.2, 97.4, 98.0, 93.4, 98.6, 95.7)),
}
