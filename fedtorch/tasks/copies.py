"""Copies of tasks that keep what was read, with members that are no YAML keys."""

from __future__ import annotations

from typing import Any, TypeVar

from fedtorch.tasks.base import Task

T = TypeVar("T", bound=Task)


def copy_as(cls: type[T], task: Task, **members: Any) -> T:
    """A copy of `task` as a `cls`, its class or a subclass without fields; its keys and all that is cached are kept.

    members: set in the copy alone, each a member that `cls` has by another way: a class constant, or a cached property
    that is then not computed. A field for it would be a YAML key and part of the config's digest, and
    `dataclasses.replace` forgets what is cached, such as a manifest or a tokenizer. The only place that writes to a
    frozen task.
    """
    copied = object.__new__(cls)
    copied.__dict__.update(task.__dict__, **members)
    return copied
