"""A run on several processes of this machine, through `launchers.local`, and what its failure says."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedtorch.cli.__main__ import COMMANDS, module_of
from fedtorch.config.load import to_dict
from fedtorch.config.python_configs import Given
from fedtorch.config.schema import Config
from fedtorch.core.errors import Interrupted, error_of_code
from fedtorch.core.yaml_tree import write
from fedtorch.lifecycle.status import read_status

_LINES, _OF_EACH = 12, 4
_WORTH_READING = re.compile(r"^\S+ \S+ (?:WARNING|ERROR|CRITICAL) ")


def run_on_ranks(given: Sequence[Given], settings: Sequence[str], config: Config, ranks: int, resume: str) -> None:
    """Run `given` with `settings`, which is `config`, on so many ranks.

    Raises:
        FedtorchError: of the exit code's class, with the reason and the last lines of the ranks' logs.
        KeyboardInterrupt: Ctrl-C; the run is saved.
    """
    local: Any = import_module(module_of(COMMANDS["local"]))  # a launcher imports the package, never the reverse
    # a later attempt would begin there again
    attempts = {} if resume in ("auto", "force") else {"max_restarts": 0}
    before, sizes = read_status(config.folder), _sizes(config.folder)
    with TemporaryDirectory() as folder:
        paths = [Path(one) for one in given if isinstance(one, str | Path)]
        options, command = ("--resume", resume), ""
        if len(paths) < len(given):
            # a dict, which has no file; private, as it may hold secrets
            paths, settings = [Path(folder) / "config.yaml"], ()
            paths[0].write_text(write(to_dict(config)))
            command = local.command_of(local.Request((config.folder / "config.yaml",)), ranks)
        request = local.Request(tuple(paths), tuple(settings), options)
        code, stopped_by = local.run_request(request, config, ranks, command=command, **attempts)
    if not code:
        return
    status = read_status(config.folder)
    reason = status.get("reason") if status != before and status.get("code") == code else None
    if code == Interrupted.exit_code and stopped_by == signal.SIGINT:
        raise KeyboardInterrupt(f"{config.folder}: {reason or 'stopped by a signal'}; call it again to go on")
    said = [f"  {line}" for line in _last_lines(config.folder, sizes)]
    what = f"the run {config.folder} on {ranks} ranks ended with exit code {code}"
    whole = f"all of it: {config.folder}/log.rank*.txt and output.rank*.txt"
    raise error_of_code(code, "\n".join([f"{what}: {reason or 'its ranks could not say why'}", *said, whole]))


def _sizes(folder: Path) -> dict[Path, int]:
    """Bytes of the ranks' logs and outputs, to which a run appends."""
    return {path: path.stat().st_size for path in _files(folder)}


def _files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("log.rank*.txt"), *folder.glob("output.rank*.txt")])


def _last_lines(folder: Path, sizes: dict[Path, int]) -> list[str]:
    """Warnings and errors of every rank, and the end of what else it printed; only what is new."""
    found: list[str] = []
    for path in _files(folder):
        with path.open("rb") as file:
            file.seek(sizes.get(path, 0))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        if path.name.startswith("log."):
            lines = [line for line in lines if _WORTH_READING.match(line)]
        found += [f"{path.name}: {line}" for line in lines[-_OF_EACH:]]
    return found[-_LINES:]
