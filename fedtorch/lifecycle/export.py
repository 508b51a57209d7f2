"""Write the models of a run, or of one of its clients, from its last checkpoint: those that clients are evaluated with.

    python -m fedtorch.lifecycle.export RUN [--client NAME] [--merge] [--out FOLDER]

One process, finished and interrupted runs alike, from any folder; nobody's rows are read. A pretrained model, or the
base of an adapter, must be where it was, and of the papers' data the prepared folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors import SafetensorError

from fedtorch.checkpoint.store import Checkpoints, Manifest
from fedtorch.comm.local import LocalCommunicator
from fedtorch.core.errors import CheckpointError, ConfigError, FedtorchError, print_error
from fedtorch.core.model_folder import MODEL
from fedtorch.lifecycle.model_cards import write_cards
from fedtorch.lifecycle.start import lasting_facts
from fedtorch.rounds.best_model import BestModel
from fedtorch.rounds.checkpointing import restore
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.evaluation import Evaluation
from fedtorch.rounds.export import ModelWriter
from fedtorch.setup.build import BuiltRun, rebuild
from fedtorch.setup.pinned_data import is_pinned
from fedtorch.setup.run_config import at_home, open_config, whole_paths

Written = tuple[Path, str]
"""Folder of a model, and whose it is after which rounds."""


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.lifecycle.export") -> int:
    """Write what was asked for; returns the exit code (0 done, 2 an option or the run is wrong, 8 its checkpoint)."""
    args = _parser(prog).parse_args(arguments)
    try:
        for line in export(
            args.run, args.client, args.out, is_global=args.is_global, merge=args.merge, settings=args.set
        ):
            print(line)
        if not args.is_global:  # scores of the run are not that model's where clients have models of their own
            settings, out = whole_paths(args.set), args.out and args.out.absolute()
            with at_home(args.run) as run:
                folder, config = out or run / MODEL, open_config(run, settings)
                write_cards(config, run, folder, args.client or "", merged=args.merge)
        return 0
    except FedtorchError as error:
        return print_error(error)


def export(
    run: Path,
    client: str | None = None,
    out: Path | None = None,
    *,
    is_global: bool = False,
    merge: bool = False,
    settings: Sequence[str] = (),
) -> list[str]:
    """Write the model of `client`, or without one all that the end of the run would write; a line on each.

    out: in place of `model` in the run's folder. is_global: the server's model, also where nobody is evaluated with it.
    merge: with adapters added to the weights of their base. settings: keys of the run's config that differ here, as
    `task.data=DIR`.

    Raises:
        ConfigError: no such run or client; `out` is taken.
        CheckpointError: no usable checkpoint, it does not fit, or the disk refuses.
    """
    settings, place, shown = whole_paths(settings), out and out.absolute(), out or run
    with at_home(run) as whole:
        written = _exported(whole, client, place, is_global=is_global, merge=merge, settings=settings)
    return [f"{shown / path.relative_to(place or whole)}: {about}" for path, about in written]


def _exported(
    run: Path, client: str | None, out: Path | None, *, is_global: bool, merge: bool, settings: Sequence[str]
) -> list[Written]:
    """Write from where the run was started, with whole paths."""
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out is {out}, which is there already; name a folder that is new or empty")
    with _opened(run, client, settings) as (evaluation, done):
        folder, suffix = out or run / MODEL, f".{os.getpid()}.partial"
        writer = ModelWriter(evaluation.context, evaluation.scorer, folder, suffix, merge=merge)
        try:
            if is_global:
                _check_global(writer, out)
                return [_server(writer, f"{done}{_before_training(writer)}")]
            if not writer.is_per_client:
                whose = "all clients are" if client is None else f"client {client}, as all others, is"
                return [_server(writer, f"{done}, with which {whose} evaluated")]
            _check_here(writer, client)
            return [_client(writer, client, out, done)] if client else _all(writer, done)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{writer.folder} could not be written: {error}; make room or set --out") from error
        finally:
            shutil.rmtree(writer.partial, ignore_errors=True)


@contextmanager
def _opened(run: Path, client: str | None, settings: Sequence[str]) -> Iterator[tuple[Evaluation, str]]:
    """The run as after its last checkpoint, with the best weights taken, and how far that is."""
    config, checkpoints = open_config(run, settings), Checkpoints(run / "checkpoints", keep=1)
    only = None if client is None else [client]
    built = rebuild(config)
    if client is not None:
        _check_client(built, client)
    found = checkpoints.latest(only)
    if found is None:
        raise CheckpointError(
            f"{run} has no checkpoint yet; let it train on (checkpoint.every), or stop it with SIGTERM, which saves"
        )
    _check_fits(run, found, built)
    with TemporaryDirectory() as spill:  # not the run's own, which may be going on
        built = replace(built, config=replace(config, run=replace(config.run, dir=spill)))
        comm = LocalCommunicator(built.names)
        context = RoundContext(built.components(comm, checkpoints, stop=lambda: False))
        restore(context, found.round, {*(found.clients if only is None else only)} - found.homes.keys())
        evaluation = Evaluation(context)
        evaluation.take_best()
        best = "" if evaluation.best.round is None else f", best round {evaluation.best.round}"
        yield evaluation, f"{found.round} of {config.rounds} rounds{best}"


def _check_client(built: BuiltRun, client: str) -> None:
    names = list(built.task.manifest())
    if client not in names:
        near = get_close_matches(client, names, 1)
        shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        advice = f"did you mean `{near[0]}`?" if near else f"its clients are {shown}"
        raise ConfigError(f"--client is {client}, but the run has no such client; {advice}")


def _check_fits(run: Path, found: Manifest, built: BuiltRun) -> None:
    """Compare what is built here with what the run was built from: frozen parts or vocabulary could be others."""
    facts = lasting_facts(built)
    if is_pinned(built.config):
        del facts["data"]  # not all at hand
    if other := [key for key, value in facts.items() if found.facts.get(key, value) != value]:
        raise CheckpointError(
            f"{found.folder} was written with other {' and '.join(other)} than {run / 'config.yaml'} gives here; "
            "export with the data and model files of the run (`--set task.data=DIR` if they were moved)"
        )


def _check_global(writer: ModelWriter, out: Path | None) -> None:
    if not writer.context.algorithm.travels.vectors:
        raise ConfigError("--global is set, but the run has no global model: its clients send nothing")
    if writer.is_per_client and out is None:
        raise ConfigError("--global is set, but clients are evaluated with models of their own; say where to by --out")


def _check_here(writer: ModelWriter, client: str | None) -> None:
    homes = writer.context.components.checkpoints.at(writer.context.round).homes
    if away := [name for name in homes if client in (None, name)]:
        shown = ", ".join(f"`{name}` on `{homes[name]}`" for name in away[:10]) + (", ..." if len(away) > 10 else "")
        raise CheckpointError(
            f"states of clients are on the disks of their own hosts and not here: {shown}; their models are in {MODEL} "
            "of the run's folder there when the run is done (run.export), or name another client, or --global"
        )


def _before_training(writer: ModelWriter) -> str:
    names = writer.context.components.engine.private.names
    return f"; {len(names)} private tensors are as before the first round" if names else ""


def _server(writer: ModelWriter, about: str) -> Written:
    _check_written(writer, writer.write_server())
    return writer.folder, f"the global model after {about}"


def _client(writer: ModelWriter, client: str, out: Path | None, done: str) -> Written:
    _check_written(writer, writer.write_client(client, out))
    best = BestModel(writer.context.store.get(client)).round
    of_its_own = f", its best round {best}" if best is not None else ""
    whose = "its own model" if writer.is_own(client) else "evaluated with the global model"
    return out or writer.place_of(client), f"client {client}, {whose} after {done}{of_its_own}"


def _all(writer: ModelWriter, done: str) -> list[Written]:
    for error in writer.write_all().values():
        raise error
    written = sorted(path.name for path in writer.folder.iterdir()) if writer.folder.is_dir() else []
    _check_written(writer, bool(written))
    return [(writer.folder / name, f"after {done}") for name in written]


def _check_written(writer: ModelWriter, is_written: bool) -> None:
    if not is_written:
        kind = type(writer.context.components.task).__name__
        raise ConfigError(f"the task {kind} writes no models; define its `save_model`")


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, finished or interrupted")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--client", metavar="NAME", help="write the model that this client is evaluated with")
    chosen.add_argument(
        "--global",
        action="store_true",
        dest="is_global",
        help="write the server's model, also where clients are evaluated with models of their own",
    )
    parser.add_argument("--merge", action="store_true", help="add an adapter to the weights of its base: a whole model")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="new folder for it; without: in RUN/model")
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="where the run's files are now"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
