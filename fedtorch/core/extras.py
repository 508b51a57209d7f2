"""Packages that only some runs need, installed as an extra: asked for before anything is done that needs them."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from fedtorch.core.errors import ConfigError


def require(what: str, *packages: str, extra: str, instead: str = "") -> None:
    """Refuse `what` if a package that it needs is not installed; imports none of them.

    Call it where `what` is asked for, before the ranks meet, and import the packages where they are used.

    packages: names as imported. extra: of this project, in pyproject.toml. instead: what else the user may do.

    Raises:
        ConfigError: names the package and the extra.
    """
    for package in packages:
        if find_spec(package) is None:
            other = f" or {instead}" if instead else ""
            raise ConfigError(
                f"{what} needs {package}, which is not installed; pip install 'fedtorch-nlp[{extra}]'{other}"
            )


class FetchesNothing(MetaPathFinder):
    """Lets bitsandbytes be imported without a word and without what it would fetch, whoever imports it (peft does).

    On CPUs that compute in bf16, bitsandbytes 0.50 asks the package `kernels`, where that is installed, for a kernel
    from the network as it is imported, and warns where it is not. Nothing here uses that kernel.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of bitsandbytes, whose import is then one without `kernels`; None of anything else."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == "bitsandbytes" else None
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def run(module: ModuleType) -> None:
                with _without_kernels():
                    execute(module)

            loader.exec_module = run
        return spec


def fetch_nothing() -> None:
    """From now on in this process bitsandbytes is imported so; may be called again."""
    if not any(isinstance(finder, FetchesNothing) for finder in sys.meta_path):
        sys.meta_path.insert(0, FetchesNothing())


@contextmanager
def _without_kernels() -> Iterator[None]:
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    level, present = logger.level, sys.modules.get("kernels")  # transformers may have imported it
    logger.setLevel(logging.ERROR)
    sys.modules["kernels"] = None  # type: ignore[assignment]  # an import of it raises ImportError
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of what it imports
            yield
    finally:
        logger.setLevel(level)
        del sys.modules["kernels"]
        if present is not None:
            sys.modules["kernels"] = present
