"""A run that goes on with more rounds than it was begun with, where the first ones do not depend on their number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedtorch.config.load import changes
from fedtorch.config.schema import ClientConfig, Config

ROUNDS = "rounds"


def rounds_before(old: Mapping[str, Any], new: Mapping[str, Any]) -> int | None:
    """The rounds of `old`, if `new` has more; configs are as `to_dict` gives them."""
    before, now = old.get(ROUNDS), new.get(ROUNDS)
    return before if isinstance(before, int) and isinstance(now, int) and before < now else None


def changes_but_rounds(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """`changes` without that of `rounds`, where there are more of them now."""
    found = changes(old, new)
    return found if rounds_before(old, new) is None else [change for change in found if change[0] != ROUNDS]


def changes_that_forbid(
    old: Mapping[str, Any], new: Mapping[str, Any], config: Config, done: int
) -> list[tuple[str, str, str]]:
    """`changes` that keep a run with the config `new` from going on after `done` rounds of one with `old`.

    config: `new` as an object. More rounds than before are among them only where their number entered the rounds done.
    """
    before = rounds_before(old, new)
    whys = () if before is None else _whys(config, before, done)
    entered = [(ROUNDS, str(before), f"{config.rounds}, but {why}") for why in whys]
    return entered + changes_but_rounds(old, new)


def _whys(config: Config, before: int, done: int) -> Iterator[str]:
    """Where the number of rounds entered what `done` of them came to."""
    settings = {
        "client": config.client,
        **{f"per_client.{name}": config.client_for(name) for name in config.per_client},
    }
    for key, own in settings.items():
        if _falls_over_the_run(own):
            yield f"{key}.schedule_span is run: the learning rate of every round depends on how many there are"
            break
        if (rule := own.lr_over_rounds) is not None and rule.schedule != "constant" and rule.min < own.lr:
            name = f"{key}.lr_over_rounds.schedule is {rule.schedule}"
            yield f"{name}: the learning rate of every round depends on how many there are"
            break
    server = config.server.resolved()
    if server.optimizer == "adamw" and (server.schedule != "constant" or server.warmup_ratio):
        key = f"server.schedule is {server.schedule}"
        key = f"server.warmup_ratio is {server.warmup_ratio}" if server.schedule == "constant" else key
        yield f"{key}: the server's rate in every round depends on how many there are"
    if config.privacy.epsilon is not None:
        yield f"privacy.epsilon is {config.privacy.epsilon}, a promise about {before} rounds by which the noise was set"
    if config.algorithm.limits.reads_num_rounds:
        yield f"algorithm.name is {config.algorithm_name}, whose rule reads how many rounds there are"
    if config.eval.every and done == before and before % config.eval.every:
        yield (
            f"eval.every is {config.eval.every}: the evaluation after round {before}, as the last one, chose the best "
            "model too, and a longer run has none there"
        )


def _falls_over_the_run(settings: ClientConfig) -> bool:
    is_constant = settings.schedule == "constant" and not settings.warmup_steps and not settings.warmup_ratio
    return settings.schedule_span == "run" and not is_constant
