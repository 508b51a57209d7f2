"""Rules of the source: which room may import which, and what no file may contain."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from sources import FILES, LAUNCHERS, PACKAGE, offenders, text, tree

# Each room, a folder of the package or `launchers` beside it, with the rooms it may import. Read from the
# bottom up: `core` knows nobody.
# `config` may also import any room's `settings`, where the keys of the section that configures the room are declared.
ROOMS: dict[str, set[str]] = {
    # processes around `main`; `cli` and `api` look them up by name
    "launchers": {
        "main",
        "lifecycle",
        "setup",
        "rounds",
        "report",
        "stats",
        "comm",
        "trust",
        "tracking",
        "config",
        "core",
    },
    "cli": {"core"},  # it looks the other rooms up by name, once it knows which one is asked for
    "main": {"lifecycle", "planning", "setup", "config", "core"},
    # what Python code calls in place of commands
    "api": {"audit", "cli", "lifecycle", "setup", "report", "tasks", "models", "data", "tracking", "config", "core"},
    # attacks: what a round sends, and what a run's model says
    "audit": {"report", "setup", "rounds", "tasks", "models", "checkpoint", "comm", "privacy", "config", "core"},
    "lifecycle": {
        "setup",
        "rounds",
        "algorithms",
        "tasks",
        "stats",
        "checkpoint",
        "comm",
        "trust",
        "privacy",
        "tracking",
        "config",
        "core",
    },
    # what a run will do and cost, before it
    "planning": {
        "setup",
        "rounds",
        "algorithms",
        "tasks",
        "stats",
        "train",
        "comm",
        "checkpoint",
        "privacy",
        "config",
        "core",
    },
    "setup": {
        "rounds",
        "report",
        "stats",
        "trainers",
        "algorithms",
        "tasks",
        "train",
        "comm",
        "checkpoint",
        "tracking",
        "privacy",
        "config",
        "core",
    },
    "rounds": {"trainers", "algorithms", "tasks", "train", "comm", "trust", "checkpoint", "tracking", "config", "core"},
    "chat": {"checkpoint", "models", "text", "tracking", "train", "compression", "core"},
    "tasks": {"stats", "trainers", "client", "data", "models", "metrics", "text", "train", "core"},
    "trainers": {"client", "train", "config", "core"},  # of others, in place of the package's own loop
    "client": {"data", "core"},  # what a training script imports
    "algorithms": {"stats", "train", "compression", "core"},
    "models": {"text", "compression", "core"},
    "train": {"comm", "core"},
    # what silos have together: what is asked, where numbers stand, tables and what is made of them
    "stats": {"data", "text", "privacy", "core"},
    "report": {"stats", "tracking", "metrics", "privacy", "config", "core"},
    "data": {"metrics", "text", "core"},
    "comm": {"trust", "privacy", "compression", "core"},
    "trust": {"privacy", "core"},  # who the parties of a federation are, and what they sign
    "config": {"core"},
    "checkpoint": {"core"},
    "compression": {"core"},
    "privacy": {"core"},
    "text": {"core"},
    "tracking": {"core"},
    "metrics": set(),
    "core": set(),
}


def modules() -> dict[str, Path]:
    """Dotted name of every module of the package and of the launchers -> its file."""
    files = [*FILES, *LAUNCHERS]
    named = {path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", "."): path for path in files}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


MODULES = modules()
SETTINGS = {name for name in MODULES if name.endswith(".settings")}


@cache
def imports(path: Path) -> set[str]:
    """Dotted names of everything a file imports, in functions and for type checks too."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # `from . import`: of the launchers, which are installed as `fedtorch.launchers`
            parts = [path.parent.name] * node.level + [node.module] * (node.module is not None)
            found.update(".".join([*parts, alias.name]) for alias in node.names)
    return {name.removeprefix("fedtorch.") if name.startswith("fedtorch.launchers") else name for name in found}


def imported_modules(name: str) -> set[str]:
    """The package's modules that a module imports."""
    found = set()
    for imported in imports(MODULES[name]):
        while imported and imported not in MODULES:
            imported = imported.rpartition(".")[0]
        found.add(imported)
    return found - {"", name}


