"""Lorar (ACL 2023), tables 2 and 3."""

from __future__ import annotations

from fedtorch.report.published.table import Paper, PublishedRow


def _lorar(title: str, *figures: float) -> PublishedRow:
    *percent, macro, micro, correct = figures
    return PublishedRow(title, tuple(percent), macro, micro, int(correct))


LORAR = Paper(
    name="lorar",
    title="Lorar (ACL 2023), tables 2 and 3",
    metric="exact_match",
    clients={
        "advising": "Advising",
        "atis": "ATIS",
        "geoquery": "GeoQuery",
        "restaurants": "Restaurants",
        "scholar": "Scholar",
        "academic": "Academic",
        "imdb": "IMDB",
        "yelp": "Yelp",
    },
    sizes=(573, 447, 279, 74, 218, 38, 26, 24),
    rows={
        "finetune": _lorar(
            "Finetuning",
            *(84.47, 53.91, 72.76, 98.65, 74.31, 57.89, 26.92, 33.33),
            *(62.78, 71.47, 1200),
        ),
        "centralized": _lorar(
            "Centralized",
            *(85.51, 56.38, 79.21, 100, 72.48, 65.79, 61.54, 41.67),
            *(70.32, 74.21, 1246),
        ),
        "fedopt": _lorar("FedOPT", 79.76, 51.23, 77.42, 98.65, 66.51, 50.00, 34.62, 8.33, 58.32, 68.49, 1150),
        "fedopt_lorar": _lorar(
            "FedOPT_lorar", 80.98, 52.35, 75.99, 98.65, 64.68, 68.42, 38.46, 20.83, 62.55, 69.39, 1165
        ),
        "fedavg": _lorar("FedAvg", 76.44, 50.11, 59.86, 72.97, 38.07, 2.63, 7.69, 12.50, 40.03, 57.89, 972),
        "fedavg_lorar": _lorar(
            "FedAvg_lorar", 74.69, 49.89, 68.82, 98.65, 52.29, 65.79, 46.15, 25.00, 60.16, 63.91, 1073
        ),
        "fedprox": _lorar("FedProx", 74.52, 50.56, 65.95, 81.08, 38.53, 10.53, 3.85, 8.33, 41.67, 58.84, 988),
        "fedprox_lorar": _lorar(
            "FedProx_lorar", 73.12, 49.66, 67.38, 98.65, 48.17, 63.16, 46.15, 20.83, 58.39, 62.42, 1048
        ),
        "fedopt_lr": _lorar("FedOPT_lr", 75.04, 53.47, 75.63, 98.65, 62.39, 60.53, 34.62, 25.00, 60.67, 67.12, 1127),
        "fedopt_equal": _lorar(
            "FedOPT_equal", 76.96, 53.02, 77.78, 98.65, 63.30, 63.16, 34.62, 20.83, 61.04, 68.13, 1144
        ),
    },
    remark="one run per row, no spread reported; `correct` is ours, from its percentages and sizes",
    aliases={"local": "finetune", "finetuning": "finetune"},
)
