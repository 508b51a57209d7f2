"""Stand-ins for SLURM's commands, as small scripts: they show what is asked of SLURM, and run jobs on this machine.

`sbatch` runs the script at once and notes its options; `srun` starts as many tasks as the job has, with SLURM's
variables, and ends with the largest exit status; `scontrol requeue` and `squeue` note that they were called.
"""

from __future__ import annotations

import os
from pathlib import Path

SCRIPTS = {
    "sbatch": r"""
echo "$@" >> "$FAKE/sbatch.calls"; cp "${@: -1}" "$FAKE/script.sh"
[ -z "${FAKE_REFUSE:-}" ] || { echo "sbatch: error: $FAKE_REFUSE" >&2; exit 1; }
echo "Submitted batch job 4242"
""",
    "srun": r"""
while [[ "$1" == --* ]]; do
  echo "$1" >> "$FAKE/srun.calls"; case "$1" in --output|--error) shift;; esac; shift; done
pids=()
trap 'for p in "${pids[@]}"; do kill -USR2 "$p"; done' USR2
for ((i = 0; i < SLURM_NTASKS; i++)); do
  SLURM_PROCID=$i SLURM_LOCALID=$i SLURM_NODEID=0 "$@" &
  pids+=($!)
done
worst=0
for p in "${pids[@]}"; do
  wait "$p"; code=$? # also of one that has ended already; a signal ends a wait early
  while kill -0 "$p" 2> /dev/null; do wait "$p"; code=$?; done
  [ "${code:-0}" -le "$worst" ] || worst=$code
done
exit $worst
""",
    "scontrol": r"""
[ "$1" = show ] && { echo 127.0.0.1; exit; }
echo "$@" >> "$FAKE/scontrol.calls"
""",
    "squeue": r"""
[[ "$*" == *%T* ]] && { echo "${FAKE_STATE:-RUNNING}"; exit; }
[[ "$*" == *%o* ]] && { echo "/some where/mine.sbatch ${FAKE_ARGUMENTS:-}"; exit; }
[ -z "${FAKE_NO_QUEUE:-}" ] || { echo "$FAKE_NO_QUEUE" >&2; exit 1; }
printf '%s\n' $FAKE_QUEUE
""",
    "python": r"""exec "$REAL_PYTHON" "$@" """,
}


def install(folder: Path, *, python: str) -> dict[str, str]:
    """Write the scripts; returns the environment in which they are found first."""
    folder.mkdir()
    for name, text in SCRIPTS.items():
        path = folder / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "FAKE": str(folder),
        "REAL_PYTHON": python,
        "OMP_NUM_THREADS": "1",
    }


def job(*, tasks: int, number: int = 4242) -> dict[str, str]:
    """SLURM's variables in a batch script of one node."""
    return {
        "SLURM_JOB_ID": str(number),
        "SLURM_NTASKS": str(tasks),
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_JOB_NODELIST": "here",
    }
