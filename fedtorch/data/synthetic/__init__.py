"""Eight small text-to-SQL clients made by the package itself: the default job needs no download."""

from fedtorch.data.synthetic.generate import ClientData, generate, prepare
from fedtorch.data.synthetic.schemas import SCHEMAS, Column, Schema, Table, build_database

__all__ = ["SCHEMAS", "ClientData", "Column", "Schema", "Table", "build_database", "generate", "prepare"]
