"""Runs one rank of fedtorch as a task of a submitit job, in that task's own process.

A module of its own, so that submitit's job file holds a reference to the class and a few strings, never code. It
imports little: until submitit has read that file, a signal ends the process.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from fedtorch.core.errors import Interrupted
from fedtorch.core.saved_rounds import VARIABLE as SAVED
from fedtorch.lifecycle.signals import StopFlag


@dataclass(frozen=True)
class RankProcess:
    """`python -m fedtorch.main` with `arguments`, as the rank that submitit's environment describes.

    1. The ranks find each other as under torchrun; on one machine through the loopback address.
    2. While the run goes on its own handlers answer signals: the round under way is abandoned, all before it saved.
    3. Stopped by submitit's signal (time limit, or preemption that sends it), rank 0 hands over to submitit's handler,
       which counts time-outs and requeues the job; its next attempt resumes after the last complete round.
    4. Stopped by SIGTERM or SIGINT the job ends with 75. `scancel` means it; a partition that preempts at once puts the
       job back itself, and after a grace time the batch script does.
    5. Any other failure is the task's exit status, so that SLURM shows it, and the batch script can act on it.
    """

    arguments: tuple[str, ...]
    """of the run's command line"""
    command: str = ""
    """the one that continues the run, for status.json"""
    secret: str = field(default="", repr=False)
    """of the job, with which its ranks sign what they leave each other in the store"""

    def __call__(self) -> None:
        """Run; returns when done, and on ranks other than 0 also when the job will be requeued.

        Raises:
            SystemExit: with fedtorch's exit code, or by submitit after it has requeued the job.
        """
        from fedtorch.comm.job.signing import VARIABLE  # with torch; a signal meanwhile is submitit's to answer
        from fedtorch.lifecycle.kept_texts import print_frames
        from fedtorch.main import main

        requeue = _join_as_rank()
        os.environ["FEDTORCH_COMMAND"] = self.command
        os.environ.setdefault(VARIABLE, self.secret)
        handler = signal.getsignal(requeue)
        stop = StopFlag()

        def hand_over() -> None:
            if stop.signal == requeue and callable(handler):
                try:
                    handler(requeue, None)
                except SystemExit as error:  # rank 0 has put the job back
                    os._exit(error.code if isinstance(error.code, int) else 1)
                time.sleep(3.0)  # another rank's code may end the job before that

        stop.hand_over = hand_over  # where saving takes longer than system.shutdown_grace
        try:
            code = main(self.arguments, stop)
        except Exception as error:  # a defect; submitit would keep its text in a file beside the run
            print_frames(error)
            code = 1
        # None: another rank was told; the signal on its way to this one is submitit's
        if code == Interrupted.exit_code and stop.signal in (requeue, None) and callable(handler):
            signal.signal(requeue, handler)
            signal.raise_signal(requeue)
        elif code:
            raise SystemExit(code)

    def checkpoint(self) -> Any:
        """For submitit: what to run after a requeue, namely the same; fedtorch finds its checkpoints itself."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _join_as_rank() -> signal.Signals:
    """Set RANK, WORLD_SIZE, ... from submitit's environment; returns the signal that asks a job to requeue."""
    from submitit import JobEnvironment
    from submitit.helpers import TorchDistributedEnvironment

    job = JobEnvironment()
    TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
    if job.num_nodes == 1:
        os.environ["MASTER_ADDR"] = "127.0.0.1"  # a machine need not be able to resolve its own name
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if job.global_rank == 0 and (folder := os.environ.get("SUBMITIT_FOLDER")):  # not in the debug executor
        os.environ[SAVED] = f"{folder}/{job.job_id}.saved"  # for the batch script, see `executor`
    return signal.Signals[f"SIG{job.USR_SIG}"]
