"""submitit's executors for the resources that were asked for."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtorch.config.masking import mask_assignment
from fedtorch.core.errors import ConfigError
from fedtorch.core.extras import require

from .resources import Resources

# The batch script after srun. $code: the largest exit status of a rank. A job that is being cancelled, or was requeued
# by its rank 0, is no longer RUNNING. Rank 0 leaves a result where it went on to the end without the lost rank: done.
_AFTER = """code=$?
# SLURM_JOB_ID would not do: the last job of an array has the number of the whole array
job=${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}
cd {folder}
# rank 0 has saved a round in this attempt
rm "$job".saved 2> /dev/null && rm -f "$job".hangs
[ "$code" -ne 0 ] && head -c 40 "$job"_0_result.pkl 2> /dev/null | grep -aq success && exit 0
if [ "$(squeue -h -j "$job" -o %T)" = RUNNING ]; then
  case $code in
    # told to stop by SIGTERM, as by a partition that preempts with a grace time, and everything is saved
    75) [ "${{SLURM_RESTART_COUNT:-0}}" -lt {stops} ] && scontrol requeue "$job" ;;
    # 7: a rank was silent, and the others ended; 137: it was killed, by srun in the end or for its memory
    7 | 137)
      echo "$code" >> "$job".hangs
      if [ "$(wc -l < "$job".hangs)" -le {most} ]; then
        echo "a rank hung or was killed ($code); the job is requeued"
        scontrol requeue "$job"
      fi ;;
  esac
fi
exit $code"""


def make_executor(
    resources: Resources, folder: Path, *, name: str, goes_on: bool = False, at_once: int | None = None
) -> Any:
    """submitit's executor, with logs and job files in `folder`. at_once: limit of a job array's running jobs.

    goes_on: the ranks may go on for long after one of them was lost.

    Raises:
        ConfigError: submitit or SLURM's commands are missing.
    """
    require("a job that submitit starts", "submitit", extra="slurm")
    import submitit

    if resources.executor == "slurm" and (missing := [c for c in ("sbatch", "srun") if shutil.which(c) is None]):
        raise ConfigError(
            f"{' and '.join(missing)} not found on this machine, so no job can be submitted from here; log in to a "
            f"machine of the cluster, or take --executor local"
        )
    _check_folder(folder)
    if resources.executor == "debug":
        return submitit.DebugExecutor(folder)
    if resources.executor == "local":
        local = submitit.LocalExecutor(folder, max_num_timeout=resources.max_timeouts)
        local.update_parameters(
            timeout_min=resources.time_min,
            tasks_per_node=resources.tasks,
            gpus_per_node=resources.gpus_per_node,
            signal_delay_s=resources.grace_s,
        )
        return local
    slurm = submitit.SlurmExecutor(folder, max_num_timeout=resources.max_timeouts)
    settings = _settings(resources, folder, name, goes_on)
    if at_once is not None:
        settings["array_parallelism"] = at_once
    slurm.update_parameters(**settings)
    return slurm


def batch_script(resources: Resources, folder: Path, *, name: str, goes_on: bool = False) -> str:
    """Return the script that sbatch would be given for one job, secrets masked; also on a machine without SLURM.

    Raises:
        ConfigError: submitit is missing.
    """
    require("a job that submitit starts", "submitit", extra="slurm")
    from submitit.slurm.slurm import _make_sbatch_string  # what its executor calls (1.5), which wants SLURM to be there

    _check_folder(folder)
    command = f"{shlex.quote(sys.executable)} -u -m submitit.core._submit {shlex.quote(str(folder))}"
    shown = replace(
        resources,
        setup=tuple(map(mask_assignment, resources.setup)),
        sbatch=tuple(map(mask_assignment, resources.sbatch)),
    )
    text: str = _make_sbatch_string(command, folder, **_settings(shown, folder, name, goes_on))
    return text


def _check_folder(folder: Path) -> None:
    if "%" in str(folder):
        raise ConfigError(f"run folder {folder.parent}: SLURM reads % in a path as a pattern; set run.dir without it")


def _settings(resources: Resources, folder: Path, name: str, goes_on: bool) -> dict[str, Any]:
    after = _AFTER.format(folder=shlex.quote(str(folder)), stops=resources.max_timeouts, most=resources.max_hangs)
    settings = {
        "job_name": name,
        "nodes": resources.nodes,
        "ntasks_per_node": resources.tasks,
        "cpus_per_task": resources.cpus_per_task,
        "gpus_per_node": resources.gpus_per_node or None,
        "partition": resources.partition,
        "time": resources.time_min,
        "signal_delay_s": resources.grace_s,
        "setup": list(resources.setup) or None,
        "teardown": after.splitlines(),
        "srun_args": _srun(resources, goes_on),
        "additional_parameters": {"requeue": True, **resources.extra()},
    }
    return {key: value for key, value in settings.items() if value is not None}


def _srun(resources: Resources, goes_on: bool) -> list[str]:
    """Options of srun.

    1. Interrupted ranks end with 75 one after the other, and the server may save its model for minutes after the
       others have left: the first to end must not end the rest. A rank that is alone for 300 s hangs, and is ended.
    2. srun takes the CPUs over from sbatch only up to SLURM 22.05, and the environment not where a site has told
       sbatch to take none from the submitting shell.
    """
    return [
        "--kill-on-bad-exit=0",
        f"--wait={0 if goes_on else 300}",
        f"--cpus-per-task={resources.cpus_per_task}",
        "--export=ALL",
    ]
