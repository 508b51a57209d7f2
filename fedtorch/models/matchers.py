"""The models that score pairs, as one YAML section: its `name` says which one it is."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from fedtorch.models.bert import BertEncoder
from fedtorch.models.esim import Esim
from fedtorch.models.re2 import Re2


def _kind(section: Any) -> str:
    name = section.get("name") if isinstance(section, dict) else getattr(section, "name", None)
    return name if name in ("re2", "esim") else "bert"


Matcher = Annotated[
    Annotated[BertEncoder, Tag("bert")] | Annotated[Re2, Tag("re2")] | Annotated[Esim, Tag("esim")],
    Discriminator(_kind),
]
"""`name: re2` is RE2, `name: esim` is ESIM, everything else a BERT."""
