"""`task.model.adapter` and `quantize`: what is added to a model, to be trained in its place, and how the rest is kept.

Imports neither torch nor peft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import BelowOne, Count, Positive

KEY, QUANTIZE_KEY = "task.model.adapter", "task.model.quantize"


@dataclass(frozen=True)
class Adapter:
    """LoRA (Hu et al. 2021): beside W (d_out × d_in) of a layer s·B·A, with A (r × d_in), B (d_out × r), B = 0 first.

    Everything else of the model is frozen but `save` and a head that the pretrained model lacks.
    """

    kind: Literal["lora", "sb"] = "lora"
    """What is added; sb: s·B·R·A, of which R (r × r) alone is trained (Fed-SB)."""
    r: Count = 8
    """Rank of the product."""
    alpha: Positive = 16.0
    """s = alpha / r."""
    dropout: BelowOne = 0.0
    """Of what goes into A, in training."""
    targets: Literal["auto", "all-linear"] | tuple[str, ...] = "auto"
    """Layers by the ends of their names; auto: peft's for the model (queries and values, mostly), else all-linear."""
    rslora: bool = False
    """s = alpha / sqrt(r) (Kalajdzievski 2023)."""
    save: tuple[str, ...] = ()
    """Modules that are trained and sent whole, by the ends of their names, beside a head that is new."""
    base: Literal["fp32", "saved"] = "fp32"
    """Of the base's weights: made fp32, or as in its files (bf16), which then are in memory once on a machine. What is
    trained is fp32 in either case."""
    path: str | None = None
    """A folder with an adapter to start from (adapter_config.json, adapter_model.safetensors), which says the rest."""

    public_rows: str | None = None
    """Of sb: a file of rows that are nobody's secret, with the task's columns; A and B are the best for the gradient of
    their loss. null: from the run's seed. For tasks over data of one's own."""

    def __post_init__(self) -> None:
        if self.public_rows is not None and self.kind != "sb":
            raise ConfigError(
                f"{KEY}.public_rows is {self.public_rows!r}, to which kind sb alone fits its factors, and {KEY}.kind "
                f"is {self.kind}; remove one of them"
            )
        given = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        if self.path is not None and (other := [name for name in given if name not in ("path", "dropout", "base")]):
            raise ConfigError(
                f"{KEY}.path is {self.path!r}, whose adapter_config.json says what the adapter is, and "
                f"{KEY}.{other[0]} is set; remove one of them"
            )

    @classmethod
    def of(cls, value: Any) -> Adapter:
        """From what a config has there.

        Raises:
            ConfigError: an unknown key, or a value that does not fit.
        """
        return _parsed(cls, value, KEY, "{kind: lora, r: 8}")


@dataclass(frozen=True)
class Quantize:
    """How the weights of a base that an adapter leaves as it is are kept in few bits, made whole when they are used."""

    kind: Literal["nf4", "int8"] = "nf4"
    """nf4: four bits, with a scale for 64 numbers (QLoRA, Dettmers et al. 2023); int8: eight, with a scale for every
    output. Linear layers within the base alone: no embeddings, no heads."""

    @classmethod
    def of(cls, value: Any) -> Quantize:
        """From what a config has there.

        Raises:
            ConfigError: an unknown key, or a value that does not fit.
        """
        return _parsed(cls, value, QUANTIZE_KEY, "{kind: nf4}")


def check_quantize(quantize: Quantize | None, adapter: Adapter | None) -> None:
    """Refuse a quantised model without an adapter: nothing of it could be trained.

    Raises:
        ConfigError: so it is.
    """
    if quantize is not None and adapter is None:
        raise ConfigError(
            f"{QUANTIZE_KEY} is set ({quantize.kind}) but {KEY} is not: weights of few bits are not trained, so what "
            "is trained must be added; set task.model.adapter: {kind: lora, r: 8}, or remove task.model.quantize"
        )


_Section = TypeVar("_Section", Adapter, Quantize)


def _parsed(cls: type[_Section], value: Any, key: str, example: str) -> _Section:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} is {value!r} but should be a mapping, such as {example}")
    known = [field.name for field in fields(cls)]
    if unknown := [name for name in value if name not in known]:
        raise ConfigError(f"unknown key {key}.{unknown[0]}; there are {', '.join(known)}")
    values = {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
    try:
        return TypeAdapter(cls).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # of `__post_init__`
            raise first["ctx"]["error"] from None
        name = str(first["loc"][0])
        raise ConfigError(f"{key}.{name} is {value[name]!r}: {first['msg'].lower()}") from None
