"""A script of the user's own: its model, its rows, its training; this package federates them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import nn

from fedtorch.core import devices
from fedtorch.core.errors import ConfigError, FedtorchError
from fedtorch.core.own_frames import own_place
from fedtorch.data.own.client_rule import ClientRule
from fedtorch.data.own.keys import OwnData, SplitRule
from fedtorch.data.own.prepare import prepare
from fedtorch.data.own.prepared_folder import folder_for
from fedtorch.data.own.source import open_tables
from fedtorch.models.pretrained import save_model
from fedtorch.tasks.prepared import InFolder
from fedtorch.trainers import process_state
from fedtorch.trainers.script import as_its_own, run_script

_MARK = "="  # before the name of a column, so that it is none of the roles that rows have beside their columns


@dataclass(frozen=True, kw_only=True)
class Script(InFolder):
    """A training script with the three calls of `fedtorch.client`; clients are trained by `client.trainer: script`.

    What it measures it sends by itself: there is no evaluation. At the start it is run until it receives its model,
    which says what is trained; the same on every rank.
    """

    evaluates_loss: ClassVar[bool] = False
    main_metric: ClassVar[str] = "none"

    script: Path
    """the script"""
    arguments: tuple[str, ...] = ()
    """its command line"""
    keep: Literal["nothing", "process"] = "nothing"
    """nothing: the script is run anew for every client and round. process: it is begun once on each rank and goes on
    around `while fedtorch.client.running():`; what it remembers is in no checkpoint, and all clients of a rank have it
    together"""
    data: OwnData | None = None
    """whose the rows are that `fedtorch.client.rows()` gives; null: as the script itself says there"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "script", Path(self.script))

    @cached_property
    def own_data(self) -> OwnData:
        """The keys of `data`, or those that the script gives in its first call of `rows`."""
        if self.data is not None:
            return self.data
        found = self._begun(0, until_rows=True).data
        if found is None:
            raise ConfigError(
                f"task.script {self.script} calls fedtorch.client.receive before fedtorch.client.rows('FILE', "
                "by='COLUMN'), so nobody knows the clients; call rows before, or set task.data"
            )
        return found

    @cached_property
    def folder(self) -> Path:
        """The prepared rows, below data/, with all their columns."""
        return folder_for(self.own_data, "script", {}, self._prepare)

    def _prepare(self, folder: Path) -> None:
        data = self.own_data
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open_tables(data.source, folder.parent, data.text_form) as tables:
            form = AllColumns(tuple(dict.fromkeys(name for table in tables for name in table.rows.column_names)))
        named = {f"{_MARK}{name}": name for name in form.names}
        prepare(folder, "script", replace(data, columns=named), form)

    def raw_rows(self, client: str, split: str) -> list[dict[str, Any]]:
        """Rows with all their columns."""
        return self.rows(client, split)

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """They are the script's affair; this says that there are rows."""
        return ("any",)

    def load(self, client: str, split: str) -> Sequence[Any]:
        """Rows, to be counted."""
        return self.raw_rows(client, split)

    def collate(self, examples: Sequence[Any], train: bool) -> Any:
        """None is made here.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("task.name is script, whose batches only the script itself makes; use another task for this")

    def build_model(self, seed: int) -> nn.Module:
        """The model that the script receives into, drawn from `seed` where it draws one; what is trained is fp32."""
        model = self._begun(seed).model
        if model is None:
            raise ConfigError(
                f"task.script {self.script} ended without fedtorch.client.receive(model), so there is nothing to train"
            )
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"task.script {self.script} calls fedtorch.client.receive with a {type(model).__name__}; give it the "
                "model, a torch.nn.Module"
            )
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        return model.cpu()

    def _begun(self, seed: int, *, until_rows: bool = False) -> Beginning:
        """Begin the script, to hear what it says of itself.

        Raises:
            ConfigError: it fails before it has said it.
        """
        if not self.script.is_file():
            raise ConfigError(f"task.script is {self.script}, which is no file")
        beginning = Beginning(self.data, until_rows)
        try:
            with process_state.lent(devices.CPU, seed), as_its_own(self.script, self.arguments, beginning):
                run_script(self.script)
        except _Enough:
            pass
        except FedtorchError:
            raise
        except Exception as error:
            raise ConfigError(
                f"task.script {self.script} failed before it received a model: {type(error).__name__}: "
                f"{error}{own_place(error)}"
            ) from error
        return beginning

    def save_model(self, model: nn.Module, folder: Path) -> None:
        """`save_pretrained`, where the model has it: an adapter alone where it is peft's."""
        if hasattr(model, "peft_config"):
            model.save_pretrained(folder)  # type: ignore[operator]
        elif hasattr(model, "save_pretrained"):
            save_model(model, folder)

    def metrics(self) -> tuple[str, ...]:
        """None."""
        return ()

    def facts(self) -> dict[str, str]:
        """Digests of the rows and of the script."""
        return {"data": self.data_digest(), "script": hashlib.sha256(Path(self.script).read_bytes()).hexdigest()[:16]}

    def record(self) -> dict[str, Any]:
        """How the rows were dealt."""
        return {"data": self.prepared.get("record", {}), "script": str(self.script)}


class _Enough(BaseException):
    """The script has said what was asked; no `except Exception` of its own stops this."""


class Beginning:
    """A run that has not begun, to the script: it is told all rows, and ends where it receives its model."""

    def __init__(self, data: OwnData | None, until_rows: bool) -> None:
        self.data, self._until_rows, self._folder = data, until_rows, Path.cwd()
        self.model: nn.Module | None = None

    def rows(self, source: str | None, clients: Mapping[str, Any]) -> list[dict[str, Any]]:
        from fedtorch.client import all_rows

        if self.data is None:
            if source is None or not clients:
                raise ConfigError(
                    "task.data is not set, so fedtorch.client.rows has to say where the rows are and whose: "
                    "rows('rows.jsonl', by='COLUMN'), or iid=8 for shuffled rows"
                )
            if (folder := Path.cwd()) != self._folder:  # to which the script has gone: everybody else has not
                source = str(folder / source)
            self.data = OwnData(source, clients=ClientRule(**clients), splits=SplitRule(0.0, 0.0))
            if self._until_rows:
                raise _Enough
        if source is not None:
            return all_rows(source)
        named = self.data.source
        with process_state.present_folder(self._folder):
            return all_rows(named if isinstance(named, str) else None)

    def receive(self, model: nn.Module) -> nn.Module:
        self.model = model
        raise _Enough

    def send(self, model: nn.Module, numbers: Mapping[str, float]) -> None:
        if self.model is not None:  # by a `finally`, or by what goes on after an `except` of everything
            raise _Enough
        raise ConfigError("the script calls fedtorch.client.send before fedtorch.client.receive")

    def running(self) -> bool:
        return True

    def step(self) -> None:
        pass

    def facts(self) -> Mapping[str, Any]:
        return {"client": "none", "round": 0, "seed": 0}


@dataclass(frozen=True)
class AllColumns:
    """Form of a row that keeps all its columns."""

    names: tuple[str, ...]
    """of the columns"""
    required: Sequence[str] = ()
    """none has to be there"""

    @property
    def optional(self) -> Sequence[str]:
        """All of them, under names that are no roles."""
        return [f"{_MARK}{name}" for name in self.names]

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The row as it stands."""
        return {name.removeprefix(_MARK): value for name, value in values.items()}

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """The whole row, to find rows that are the same."""
        return [json.dumps(row, sort_keys=True, default=str)]
