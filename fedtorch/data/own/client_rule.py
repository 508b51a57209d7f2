"""The section `task.data.clients`: who owns a row. Imports neither torch nor numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from fedtorch.core.choices import OneOf
from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import Count, NotNegative, Positive, Whole

SECTION = "task.data.clients"
RULES = ("by", "iid", "dirichlet", "dirichlet_clients", "shards", "pathological", "sizes")
_LOWEST = {"min_size": 0, "number": 1, "per_client": 1, "classes": 1, "iid": 1}


def _check_numbers(section: str, rule: Any) -> None:
    """The ranges that the annotations name, for rules that Python code makes without a config."""
    for field in fields(rule):
        value, name = getattr(rule, field.name), f"{section}.{field.name}"
        if field.name == "alpha" and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name} is {value}; set it to a finite number above 0, such as 0.5")
        if field.name == "lognormal" and not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{name} is {value}; set it to a finite number that is at least 0, such as 1.0")
        if field.name in _LOWEST and value is not None and value < _LOWEST[field.name]:
            raise ConfigError(f"{name} is {value}; set it to at least {_LOWEST[field.name]}")
        if field.name in ("of", "by") and value == "":
            raise ConfigError(f"{name} is empty; name a column")


@dataclass(frozen=True)
class Dirichlet:
    """Every class is dealt to all clients in shares drawn from Dir(alpha): label skew and sizes come out together."""

    alpha: Positive
    """concentration: 0.1 very uneven, 1 uneven, 100 nearly even"""
    number: Count
    """clients"""
    of: str = "label"
    """column that holds a row's class"""
    min_size: Whole = 10
    """rows that every client has at least: all is drawn again until that holds, at most 10 times; 0: may have none"""
    balanced: bool = False
    """leave clients that hold more than rows / number out of the classes that follow"""
    parity: Literal["", "flwr"] = ""
    """flwr: row by row what flwr-datasets deals; then the order of the rows matters"""

    def __post_init__(self) -> None:
        _check_numbers(f"{SECTION}.dirichlet", self)


@dataclass(frozen=True)
class DirichletClients:
    """Every client draws its own distribution over the classes from Dir(alpha); all clients have the same size."""

    alpha: Positive
    """concentration: 0.1 most rows of a client have one class, 100 all clients look alike"""
    number: Count
    """clients; their sizes differ by at most 1"""
    of: str = "label"
    """column that holds a row's class"""

    def __post_init__(self) -> None:
        _check_numbers(f"{SECTION}.dirichlet_clients", self)


@dataclass(frozen=True)
class Shards:
    """Rows sorted by class are cut into equal shards, and each client gets some of them."""

    number: Count
    """clients"""
    per_client: Count = 2
    """shards of a client"""
    of: str = "label"
    """column that holds a row's class"""

    def __post_init__(self) -> None:
        _check_numbers(f"{SECTION}.shards", self)


@dataclass(frozen=True)
class Pathological:
    """Every client has rows of so many classes, and of no others."""

    classes: Count
    """classes of a client"""
    number: Count
    """clients"""
    of: str = "label"
    """column that holds a row's class"""

    def __post_init__(self) -> None:
        _check_numbers(f"{SECTION}.pathological", self)


@dataclass(frozen=True)
class Lognormal:
    """Sizes drawn from a log-normal distribution."""

    lognormal: NotNegative
    """sigma, the deviation of the logarithm of a client's size; 0: all sizes are equal"""

    def __post_init__(self) -> None:
        _check_numbers(f"{SECTION}.sizes", self)


@dataclass(frozen=True)
class ClientRule:
    """`task.data.clients`: exactly one rule that says which client owns a row."""

    one_of: ClassVar[OneOf] = OneOf(RULES)

    by: str | None = None
    """a column whose values are the clients' names, or `file`: one client per file or sub-folder"""
    iid: Count | None = None
    """so many clients with shuffled rows; their sizes differ by at most 1"""
    dirichlet: Dirichlet | None = None
    """shares of every class over the clients"""
    dirichlet_clients: DirichletClients | None = None
    """a distribution over the classes for every client"""
    shards: Shards | None = None
    """shards of rows sorted by class"""
    pathological: Pathological | None = None
    """so many classes per client"""
    sizes: Literal["linear", "square", "exponential"] | Lognormal | None = None
    """shuffled rows; client k of 1, 2, ... has a size in proportion to k, k², e^k, or drawn from a log-normal"""
    number: Count | None = None
    """clients, for `sizes`"""

    def __post_init__(self) -> None:
        given = [name for name in RULES if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ConfigError(f"exactly one rule says who owns a row, found {found}; give one of {', '.join(RULES)}")
        if self.sizes is not None and self.number is None:
            raise ConfigError(f"{SECTION}.sizes needs {SECTION}.number, how many clients there are; add it")
        if self.sizes is None and self.number is not None:
            raise ConfigError(
                f"{SECTION}.number is {self.number} but belongs to `sizes` only, and the rule is `{given[0]}`; "
                "remove it"
            )
        _check_numbers(SECTION, self)

    @property
    def rule(self) -> str:
        """Which of the rules it is: the name of its field."""
        return next(name for name in RULES if getattr(self, name) is not None)

    @property
    def label_column(self) -> str | None:
        """The column whose values are the `labels` of `deal`; None where the rule does not look at them."""
        column: str | None = getattr(getattr(self, self.rule), "of", None)
        return column

    @property
    def num_clients(self) -> int | None:
        """How many clients it makes; None where the rows say so."""
        if self.by is not None:
            return None
        if self.iid is not None:
            return self.iid
        number: int = self.number if self.number is not None else getattr(self, self.rule).number
        return number
