"""What the tests of faults share."""

from __future__ import annotations

import pytest
from supervisor import Ended, toy_config

from fedtorch.main import main


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the toy run, in one process and with nothing in its way."""
    config = toy_config(tmp_path_factory.mktemp("undisturbed"))
    assert main(["--config", str(config)]) == 0
    return Ended(config.parent / "run").digest
