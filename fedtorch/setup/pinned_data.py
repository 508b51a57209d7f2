"""Clients whose data lie on one rank or machine only: first of all the ranks tell each other the sizes, as numbers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedtorch.comm.base import Communicator
from fedtorch.comm.wire import Packet, as_digits, as_numbers
from fedtorch.config.load import config_facts
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError, DataError, FedtorchError
from fedtorch.rounds.placement import make_topology, workers_with_data
from fedtorch.tasks.prepared import Entry, InFolder

log = logging.getLogger(__name__)


def is_pinned(config: Config) -> bool:
    """Has every client its place?"""
    return config.system.placement == "pinned"


def exchange_sizes(config: Config, comm: Communicator, known: Config | None = None) -> Config:
    """The config with a task that knows the sizes of all clients in `system.pinned`; all ranks call it first of all.

    A rank opens no file of clients that are not pinned to it. What the others learn of a client is what its entry in
    the manifest counts: examples, characters, and the digest of its files, so that a resume notices other data.
    known: on the server what this gave before some ranks were lost, for the clients of those that are away.

    Raises:
        ConfigError: the task cannot do with its own clients' files.
        DataError: on all ranks, if one lacks a client that it is to have; that rank's message says which files.
    """
    comm.preflight(config_facts(config))
    task = check_task(config)
    found, problem = _own(config, task, comm, known)
    comm.barrier("sizes", round=0)
    gathered = comm.gather(found, round=0)
    comm.barrier("sizes are there", round=0)
    messages = comm.broadcast_packets(gathered, round=0)
    if problem is not None:
        raise problem
    if missing := [comm.names[message.client] for message in messages if message.status != "ok"]:
        ranks = {name: config.system.pinned[name] for name in missing}
        where = ", ".join(f"`{name}` ({config.system.pinned_to} {place})" for name, place in ranks.items())
        raise DataError(f"clients cannot be read where they are pinned to: {where}; the log of the rank says why")
    entries = {comm.names[message.client]: _entry(message) for message in messages}
    return replace(config, task=task.with_entries(entries))


def adopt(config: Config, other: Config) -> Config:
    """`other`, a companion of `config`, with the sizes that were exchanged for `config`.

    Raises:
        ConfigError: it is about other data.
    """
    task = check_task(other)
    if (data := other.task.data) != config.task.data:
        raise ConfigError(f"compare.task.data is {data} but system.placement is pinned; leave it as it is")
    return replace(other, task=task.with_entries(config.task.prepared["clients"]))


def without_data(config: Config) -> Config:
    """The config with a task that knows of the clients in `system.pinned` no more than their names.

    For what looks at models only, on whatever machine; the sizes are made up.
    """
    facts = {"examples": 1, "characters": 1, "rows": [2], "positives": [1]}
    splits = {split: facts for split in ("train", config.eval.split, config.eval.final_split)}
    return replace(
        config, task=check_task(config).with_entries({name: {"splits": splits} for name in config.system.pinned})
    )


def check_task(config: Config) -> InFolder:
    """The task, if its clients can be on different disks.

    Raises:
        ConfigError: they cannot.
    """
    task = config.task
    if not isinstance(task, InFolder) or task.reads_other_clients:
        raise ConfigError(
            f"system.placement is pinned but the task `{config.task_name}` needs the files of all clients on every "
            "rank; set system.placement to balanced"
        )
    if problem := task.pinned_problem(learns=config.paradigm != "stats"):
        raise ConfigError(f"system.placement is pinned but {problem}, or set system.placement to balanced")
    return task


def _own(
    config: Config, task: InFolder, comm: Communicator, known: Config | None
) -> tuple[list[Packet], FedtorchError | None]:
    """A message for each client that this rank speaks for: the first of the ranks that have its data does."""
    topology = make_topology(config, comm.size)
    allowed = workers_with_data(config, topology)
    names = list(config.system.pinned) if allowed is None else list(allowed)
    messages: list[Packet] = []
    problem: FedtorchError | None = None
    for index, name in enumerate(names):
        home = comm.rank if allowed is None else topology.workers[allowed[name][0]][0]
        if known is not None and comm.is_server and home in comm.lost:
            messages.append(_message(index, known.task.prepared["clients"][name]))
        if home != comm.rank:
            continue
        try:
            entry = task.own_entry(name)
            if unknown := [other for other in task.prepared["clients"] if other not in names]:
                raise DataError(
                    f"{task.folder} has a client `{unknown[0]}`, which system.pinned gives no place; add it"
                )
            messages.append(_message(index, _told(config, name, entry)))
        except (ConfigError, DataError) as error:  # such as columns that this side's file does not have
            log.error("client %s is pinned to this rank: %s", name, error)
            messages.append(Packet(index, "numbers", status="failed"))
            problem = problem or type(error)(f"client `{name}` is pinned to rank {comm.rank}: {error}")
    return messages, problem


def _told(config: Config, name: str, entry: Entry) -> Entry:
    """A client's entry as others get it; of one whose rows are to be hidden what is declared."""
    if config.paradigm == "stats":  # how many rows it has is told by its counts, if at all
        if not any(facts["examples"] for facts in entry["splits"].values()):
            raise DataError("it has no row that could be counted")
        return {"splits": {"train": {"examples": 1}}}
    if config.privacy.kind != "record" or not entry["splits"].get("train", {}).get("examples"):
        return entry
    there, scores = entry["splits"], config.privacy.eval
    shown = {split: facts for split, facts in there.items() if "scores" in config.privacy.reveal}
    scored = {} if scores is None else scores.units.get(name, {})
    shown |= {split: {"examples": units} for split, units in scored.items() if there.get(split, {}).get("examples")}
    return {"splits": {**shown, "train": {"examples": config.privacy.units.get(name, 1)}}}


def _message(index: int, entry: Entry) -> Packet:
    numbers: dict[str, int | float] = {}
    lists: dict[str, tuple[float, ...]] = {}
    for split, facts in entry["splits"].items():
        for fact, value in facts.items():
            if fact == "sha256":
                lists[f"{split}/{fact}"] = as_numbers(value)
            elif isinstance(value, list):
                lists[f"{split}/{fact}"] = tuple(map(float, value))
            elif isinstance(value, int | float):
                numbers[f"{split}/{fact}"] = value
    return Packet(index, "numbers", numbers=numbers, lists=lists)


def _entry(message: Packet) -> Entry:
    splits: dict[str, dict[str, Any]] = {}
    facts: Mapping[str, Any] = {**message.numbers, **message.lists}
    for key, value in facts.items():
        split, _, fact = key.partition("/")
        if fact == "sha256":
            value = as_digits(value)
        elif isinstance(value, tuple):
            value = [int(number) for number in value]
        splits.setdefault(split, {})[fact] = value
    return {"splits": splits}
