"""A process lent to somebody else's code: seeds, environment and settings of libraries are put back afterwards."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from fedtorch.core import devices
from fedtorch.core.seeds import seed_torch

log = logging.getLogger(__name__)

_OF_RANKS = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME",
    "ROLE_WORLD_SIZE",
)  # fmt: skip
_PREFIXES = ("MASTER_", "ACCELERATE_", "PMI_", "OMPI_", "MV2_", "TORCHELASTIC_")
_DEVICE = "ACCELERATE_TORCH_DEVICE"
"""Where accelerate is told the device, and nothing else of ranks."""
_DEEPSPEED = "DS_ACCELERATOR"
"""Where DeepSpeed is told it; where it is installed accelerate imports it, and it would warn of a missing GPU."""
_HARMLESS = {"TMonitor", "fedtorch-script"}  # tqdm's, and that of a script which goes on
_WAIT_S = 2.0
_MANY = 30_000
"""Objects through which a collection goes in some 10 ms (*measured*)."""
_said: set[str] = set()


@contextmanager
def lent(device: torch.device, seed: int) -> Iterator[Path]:
    """Inside it code that trains by itself finds a process of its own, seeded; gives a folder that is gone afterwards.

    With torchrun's variables a Trainer would wait for ranks that never come: inside there are none. Put back are the
    environment, the present folder, all generators, threads and modes of torch, signals, and accelerate's idea of the
    process, which is one for all. What cannot be: memory of the code itself, and threads that it leaves running.
    """
    threads = set(threading.enumerate())
    with ExitStack() as kept:
        kept.enter_context(_collected())
        for keep in (
            _environment(device),
            quiet_import(),
            present_folder(Path.cwd()),
            _torch(device),
            _signals(),
            _libraries(),
        ):
            kept.enter_context(keep)
        folder = Path(kept.enter_context(TemporaryDirectory(prefix="fedtorch-trainer-", ignore_cleanup_errors=True)))
        seed_all(seed, device)
        yield folder
    _warn_of_threads(threads)


@contextmanager
def quiet_import() -> Iterator[None]:
    """Inside it accelerate may be imported, which imports DeepSpeed where that is: it would warn of a missing GPU."""
    has_said = _DEEPSPEED in os.environ or devices.count()
    if not has_said:
        os.environ[_DEEPSPEED] = "cpu"
    try:
        yield
    finally:
        if not has_said:
            os.environ.pop(_DEEPSPEED, None)


def seed_all(seed: int, device: torch.device) -> None:
    """Seed Python's, numpy's and torch's generators."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    seed_torch(seed, device)


@contextmanager
def _collected() -> Iterator[None]:
    """Cycles that are made inside are gone afterwards: trainers are full of them.

    What is there before is not looked at meanwhile, also not where accelerate collects: 0.4 s each time (*measured*).
    A command has frozen what it imports, and a fork server what its ranks share, which has to stay so: such a process
    freezes what a training leaves, too, where that is much. It is the libraries of the first one.
    """
    freezes = not _has_frozen(os.getpid())
    if freezes:
        gc.freeze()
    try:
        yield
        gc.collect()
        if not freezes and len(gc.get_objects()) > _MANY:
            gc.freeze()
    finally:
        if freezes:
            gc.unfreeze()


@cache
def _has_frozen(process: int) -> bool:
    """Has this process frozen what it had at its first training? Asked once, for the answer counts each object."""
    return gc.get_freeze_count() > 0


@contextmanager
def _environment(device: torch.device) -> Iterator[None]:
    before = dict(os.environ)
    for name in before:
        if name in _OF_RANKS or name.startswith(_PREFIXES):
            del os.environ[name]
    os.environ[_DEVICE] = str(device)
    try:
        yield
    finally:
        for name in [name for name in os.environ if name not in before]:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def present_folder(folder: Path) -> Iterator[None]:
    """Inside it `folder` is the present one, until somebody goes elsewhere."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _torch(device: torch.device) -> Iterator[None]:
    python, numpy, states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    threads, dtype, grads = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    strict, only_warns = _determinism()
    precision = torch.get_float32_matmul_precision()
    try:
        with devices.unchanged():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(states)
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grads)
        if (strict, only_warns) != _determinism():  # setting it imports torch's compiler, a second
            torch.use_deterministic_algorithms(strict, warn_only=only_warns)
        torch.set_float32_matmul_precision(precision)


def _determinism() -> tuple[bool, bool]:
    """Are torch's algorithms to be deterministic, and does it only warn of others?"""
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


@contextmanager
def _signals() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


@contextmanager
def _libraries() -> Iterator[None]:
    """Caches of rows, progress bars and reports to anybody's servers are off; accelerate is begun anew.

    TRL 1.16 sends a message to the hub for every trainer that is made, by a thread of its own. What these libraries
    say of each other's older names would come once a client and round.
    """
    from huggingface_hub import constants
    from transformers.utils import logging as of_transformers

    verbosity, is_silent = of_transformers.get_verbosity(), constants.HF_HUB_DISABLE_TELEMETRY
    has_bars = of_transformers.is_progress_bar_enabled()
    of_transformers.disable_progress_bar()
    constants.HF_HUB_DISABLE_TELEMETRY = True
    of_transformers.set_verbosity_error()
    of_trl = logging.getLogger("trl")
    level = of_trl.level
    of_trl.setLevel(logging.ERROR)  # its warnings quote texts
    _forget_accelerate()
    try:
        with _no_caches(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|peft|accelerate)\.")
            yield
    finally:
        of_transformers.set_verbosity(verbosity)
        of_trl.setLevel(level)
        if has_bars:
            of_transformers.enable_progress_bar()
        constants.HF_HUB_DISABLE_TELEMETRY = is_silent
        _forget_accelerate()


@contextmanager
def _no_caches() -> Iterator[None]:
    if find_spec("datasets") is None:
        yield
        return
    import datasets

    caches, bars = datasets.is_caching_enabled(), datasets.are_progress_bars_disabled()
    datasets.disable_caching()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if caches:
            datasets.enable_caching()
        if not bars:
            datasets.enable_progress_bars()


def _forget_accelerate() -> None:
    if state := sys.modules.get("accelerate.state"):
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


def _warn_of_threads(before: set[threading.Thread]) -> None:
    """Say once what threads still run that the code has begun: what they do then is in no promise."""
    until = time.monotonic() + _WAIT_S
    for thread in threading.enumerate():
        if thread in before or {thread.name, type(thread).__name__} & _HARMLESS:
            continue
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive() and thread.name not in _said:
            _said.add(thread.name)
            log.warning(
                "the trainer left the thread `%s` running; what it does to the model from now on is repeated by no "
                "other run: join it before the trainer returns",
                thread.name,
            )
