"""fedtorch: federated training of NLP models over torch.distributed."""

import importlib
import os
from typing import TYPE_CHECKING, Any

from fedtorch.core.version import VERSION as __version__  # noqa: F401

if TYPE_CHECKING:
    from fedtorch.algorithms.base import Algorithm as Algorithm
    from fedtorch.algorithms.base import Updates as Updates
    from fedtorch.algorithms.kept import Kept as Kept
    from fedtorch.algorithms.limits import Limits as Limits
    from fedtorch.algorithms.message import MessageAlgorithm as MessageAlgorithm
    from fedtorch.algorithms.travels import Travels as Travels
    from fedtorch.api.audit import audit_run as audit_run
    from fedtorch.api.partition import partition as partition
    from fedtorch.api.privacy_cost import privacy_cost as privacy_cost
    from fedtorch.api.result import RunResult as RunResult
    from fedtorch.api.result import open_run as open_run
    from fedtorch.api.run import run as run
    from fedtorch.audit.finding import Finding as Finding
    from fedtorch.audit.result import AuditResult as AuditResult
    from fedtorch.core.client import Client as Client
    from fedtorch.core.client import ClientState as ClientState
    from fedtorch.core.errors import ConfigError as ConfigError
    from fedtorch.core.errors import DataError as DataError
    from fedtorch.core.errors import FedtorchError as FedtorchError
    from fedtorch.core.errors import Interrupted as Interrupted
    from fedtorch.core.sampling import Sampler as Sampler
    from fedtorch.core.server import ServerState as ServerState
    from fedtorch.core.update import Report as Report
    from fedtorch.core.update import Update as Update
    from fedtorch.core.weights import Layout as Layout
    from fedtorch.tasks.base import Scores as Scores
    from fedtorch.tasks.base import Task as Task
    from fedtorch.tracking.plugin import RunStart as RunStart
    from fedtorch.tracking.plugin import RunTracker as RunTracker
    from fedtorch.train.engine import Engine as Engine
    from fedtorch.train.job import ClientJob as ClientJob

# torch reads this once, when it first takes memory: large vectors then come in pages of 2 MB where the system gives
# them on request. *Measured* (torch 2.13, 60 M parameters): a new vector takes 75 % less time from the second one on.
# No bit changes, and where the system has no such pages nothing does.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# torch's store warns of every address without a name, and prints a stack of C++ frames when the other end is gone. Our
# own messages say that with rank and host. Read once, when torch is imported; set it to INFO to see all of it.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

_PUBLIC = {
    "run": "fedtorch.api.run",
    "open_run": "fedtorch.api.result",
    "RunResult": "fedtorch.api.result",
    "partition": "fedtorch.api.partition",
    "privacy_cost": "fedtorch.api.privacy_cost",
    "audit_run": "fedtorch.api.audit",
    "AuditResult": "fedtorch.audit.result",
    "Finding": "fedtorch.audit.finding",
    "FedtorchError": "fedtorch.core.errors",
    "ConfigError": "fedtorch.core.errors",
    "DataError": "fedtorch.core.errors",
    "Interrupted": "fedtorch.core.errors",
    "Algorithm": "fedtorch.algorithms.base",
    "Updates": "fedtorch.algorithms.base",
    "Kept": "fedtorch.algorithms.kept",
    "Limits": "fedtorch.algorithms.limits",
    "MessageAlgorithm": "fedtorch.algorithms.message",
    "Travels": "fedtorch.algorithms.travels",
    "ClientJob": "fedtorch.train.job",
    "Engine": "fedtorch.train.engine",
    "Report": "fedtorch.core.update",
    "Update": "fedtorch.core.update",
    "Client": "fedtorch.core.client",
    "ClientState": "fedtorch.core.client",
    "Sampler": "fedtorch.core.sampling",
    "ServerState": "fedtorch.core.server",
    "Layout": "fedtorch.core.weights",
    "RunTracker": "fedtorch.tracking.plugin",
    "RunStart": "fedtorch.tracking.plugin",
    "Task": "fedtorch.tasks.base",
    "Scores": "fedtorch.tasks.base",
}
"""What Python code calls, and what classes of your own are made of -> its module; imported when first asked for."""

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