def room(module: str) -> str:
    """The room of a dotted name; empty for the package itself and what `python -m` of it runs."""
    if module.startswith("launchers"):
        return "launchers"
    return module.partition(".")[2].partition(".")[0].removeprefix("__main__")


def circles(edges: dict[str, set[str]]) -> Iterator[list[str]]:
    """A way through every node that leads back to it."""
    for start in sorted(edges):
        ways = [[start, node] for node in sorted(edges[start])]
        seen: set[str] = set()
        while ways:
            way = ways.pop()
            if way[-1] == start:
                yield way
                break
            if way[-1] not in seen:
                seen.add(way[-1])
                ways += [[*way, node] for node in sorted(edges.get(way[-1], ()))]


def test_every_module_is_in_a_room() -> None:
    assert {room(name) for name in MODULES} - {""} == set(ROOMS)


def not_allowed(name: str) -> set[str]:
    """Modules that a module imports and may not."""
    # the package itself names what users import, each in its room
    allowed = ROOMS.get(room(name), set(ROOMS) - {"launchers"}) | {room(name), ""}
    open_to_it = SETTINGS if room(name) == "config" else set()
    return {other for other in imported_modules(name) - open_to_it if room(other) not in allowed}


@pytest.mark.long
def test_a_room_imports_only_what_it_may() -> None:
    assert {name: others for name in sorted(MODULES) if (others := not_allowed(name))} == {}


def test_an_import_of_another_room_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROOMS, "rounds", ROOMS["rounds"] - {"comm"})
    found = {other for name in MODULES if room(name) == "rounds" for other in not_allowed(name)}
    assert found and {room(other) for other in found} == {"comm"}


COMM_FLOORS = ("job", "transport", "sums", "sparse")
"""Rooms inside `comm`, each of which imports those before it. Modules of `comm` itself stand above all four."""


def floor(module: str) -> int | None:
    """Place of a module of `comm` in `COMM_FLOORS`, one more for those above; None: the module is elsewhere."""
    parts = module.split(".")
    if parts[:2] != ["fedtorch", "comm"]:
        return None
    return COMM_FLOORS.index(parts[2]) if len(parts) > 2 and parts[2] in COMM_FLOORS else len(COMM_FLOORS)


def above(name: str, imported: set[str]) -> set[str]:
    """Modules of `comm` on a higher floor than the one that imports them."""
    own = floor(name)
    return set() if own is None else {other for other in imported if (floor(other) or 0) > own}


def test_a_room_of_comm_imports_none_above_it() -> None:
    assert {name: found for name in sorted(MODULES) if (found := above(name, imported_modules(name)))} == {}
    assert {name.split(".")[2] for name in MODULES if floor(name) in range(4)} == set(COMM_FLOORS)


def test_an_import_of_a_room_above_is_found() -> None:
    up = {"fedtorch.comm.sums.checks", "fedtorch.comm.base", "fedtorch.core.norms", "fedtorch.comm.job.store"}
    assert above("fedtorch.comm.transport.group", up) == {"fedtorch.comm.sums.checks", "fedtorch.comm.base"}


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_settings_know_errors_ranges_and_other_settings_only(name: str) -> None:
    assert imported_modules(name) <= SETTINGS | {
        "fedtorch.core.errors",
        "fedtorch.core.ranges",
        "fedtorch.core.choices",
    }


@pytest.mark.processes
def test_reading_a_config_imports_no_torch() -> None:
    code = "import sys, fedtorch.config.load, fedtorch.config.schema; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, timeout=60).returncode == 0


def test_launchers_are_known_under_both_their_names(tmp_path: Path) -> None:
    source = tmp_path / "launchers" / "some.py"
    source.parent.mkdir()
    source.write_text("from fedtorch.launchers.local import main\nfrom . import pool\nfrom .job import run\n")
    assert imports(source) == {"launchers.local.main", "launchers.pool", "launchers.job.run"}


