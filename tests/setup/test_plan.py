"""Clients of a run before anything is built."""

from __future__ import annotations

import pytest
from toy import Quadratic

from fedtorch.core.client import folder_name
from fedtorch.core.errors import DataError
from fedtorch.setup.plan import training_clients


def quadratic(*names: str) -> Quadratic:
    return Quadratic(clients={name: (1.0, 1.0, 6) for name in names})


@pytest.mark.parametrize("pair", [("a", "A"), ("a", "\uff41"), ("stra\xdfe", "STRASSE"), ("x y", folder_name("x y"))])
def test_clients_whose_folders_would_be_one_on_some_disk_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(DataError, match="look alike; rename one"):
        training_clients(quadratic(*pair))


def test_other_names_are_kept_apart() -> None:
    names = ["a", "b", "a b", "a_b", "\xe4", "ae"]
    assert [*training_clients(quadratic(*names)).names()] == names
    assert len({folder_name(name).lower() for name in names}) == len(names)
