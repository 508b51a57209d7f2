"""The numbers of rows that ranks know of each other, where exact ones are nobody's business."""

from __future__ import annotations

from fedtorch.core.errors import ConfigError
from fedtorch.privacy.settings import PrivacyConfig
from fedtorch.tasks.base import Task
from fedtorch.tasks.copies import copy_as


def declared(task: Task, privacy: PrivacyConfig) -> Task:
    """The task as every rank may know it: of clients that train with declared numbers of units, and no other count.

    A copy whose `manifest` and `cost` say so; what it loads is what is there.

    Raises:
        ConfigError: `privacy.units` names a client that is not there, or lacks one that trains.
    """
    if privacy.kind != "record":
        return task
    units, shows = privacy.units, "scores" in privacy.reveal
    found = {}
    for name, sizes in task.manifest().items():
        if not sizes.get("train"):
            found[name] = dict(sizes)
        elif name not in units:
            raise ConfigError(
                f"privacy.kind is record but privacy.units has no number for the client {name!r}; declare about how "
                "many units it has, a public and rounded number"
            )
        else:
            scored = {} if privacy.eval is None else privacy.eval.units.get(name, {})
            if lacking := [split for split in scored if not sizes.get(split)]:
                raise ConfigError(
                    f"privacy.eval.units.{name} names {lacking[0]!r}, of which it has no row; remove it there"
                )
            found[name] = {**(sizes if shows else scored), "train": units[name]}
    if unknown := [name for name in units if not found.get(name, {}).get("train")]:
        raise ConfigError(f"privacy.units names {unknown[0]!r}, which is no client with training rows")
    read = {"load": task.load, "check": task.check, "persons": task.persons}  # of the task that knows what is there
    return copy_as(type(task), task, manifest=lambda: found, cost=lambda client: 1.0, **read)
