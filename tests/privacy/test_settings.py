"""The `privacy` section of a config: what contradicts itself, where numbers end, what is meant where it is silent."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from fedtorch.core.errors import ConfigError
from fedtorch.privacy.settings import AdaptiveClip, MovingClip, PrivacyConfig, SecureSum

CLIENT: dict[str, Any] = {"kind": "client", "clip": 0.5, "noise_multiplier": 1.0, "delta": 1e-3}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"kind": "none", "delta": 0.1}, "privacy.delta is set but privacy.kind is none"),
        ({"clip": None}, "privacy.clip is not given"),
        ({"delta": None}, "privacy.delta is not given"),
        ({"noise_multiplier": None}, "needs one of privacy.noise_multiplier and privacy.epsilon; give one"),
        ({"epsilon": 1.0}, "needs one of .*; remove one"),
        ({"noise_multiplier": 0.01}, "next to nothing is promised"),
        ({"noise_multiplier": None, "epsilon": 8.0, "max_epsilon": 2.0}, "privacy.max_epsilon is 2.0 but"),
        ({"simulate": True}, "privacy.simulate and privacy.seed go together"),
        ({"seed": 1}, "privacy.simulate and privacy.seed go together"),
        ({"simulate": True, "seed": 1, "max_epsilon": 1.0}, "where no epsilon is counted"),
        ({"simulate": True, "seed": 1, "ledger": "x"}, "where nothing is counted"),
        ({"kind": "none", "clip": None, "secure_sum": SecureSum()}, "privacy.clip, which fixes its scale, is not"),
        ({"kind": "none", "clip": MovingClip(AdaptiveClip())}, "privacy.clip moves but privacy.kind is none"),
    ],
    ids=str,
)
def test_a_section_that_contradicts_itself(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        PrivacyConfig(**{**(CLIENT if fields.get("kind") != "none" else {}), **fields})


RANGES: dict[str, tuple[list[float], list[float]]] = {
    "clip": ([1e-12, 1e12], [0.99e-12, 1.01e12]),
    "noise_multiplier": ([1e-9, 1000.0], [0.0, 1000.1]),
    "delta": ([1e-300, 0.999], [0.0, 1.0]),
    "seed": ([0, 2**63 - 1], [-1, 2**63]),
    "clip.adaptive.quantile": ([0.001, 0.999], [0.0, 1.0]),
    "clip.adaptive.start": ([1e-12, 1e12], [0.99e-12, 1.01e12]),
    "secure_sum.threshold": ([0.501, 1.0], [0.5, 1.001]),
}


@pytest.mark.parametrize("key", RANGES)
def test_numbers_end_where_the_docs_say(key: str) -> None:
    within, beyond = RANGES[key]
    checks = TypeAdapter(PrivacyConfig)

    def given(value: float) -> dict[str, Any]:
        found: Any = value
        for name in reversed(key.split(".")):
            found = {name: found}
        return {**CLIENT, "simulate": True, "seed": 1, **found}

    for value in within:
        checks.validate_python(given(value))
    for value in beyond:
        with pytest.raises(ValidationError, match="equal to|greater than|less than"):
            checks.validate_python(given(value))


def test_what_is_not_said_is_what_the_docs_say() -> None:
    assert PrivacyConfig() == PrivacyConfig(kind="none", noise="normal", reveal=(), simulate=False)
    # Andrew et al. 2021, section 3: the median, a rate of 0.2, a start of 0.1
    assert AdaptiveClip() == AdaptiveClip(quantile=0.5, rate=0.2, start=0.1, bit_noise="auto")
    assert SecureSum().threshold == 0.7


@pytest.mark.parametrize(
    "fields",
    [
        {"noise_multiplier": None, "epsilon": 2.0, "max_epsilon": 2.0, "ledger": "x"},
        {"noise_multiplier": 0.1, "max_epsilon": 1.0},
        {"simulate": True, "seed": 1, "noise_multiplier": 0.01},
    ],
    ids=str,
)
def test_a_section_that_just_fits(fields: dict[str, Any]) -> None:
    assert PrivacyConfig(**{**CLIENT, **fields}).kind == "client"


@pytest.mark.parametrize("clip", [None, 0.5, MovingClip(AdaptiveClip(start=0.3))], ids=["none", "fixed", "moving"])
def test_the_first_rounds_clip(clip: Any) -> None:
    section = PrivacyConfig() if clip is None else PrivacyConfig(**{**CLIENT, "clip": clip})
    assert section.first_clip == {None: 0.0, 0.5: 0.5}.get(clip, 0.3)
    assert (section.adaptive is None) == (not isinstance(clip, MovingClip))


@pytest.mark.parametrize("name", ["clip", "delta"])
def test_what_a_promise_is_about_has_no_default(name: str) -> None:
    with pytest.raises(ConfigError, match=f"privacy.{name} is not given"):
        PrivacyConfig(**{key: value for key, value in CLIENT.items() if key != name})
