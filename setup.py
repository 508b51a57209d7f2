"""Packaging of fedtorch. Ranges here; the exact versions it is tested with are in constraints.txt."""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="fedtorch-nlp",  # the import name is `fedtorch`; not related to MLOPTPSU/FedTorch
    version="0.1.0",
    description="Federated training of NLP models over torch.distributed: five papers and their baselines",
    long_description=Path(__file__).with_name("README.md").read_text(),
    long_description_content_type="text/markdown",
    python_requires=">=3.10",
    packages=find_packages(include=["fedtorch*", "launchers*"]),
    package_data={"fedtorch": ["config/*.yaml"]},
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
        "sqlglot>=26",
        "bm25s>=0.3.16,<0.4",
        "scipy>=1.15",
        "scikit-learn>=1.7",
        "rouge-score>=0.1.2",
    ],
    extras_require={
        "slurm": ["submitit>=1.5.3,<2"],
        "deepspeed": ["deepspeed>=0.19.8,<0.20"],  # a source archive, built without torch, compiler or nvcc
        "dev": [
            "pytest>=9",
            "pytest-timeout",
            "pytest-xdist>=3.6",
            "hypothesis",
            "ruff",
            "mypy",
            "submitit>=1.5.3,<2",
            "deepspeed>=0.19.8,<0.20",
            "types-PyYAML",
            "types-tqdm",
        ],
        "docs": ["mkdocs-material>=9.7,<10", "mkdocstrings[python]>=1,<2"],
    },
)
