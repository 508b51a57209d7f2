"""A training script as a client: three lines in a script of one's own, which also runs without this package's runs.

```python
import fedtorch.client as fl

rows = fl.rows("rows.jsonl", by="who")  # alone: all rows; in a run: those of one client
model = fl.receive(model)               # alone: the model; in a run: with the weights that the server sent
...                                     # train it, in place
fl.send(model, {"loss": 1.2})           # alone: nothing
```

`fedtorch run --script train.py` runs the script anew for every client and round. Importing this imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

Model = TypeVar("Model")


class Script(Protocol):
    """A run, as the script that it runs sees it."""

    def rows(self, source: str | None, clients: Mapping[str, Any]) -> list[dict[str, Any]]: ...
    def receive(self, model: Any) -> Any: ...
    def send(self, model: Any, numbers: Mapping[str, float]) -> None: ...
    def running(self) -> bool: ...
    def step(self) -> None: ...
    def facts(self) -> Mapping[str, Any]: ...


_run: Script | None = None
"""The run that this script belongs to; None: the script runs alone."""
_alone = {"begun": False}


def rows(source: str | None = None, **clients: Any) -> list[dict[str, Any]]:
    """The client's training rows, a dictionary of columns each; outside of a run all rows of `source`.

    source: a file, glob or folder as `task.data.source`; needed where no config names one, and then before `receive`.
    clients: whose a row is, as `task.data.clients`: `by="COLUMN"`, or `iid=8` for shuffled rows.
    """
    return all_rows(source) if _run is None else _run.rows(source, clients)


def receive(model: Model) -> Model:
    """The model with the weights of this round, loaded in place into its parameters of the same names."""
    return model if _run is None else _run.receive(model)


def send(model: Any, numbers: Mapping[str, float] | None = None) -> None:
    """Hand over the trained model, once, with numbers for the client's report; `loss` is the loss of its steps."""
    if _run is not None:
        _run.send(model, numbers or {})


def running() -> bool:
    """Is there a round to be trained? For `while fl.running():`; outside of a run true once."""
    if _run is not None:
        return _run.running()
    _alone["begun"] = not _alone["begun"]
    return _alone["begun"]


def step() -> None:
    """Say that an optimiser step was taken; Trainers of transformers say it by themselves."""
    if _run is not None:
        _run.step()


def name() -> str:
    """The client's name; `alone` outside of a run."""
    return str(_facts()["client"])


def round() -> int:
    """The round of the run, from 0."""
    return int(_facts()["round"])


def seed() -> int:
    """The seed of this client and round; Python's, numpy's and torch's generators begin with it."""
    return int(_facts()["seed"])


def _facts() -> Mapping[str, Any]:
    return {"client": "alone", "round": 0, "seed": 0} if _run is None else _run.facts()


def all_rows(source: str | None) -> list[dict[str, Any]]:
    """All rows of a source, by column.

    Raises:
        ConfigError: it names nothing. DataError: a file cannot be read.
    """
    from pathlib import Path

    from fedtorch.core.errors import ConfigError, DataError
    from fedtorch.data.own.source import open_tables, rows_of

    if source is None:
        raise ConfigError("fedtorch.client.rows() has no source: give one, such as rows('rows.jsonl', by='who')")
    found = []
    with TemporaryDirectory() as scratch, open_tables(source, Path(scratch)) as tables:
        for table in tables:
            for index, row in rows_of(table, {name: name for name in table.rows.column_names}):
                if isinstance(row, ValueError):
                    raise DataError(f"{table.where(index)}: {row}")
                found.append(row)
    return found
