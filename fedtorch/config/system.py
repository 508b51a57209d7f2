"""The parts of a configuration that are about the run itself: its name and folder, saving, logs, devices."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import Count, Whole
from fedtorch.core.shown import plain


@dataclass(frozen=True)
class RunConfig:
    """`run`: what the run is called, where it is kept, and its seed."""

    name: str = "run"
    """Name of the run; the config file's name without `.yaml` when the file does not give one."""
    dir: str | None = None
    """Run folder, with everything the run writes; null: `runs/<name>`."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """All randomness is derived from this number."""
    export: Literal["all", "none"] = "all"
    """At the end write the models that clients were evaluated with into `model/`: the server's, or one per client, as
    large as the model each; none: leave that to `fedtorch export`."""
    published: str | None = None
    """Row of a paper's table that reports show beside this run, as `lorar/fedopt_lorar`; null: the one of its name."""
    trackers: tuple[str | dict[str, Any], ...] = ("tensorboard",)
    """Who is told of the run as it goes on: tensorboard (where `track.tensorboard` is true), mlflow, `module:Class`: a
    `fedtorch.RunTracker` of your own. As a mapping: its `name` and the fields of its dataclass. metrics.jsonl is always
    written."""

    def __post_init__(self) -> None:
        is_strange = any(c in self.name for c in "/\\\n\t") or plain(self.name) != self.name
        if self.name in ("", ".", "..") or len(self.name) > 200 or is_strange:
            raise ConfigError(
                f"run.name is {self.name[:40]!r} but it names a folder; use 1 to 200 characters other than / and \\, "
                "none of which a terminal obeys"
            )


