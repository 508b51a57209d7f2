"""Packages that only some runs need, installed as an extra: asked for before anything is done that needs them."""

from __future__ import annotations

from importlib.util import find_spec

from fedtorch.core.errors import ConfigError


def require(what: str, *packages: str, extra: str, instead: str = "") -> None:
    """Refuse `what` if a package that it needs is not installed; imports none of them.

    Call it where `what` is asked for, before the ranks meet, and import the packages where they are used.

    packages: names as imported. extra: of this project, in setup.py. instead: what else the user may do.

    Raises:
        ConfigError: names the package and the extra.
    """
    for package in packages:
        if find_spec(package) is None:
            other = f" or {instead}" if instead else ""
            raise ConfigError(
                f"{what} needs {package}, which is not installed; pip install 'fedtorch-nlp[{extra}]'{other}"
            )
