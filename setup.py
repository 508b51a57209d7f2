"""The loops in C, and which folders belong to the package; everything else about it is in pyproject.toml."""

import zlib
from pathlib import Path

from setuptools import Extension, find_packages, setup

ROOT = Path(__file__).parent
# Loops that `fedtorch.core.kernels` has in numpy too: without a compiler the package is installed all the same. Called
# through ctypes, so it needs no Python headers either.
LOOPS = "fedtorch/core/_kernels.c"
KERNELS = Extension(
    "fedtorch.core._kernels",
    [LOOPS],
    define_macros=[("SOURCE", f"{zlib.crc32((ROOT / LOOPS).read_bytes())}u")],  # of what it was built, see `kernels.py`
    extra_compile_args=["-O3", "-std=c11", "-fno-fast-math", "-ffp-contract=off"],  # the bits of numpy
    libraries=["m"],
    optional=True,
)

setup(
    packages=[*find_packages(include=["fedtorch", "fedtorch.*"]), "fedtorch.launchers", "fedtorch.configs"],
    package_dir={"fedtorch.launchers": "launchers", "fedtorch.configs": "configs"},  # beside the package in a clone
    package_data={"fedtorch": ["py.typed", "config/*.yaml"], "fedtorch.configs": ["README.md", "**/*.yaml"]},
    ext_modules=[KERNELS],
)
