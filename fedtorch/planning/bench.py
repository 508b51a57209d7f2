"""`fedtorch bench`: measure on this machine the constants of `planning.cost_model`; `--dry-run --nodes` reads them."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fedtorch.config import load as yaml_config
from fedtorch.config.options import add_config_options, parse
from fedtorch.core.errors import CheckpointError, ConfigError, FedtorchError
from fedtorch.core.files import replace_file
from fedtorch.core.freed_memory import keep_freed
from fedtorch.core.terminal import log_to_terminal
from fedtorch.planning.cost_model import Constants
from fedtorch.planning.light_rounds import MANY, LightRounds, with_rounds
from fedtorch.planning.probe import own_bytes
from fedtorch.planning.step_time import Training, training_seconds
from fedtorch.setup.build import BuiltRun, build
from fedtorch.train.attention import AUTO


@dataclass(frozen=True)
class Measured:
    """Content of the file of constants."""

    constants: Constants
    """Seconds and bytes of this machine that no model or config changes."""
    steps: Mapping[str, Training] = field(default_factory=dict)
    """By `step_key`, of every config that was measured."""


def default_path() -> Path:
    """Where constants are kept: under the user's cache folder (XDG_CACHE_HOME, or ~/.cache)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedtorch" / "bench.json"


def read(path: Path) -> Measured:
    """The file of constants.

    Raises:
        ConfigError: it is not there or not such a file; says what to do.
    """
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist: this machine was not measured; run `fedtorch bench` with the same --config and "
            "--set, or name a file of another machine with --constants"
        )
    try:
        content = json.loads(path.read_text())
        found, names = set(content["constants"]), {each.name for each in fields(Constants)}
        if found != names:
            raise ValueError(
                f"of another version: it lacks {', '.join(sorted(names - found)) or 'nothing'}, and unknown are "
                f"{', '.join(sorted(found - names)) or 'none'}"
            )
        return Measured(
            Constants(**content["constants"]), {key: Training(*both) for key, both in content["steps"].items()}
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is no file of constants ({error}); run `fedtorch bench --out {path}`") from error


def step_key(built: BuiltRun) -> str:
    """All that a step's seconds depend on: model, engine, threads, the clients' usual batch and optimiser."""
    hp, config, engine = built.config.client, built.config, built.config.engine
    parts = (built.engine.shared.digest(), built.engine.private.digest(), config.task_name, engine.precision)
    how: list[str] = [engine.attention] if engine.attention != AUTO else []  # what is usual is not in the key
    how += ["activations again"] if engine.activation_checkpointing else []
    return "/".join(map(str, (*parts, config.system.threads, hp.batch_size, hp.accumulation, hp.optimizer, *how)))


def measure(built: BuiltRun, say: Callable[[str], None]) -> Measured:
    """All constants, with the machine as busy as it is; some twenty seconds and those of the steps."""
    engine = built.engine
    model_bytes = 2 * engine.shared.dtype.itemsize * (engine.shared.size + engine.private.size)
    process_bytes = max(0, own_bytes() - model_bytes)
    say(f"sums, copies and sending on {max(2, _cores())} ranks")
    full = _probe(max(2, _cores()))
    say("meetings of 2 ranks")
    two = _probe(2, "--small")
    say(f"meetings of {MANY} ranks")
    many = _probe(MANY, "--small")
    pair = full if len(full) == 2 else _probe(2)
    constants = constants_of(pair, full, two, many, process_bytes=process_bytes)
    say(f"rounds of 2 and {MANY} ranks that send next to nothing")
    constants = with_rounds(constants, LightRounds(**_said_by("fedtorch.planning.light_rounds")))
    say("training steps of the config's model")
    return Measured(constants, {step_key(built): training_seconds(built)})


def constants_of(
    pair: Sequence[Mapping[str, Any]],
    full: Sequence[Mapping[str, Any]],
    two: Sequence[Mapping[str, Any]],
    many: Sequence[Mapping[str, Any]],
    *,
    process_bytes: int,
) -> Constants:
    """From what `planning.probe` says on each rank: of two ranks, of as many as cores, and meetings of two and of many.

    Those of rounds are 0, see `with_rounds`.
    """

    def mean(name: str) -> float:
        return sum(rank[name] for rank in full) / len(full)

    size = pair[0]["broadcast_bytes"]
    digest = mean("digest")
    wall, sender = pair[0]["broadcast"]
    receiver = pair[1]["broadcast"][1]
    meeting_s, meeting_rank_s = _line("meeting", two, many)
    header_s, header_rank_s = _line("header", two, many)
    return Constants(
        cores=_cores(),
        add_s=mean("add"),
        add_sum_s=mean("add_sum"),
        result_s=mean("result"),
        client_s=mean("client"),
        server_step_s=mean("step"),
        digest_s=digest,
        send_s=max(0.0, sender / size - digest),
        receive_s=max(0.0, receiver / size - digest),
        flow_s=max(0.0, wall / size - digest),
        hop_s=pair[0]["hop"],
        meeting_s=meeting_s,
        meeting_rank_s=meeting_rank_s,
        header_s=header_s,
        header_rank_s=header_rank_s,
        client_round_s=0.0,
        report_s=0.0,
        round_s=0.0,
        round_rank_s=0.0,
        process_bytes=process_bytes,
    )


def _line(name: str, two: Sequence[Mapping[str, Any]], many: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """(seconds of two ranks on the clock, what each further rank adds)."""
    of_two, of_many = (median(rank[name][0] for rank in ranks) for ranks in (two, many))
    return of_two, max(0.0, of_many - of_two) / (len(many) - 2)


def _probe(*words: int | str) -> list[dict[str, Any]]:
    """Start light ranks, which meet and send and do nothing else; returns what they measured."""
    found: list[dict[str, Any]] = _said_by("fedtorch.planning.probe", *words)
    return found


def _said_by(module: str, *words: int | str) -> Any:
    """Run a module that starts light ranks, which are processes of their own; returns what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("TORCHELASTIC")}
        environ |= {"OMP_NUM_THREADS": "1", "TMPDIR": folder}
        command = [sys.executable, "-m", module, *map(str, words)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise FedtorchError(f"ranks of this machine could not be measured ({' '.join(command[2:])}): {last}")
    return json.loads(done.stdout)


def _cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write(path: Path, measured: Measured) -> None:
    """The file, whole or not at all; what was measured of other models' steps stays in it.

    Raises:
        CheckpointError: it cannot be written.
    """
    try:
        before = read(path).steps if path.is_file() else {}
    except ConfigError:
        before = {}
    content = {
        "machine": f"{platform.node()}, {platform.machine()}, torch {torch.__version__}",
        "constants": asdict(measured.constants),
        "steps": {**before, **measured.steps},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise CheckpointError(f"{path} could not be written ({error}); set --out") from error


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.planning.bench") -> int:
    """Measure and write; returns the exit code (0, 2 config, 3 data, 8 the file cannot be written)."""
    args = parse(_parser(prog), arguments)
    log_to_terminal(logging.WARNING)
    path = args.out or default_path()
    try:
        config = yaml_config.load(args.config, args.set)
        torch.set_num_threads(config.system.threads)
        keep_freed(config.system.keep_freed_mb)
        measured = measure(build(config, num_ranks=1, rank=0), lambda text: print(f"measuring {text}", file=sys.stderr))
        write(path, measured)
    except FedtorchError as error:
        print(f"fedtorch: {error}", file=sys.stderr)
        return error.exit_code
    for name, value in asdict(measured.constants).items():
        print(f"{name:18}{value:>12,}" if isinstance(value, int) else f"{name:18}{value:>12.3g}")
    (training,) = measured.steps.values()
    print(f"{'a training step, s':18}{training.step_s:>12.3g}\n{'before the first':18}{training.start_s:>12.3g}")
    print(f"written to {path}")
    return 0


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Measures what sums, sending, meetings and a training step of the config's model cost on this "
        "machine, for `fedtorch run --dry-run --nodes`. Let nothing else run meanwhile.",
    )
    add_config_options(parser, "as of `fedtorch run`")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"where the constants go ({default_path()})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
