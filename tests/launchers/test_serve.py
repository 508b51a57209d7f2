"""What a server of several institutions says before it waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import make_config
from toy import Quadratic

from fedtorch.privacy.settings import PrivacyConfig, SecureSum
from launchers.serve import received


@pytest.mark.parametrize("hides", [False, True])
def test_a_server_says_what_it_gets_and_that_a_secure_sum_hides_each_update(hides: bool) -> None:
    privacy = PrivacyConfig(clip=1.0, secure_sum=SecureSum()) if hides else PrivacyConfig()
    said = received(make_config(Path("run"), Quadratic(clients={"a": (1.0, 0.0, 4)}), privacy=privacy))
    assert "updates of the shared weights" in said and "text can be inferred" in said
    assert ("masked" in said and "the sum alone" in said) is hides
