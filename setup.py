"""Packaging of fedtorch. Ranges here; the exact versions it is tested with are in constraints.txt."""

import re
import zlib
from pathlib import Path

from setuptools import Extension, find_packages, setup

ROOT = Path(__file__).parent
# not by importing it: what builds a wheel has no torch
VERSION = re.search(r'^VERSION = "(.+?)"', (ROOT / "fedtorch" / "core" / "version.py").read_text(), re.MULTILINE)

# What only some runs need; where it is missing `fedtorch.core.extras.require` names the extra.
EXTRAS = {
    "lorar": ["sqlglot>=26"],  # data prepare text2sql --parse-sql
    "fedmatch": ["bm25s>=0.3.16,<0.4", "scikit-learn>=1.7", "scipy>=1.15"],  # its data, cover queries, the t-test
    "fewfedweight": ["rouge-score>=0.1.2", "scikit-learn>=1.7", "scipy>=1.15"],  # CrossFit's metrics
    "own": ["datasets>=5.2,<6", "sacrebleu>=2.6", "rouge-score>=0.1.2"],  # sources but text files; generated texts
    "adapters": ["peft>=0.21.2,<0.22"],  # task.model.adapter
    "quantize": ["peft>=0.21.2,<0.22", "bitsandbytes>=0.50,<0.51"],  # task.model.quantize
    "notebook": ["pandas>=2.2"],  # the records of a run as a frame
    "privacy": ["dp-accounting>=0.6,<0.7", "cryptography>=42"],  # privacy.kind: client
    "trl": ["trl==1.16.0", "datasets>=5.2,<6"],  # client.trainer; its arithmetic changes between versions
    "slurm": ["submitit>=1.5.3,<2"],
    "deepspeed": ["deepspeed>=0.19.8,<0.20"],  # a source archive, built without torch, compiler or nvcc
}
# not among ALL: 25 packages, of which only those who have an MLflow know whether they want them
MLFLOW = ["mlflow-skinny>=3.17,<4", "importlib_metadata<9"]  # 9.1 lacks a package that it imports
ALL = sorted({requirement for extra in EXTRAS.values() for requirement in extra})
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
    name="fedtorch-nlp",  # the import name is `fedtorch`; not related to MLOPTPSU/FedTorch
    version=VERSION[1],
    description="Federated training of NLP models over torch.distributed: five papers and their baselines",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    keywords="federated-learning nlp pytorch distributed",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    packages=[*find_packages(include=["fedtorch", "fedtorch.*"]), "fedtorch.launchers", "fedtorch.configs"],
    package_dir={"fedtorch.launchers": "launchers", "fedtorch.configs": "configs"},  # beside the package in a clone
    package_data={"fedtorch": ["py.typed", "config/*.yaml"], "fedtorch.configs": ["README.md", "**/*.yaml"]},
    ext_modules=[KERNELS],
    entry_points={"console_scripts": ["fedtorch = fedtorch.cli.__main__:main"]},
    install_requires=[
        "torch>=2.10,<3",
        "transformers>=5.23,<6",
        "tokenizers>=0.23",
        "sentencepiece>=0.2.1",
        "safetensors>=0.6",
        "numpy>=2",
        "typing_extensions>=4.10",
        "pydantic>=2.11,<3",
        "PyYAML>=6",
        "tensorboard>=2.19",
        "tqdm>=4.66",
        "rich>=13",
        "matplotlib>=3.9",
        "xxhash>=3.5",
    ],
    extras_require={
        **EXTRAS,
        "mlflow": MLFLOW,
        "all": ALL,
        "dev": [
            *ALL,
            "setuptools>=68",  # the tests build a wheel
            "pytest>=9",
            "pytest-timeout",
            "hypothesis",
            "seqeval>=1.2.2",  # what spans are compared with
            "scikit-learn>=1.7",
            "ruff",
            "mypy",
            "types-PyYAML",
            "types-tqdm",
        ],
        "docs": ["mkdocs-material>=9.7,<10", "mkdocstrings[python]>=1,<2"],
    },
)