def test_no_room_leads_back_to_where_it_came_from() -> None:
    assert not list(circles(ROOMS | {"config": ROOMS["config"] | {room(name) for name in SETTINGS}}))


def test_no_module_leads_back_to_where_it_came_from() -> None:
    assert not list(circles({name: imported_modules(name) for name in MODULES}))


def test_circles_are_found() -> None:
    assert list(circles({"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": set()})) == [["b", "c", "b"], ["c", "b", "c"]]


MAX_LINES, MAX_FUNCTION_LINES = 400, 40
LONG: dict[str, str] = {
    "benchmarks/sparse.py:time_sparse": "one measurement from top to bottom: what is timed stands between what is not",
    "benchmarks/plain.py:plain_rounds": "the plain loop that others are compared with, to be read in one piece",
    "benchmarks/measured.py:time_runner": "one measurement from top to bottom",
}
"""Files, and functions as `file:name`, that are longer than that, each with the reason."""


def long_ones() -> set[str]:
    """Files and functions over the limits; a function's docstring does not count."""
    root, found = PACKAGE.parent, set()
    for path in [*FILES, *LAUNCHERS, *(root / "benchmarks").glob("*.py")]:
        name = path.relative_to(root).as_posix()
        if len(text(path).splitlines()) > MAX_LINES:
            found.add(name)
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef):
                docstring = ast.get_docstring(node, clean=False) or ""
                lines = (node.end_lineno or 0) - node.lineno + 1 - len(docstring.splitlines())
                if lines > MAX_FUNCTION_LINES:
                    found.add(f"{name}:{node.name}")
    return found


@pytest.mark.long
def test_long_files_and_functions_are_exceptions_with_a_reason() -> None:
    assert long_ones() == set(LONG)


def fields_without_a_line(source: ast.Module) -> Iterator[str]:
    """`Class.field` of dataclasses, named tuples and typed dicts that have no docstring under the field."""
    for node in ast.walk(source):
        if not isinstance(node, ast.ClassDef):
            continue
        marks = " ".join(map(ast.unparse, (*node.decorator_list, *node.bases)))
        if not re.search(r"\b(dataclass|NamedTuple|TypedDict)\b", marks):
            continue
        for line, after in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(line, ast.AnnAssign) and not ast.unparse(line.annotation).startswith("ClassVar"):
                value = after.value if isinstance(after, ast.Expr) else None
                if not (isinstance(value, ast.Constant) and isinstance(value.value, str)):
                    yield f"{node.name}.{ast.unparse(line.target)}"


def test_every_field_of_a_dataclass_or_named_tuple_has_a_line_under_it() -> None:
    assert offenders([*FILES, *LAUNCHERS], lambda path: fields_without_a_line(tree(path))) == {}


def test_fields_without_a_line_are_found() -> None:
    source = """
class Point(NamedTuple):
    x: int
    y: int
    'Of the second axis.'

@dataclass(frozen=True)
class Options:
    kind: ClassVar[str]
    size: int = field(default=1)

    def grown(self) -> int:
        'Later.'

class Plain:
    note: str
"""
    assert list(fields_without_a_line(ast.parse(source))) == ["Point.x", "Options.size"]


OF_GPUS = {"fedtorch/core/devices.py", "fedtorch/core/kinds.py", "fedtorch/config/system.py"}
"""Files that may name the kind of a GPU: the helper, what it knows of kinds, and the key."""


def kinds_of_gpus(source: ast.Module) -> Iterator[str]:
    """Lines that ask torch for one kind of device, where `core.devices` has what all of them have."""
    for node in ast.walk(source):
        if isinstance(node, ast.Attribute) and node.attr in ("cuda", "is_cuda", "hip", "xpu", "mps"):
            yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Constant) and node.value in ("cuda", "cuda:0", "xpu", "mps"):
            yield f"{node.lineno}: {node.value!r}"


