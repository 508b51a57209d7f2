"""Write the model of any round of a run whose weights follow from sums over directions: base and RUN/scalars.jsonl.

    python -m fedtorch.lifecycle.rebuild RUN --out FOLDER [--round N]

One process on the CPU, from any folder, on any machine: no checkpoint and nobody's rows are read. The weights have the
run's bits, also without the loops in C.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors import SafetensorError

from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.local import LocalCommunicator
from fedtorch.core.direction_model import DirectionModel
from fedtorch.core.errors import CheckpointError, ConfigError, FedtorchError, print_error
from fedtorch.core.weights import digest_of
from fedtorch.rounds.client_scores import ClientScorer
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.export import ModelWriter
from fedtorch.rounds.scalar_record import NAME, Reader, head_of, sums_of
from fedtorch.setup.build import BuiltRun
from fedtorch.setup.build import rebuild as build_again
from fedtorch.setup.run_config import at_home, open_config, whole_paths


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.lifecycle.rebuild") -> int:
    """Write what was asked for; returns the exit code (0 done, 2 an option or the run is wrong, 8 its record)."""
    args = _parser(prog).parse_args(arguments)
    try:
        print(rebuild(args.run, args.out, args.round, settings=args.set))
        return 0
    except FedtorchError as error:
        return print_error(error)


def rebuild(run: Path, out: Path, round: int | None = None, *, settings: Sequence[str] = ()) -> str:
    """Write the model after so many rounds to `out`, a folder that is new or empty; a line on it.

    round: None: the last one of the record; 0: the base. settings: keys of the run's config that differ here, as
    `task.model.path=DIR`.

    Raises:
        ConfigError: no such run or round, its weights do not follow from sums, or `out` is taken.
        CheckpointError: the record or the base is not that of the run, or the disk refuses.
    """
    settings, place = whole_paths(settings), out.absolute()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError(f"--out is {out}, which is there already; name a folder that is new or empty")
    if round is not None and round < 0:
        raise ConfigError(f"--round is {round}; rounds are counted from 1, and 0 is the base")
    with at_home(run) as whole, TemporaryDirectory() as spill:
        config = open_config(whole, settings)
        built = build_again(config)
        if not isinstance(built.algorithm.travels.rule(), DirectionModel):
            raise ConfigError(
                f"{run} was trained by algorithm.name {config.algorithm_name}, whose weights travel and are not "
                "recorded; `fedtorch export` writes them from a checkpoint"
            )
        built = replace(built, config=replace(config, run=replace(config.run, dir=spill)))
        return _written(built, Reader(whole / NAME), round, place, out)


def _written(built: BuiltRun, reader: Reader, round: int | None, place: Path, shown: Path) -> str:
    model = built.algorithm.travels.rule()
    assert isinstance(model, DirectionModel)
    initial = built.engine.initial_shared
    reader.check(head_of(model, initial))
    wanted, last = reader.rounds if round is None else round, reader.rounds
    if wanted > last:
        raise ConfigError(f"--round is {wanted}, but {reader.path} has {last} rounds; set it to {last} or less")
    weights = model.weights(initial, sums_of(reader.up_to(wanted), reader))
    comm = LocalCommunicator(built.names)
    context = RoundContext(built.components(comm, Checkpoints(built.config.folder, keep=1), stop=lambda: False))
    writer = ModelWriter(context, ClientScorer(context), place, f".{os.getpid()}.partial")
    try:
        if not writer.write(weights, None, place, writer.partial / "server"):
            raise ConfigError(f"the task {type(built.task).__name__} writes no models; define its `save_model`")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{shown} could not be written: {error}; make room or set --out") from error
    finally:
        shutil.rmtree(writer.partial, ignore_errors=True)
    return f"{shown}: the model after {wanted} of {last} rounds, weights {digest_of({'weights': weights})[:16]}"


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, finished or interrupted")
    parser.add_argument("--out", type=Path, metavar="FOLDER", required=True, help="new folder for the model")
    parser.add_argument("--round", type=int, metavar="N", help="rounds done; without: all that are recorded")
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="where the run's files are now"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
