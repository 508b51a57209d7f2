"""Which class defines a member: for what follows from a subclass having a function of its own in place of a base's."""

from __future__ import annotations


def definer(cls: type, name: str) -> type | None:
    """The class, `cls` or one above it, whose member `name` an instance of `cls` has; None where no class has one."""
    return next((base for base in cls.__mro__ if name in vars(base)), None)


def overrides(cls: type, name: str, base: type) -> bool:
    """Has `cls` a member `name` of its own, other than that of `base`? Not if it names the base's as its own."""
    return getattr(cls, name) is not getattr(base, name)
