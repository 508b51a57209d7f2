"""Says what a run would do, without training: resolved config, placement, bytes per round, memory per rank."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

from fedtorch.algorithms.message import MessageAlgorithm
from fedtorch.algorithms.packing import Packing
from fedtorch.config import load as yaml_config
from fedtorch.planning.activations import activation_bytes
from fedtorch.planning.asynchrony import describe_plan
from fedtorch.planning.promise import describe_private, describe_public_sum
from fedtorch.planning.scale import Cluster, describe_scale
from fedtorch.rounds.context import keeps_state
from fedtorch.rounds.placement import costs
from fedtorch.rounds.residence import memory_bytes, why_on_host
from fedtorch.rounds.save_schedule import SaveSchedule
from fedtorch.setup.build import BuiltRun
from fedtorch.setup.engine import is_shared_out
from fedtorch.train.memory import (
    Size,
    base_bytes,
    deepspeeds_own,
    known_sizes,
    optimizer_numbers,
    packed_bytes,
    states,
)
from fedtorch.train.precision import DTYPES

_MOST_SHOWN = 20


def describe(built: BuiltRun, *, num_ranks: int, cluster: Cluster | None = None) -> str:
    """The text of `--dry-run`. cluster: also what a round would take there.

    Raises:
        ConfigError: see `scale.describe_scale`.
    """
    blocks = [_placement(built), _traffic(built, num_ranks), _memory(built), _saving(built)]
    blocks += [_trainers(built), _rates(built), describe_plan(built)]
    if cluster is not None:
        blocks.append(describe_scale(built, cluster))
    return "\n\n".join(filter(None, [*blocks, describe_private(built), describe_public_sum(built)]))


def with_config(text: str, built: BuiltRun) -> str:
    """That text as comments above the resolved config, every key with its value: together a config file."""
    comments = "\n".join(f"# {line}".rstrip() for line in text.splitlines())
    return f"{comments}\n\n{yaml_config.to_yaml(built.config)}"


def _placement(built: BuiltRun) -> str:
    shares = costs(built.config, built.training, built.clients)
    total = sum(shares.values())
    clients, workers = len(built.clients), len(built.topology.workers)
    on = f"{clients} client{'s' * (clients > 1)} on {workers} worker{'s' * (workers > 1)}"
    lines = [f"placement: {on} (share of the work)"]
    rows = built.topology.describe(shares, built.placement.homes)
    for is_idle, alike in groupby(rows, lambda row: not row.clients):
        if is_idle:  # there may be hundreds
            idle = [rank for row in alike for rank in row.ranks]
            lines.append(f"  {_ranks(idle):<8} {0:6.1%}  (idle)")
            continue
        for row in alike:
            shown = ", ".join(row.clients[:_MOST_SHOWN])
            if len(row.clients) > _MOST_SHOWN:
                shown += f" and {len(row.clients) - _MOST_SHOWN} more"
            lines.append(f"  {_ranks(row.ranks):<8} {row.cost / total:6.1%}  {shown}")
    return "\n".join(lines)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"rank {ranks[0]}-{ranks[-1]}"


def _traffic(built: BuiltRun, num_ranks: int) -> str:
    config, vectors = built.config, len(built.algorithm.travels.vectors)
    algorithm, layout = built.algorithm, built.algorithm.travels.laid_out(built.engine.shared)
    size = layout.size * vectors
    cohort = len(built.clients) if config.clients.per_round == "all" else config.clients.per_round
    cohort = cohort if built.jobs is None else built.jobs.settings.buffer
    down = layout.dtype.itemsize * size * (num_ranks - 1)
    sent = 4 * size * cohort
    if layout is not built.engine.shared:
        drawn = [algorithm.places("sent", layout, client.name, 0) for client, _ in built.first_cohort]
        sent = 4 * sum(size if places is None else len(places) for places in drawn)
    up = min(sent, 8 * size * (num_ranks - 1))
    if isinstance(algorithm, MessageAlgorithm) and (message := algorithm.message_bytes(built.engine.shared)):
        gets_all = algorithm.combines_in_slices and algorithm.selection(built.engine.shared) is None
        copies = cohort if algorithm.combines_everywhere or gets_all else 1
        down, up = message * copies * (num_ranks - 1), message * cohort
    if (packing := Packing.of(config.exchange, built.engine.shared)) is not None:
        up = packing.message_bytes * cohort
    count = f"{built.engine.shared.size:,} shared and {built.engine.private.size:,} private numbers"
    sizes = f"{_shown(down)} down and {_shown(up)} up"
    beside = f", and down what {' and '.join(names)} grow by" if (names := algorithm.travels.varying) else ""
    return f"traffic: {count}; per round at most {sizes}{beside}, {cohort} clients"


def _shown(size: int) -> str:
    """A number of bytes, in MiB where that shows something."""
    return f"{size / 2**20:,.1f} MiB" if size >= 2**20 / 20 or not size else f"{size:,} bytes"


def _rates(built: BuiltRun) -> str:
    """The rates of the first round, the middle one and the last, where they differ between rounds."""
    config, lines = built.config, list[str]()
    own = {f"per_client.{name}": config.client_for(name) for name in config.per_client}
    settings = {"client": config.client, **own}
    for key, hp in settings.items():
        if hp.lr_over_rounds is not None and config.rounds:
            shown = sorted({0, config.rounds // 2, config.rounds - 1})
            rates = (f"round {t + 1} {hp.in_round(t, config.rounds).lr:.6g}" for t in shown)
            lines.append(f"  {key:<8} {', '.join(rates)} ({hp.lr_over_rounds.schedule})")
    rest = [f"  and {len(lines) - _MOST_SHOWN} more"] if len(lines) > _MOST_SHOWN else []
    return "\n".join(["learning rate over rounds:", *lines[:_MOST_SHOWN], *rest]) if lines else ""


def _saving(built: BuiltRun) -> str:
    """When checkpoints are written, and what a crash costs."""
    is_stateful = keeps_state(built.config, built.algorithm, built.engine)
    return f"checkpoints: {SaveSchedule(built.config, is_stateful=is_stateful, clock=time.monotonic)}"


def _trainers(built: BuiltRun) -> str:
    """By what clients are trained, where it is not the package's own loop."""
    named = sorted({hp.trainer.name for hp in built.settings if hp.trainer is not None})
    if not named:
        return ""
    return (
        f"trained by {', '.join(named)} (client.trainer), whose optimiser and batches are not counted here; nor does "
        "`--nodes` know its seconds"
    )


