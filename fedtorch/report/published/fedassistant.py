"""FedAssistant, tables 1 and 2: perplexity (lower is better) of six domains, and All."""

from __future__ import annotations

from fedtorch.report.published.table import row_names

TITLE = "FedAssistant, tables 1 and 2; one run per row, no spread reported"
DOMAINS = {
    "repair": "Repair",
    "coffee": "Coffee",
    "movie": "Movie",
    "restaurant": "Restaurant",
    "pizza": "Pizza",
    "ride": "Ride",
}
REMARKS = {"feda_top50": "Ride of _A is 11.94 at 1/50 and 11.76 at 1/100, probably a slip"}

Figures = tuple[float, float, float, float, float, float, float]

# config -> (title, all tokens, the assistant's tokens (_A) or None); in the order of DOMAINS, then All
TABLE: dict[str, tuple[str, Figures, Figures | None]] = {
    "gpt_local": ("GPT_local", (10.10, 10.23, 9.72, 12.62, 9.59, 9.87, 22.16), None),
    "gpt_all": ("GPT_all", (9.54, 9.17, 9.01, 11.65, 8.65, 8.99, 9.51), None),
    "feda_both": ("FedA_both", (11.31, 10.44, 10.13, 13.57, 9.85, 10.48, 10.96), None),
    "feda": (
        "FedA (No_TopK)",
        (10.62, 10.36, 9.94, 13.40, 9.74, 10.07, 16.14),
        (9.06, 7.91, 8.42, 11.61, 7.68, 7.81, 10.66),
    ),
    "feda_freeze": ("FedA_freeze", (104.77, 16.24, 14.81, 20.29, 14.92, 14.99, 28.70), None),
    "feda_top12": (
        "top 1/12",
        (11.79, 11.27, 10.93, 14.87, 10.54, 11.11, 19.05),
        (10.61, 9.11, 9.84, 13.79, 8.73, 9.12, 13.93),
    ),
    "feda_top12_freeze": ("top 1/12, freeze", (108.64, 18.85, 17.12, 23.99, 16.87, 17.71, 31.54), None),
    "feda_top25": (
        "top 1/25",
        (12.37, 11.80, 11.58, 15.70, 10.978, 11.75, 20.92),
        (11.45, 9.81, 10.72, 15.07, 9.31, 9.92, 16.27),
    ),
    "feda_top25_freeze": ("top 1/25, freeze", (111.13, 20.45, 18.69, 26.55, 18.28, 19.37, 33.40), None),
    "feda_top50": (
        "top 1/50",
        (12.92, 12.28, 12.18, 16.66, 11.41, 12.48, 22.82),
        (12.25, 10.50, 11.61, 16.50, 9.93, 11.94, 18.78),
    ),
    "feda_top50_freeze": ("top 1/50, freeze", (114.36, 22.43, 20.60, 29.86, 19.96, 21.45, 35.75), None),
    "feda_top100": (
        "top 1/100",
        (13.40, 12.74, 12.78, 17.59, 11.75, 13.29, 24.58),
        (13.00, 11.14, 12.48, 17.94, 10.40, 11.76, 21.21),
    ),
    "feda_top100_freeze": ("top 1/100, freeze", (118.66, 24.98, 23.07, 34.13, 22.16, 24.13, 38.79), None),
}


def row_of(name: str) -> str | None:
    """The row of a run by its name, see `row_names`."""
    return next((wanted for wanted in row_names(name) if wanted in TABLE), None)
