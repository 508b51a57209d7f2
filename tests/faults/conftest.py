"""What the tests of faults share."""

from __future__ import annotations

import pytest
from supervisor import digest_alone, toy_config


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the toy run, in one process and with nothing in its way."""
    return digest_alone(toy_config(tmp_path_factory.mktemp("undisturbed")))
