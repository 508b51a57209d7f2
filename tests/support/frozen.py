"""What a fork server imports last: what is there by then stays, and ranks neither go through it nor copy it."""

import ctypes
import gc
import logging
import sys
import tempfile
import threading
from pathlib import Path
from unittest.mock import patch

import torch
from harness import make_config, make_runner
from toy import Quadratic

from fedtorch.algorithms import ALGORITHMS
from fedtorch.config.load import config_facts, load
from fedtorch.config.registry import named_class
from fedtorch.config.validate import _adapter
from fedtorch.setup.code import code_digest
from fedtorch.tasks import TASKS

_WANTED, _NOW = 14, 25  # MADV_HUGEPAGE and MADV_COLLAPSE of <linux/mman.h>
_HUGE = 1 << 21


def in_huge_pages() -> None:
    """Memory in pages of 2 MiB where Linux can (6.1 and later): a fork, which copies the list of pages, takes a third.

    *Measured* with 300 MB: 11 ms of processor time for a process that ends at once, 33 with pages of 4 KiB.
    """
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        places, rights, _, _, file, *name = line.split()
        start, stop = (int(place, 16) for place in places.split("-"))
        start, stop = -(-start // _HUGE) * _HUGE, stop // _HUGE * _HUGE
        if "w" in rights and file == "0" and name in ([], ["[heap]"]) and start < stop:
            for advice in (_WANTED, _NOW):  # either may be refused, and then nothing changes
                advise(start, stop - start, advice)


# What checks a config is built once for each task and algorithm, which is half of what a rank of a toy computes.
for section, names in (("task", TASKS), ("algorithm", ALGORITHMS)):
    for name in names:
        _adapter(named_class(section, name, ""))
_adapter(Quadratic)
for path in (Path(__file__).parents[2] / "configs" / "smoke").glob("*.yaml"):
    config_facts(load(path))
logging.getLogger("fedtorch").setLevel(logging.DEBUG)  # as every run has it; through thousands of loggers
# What was done once is done faster, and writes to less of what is shared: *measured*, a tenth less for a rank of a toy
torch.set_num_threads(1)  # as ranks do, see ranks.py
_toy = Quadratic({"a": (1.0, 0.0, 5), "b": (2.0, 1.0, 7)}, noise=0.5)
_no_gradients = patch.object(torch.Tensor, "backward", lambda loss: None)  # a first one would fix torch's devices
with tempfile.TemporaryDirectory() as folder, _no_gradients:
    make_runner(make_config(Path(folder), _toy, rounds=2)).run()
assert threading.active_count() == 1, "a fork has no other threads, only what they hold"
code_digest()  # reads the package's files, once for all ranks
gc.enable()  # see used.py
gc.set_threshold(500_000)  # as in conftest.py
gc.freeze()
in_huge_pages()