@dataclass(frozen=True)
class SystemConfig:
    """`system`: how the work is done; `device`, `deterministic` and `threads` can change the result's last bits."""

    device: Literal["auto", "cpu", "cuda", "xpu", "mps"] = "auto"
    """auto: a GPU where torch finds one (cuda: NVIDIA's, and AMD's in torch's build for them; xpu: Intel's; mps:
    Apple's, which have no float64, so that sums are made on the CPU). Where there is a GPU's driver and torch finds no
    GPU, the CPU computes, with a warning; a job of several machines ends with the reason. Rank number LOCAL_RANK of a
    machine gets the GPU of that number, modulo their count."""
    deterministic: bool = False
    """On GPUs: only kernels that give the same bits each time, for the same GPU and libraries; slower, and an error
    where an operation has none. Sums, broadcasts, seeds and placement are exact anyway, and so is all of it on CPUs."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """How weights and updates travel. nccl: from GPU to GPU, for which every rank must have one of its own; gloo: over
    the network from the CPU's memory; auto: nccl where it can be had (never with `clients.on_loss: continue`), but not
    on one machine where vectors go through the host's memory, which its ranks share. Same result."""
    interface: str | None = None
    """On jobs of several hosts: the network interface (`eth1`), or the network that has its address (`10.0.0.0/8`), by
    which the hosts reach each other; null: the one by which a host reaches MASTER_ADDR, and that one the others.
    GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME come first where they are set."""
    ports: str | None = None
    """On jobs of several hosts: the ports at which ranks listen for each other, such as `40000-40999`, for a firewall;
    null: any that the kernel gives out. Beside MASTER_PORT. Must be among those (net.ipv4.ip_local_port_range)."""
    trust_network: bool = False
    """On jobs of several hosts: may ranks talk to each other over public addresses? What travels is not encrypted, so
    without it they refuse (docs/silos.md: WireGuard)."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """CPU threads per rank; set by the program, so that torchrun and plain python agree."""
    timeout: Annotated[float, Field(gt=0, le=1e7)] = 600.0
    """Seconds without a sign of life from a rank before the run ends with its name."""
    start_timeout: Annotated[float, Field(gt=0, le=1e7)] | None = None
    """Seconds that ranks wait for each other at the start: for one that is late, or that is started again on another
    machine; null: as long as `timeout`, but 60 at least, for to start takes longer than to give a sign of life."""
    end_timeout: Annotated[float, Field(ge=0, le=1e7)] | None = None
    """Seconds that the server of `fedtorch serve` stays after the run's end for silos that were away then, which come
    back, hear of it and write their models; null: as long as `start_timeout`."""
    shutdown_grace: Annotated[float, Field(gt=0, lt=30)] | None = 20.0
    """Seconds after a signal in which the state must be saved. Then a rank leaves at once, with the last checkpoint as
    it is; below the 30 after which torchrun and SLURM kill. null: as long as it takes."""
    placement: Literal["balanced", "pinned"] = "balanced"
    """balanced: every rank can read every client, and clients are shared out by their work; pinned: a client's files
    are where `pinned` says, and only its sizes are known elsewhere."""
    pinned: dict[str, Whole] = field(default_factory=dict)
    """With `placement: pinned`: every client -> the rank, or machine, that has its files. Their order here counts as
    the clients' order."""
    pinned_to: Literal["rank", "node"] = "rank"
    """What the numbers in `pinned` are; a node's clients are shared out among its ranks."""
    sum_scale: Literal["reports", "previous", "public"] = "reports"
    """What fixes the scale of the exact sum of updates: reports: the largest elements that clients report; previous:
    eight times those of the round before, so that it is known before anybody has trained (a round that does not fit is
    summed as with `reports`), for algorithms whose weights are known of each client alone; public: `privacy.clip` and
    the number of clients, as a secure sum needs it, with the bits of that one."""
    server_works: Literal["auto"] | bool = "auto"
    """Does rank 0 train clients too; auto: when it is the only rank, or when all ranks are on one machine that has a
    GPU for each of them, or no GPU and as many cores as ranks; not with `privacy.kind: client`, `privacy.secure_sum`,
    `placement: pinned`, DeepSpeed or several ranks per worker."""
    ranks_per_worker: Count | tuple[Count, ...] = 1
    """Ranks that train one client together (a user and an assistant rank, or FSDP and DeepSpeed); must divide the
    ranks that train. A list, such as [2, 1]: of each worker. Alone in one process a rank does the work of all of them,
    whatever stands here."""
    exchange: Literal["auto", "reduce", "send"] = "auto"
    """How updates are summed: as one sum per rank, or sent one by one; same result, auto: the one with fewer bytes.
    With `sum_scale: previous` updates travel while other clients train, or their own does: with auto where at most four
    ranks beside the server have clients, with send always, with reduce never."""
    shared_memory: Literal["auto", "never"] = "auto"
    """auto: ranks of one machine (Linux) exchange weights and updates through memory that they share, and between
    machines one rank of each talks: a broadcast reaches a machine once, one sum leaves it. Where all ranks are on one
    machine, what the server sends and what clients send is read where it is (over gloo; nccl goes from GPU to GPU
    there). never: every rank over sockets, or nccl. Same result."""
    oom_retry: bool = True
    """A client that runs out of memory is tried once more, by all ranks of its worker, with micro-batches in halves:
    the same mean gradient, but for dropout; false: it counts as failed at once. Not inside DeepSpeed's own exchanges
    between ranks, where it ends the run."""
    update_memory_mb: Count = 1024
    """Memory per rank for updates that wait to be sent."""
    state_memory_mb: Count = 2048
    """Memory per rank for the states of its clients; more is kept on disk."""
    keep_freed_mb: Annotated[int, Field(ge=0, le=2047)] = 0
    """Memory per rank that is kept when it is freed (glibc); 0: as the C library does by itself, which gives large
    blocks back at once, so that the system clears all their pages anew in every step. As much as a step on a CPU uses
    beside the model makes it faster (one of GPT-2 with 60 M parameters by a third); it stays taken between steps."""

    def __post_init__(self) -> None:
        if self.backend == "nccl" and self.device not in ("auto", "cuda"):
            raise ConfigError(
                f"system.backend is nccl, which moves what is on NVIDIA's and AMD's GPUs, but system.device is "
                f"{self.device}; set system.backend to auto"
            )
        if self.interface is not None and not _names_a_network(self.interface):
            raise ConfigError(
                f"system.interface is {self.interface[:40]!r}; expected the name of a network interface, such as "
                "`eth1`, or a network or address, such as `10.0.0.0/8`"
            )
        port_range(self.ports)
        if self.placement != "pinned" and self.pinned_to != "rank":
            raise ConfigError(
                f"system.pinned_to is {self.pinned_to} but system.placement is {self.placement}, where nobody is "
                "pinned; remove system.pinned_to, or set system.placement to pinned"
            )
        if (self.placement == "pinned") != bool(self.pinned):
            raise ConfigError(
                f"system.placement is {self.placement} but system.pinned has {len(self.pinned)} clients; set both: "
                "`placement: pinned` and the rank of every client, such as `pinned: {north: 1, south: 2}`"
            )


def port_range(text: str | None) -> tuple[int, int] | None:
    """First and last port of `system.ports`; None where it is null.

    Raises:
        ConfigError: it is no range of ports.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1024 <= first <= last - 15 <= 65520:
        raise ConfigError(
            f"system.ports is {text[:40]!r}; expected the first and the last of at least 16 ports above 1023, such as "
            "`40000-40999`"
        )
    return first, last


def _names_a_network(text: str) -> bool:
    """Can it be an interface's name, as the kernel takes them, or is it an IP network?"""
    try:
        ipaddress.ip_network(text, strict=False)
        return True
    except ValueError:
        return re.fullmatch(r"[^\s/,:=^]{1,15}", text) is not None and re.fullmatch(r"[\d.]+", text) is None