def _memory(built: BuiltRun) -> str:
    config, engine = built.config, built.engine
    total = engine.shared.size + engine.private.size
    vectors = len(built.algorithm.travels.vectors)
    width = engine.shared.dtype.itemsize
    state = max(optimizer_numbers(hp) for hp in {config.client, *built.settings})
    model = total * width * 2  # the weights and the initial ones
    training = total * width * (1 + state)  # gradients, optimiser
    numbers = built.algorithm.travels.laid_out(engine.shared).size * vectors
    exchange = numbers * width * 2 + min(config.system.update_memory_mb << 20, numbers * width * len(built.clients))
    if built.algorithm.travels.model is not None:
        exchange += engine.shared.size * (8 + width)  # sums, and what they come to
    server = numbers * (8 + 2 * width)
    rows = [("weights", model), ("gradients and optimiser", training)]
    if engine.fixed:
        base, packed = base_bytes(engine.module, engine.fixed), packed_bytes(engine.module)
        rows.insert(0, ("base" if not packed else f"base (of which {packed / 2**20:,.0f} MiB in few bits)", base))
    if (precision := config.engine.precision) in DTYPES:  # autocast's copies, until the backward pass
        wide = sum(parameter.numel() for parameter in engine.module.parameters() if parameter.is_floating_point())
        rows.append((f"weights in {precision}", 2 * wide))
    rows += [("updates", exchange), ("server only", server)]
    if config.engine.kind != "torch":  # the present weights, gradients and optimiser are in its own table
        rows = [("initial weights", total * width), ("updates", exchange), ("server only", server)]
    text = ", ".join(f"{name} {size / 2**20:,.0f} MiB" for name, size in rows)
    lines = [f"memory per rank, without activations and libraries: {text}", _activations(built), _while_built(built)]
    if vectors and built.topology.num_ranks > 1:
        lines.append(_on_devices(built))
    if config.engine.kind != "torch":
        for ranks in sorted(set(built.topology.sizes)):
            lines += ["", *_model_states(built, state, ranks)]
    return "\n".join(lines)


