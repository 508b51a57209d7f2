"""Run one config on a SLURM cluster, through submitit.

python -m launchers.slurm --config FILE --nodes 2 --gpus-per-node 4 --partition gpu --time 240
python -m launchers.slurm --config FILE --tasks-per-node 5 --executor local     the same on this machine, no SLURM

Every rank is one task of srun (not a torchrun agent per node): SLURM then signals, counts and ends the ranks itself,
a signal reaches each rank directly, and what a rank ends with is what sacct shows. Logs are in RUN/slurm. A job that
comes to its time limit, or is preempted, saves, is requeued and resumes after its last complete round.
"""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import sys
from collections.abc import Sequence

from fedtorch import main as fedtorch_main
from fedtorch.config.options import add_config_options, parse
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError, FedtorchError, print_error
from fedtorch.rounds.placement import make_topology

from . import start_words
from .executor import batch_script
from .resources import EXECUTORS, Resources, add_options, resources_of
from .submit import Request, in_queue, job_of, note_job, status_text, submit, wait_for

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None, *, prog: str = "launchers.slurm") -> int:
    """Submit; returns 0 once SLURM has the job, with the other executors the run's own exit code, 2 on bad input."""
    args = parse(_parser(prog), arguments, needs_config=True)
    try:
        resources = resources_of(args)
        request = Request(tuple(args.config), tuple(args.set), ("--resume", args.resume))
        config = request.load()
        _check_ranks(config, resources)
        if args.dry_run:
            print(f"would ask for {resources.describe()}\n", flush=True)
            if resources.executor == "slurm":
                folder, goes_on = (config.folder / "slurm").resolve(), config.clients.on_loss == "continue"
                print(batch_script(resources, folder, name=config.run.name, goes_on=goes_on), end="\n\n", flush=True)
            return fedtorch_main.main([*request.arguments(), "--dry-run", "--ranks", str(resources.ranks)])
        return _run(request, config, resources)
    except FedtorchError as error:
        return print_error(error, prog)


def _run(request: Request, config: Config, resources: Resources) -> int:
    folder = config.folder / "slurm"
    if resources.executor == "slurm" and (number := job_of(config.folder)) and number in in_queue():
        raise ConfigError(
            f"job {number} for {config.folder} waits or runs already; end it with `scancel {number}`, or set run.name"
        )
    before = status_text(config.folder)
    (job,) = submit([request], resources, folder, name=config.run.name)
    if resources.executor == "debug":
        try:
            job.results()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0
    if resources.executor == "slurm":
        note_job(config.folder, job.job_id)
    print(f"job {job.job_id}: {resources.describe()}")
    print(f"logs:    {folder / f'{job.job_id}_<rank>_log.out'} and .err, {config.folder / 'log.rank<rank>.txt'}")
    print(f"status:  {shlex.join([*start_words('sweep'), 'status', str(config.folder)])}", flush=True)
    if resources.executor == "slurm":
        return 0
    code = wait_for(job, config.folder, before=before)
    text = status_text(config.folder)
    told = (
        "its ranks ended without a word; see their logs"
        if text is None or text == before
        else json.loads(text)["reason"]
    )
    print(f"ended:   {told} (exit code {code})")
    return code


def _check_ranks(config: Config, resources: Resources) -> None:
    """Refuse more workers than can ever have something to do."""
    workers = len(make_topology(config, resources.ranks).sizes)
    cohort = config.clients.per_round
    if cohort != "all" and workers > cohort:
        raise ConfigError(
            f"{resources.ranks} ranks are {workers} workers, but a round has only {cohort} clients "
            f"(clients.per_round); ask for fewer nodes or tasks"
        )


def _parser(prog: str) -> argparse.ArgumentParser:
    about = __doc__ or ""
    parser = argparse.ArgumentParser(prog=prog, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_config_options(parser, "as fedtorch.main takes")
    # not `never`, nor a path: a requeued job would begin there again each time
    parser.add_argument("--resume", choices=("auto", "force"), default="auto", help="see fedtorch.main")
    parser.add_argument("--executor", choices=EXECUTORS, default="slurm")
    parser.add_argument("--dry-run", action="store_true", help="check, show the batch script and the placement")
    add_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
