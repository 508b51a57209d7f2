"""Rules of the source: who may import whom, and what no file may contain."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import fedtorch

PACKAGE = Path(fedtorch.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# From the top down; a module may import its own level and those below. Modules that are not named are in `main`'s.
LEVELS: list[tuple[str, ...]] = [
    (
        "runner",
        "replicas",
        "decision",
        "work",
        "server_share",
        "rank",
        "placement",
        "evaluate",
        "best",
        "judging",
        "saving",
        "checkpoint",
        "checkpoint_files",
    ),
    ("track", "console", "curves", "records", "summary", "runs", "status", "event_file"),
    ("algorithms", "tasks"),
    ("job", "train", "client", "server", "sampling"),
    ("comm",),
    ("models", "data", "metrics"),
    ("weights", "update", "seeds", "errors", "compression", "payload", "selection", "faults"),
]
# Values and dataclasses without behaviour of their own, which every level may read
FREE = {"config", "config_system", "config_training", "yaml_config"}
NEVER = {
    "algorithms": {"comm", "runner", "config", "config_system", "config_training", "yaml_config", "rank", "evaluate"},
    "tasks": {"comm", "algorithms"},
    "comm": {"algorithms", "tasks", "train", "job", "config", "config_system", "config_training"},
    "models": {"tasks", "algorithms", "comm", "train"},
}


def level(module: str) -> int:
    return next((i for i, names in enumerate(LEVELS, start=1) if module in names), 0)


def imports(path: Path) -> set[str]:
    """Dotted names of everything a file imports, in functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_downwards_only(path: Path) -> None:
    mine = path.relative_to(PACKAGE).with_suffix("").parts[0]
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "fedtorch" or len(parts) < 2 or parts[1] in FREE or mine in FREE:
            continue
        assert parts[1] not in NEVER.get(mine, set()), f"{path.name} imports {name}"
        assert level(parts[1]) >= level(mine), f"{path.name} imports {name}, which is above it"


def test_only_comm_imports_torch_distributed() -> None:
    for path in FILES:
        if path.parent.name != "comm" and path.name != "deepspeed.py":
            assert not [name for name in imports(path) if name.startswith("torch.distributed")], path


def test_the_loop_names_no_algorithm_task_or_model() -> None:
    words = re.compile(
        r"fedavg|fedprox|scaffold|fednova|ditto|lorar|parsing|text2sql|wikisql|\bt5\b|bert|gpt", re.IGNORECASE
    )
    for stem in ("runner", "rank", "evaluate", "saving", "job", "work", "server_share", "placement", "decision"):
        # papers may be cited in comments and docstrings
        code = ast.unparse(_without_docstrings(ast.parse((PACKAGE / f"{stem}.py").read_text())))
        assert not words.findall(code), stem
    for path in (PACKAGE / "comm").glob("*.py"):
        assert not words.findall(path.read_text()), path


FORBIDDEN = re.compile(
    r"\b(import|from) (pickle|dill|joblib|cloudpickle)\b|\b(gather|broadcast|scatter|send|recv)_object(_list)?\("
    r"|all_gather_object\(|torch\.load\(|torch\.save\("
    r"|weights_only\s*=\s*False|(?<![\w.])(eval|exec)\(|trust_remote_code\s*=\s*True"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_nothing_is_pickled_and_no_object_is_sent(path: Path) -> None:
    assert not [match.group() for match in FORBIDDEN.finditer(path.read_text())]


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
