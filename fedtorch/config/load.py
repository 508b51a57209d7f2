"""From YAML files and `--set` to a checked `Config`, and back.

Layers, each over the one before: the files under `base` (later ones over earlier ones), the file itself, every
`--set`. Mappings merge key by key; lists and null replace; null clears a mapping of names. `task` and
`algorithm` are validated against the dataclass their `name` stands for; where a layer changes that name, fields of
lower layers that the new class lacks are dropped. Where a layer chooses another one of several keys (`core/choices.py`:
the rule of `task.data.clients`, `path` or `random` of `task.model`), what belonged to the former choice is dropped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedtorch.config import counting
from fedtorch.config.companions import Companion, described, named
from fedtorch.config.find import find, run_name
from fedtorch.config.layers import overlay, read_dict, read_file, read_override
from fedtorch.config.masking import MASK, mask_data
from fedtorch.config.metrics import measured
from fedtorch.config.python_configs import Given, Overrides, all_given, assignments
from fedtorch.config.registry import NAMED, named_class
from fedtorch.config.result_keys import NO_EFFECT
from fedtorch.config.rules import with_rule
from fedtorch.config.samplers import resolved
from fedtorch.config.schema import AsyncConfig, ClientConfig, Config
from fedtorch.config.trackers import check_trackers
from fedtorch.config.validate import at, check_text, field_names, unknown, validate, wrong
from fedtorch.core.errors import ConfigError
from fedtorch.core.version import VERSION
from fedtorch.core.yaml_tree import Key, Tree, write
from fedtorch.trust.settings import TrustConfig

DEFAULT = Path(__file__).with_name("default.yaml")
"""The job that runs when no config is named; package data."""

NOT_SET = "not set"
"""Stands for the value of a key that one of two configs lacks."""

_MOST, _LONGEST = 100, 200  # entries of a mapping and characters of a value that ranks compare as they are
_HIDDEN = ("task_name", "algorithm_name", "asynchrony")
ASYNC = "async"
"""The key of `Config.asynchrony`, which no field can have as its name."""


def load(given: Given | Sequence[Given] | None = None, overrides: Overrides = ()) -> Config:
    """The config of one run: `given` (the default job if None) with its base files, then each `key.path=value`.

    A path may be the name of a shipped config, see `find`; a dict is what a file would hold. Several are laid over one
    another, the later ones on top.

    Raises:
        ConfigError: anything that is wrong, all of it at once where possible, one line each, with file and line.
    """
    layers = all_given(given) or [DEFAULT]
    tree, names = Tree(), list[str]()
    for layer in layers:
        if isinstance(layer, Mapping):
            tree = overlay(tree, read_dict(layer))
            continue
        names.append(run_name(Path(layer)))
        tree = overlay(tree, read_file(find(Path(layer)), (), {}))
    for override in assignments(overrides):
        tree = overlay(tree, read_override(override))
    run = tree.data.setdefault("run", {})
    if isinstance(run, dict):
        run.setdefault("name", "+".join(names) or "run")
    config = _build(tree)
    if config.paradigm == "stats":
        config = counting.whole(config)
    companions(config, tree)  # so that what is wrong in `compare` shows now and not after hours of training
    return config


def companions(config: Config, tree: Tree | None = None) -> dict[str, Config]:
    """The runs that `config.compare` describes, by what they are called: this one with changes, in folders inside its.

    tree: what `config` was read from; it only improves messages.

    Raises:
        ConfigError: one cannot be.
    """
    tree = tree or Tree()
    found = described(config.compare, to_dict(config), config.folder, tree)
    return {companion.label: _companion(companion, tree) for companion in found}


def _companion(companion: Companion, tree: Tree) -> Config:
    upper = Tree(companion.changes, _below(tree.marks, companion.key))
    lower = Tree(companion.lower, {key: mark for key, mark in tree.marks.items() if key[0] != "compare"})
    merged = overlay(lower, upper)
    if isinstance(merged.data["run"], dict):
        merged.data["run"] = named(merged.data["run"], companion)
    try:
        return _build(merged)
    except ConfigError as error:
        raise ConfigError(f"in the run that `{'.'.join(map(str, companion.key))}` describes: {error}") from error


def _below(marks: Mapping[Key, str], key: Key) -> dict[Key, str]:
    """The marks of what is inside `key`, as it knows itself."""
    return {where[len(key) :]: mark for where, mark in marks.items() if where[: len(key)] == key and where != key}


def to_dict(config: Config, *, masked: bool = False) -> dict[str, Any]:
    """The resolved config as plain nested data, every key present; reading it back gives an equal Config.

    masked: replace strings under keys that end in token, key, secret or password by `<masked>`, for what is written
    to disk; such a key has to be given again before the data can be used as a config.
    """
    data: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        if field.name == "asynchrony":
            data[ASYNC] = _plain(config.asynchrony)
        if field.name in _HIDDEN:
            continue
        data[field.name] = _plain(getattr(config, field.name))
        if field.name in NAMED:
            kind = type(getattr(config, field.name))
            name = getattr(config, f"{field.name}_name") or f"{kind.__module__}:{kind.__qualname__}"
            data[field.name] = {"name": name, **data[field.name]}
    return mask_data(data) if masked else data


def to_yaml(config: Config) -> str:
    """The resolved config as YAML, with secrets masked; itself a valid config file unless it had secrets."""
    return write(to_dict(config, masked=True))


def digest(config: Config, *, everything: bool = False) -> str:
    """sha256 of all keys that can change results (`NO_EFFECT` lists the others); of all keys if `everything`.

    Two runs may share results when the digests are equal; two ranks fit together when those of everything are.
    """
    leaves = {key: value for key, value in _leaves(to_dict(config)) if everything or not _no_effect(key)}
    return hashlib.sha256(json.dumps(leaves, sort_keys=True).encode()).hexdigest()


def run_digest(config: Config) -> str:
    """`digest` of a run however many rounds it has, for notes about states: it may go on with more of them."""
    return digest(dataclasses.replace(config, rounds=0))


def config_facts(config: Config) -> dict[str, str]:
    """Facts that ranks compare of their configs: the version, a digest of all, and every key for the message.

    Not the names of the two files of `trust`, which lie elsewhere on each machine.
    """
    config = dataclasses.replace(config, trust=TrustConfig())
    keys = {f"key `{key}`": value for key, value in shown_keys(config).items()}
    return {"fedtorch": VERSION, "config": digest(config, everything=True), **keys}


def shown_keys(config: Config) -> dict[str, str]:
    """Every key with its value as text, for ranks to compare: secrets masked, long values and long mappings cut off.

    A digest stands for what is cut off.
    """
    data = to_dict(config, masked=True)
    return {key: _cut(text) for key, text in _few(data)}


def _few(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, value as shown) of what is not a mapping, and of mappings of more than `_MOST` entries."""
    for key, value in data.items():
        if isinstance(value, dict) and len(value) <= _MOST:
            yield from _few(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _shown(value, key)


def _cut(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({len(text)} characters, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"


def record_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line per key that can change results and differs; empty exactly when the digests are equal.

    Of two configs as `to_dict` gives them, such as one from a checkpoint (both masked or neither).
    """
    return [f"{key} was {before} and is now {after}" for key, before, after in changes(old, new)]


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(key, its value in `old`, in `new`) of what `record_difference` is about, as shown; `NOT_SET`: not there."""
    before, after = ({key: (value, _shown(value, key)) for key, value in _leaves(record)} for record in (old, new))
    nothing = (None, NOT_SET)
    return [
        (key, before.get(key, nothing)[1], after.get(key, nothing)[1])
        for key in {**before, **after}
        if not _no_effect(key) and (key not in before or key not in after or before[key] != after[key])
    ]


# Validation


def _build(tree: Tree) -> Config:
    check_text(tree)
    data, problems = dict(tree.data), []
    for hidden in _HIDDEN:
        if hidden in data:
            problems.append(unknown(Config, (hidden,), tree))
            del data[hidden]
    problems += [
        f"{key} is masked{at(tree, tuple(key.split('.')))}; give its value with --set {key}=..."
        for key, value in _leaves(data)
        if value == MASK or (isinstance(value, list) and json.dumps(MASK) in json.dumps(value, default=str))
    ]
    parts: dict[str, Any] = {}
    for section, (_, _, default) in NAMED.items():
        found_parts, found = _named_part(section, data.pop(section, {}), default, tree)
        parts |= found_parts
        problems += found
    parts["asynchrony"], found = _asynchrony(data.pop(ASYNC, None), tree)
    problems += found
    parts["per_client"], found = _per_client(data.get("client", {}), data.pop("per_client", None), tree)
    problems += found
    config, found = validate(Config, data | dict.fromkeys(NAMED), (), tree)
    problems += found
    if config is not None:
        parts["clients"], found = resolved(config.clients, tree)
        parts["algorithm"], others = with_rule(
            parts.get("algorithm"), parts.get("algorithm_name", ""), config.clients, tree
        )
        problems += found + others + check_trackers(config.run.trackers, tree)
        if parts.get("task") is not None:
            measured(parts["task"], config.eval.metrics, parts["task_name"], tree)  # to know that they are there
    if problems:
        raise ConfigError("\n".join(problems))
    return dataclasses.replace(config, **parts)


def _named_part(section: str, values: Any, default: str, tree: Tree) -> tuple[dict[str, Any], list[str]]:
    """`task` or `algorithm`, by the class that its name stands for."""
    if not isinstance(values, dict):
        return {}, [wrong((section,), values, "a mapping", tree)]
    name = values.get("name", default)
    if not isinstance(name, str):
        return {}, [wrong((section, "name"), name, "a string", tree)]
    cls = named_class(section, name, at(tree, (section, "name")))
    found, problems = validate(cls, {key: value for key, value in values.items() if key != "name"}, (section,), tree)
    return {section: found, f"{section}_name": name}, problems


def _asynchrony(values: Any, tree: Tree) -> tuple[AsyncConfig | None, list[str]]:
    """The section `async`; None: rounds wait for their clients."""
    if values is None:
        return None, []
    if not isinstance(values, dict):
        return None, [wrong((ASYNC,), values, "a mapping or null", tree)]
    return validate(AsyncConfig, values, (ASYNC,), tree)


def _per_client(common: Any, changes: Any, tree: Tree) -> tuple[dict[str, Any], list[str]]:
    """For each client the validated values that `client_for` has to put into `client`."""
    # what is wrong with `client` itself is reported once, with the other sections
    basis = validate(ClientConfig, common, ("client",), tree)[0] if isinstance(common, dict) else None
    if not isinstance(changes, dict | None):
        return {}, [wrong(("per_client",), changes, "a mapping of client names", tree)]
    result: dict[str, Any] = {}
    problems: list[str] = []
    for client, own in (changes or {}).items():
        if not isinstance(own, dict | None):
            problems.append(wrong(("per_client", client), own, "a mapping", tree))
        elif own and basis is not None:
            whole, found = validate(ClientConfig, common | own, ("per_client", client), tree)
            problems += found
            if not found:
                values = {name: getattr(whole, name) for name in field_names(ClientConfig)}
                result[client] = {n: v for n, v in values.items() if n in own or v != getattr(basis, n)}
    return result, problems


# Plain data


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(getattr(value, name)) for name in field_names(type(value))}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything that is not a mapping."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(value: Any, key: str) -> str:
    value = mask_data(value, key.rpartition(".")[2])
    return value if isinstance(value, str) else json.dumps(value)


@lru_cache(maxsize=1 << 14)
def _no_effect(key: str) -> bool:
    return any(fnmatchcase(key, name) or key.startswith(name + ".") for name in NO_EFFECT)
