"""Eight small text-to-SQL silos made by the package itself: the default job needs no download."""

from fedtorch.data.synthetic.generate import Silo, generate, prepare
from fedtorch.data.synthetic.schemas import SCHEMAS, Column, Schema, Table, build_database

__all__ = ["SCHEMAS", "Column", "Schema", "Silo", "Table", "build_database", "generate", "prepare"]
