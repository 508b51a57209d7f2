"""From the names in `eval.metrics` to a task that measures them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from fedtorch.config.registry import imported, named_class
from fedtorch.config.validate import at
from fedtorch.core.errors import ConfigError
from fedtorch.core.yaml_tree import Tree

KEY = ("eval", "metrics")
TASKS = ("text_classification", "token_classification", "seq2seq", "causal_lm")
"""Those over data of one's own, which take metrics."""


def measured(task: Any, names: Sequence[str], task_name: str, tree: Tree | None = None) -> Any:
    """The task that also measures `names`: its own metrics by name, and `module:NAME`.

    tree: what the config was read from, for messages.

    Raises:
        ConfigError: there is no such metric, it is for another task, or what is named is none.
    """
    found: dict[str, Any] = {}
    for place, name in enumerate(names):
        where = at(tree, (*KEY, place)) if tree is not None else ""
        if not task.takes_metrics:
            raise ConfigError(
                f"eval.metrics is set{where} but the task `{task_name}` measures what its paper does; set it to [], "
                f"or task.name to one of {', '.join(TASKS)}"
            )
        label = _label(name, task, where) if ":" in name else name
        if label in found:
            raise ConfigError(f"eval.metrics has `{label}` twice{where}; leave one out")
        if ":" in name:
            found[label] = _metric(imported(".".join(KEY), name, where), name, where)
        elif name in (known := task.known_metrics()):
            found[label] = known[name]
        else:
            raise ConfigError(f"eval.metrics has `{name}`{where}, {_advice(name, list(known), task_name)}")
    return task.with_metrics(found)


def _label(name: str, task: Any, where: str) -> str:
    """Name of the scores of `module:NAME`: `found_all` of `FoundAll`."""
    label = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition(":")[2].rpartition(".")[2]).lower()
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", label):
        raise ConfigError(f"eval.metrics has `{name}`{where}, whose scores would be called {label!r}; rename it so "
                          "that it begins with a letter and has no others than a-z, digits and _")  # fmt: skip
    if label in {"loss", *task.built_in, *task.metrics()} - {*task.replaceable}:
        raise ConfigError(
            f"eval.metrics has `{name}`{where}, but `{label}` is something that the task measures; give it another name"
        )
    return label


def _metric(given: Any, name: str, where: str) -> Any:
    """A function, or an object with `sums` and `score`."""
    if isinstance(given, type):
        try:
            given = given()
        except Exception as error:  # whatever it does is the user's to see
            raise ConfigError(
                f"eval.metrics has `{name}`{where} but making one failed: {type(error).__name__}: {error}; a class is "
                "called without arguments"
            ) from error
    has = [callable(getattr(given, method, None)) for method in ("sums", "score")]
    if not all(has) and (any(has) or not callable(given)):
        raise ConfigError(
            f"eval.metrics has `{name}`{where}, which is neither a function of predictions and references nor a class "
            "with `sums` and `score`"
        )
    return given


def _advice(name: str, known: Sequence[str], task_name: str) -> str:
    users = [task for task in TASKS if name in named_class("task", task, "").built_in]  # type: ignore[attr-defined]
    if task_name in users:
        return f"which is for rows of another kind; with these settings there are {', '.join(known) or 'none'}"
    if users:
        return f"which is for {' and '.join(users)}; this task has {', '.join(known) or 'none'}"
    near = get_close_matches(name, known, 1)
    shown = f"did you mean `{near[0]}`?" if near else f"choose some of {', '.join(known)}"
    return f"of which the task `{task_name}` knows nothing; {shown} (or write `module:NAME` for one of your own)"
