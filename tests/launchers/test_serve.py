"""What both sides of a federation of institutions say before they wait: what the server gets from silos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import make_config
from toy import Quadratic

from fedtorch.privacy.settings import PrivacyConfig, SecureSum
from launchers.silo import seen

RECORD: dict[str, Any] = {"kind": "record", "clip": 1.0, "noise_multiplier": 1.0, "delta": 0.1, "units": {"a": 4}}


def said_with(privacy: PrivacyConfig) -> str:
    return seen(make_config(Path("run"), Quadratic(clients={"a": (1.0, 0.0, 4)}), privacy=privacy))


@pytest.mark.parametrize("hides", [False, True])
def test_what_a_server_gets_and_that_a_secure_sum_hides_each_update(hides: bool) -> None:
    said = said_with(PrivacyConfig(clip=1.0, secure_sum=SecureSum()) if hides else PrivacyConfig())
    assert "update of the shared weights" in said and "text can be inferred" in said
    assert ("masked" in said and "the sum alone" in said) is hides


@pytest.mark.long
def test_with_privacy_of_rows_neither_sizes_nor_losses_are_named() -> None:
    local, shared, open_ = (
        said_with(PrivacyConfig(**{**RECORD, **more}))
        for more in ({}, {"noise_at": "shared", "secure_sum": SecureSum(1.0)}, {"reveal": ("scores",)})
    )
    for said in (local, shared, open_):
        assert said.startswith("how many units are declared") and "losses" not in said and "examples" not in said
    assert "each of whose steps has noise of its silo's own" in local and "masked sum of gradients" in shared
    assert "scores" in open_ and "scores" not in local
