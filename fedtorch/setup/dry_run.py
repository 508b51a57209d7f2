"""What a run would do, without training: resolved config, placement, bytes per round, memory per rank."""

from __future__ import annotations

from fedtorch.algorithms.message import MessageAlgorithm
from fedtorch.config import load as yaml_config
from fedtorch.config.schema import ClientConfig
from fedtorch.rounds.placement import costs
from fedtorch.setup.build import Parts
from fedtorch.train.memory import Size, deepspeeds_own, known_sizes, states

# Optimiser state per trained number, in numbers: AdamW keeps two moments; Adafactor's rows and columns are small.
_STATE = {"adam": 2.0, "adamw": 2.0, "adafactor": 0.02, "sgd": 0.0}
_MOST_SHOWN = 20


def describe(parts: Parts, *, num_ranks: int) -> str:
    """The text of `--dry-run`."""
    blocks = [yaml_config.to_yaml(parts.config).rstrip(), _placement(parts), _traffic(parts, num_ranks), _memory(parts)]
    return "\n\n".join(blocks)


def _placement(parts: Parts) -> str:
    shares = costs(parts.config, parts.training, parts.clients)
    total = sum(shares.values())
    lines = [f"placement: {len(parts.clients)} clients on {len(parts.topology.workers)} workers (share of the work)"]
    for row in parts.topology.describe(shares, parts.placement.homes):
        shown = ", ".join(row.clients[:_MOST_SHOWN])
        if len(row.clients) > _MOST_SHOWN:
            shown += f" and {len(row.clients) - _MOST_SHOWN} more"
        ranks = str(row.ranks[0]) if len(row.ranks) == 1 else f"{row.ranks[0]}-{row.ranks[-1]}"
        lines.append(f"  rank {ranks:<3} {row.cost / total:6.1%}  {shown or '(idle)'}")
    return "\n".join(lines)


def _traffic(parts: Parts, num_ranks: int) -> str:
    config, planes = parts.config, len(parts.algorithm.exchanged_vectors)
    size = parts.engine.shared.size * planes
    cohort = len(parts.clients) if config.clients.per_round == "all" else config.clients.per_round
    down = 4 * size * (num_ranks - 1)
    up = min(4 * size * cohort, 8 * size * (num_ranks - 1))
    algorithm = parts.algorithm
    if isinstance(algorithm, MessageAlgorithm) and (message := algorithm.message_bytes(parts.engine.shared)):
        copies = cohort if algorithm.combines_everywhere else 1
        down, up = message * copies * (num_ranks - 1), message * cohort
    count = f"{parts.engine.shared.size:,} shared and {parts.engine.private.size:,} private numbers"
    sizes = f"{down / 2**20:,.1f} MiB down and {up / 2**20:,.1f} MiB up"
    return f"traffic: {count}; per round at most {sizes}, {cohort} clients"


def _memory(parts: Parts) -> str:
    config, engine = parts.config, parts.engine
    total = engine.shared.size + engine.private.size
    planes = len(parts.algorithm.exchanged_vectors)
    width = engine.shared.dtype.itemsize
    state = max(_STATE.get(hp.optimizer, 2.0) + bool(hp.momentum) for hp in {config.client, *_client_settings(parts)})
    model = total * width * 2  # the weights and the initial ones
    training = total * width * (1 + state)  # gradients, optimiser
    exchange = engine.shared.size * planes * width * 2 + min(
        config.system.update_memory_mb << 20, engine.shared.size * planes * width * len(parts.clients)
    )
    server = engine.shared.size * planes * (8 + 2 * width)
    rows = [("weights", model), ("gradients and optimiser", training)]
    if (precision := config.engine.precision) != "fp32":  # autocast's copies, until the backward pass
        rows.append((f"weights in {precision}", 2 * Size.of(engine.module).numbers))
    rows += [("updates", exchange), ("server only", server)]
    if config.engine.kind == "deepspeed":  # the present weights, gradients and optimiser are in its own table
        rows = [("initial weights", total * width), ("updates", exchange), ("server only", server)]
    text = ", ".join(f"{name} {size / 2**20:,.0f} MiB" for name, size in rows)
    lines = [f"memory per rank, without activations and libraries: {text}"]
    if config.engine.kind == "deepspeed":
        for ranks in sorted(set(parts.topology.sizes)):
            lines += ["", *_model_states(parts, state, ranks)]
    return "\n".join(lines)


def _model_states(parts: Parts, moments: float, ranks: int) -> list[str]:
    """A table of what DeepSpeed keeps for this model, and would keep for others, with its own estimate beside ours."""
    engine = parts.config.engine
    sizes = {"this model": Size.of(parts.engine.module), **known_sizes()}
    lines = [
        f"DeepSpeed stage {engine.stage}, {engine.precision}, workers of {ranks} rank{'s' * (ranks > 1)}: parameters, "
        "gradients, masters and optimiser per rank, in GiB",
        f"  {'':<12}{'numbers':>15}{'device':>9}{'host':>9}   DeepSpeed's own estimate (Adam)",
    ]
    for name, size in sizes.items():
        ours, theirs = states(size, engine, ranks=ranks, moments=moments), deepspeeds_own(size, engine, ranks=ranks)
        own = "-"
        if theirs is not None:
            own = f"{theirs.device / 2**30:.2f} device, {theirs.host / 2**30:.2f} host"
        line = f"  {name:<12}{size.numbers:>15,}{ours.device / 2**30:>9.2f}{ours.host / 2**30:>9.2f}   {own}"
        lines.append(line)
    return lines


def _client_settings(parts: Parts) -> list[ClientConfig]:
    return [parts.config.client_for(client.name) for client in parts.clients]