def _while_built(built: BuiltRun) -> str:
    """The host's memory until every rank has its part of the model."""
    whole, rank = (f"{size / 2**20:,.0f} MiB" for size in (_whole_bytes(built), built_bytes(built)))
    if _has_whole(built):
        return f"while the model is built: {whole} of the host's memory for each rank of a machine"
    return (
        f"while the model is built: {whole} of the host's memory for the server, as much again for what all ranks of "
        f"its machine read, and at most {rank} for each of them; {whole} more for each rank of another machine"
    )


def built_bytes(built: BuiltRun) -> float:
    """Bytes of the host's memory that a rank on the server's machine has for itself while its model is built.

    All of the model, or its part of it and the largest layer.
    """
    if _has_whole(built):
        return _whole_bytes(built)
    ranks = min(built.topology.sizes, default=1)
    return _whole_bytes(built) / ranks + 4 * Size.of(built.engine.module).largest


def _whole_bytes(built: BuiltRun) -> int:
    return sum(parameter.nbytes for parameter in built.engine.module.parameters())


def _has_whole(built: BuiltRun) -> bool:
    """Is a whole model built on every rank?"""
    return bool(built.engine.fixed) or not is_shared_out(built.config.engine, min(built.topology.sizes, default=1))


def _on_devices(built: BuiltRun) -> str:
    """Where the vectors of a round are, with NCCL."""
    if why := why_on_host(built):
        return f"over NCCL the vectors of a round go through the host's memory: {why}"
    there = memory_bytes(built) / 2**20
    return f"over NCCL updates and what was received stay on each GPU that has the room: {there:,.0f} MiB of it"


def _activations(built: BuiltRun) -> str:
    """The memory of a micro-batch, as far as it is known without computing one."""
    again = " (they are computed again)" if built.config.engine.activation_checkpointing else ""
    if (size := activation_bytes(built)) is None:
        return f"activations{again}: not known, as the task looks at numbers or its data are elsewhere"
    copies = ", 16-bit copies of weights among them" if built.config.engine.precision in DTYPES else ""
    return f"activations{again}: {_shown(size)} for the first micro-batch of the largest client{copies}"


def _model_states(built: BuiltRun, moments: float, ranks: int) -> list[str]:
    """A table of what ranks keep of this model, and would keep of others, with DeepSpeed's own estimate beside ours."""
    engine = built.config.engine
    sizes = {"this model": Size.of(built.engine.module), **known_sizes()}
    is_fsdp = engine.kind == "fsdp"
    library = "FSDP" if is_fsdp else f"DeepSpeed stage {engine.stage}"
    kept = "gradients and optimiser, and what is gathered," if is_fsdp else "gradients, masters and optimiser"
    beside = "" if is_fsdp else "   DeepSpeed's own estimate (Adam)"
    of = f"{library}, {engine.precision}, workers of {ranks} rank{'s' * (ranks > 1)}"
    lines = [
        f"{of}: parameters, {kept} per rank, in GiB",
        f"  {'':<12}{'numbers':>15}{'device':>9}{'host':>9}{beside}",
    ]
    for name, size in sizes.items():
        ours, theirs = states(size, engine, ranks=ranks, moments=moments), deepspeeds_own(size, engine, ranks=ranks)
        own = "" if is_fsdp else "   -"
        if theirs is not None:
            own = f"   {theirs.device / 2**30:.2f} device, {theirs.host / 2**30:.2f} host"
        line = f"  {name:<12}{size.numbers:>15,}{ours.device / 2**30:>9.2f}{ours.host / 2**30:>9.2f}{own}"
        lines.append(line)
    return lines
