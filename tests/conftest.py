"""Settings and fixtures that all tests share."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from types import ModuleType

# Before torch starts: one thread per rank (two ranks' threads on shared cores are 20 times slower), no network.
# LOCAL_SIZE: without it DeepSpeed on a CPU starts a process at every step to count the devices.
os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", LOCAL_SIZE="1")

with suppress(ImportError):
    # Before absl, which tensorboard brings: submitit configures logging when it is imported, at which absl's handler
    # closes the stream it was made with. That may be pytest's own, and every test after it fails (*measured*).
    import submitit  # noqa: F401
import hypothesis
import pytest
import torch
from accounts import begin, end, exactly, remember
from parsed import parse_once
from processes import Guard
from schedule import FIRST, unit_of
from slow import is_slow, stale
from workers import pytest_addoption, pytest_runtestloop, starts_processes  # noqa: F401

hypothesis.settings.register_profile("busy", deadline=None)  # a slow machine is no failure
hypothesis.settings.load_profile("busy")

gc.disable()  # until all tests are collected: a fifth of what that takes would be spent looking for garbage
_guard = Guard()
_is_first = begin()
remember()
parse_once()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the slow tests of `slow.py`; the units that take longest come first."""
    if not any("::" in arg for arg in config.args) and (gone := stale(item.nodeid for item in items)):
        raise pytest.UsageError(f"tests/support/slow.py names tests that there are not: {', '.join(gone)}")
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: unit_of(item.nodeid) not in FIRST)


def pytest_collection_finish() -> None:
    """What is imported by now stays: collections of garbage, which DeepSpeed asks for often, pass it over."""
    gc.freeze()
    gc.set_threshold(500_000)
    gc.enable()


def pytest_unconfigure() -> None:
    if _is_first:
        end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _guard.is_closed = not starts_processes(item)
    try:
        return (yield)
    finally:
        _guard.is_closed = False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """After a worker's last test ends what earlier ones began, such as a SLURM."""
    _guard.is_closed = False
    return (yield)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _no_sync() -> Iterator[None]:
    """What is written need not outlast a loss of power: a sync takes a millisecond, and runs make thousands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@contextmanager
def _environment() -> Iterator[None]:
    """Whoever builds a DeepSpeed engine sets LOCAL_RANK, and accelerate would look for the other ranks."""
    before = {**os.environ}
    yield
    after = {**os.environ}
    for name in after.keys() - before.keys() - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update(before.items() - after.items() - {("PYTEST_CURRENT_TEST", before.get("PYTEST_CURRENT_TEST"))})


@pytest.fixture(autouse=True, scope="module")
def _environment_of_the_file() -> Iterator[None]:
    """The environment after a file's tests and their fixtures is as it was before."""
    with _environment():
        yield


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """The environment after a test is as it was before."""
    with _environment():
        yield


@pytest.fixture(autouse=True)
def _own_linear() -> Iterator[None]:
    """DeepSpeed's stage 3 leaves an `F.linear` of its own behind, which has no forward-mode derivative."""
    linear = torch.nn.functional.linear
    yield
    torch.nn.functional.linear = linear


@pytest.fixture(scope="module")
def exact_accounts() -> Iterator[None]:
    """Accountants in this file's tests compute as the package does, not roughly (see tests/support/accounts.py)."""
    with exactly():
        yield


_newest: list[ModuleType] = [sys]
"""The module that was imported last when a test ended: those before it, thousands, are not looked at each time."""


@pytest.fixture(autouse=True)
def _own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that a test wrote into its folder is forgotten after it: others write one of the same name."""
    yield
    made = str(tmp_path_factory.getbasetemp())
    for name, module in list(takewhile(lambda item: item[1] is not _newest[0], reversed(sys.modules.items()))):
        file = getattr(module, "__file__", None)
        if file and os.path.abspath(file).startswith(made):
            del sys.modules[name]
    _newest[0] = next(reversed(sys.modules.values()))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real data sets; tests that need it are skipped where it does not exist."""
    folder = Path(os.environ.get("FEDTORCH_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data not found in {folder}; set FEDTORCH_SHARED_DATA")
    return folder.resolve()


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared text-to-SQL folder of three clients with a few rows each; copy it before changing it."""
    from fedtorch.data.folder import write_client, write_manifest
    from fedtorch.data.text2sql import source_text, target_text
    from fedtorch.text.sentencepiece import train_vocabulary

    root = tmp_path_factory.mktemp("tiny") / "data"
    clients = {}
    texts: list[str] = []
    for name, table, size in (("north", "river", 12), ("south", "lake", 6), ("west", "hill", 3)):
        schema = f"| {table} : name , length"
        rows = [
            {
                "question": f"which {table} is longer than {10 * i} ?",
                "sql": f"SELECT name FROM {table} WHERE length > {10 * i} ;",
            }
            for i in range(size + 4)
        ]
        splits = {"train": rows[:size], "dev": rows[size : size + 2], "test": rows[size + 2 :]}
        clients[name] = write_client(root, name, splits, facts={"schema": schema})
        texts += [source_text(row["question"], schema) for row in rows] + [target_text(row["sql"]) for row in rows]
    train_vocabulary(texts, root / "tokenizer", size=120)
    write_manifest(root, "text2sql", clients=clients, record={"made by": "the tests"})
    return root


@pytest.fixture(scope="session")
def tiny_wikisql(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared pool of made-up WikiSQL questions: 240 to train on, 24 and 30 to evaluate."""
    from tiny_pool import tiny_pool

    return tiny_pool(tmp_path_factory.mktemp("tiny_wikisql") / "data")
