"""A SLURM of one machine for tests: any user, everything in one folder (Debian's packages slurm-wlm and munge)."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")
SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin"
SLOTS = 8  # the node offers so many cores, whatever the machine has

CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={d}/munge/sock
CredType=cred/munge
SlurmctldPort={port}
SlurmdPort={port_d}
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool
SlurmctldPidFile={d}/slurmctld.pid
SlurmdPidFile={d}/slurmd.pid
SlurmctldLogFile={d}/log/slurmctld.log
SlurmdLogFile={d}/log/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={slots} Boards=1 SocketsPerBoard=1 CoresPerSocket={slots} ThreadsPerCore=1
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """The programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]


@contextmanager
def cluster(folder: Path) -> Iterator[Mapping[str, str]]:
    """Start one; gives the environment for its commands, with `folder`'s python first. Ends all it started.

    folder: short, a socket's path has at most 107 characters.
    """
    munge = folder / "munge"
    for name in ("state", "spool", "log", "munge"):
        (folder / name).mkdir(mode=0o700, parents=True)
    folder.chmod(0o700)
    (munge / "key").write_bytes(os.urandom(128))
    (munge / "key").chmod(0o600)
    ports = _free_ports()
    values = {"host": socket.gethostname().split(".")[0], "user": getpass.getuser(), "d": folder, "slots": SLOTS}
    (folder / "slurm.conf").write_text(CONF.format(**values, port=ports[0], port_d=ports[1]))
    environ = {**os.environ, "PATH": SEARCH, "SLURM_CONF": str(folder / "slurm.conf")}

    def call(*words: object) -> str:
        return subprocess.run(list(map(str, words)), env=environ, check=True, capture_output=True, text=True).stdout

    paths = {"socket": "sock", "key-file": "key", "pid-file": "pid", "seed-file": "seed"}
    options = [f"--{option}={munge / name}" for option, name in paths.items()]
    try:
        call("munged", "--force", *options, f"--log-file={folder / 'log' / 'munged.log'}")
        call("slurmctld", "-c")
        call("slurmd", "-c")
        _until(lambda: call("sinfo", "-h", "-o", "%t").strip() == "idle", "the node is not idle", folder)
        yield environ
        call("scancel", f"--user={values['user']}")
        _until(lambda: not call("squeue", "-h").strip(), "jobs do not end", folder)
    finally:
        for pid in (folder / "slurmd.pid", folder / "slurmctld.pid", munge / "pid"):  # in this order: see the notes
            _end(pid)


def _free_ports() -> list[int]:
    sockets = [socket.socket() for _ in range(2)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _until(condition: object, problem: str, folder: Path, limit_s: float = 60) -> None:
    assert callable(condition)
    give_up_at = time.monotonic() + limit_s
    while True:
        try:
            if condition():
                return
        except subprocess.CalledProcessError:
            pass  # the controller is not up yet
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{problem}:\n" + "\n".join(p.read_text()[-2000:] for p in folder.glob("log/*.log")))
        time.sleep(0.1)


def _end(pid_file: Path) -> None:
    if not pid_file.exists():
        return
    try:
        pid = int(pid_file.read_text())
        os.kill(pid, 15)
        for _ in range(100):
            os.kill(pid, 0)
            time.sleep(0.1)
        os.kill(pid, 9)
    except (ProcessLookupError, ValueError):
        pass