def test_one_file_names_the_kind_of_a_gpu() -> None:
    files = [path for path in [*FILES, *LAUNCHERS] if path.relative_to(PACKAGE.parent).as_posix() not in OF_GPUS]
    assert offenders(files, lambda path: kinds_of_gpus(tree(path))) == {}
    found = ast.parse("torch.cuda.empty_cache(); x.device.type == 'cuda'; 'cuda is there'; x.is_cuda")
    assert sorted(line.partition(": ")[2] for line in kinds_of_gpus(found)) == ["'cuda'", "torch.cuda", "x.is_cuda"]


NO_SUBJECT = re.compile(r"(See|The same|What|Of)\b")
"""Beginnings of a first line that names neither the thing nor what it does, and so does not stand alone."""


def first_lines_without_subject(source: ast.Module) -> Iterator[str]:
    """Name of each module, class and function whose docstring's first line begins so, with the line."""
    for node in ast.walk(source):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            docstring = ast.get_docstring(node) or ""
            if NO_SUBJECT.match(docstring):
                yield f"{getattr(node, 'name', 'module')}: {docstring.splitlines()[0]}"


def test_the_first_line_of_every_docstring_stands_alone() -> None:
    assert offenders([*FILES, *LAUNCHERS], lambda path: first_lines_without_subject(tree(path))) == {}


def test_a_first_line_that_does_not_stand_alone_is_found() -> None:
    lines = ["See above.", "The same of others.", "What is sent.", "Of a round.", "Send it.", "Offer of a client."]
    source = "\n".join(f"def f{n}():\n    '{line}'" for n, line in enumerate(lines))
    assert [found[:2] for found in first_lines_without_subject(ast.parse(source))] == ["f0", "f1", "f2", "f3"]


SPLIT = ("split_engine.py", "deepspeed.py", "fsdp_shards.py")
"""Engines whose ranks share out one model."""


def test_only_comm_imports_torch_distributed() -> None:
    for path in FILES:
        if "comm" not in path.parts and path.name not in SPLIT:
            assert not [name for name in imports(path) if name.startswith("torch.distributed")], path


def test_the_loop_names_no_algorithm_task_or_model() -> None:
    words = re.compile(
        r"fedavg|fedprox|feddyn|scaffold|fednova|ditto|lorar|parsing|text2sql|wikisql|\bt5\b|bert|gpt", re.IGNORECASE
    )
    for path in (*(PACKAGE / "rounds").glob("*.py"), PACKAGE / "train" / "job.py"):
        # papers may be cited in comments and docstrings
        assert not words.findall(ast.unparse(_without_docstrings(ast.parse(path.read_text())))), path
    for path in (PACKAGE / "comm").rglob("*.py"):
        assert not words.findall(path.read_text()), path


FORBIDDEN = re.compile(
    r"\b(import|from) (pickle|dill|joblib|cloudpickle)\b|\b(gather|broadcast|scatter|send|recv)_object(_list)?\("
    r"|all_gather_object\(|torch\.load\(|torch\.save\("
    r"|weights_only\s*=\s*False|(?<![\w.])(eval|exec)\(|trust_remote_code\s*=\s*True"
)


def test_nothing_is_pickled_and_no_object_is_sent() -> None:
    assert offenders(FILES, lambda path: (match.group() for match in FORBIDDEN.finditer(text(path)))) == {}


@pytest.mark.parametrize("line", ["import pickle", "group.gather_object(x)", "torch.load(path)", "x = eval(text)"])
def test_a_line_that_could_run_what_came_as_data_is_found(line: str) -> None:
    assert FORBIDDEN.search(line)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return tree


STAMPS = {"event_file.py", "mlflow.py", "status_table.py", "tensorboard.py", "tracker.py", "train.py", "unheard.py"}
STAMPS |= {"parties.py", "decisions.py", "gate.py"}
"""Of an event, a file's last change, what a process that is gone has promised, the last day of a membership, or the
hours in which a policy lets something out."""


@pytest.mark.long
def test_nothing_waits_by_the_clock_of_the_day() -> None:
    found = {
        path.name
        for path in [*FILES, *LAUNCHERS]
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and (ast.unparse(node) in ("time.time", "time.time_ns") or node.attr in ("now", "utcnow", "today"))
    }
    assert found == STAMPS
