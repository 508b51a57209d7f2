"""A SLURM on this machine for tests: any user, everything in one folder (Debian's packages slurm-wlm and munge)."""

from __future__ import annotations

import getpass
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")
SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin"
SLOTS, GPUS = 16, 4  # what a node offers, whatever the machine has

# urgent: its jobs take the place of others, which get SIGTERM and (debug) 60 s to save; SLURM's defaults
# cred_expire: a requeued job waits so many seconds (120 unless set) before it starts again
CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={d}/munge/sock,cred_expire=5
CredType=cred/munge
SlurmctldPort={port}
FirstJobId={first}
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool.%n
SlurmctldPidFile={d}/slurmctld.pid
SlurmdPidFile={d}/slurmd.%n.pid
SlurmctldLogFile={d}/log/slurmctld.log
SlurmdLogFile={d}/log/slurmd.%n.log
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
GresTypes=gpu
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP GraceTime=60
PartitionName=gpu Nodes=ALL MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""
NODE = """NodeName={name} NodeAddr=127.0.0.1 Port={port} CPUs={slots} Boards=1 SocketsPerBoard=1 \
CoresPerSocket={slots} ThreadsPerCore=1 RealMemory=4000 Feature=big \
Gres=gpu:{gpus}
"""


def missing() -> list[str]:
    """The programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]


def two_nodes() -> bool:
    """Can this machine play two? Each needs a host name of its own, and a hosts file that knows both."""
    return subprocess.run(["unshare", "--uts", "--mount", "true"], capture_output=True).returncode == 0


@contextmanager
def cluster(folder: Path) -> Iterator[Mapping[str, str]]:
    """Start one, of nodes n1 and n2 where `two_nodes()`; gives the environment for its commands. Ends all it started.

    folder: short, a socket's path has at most 107 characters.
    """
    munge, host = folder / "munge", socket.gethostname().split(".")[0]
    nodes = ["n1", "n2"] if two_nodes() else [host]
    for name in ("state", "log", "munge", *(f"spool.{node}" for node in nodes)):
        (folder / name).mkdir(mode=0o700, parents=True)
    folder.chmod(0o700)
    (munge / "key").write_bytes(os.urandom(128))
    (munge / "key").chmod(0o600)
    port, *ports = _free_ports(1 + len(nodes))
    first = random.randrange(1, 30000)  # it fixes a job's port; another session may have a cluster here as well
    text = CONF.format(host=host, user=getpass.getuser(), d=folder, port=port, first=first)
    text += "".join(NODE.format(name=n, port=p, slots=SLOTS, gpus=GPUS) for n, p in zip(nodes, ports))
    (folder / "slurm.conf").write_text(text)
    for number in range(GPUS):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n")
    (folder / "hosts").write_text("127.0.0.1 localhost n1 n2\n")
    environ = {**os.environ, "PATH": SEARCH, "SLURM_CONF": str(folder / "slurm.conf")}
    daemons: list[subprocess.Popen[bytes]] = []

    def start(*words: object) -> None:
        with (folder / "log" / "daemons.log").open("ab") as log:
            daemons.append(subprocess.Popen(list(map(str, words)), env=environ, stdout=log, stderr=log))

    def call(*words: str) -> str:
        done = subprocess.run(words, env=environ, check=True, capture_output=True, text=True, timeout=30)
        return done.stdout

    def states() -> list[str]:
        return call("sinfo", "-h", "-N", "-p", "debug", "-o", "%t").split()

    try:
        paths = {"socket": "sock", "key-file": "key", "pid-file": "pid", "seed-file": "seed"}
        options = [f"--{option}={munge / name}" for option, name in paths.items()]
        options.append("--num-threads=10")  # as SLURM advises where it gets no answer in time
        start("munged", "--foreground", "--force", *options, f"--log-file={folder / 'log' / 'munged.log'}")
        _until((munge / "sock").exists, "munged does not start", folder)
        start("slurmctld", "-D", "-c")
        for node in nodes:
            apart = f"mount --bind '{folder}/hosts' /etc/hosts && hostname {node} && exec slurmd -D -c"
            start(
                *(["slurmd", "-D", "-c"] if len(nodes) == 1 else ["unshare", "--uts", "--mount", "bash", "-c", apart])
            )
        _until(lambda: states() == ["idle"] * len(nodes), "the nodes are not idle", folder)
        yield environ
    finally:
        try:
            call("scancel", f"--user={getpass.getuser()}")
            _until(lambda: not call("squeue", "-h").strip(), "jobs do not end", folder)
        except subprocess.SubprocessError:
            pass  # the controller never came up
        finally:
            for daemon in reversed(daemons):  # without a controller a step that ends keeps slurmd alive
                _end(daemon)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _until(condition: Callable[[], bool], problem: str, folder: Path, limit_s: float = 60) -> None:
    give_up_at = time.monotonic() + limit_s
    while True:
        try:
            if condition():
                return
        except subprocess.SubprocessError:
            pass  # the controller is not up yet
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{problem}:\n" + "\n".join(p.read_text()[-2000:] for p in folder.glob("log/*.log")))
        time.sleep(0.1)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
