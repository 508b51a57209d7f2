"""Mutants of a module: one small change each, run against tests in a process that has torch already.

In place of mutmut or cosmic-ray, which start an interpreter for every mutant: importing torch anew would be most of the
time. A mutant never touches the disk.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import math
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

CPU_S, WALL_S = 120, 900
"""At most, of one mutant's tests; one that takes longer counts as found."""

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
NUMBERS = {"int", "float", "Count", "Whole", "Positive", "NotNegative", "Share"}
"""Types of keys; a default that is null becomes 1 where one of them may stand in its place."""


class Mutant(NamedTuple):
    """A module with one change."""

    name: str
    """`function: statement -> statement`, which does not move with the lines around it"""
    tree: ast.Module


def mutants(source: str) -> Iterator[Mutant]:
    """All mutants of a module's source, each with a name of its own."""
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    seen: Counter[str] = Counter()
    for index, node in enumerate(ast.walk(tree)):
        if (change := _change(node)) is None or _is_talk(node, parents):
            continue
        changed = copy.deepcopy(tree)
        twin = next(other for place, other in enumerate(ast.walk(changed)) if place == index)
        above = {child: parent for parent in ast.walk(changed) for child in ast.iter_child_nodes(parent)}
        statement = _statement(twin, above)
        change(twin)
        _import_pstdev(changed)
        name = f"{_function(node, parents)}: {_first(_statement(node, parents))} -> {_first(statement)}"
        seen[name] += 1
        yield Mutant(name if seen[name] == 1 else f"{name} ({seen[name]})", ast.fix_missing_locations(changed))


def sample(source: str, most: int) -> list[Mutant]:
    """`most` of them, by a digest of their names: which these are does not depend on the others."""
    return sorted(mutants(source), key=lambda m: hashlib.sha256(m.name.encode()).digest())[:most]


def limit_of(module: str, path: Path, tests: Sequence[str]) -> int | None:
    """How many seconds of processor time to give mutants: what the module as it is takes, times 5; None: tests fail.

    So a loop that never ends costs little where tests are quick.
    """
    before = _children_s()
    if not survives(module, path, ast.parse(path.read_text()), tests):
        return None
    return min(CPU_S, 10 + math.ceil(5 * (_children_s() - before)))


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def survives(module: str, path: Path, tree: ast.Module, tests: Sequence[str], cpu_s: int = CPU_S) -> bool:
    """Do `tests` (arguments of pytest) pass with this tree in place of the module? In a fork of this process."""
    child = os.fork()
    if not child:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
            signal.alarm(WALL_S)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            code = _run(module, path, tree, tests)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _run(module: str, path: Path, tree: ast.Module, tests: Sequence[str]) -> int:
    import pytest

    root = str(Path(__file__).parents[2]) + os.sep
    for name, loaded in list(sys.modules.items()):
        # the package anew, and so the mutant, and all tests that know its classes
        if str(getattr(loaded, "__file__", "")).startswith((root + "fedtorch", root + "tests")):
            del sys.modules[name]
    sys.meta_path.insert(0, Mutated(module, path, tree))
    # the tests' conftest is of this process already, and takes seconds to import
    return int(pytest.main([*tests, "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--noconftest"]))


class Mutated(MetaPathFinder, Loader):
    """Gives one module from a tree."""

    def __init__(self, module: str, path: Path, tree: ast.Module) -> None:
        self.module, self.path, self.tree = module, path, tree

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.module:
            return None
        spec = spec_from_loader(name, self, origin=str(self.path), is_package=self.path.name == "__init__.py")
        if spec is not None and spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(str(self.path.parent))
        return spec

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self.path)
        exec(compile(self.tree, str(self.path), "exec"), module.__dict__)


def _change(node: ast.AST) -> Callable[[Any], None] | None:
    """What makes a mutant of this node, in place; None: nothing does."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        return lambda n: n.ops.__setitem__(0, SWAPPED[type(n.ops[0])]())
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPPED:
        return lambda n: setattr(n, "op", SWAPPED[type(n.op)]())
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return lambda n: setattr(n, "value", not n.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return lambda n: setattr(n, "value", n.value + 1)
    if isinstance(node, ast.Name) and node.id in NAMES:
        return lambda n: setattr(n, "id", NAMES[n.id])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int":
        return lambda n: setattr(n.func, "id", "round")
    if isinstance(node, ast.Name) and node.id == "stdev":
        return lambda n: setattr(n, "id", "pstdev")
    if isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "-1":
        return lambda n: setattr(n, "slice", ast.Constant(0))
    if isinstance(node, ast.AnnAssign) and (other := _other_default(node)) is not None:
        return lambda n: setattr(n, "value", other)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        return lambda n: setattr(n, "op", ast.UAdd()) if isinstance(n.op, ast.USub) else _drop_not(n)
    return None


def _import_pstdev(tree: ast.Module) -> None:
    """Whoever takes a sample's deviation from `statistics` finds that of a population there, too."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "statistics":
            node.names.append(ast.alias("pstdev"))


def _other_default(node: ast.AnnAssign) -> ast.Constant | None:
    """For a default that is one of several words another one of them, for one that is null a number; else None."""
    if not isinstance(node.value, ast.Constant):
        return None
    parts = list(ast.walk(node.annotation))
    if node.value.value is None and any(isinstance(part, ast.Name) and part.id in NUMBERS for part in parts):
        return ast.Constant(1)
    words = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    if node.value.value in words and len(words) > 1:
        return ast.Constant(words[words.index(node.value.value) - 1])
    return None


def _drop_not(node: Any) -> None:
    node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)


def _is_talk(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """In a type, in a message, or a `strict` or `frozen`, which only a mistake elsewhere would show?"""
    while (above := parents.get(node)) is not None:
        if isinstance(above, ast.Raise | ast.JoinedStr):
            return True
        if isinstance(above, ast.arg | ast.AnnAssign) and node is above.annotation:
            return True
        if isinstance(above, ast.FunctionDef) and node is above.returns:
            return True
        if isinstance(above, ast.Call) and ast.unparse(above.func).startswith(("log.", "logger.")):
            return True
        if isinstance(above, ast.keyword) and above.arg in ("strict", "frozen", "kw_only"):
            return True
        node = above
    return False


def _statement(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.AST:
    while not isinstance(node, ast.stmt):
        node = parents[node]
    return node


def _function(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> str:
    names = []
    while (above := parents.get(node)) is not None:
        if isinstance(above, ast.FunctionDef | ast.ClassDef):
            names.append(above.name)
        node = above
    return ".".join(reversed(names)) or "module"


def _first(statement: ast.AST) -> str:
    """A statement's first line; of a function what stands before its body."""
    return next(line for line in ast.unparse(statement).splitlines() if not line.startswith("@"))
