"""Cards for a run's exported models, from its config and its results."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from fedtorch.config.load import digest
from fedtorch.config.schema import Config
from fedtorch.core.client import folder_name
from fedtorch.core.model_folder import MODEL, holds_model
from fedtorch.core.scores import COUNT
from fedtorch.core.version import VERSION
from fedtorch.tracking.card import CardFacts, write_card
from fedtorch.tracking.privacy_statement import promise
from fedtorch.tracking.trust_statement import checked

log = logging.getLogger(__name__)


def write_cards(config: Config, run: Path, models: Path, client: str = "", *, merged: bool = False) -> None:
    """Write a card beside each model in `models`: the server's in itself, or clients' in folders in it.

    run: the folder with `results.json`. client: whose model was asked for, where it may lie in `models` itself.
    merged: are adapters part of their models' weights?

    Nothing is written for tasks that do not say how their models load (`Task.usage`). A card that cannot be written
    is a warning: the model is worth more.
    """
    usage = config.task.usage_merged() if merged else config.task.usage()
    try:
        if usage and (run / "results.json").is_file():
            results = json.loads((run / "results.json").read_text())
            for folder, owner in _models(models, results):
                is_own = client and not holds_model(run / MODEL)
                write_card(folder, _facts(config, usage, results, owner or (client if is_own else "")))
    except (OSError, ValueError, KeyError) as error:
        log.warning("the model card in %s could not be written: %s: %s", models, type(error).__name__, error)


def _models(models: Path, results: Mapping[str, Any]) -> list[tuple[Path, str]]:
    """(folder, client whose model it holds; empty: the server's)."""
    if holds_model(models):
        return [(models, "")]
    folders = [(models / folder_name(client), client) for client in results["clients"]]
    return [(folder, client) for folder, client in folders if holds_model(folder)]


def _facts(config: Config, usage: Mapping[str, str], results: Mapping[str, Any], client: str) -> CardFacts:
    examples = {name: entry["examples"] for name, entry in results["clients"].items()}
    if client and config.paradigm == "local":
        examples = {client: examples[client]}
    said = results.get("privacy", {})
    return CardFacts(
        name=config.run.name,
        task=config.task_name,
        pipeline=usage["pipeline"],
        code=usage["code"],
        start=usage["start"],
        algorithm=config.paradigm if config.paradigm == "local" else config.algorithm_name,
        rounded=_rounded(config),
        rounds=results["rounds"],
        best_round=results["best_round"],
        clients=_clients(said) if said else sum(size > 0 for size in examples.values()),
        rows=said["rows"] if said else sum(examples.values()),
        digest=digest(config),
        split=results["split"],
        scores=_scores(results, client),
        versions={
            "fedtorch": VERSION,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        privacy=promise(said),
        checked=checked(results.get("trust", {})),
        attack=_attack(config),
        is_one_clients=bool(client),
    )


def _clients(said: Mapping[str, Any]) -> int:
    """How many clients a promise was made to."""
    found: int = said["clients"] if "clients" in said else len(said["silos"])
    return found


def _rounded(config: Config) -> str:
    return "" if (bits := config.exchange.bits) == 32 else f" with updates of {bits} bits a number"


def _attack(config: Config) -> str:
    attack = config.attack
    if not attack.clients:
        return ""
    return f", {len(attack.clients)} of which cheated on purpose ({attack.kind}): not for use"


def _scores(results: Mapping[str, Any], client: str) -> dict[str, tuple[float, int]]:
    """Means over rows, and the figures that are no means; of one client, or of all rows together."""
    if client:
        pairs = results["clients"][client]["scores"]
        means = {n: (total / count, count) for n, (total, count) in pairs.items() if count and not n.startswith(COUNT)}
        pooled = results["summary"].get("clients", {}).get(client, {})
    else:
        averages = results["averages"].items()
        means = {n: (mean["micro"], mean["count"]) for n, mean in averages if mean["micro"] is not None}
        pooled = results["summary"].get("pooled", {})
    count = max((count for _, count in means.values()), default=0)
    return means | {name: (value, count) for name, value in pooled.items() if isinstance(value, float)}
