"""Costs of a round on paper: bytes as the meter counts them, seconds and memory from a machine's constants.

Nothing is measured here. `Constants` come from `fedtorch bench`; what a round does is a `RoundWork`; where its ranks
are is a `Site`. Seconds of a phase are the longest of three, as windows overlap: the wire, the busiest rank, and all
ranks of a node on its cores. What goes through memory is taken to cost a processor as much as through sockets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedtorch.comm.transport.windows import WINDOW
from fedtorch.planning.round_work import Flow, RoundWork

_REDUCING = 2  # threads of gloo, each with one window of a ring


@dataclass(frozen=True)
class Constants:
    """Constants of one machine. Seconds of one core, unless they are a wait."""

    cores: int
    """That the machine has."""
    add_s: float
    """Scale, round and add one number of an update to a sum, beside others."""
    add_sum_s: float
    """Add one number of another rank's sum, its digest included."""
    result_s: float
    """Write one number of a sum, on the server rounded to the weights' dtype."""
    client_s: float
    """Per shared number and client: take the difference, and its norm."""
    server_step_s: float
    """Per shared number: the server's step."""
    digest_s: float
    """Per byte of a payload."""
    send_s: float
    """Per byte that is handed to the network."""
    receive_s: float
    """Per byte that is taken from it."""
    flow_s: float
    """Per byte on the clock from one rank to one other of the same machine, with nothing else going on."""
    hop_s: float
    """On the clock until a small message has gone from one rank of a ring to the next."""
    meeting_s: float
    """A meeting of two ranks, on the clock."""
    meeting_rank_s: float
    """What each further rank adds to it."""
    header_s: float
    """An operation's header between two ranks, on the clock."""
    header_rank_s: float
    """What each further rank adds to it."""
    client_round_s: float
    """Per client, whatever its size: what its rank does beside its steps and what grows with the model."""
    report_s: float
    """Per client, on the clock: its report is sent, read, checked and decided on."""
    round_s: float
    """What else a round of two ranks takes on the clock, whatever is sent."""
    round_rank_s: float
    """What each further rank adds to it."""
    process_bytes: int
    """A rank's own memory before a model is there: interpreter and libraries."""


@dataclass(frozen=True)
class Site:
    """Where ranks are: `ranks_per_node` on each node, in order."""

    ranks: int
    """All of them, the server's too."""
    ranks_per_node: int
    """The last node may have fewer."""
    bytes_per_s: float
    """Of a node's wire, in each direction; infinite: processors are the limit."""
    cores: int
    """Of a node."""
    is_hub: bool = False
    """Do all ranks share one wire, those of a node too? So it is in a namespace whose loopback is limited."""

    @property
    def nodes(self) -> int:
        """How many there are."""
        return -(-self.ranks // self.ranks_per_node)

    def node(self, rank: int) -> int:
        """The node of a rank."""
        return rank // self.ranks_per_node

    def carried(self, flows: Sequence[Flow]) -> float:
        """Bytes on the busiest wire, in its busier direction."""
        if self.is_hub:
            return float(sum(flow.bytes for flow in flows))
        out, came = [0.0] * self.nodes, [0.0] * self.nodes
        for source, target, amount in flows:
            if self.node(source) != self.node(target):
                out[self.node(source)] += amount
                came[self.node(target)] += amount
        return max(*out, *came, 0.0)

    def on_cores(self, busy: Sequence[float]) -> float:
        """Seconds until ranks that need so much processor time each are done, where they share their node's cores."""
        return max(*busy, self.shared(busy))

    def shared(self, busy: Sequence[float]) -> float:
        """Constants where a rank's work is that of several threads, so that no rank is a limit by itself."""
        nodes = [0.0] * self.nodes
        for rank, seconds in enumerate(busy):
            nodes[self.node(rank)] += seconds
        return max(nodes) / self.cores


@dataclass(frozen=True)
class Seconds:
    """Seconds of one round."""

    train: float
    """Until all clients of the round are trained."""
    down: float
    """The server's vectors, to every rank."""
    up: float
    """Updates or sums, and adding them."""
    meetings: float
    """Of all ranks in the store."""
    headers: float
    """And other small messages."""
    step: float
    """The server's."""
    fixed: float
    """Whatever is sent: reports and their checks, what is kept and noted of a round."""

    @property
    def total(self) -> float:
        """Seconds of the round; nothing of evaluation and checkpoints."""
        return self.train + self.down + self.up + self.meetings + self.headers + self.step + self.fixed


def seconds(work: RoundWork, site: Site, constants: Constants) -> Seconds:
    """Predict what a round takes on the clock.

    One process exchanges nothing: only its clients' training, the sum and the server's step are left.
    """
    each = work.numbers * constants.client_s + constants.client_round_s
    own = [s + hosts * each for s, hosts in zip(work.train_s, work.hosted, strict=True)]
    return Seconds(
        train=site.on_cores(own),
        down=_down(work, site, constants),
        up=_up(work, site, constants),
        meetings=work.meetings * small(site.ranks, constants.meeting_s, constants.meeting_rank_s),
        headers=(work.headers + work.asides / 2) * small(site.ranks, constants.header_s, constants.header_rank_s),
        step=work.numbers * constants.server_step_s,
        fixed=small(site.ranks, constants.round_s, constants.round_rank_s) + _reports(work, constants),
    )


def small(ranks: int, of_two: float, further: float) -> float:
    """Seconds of a meeting, a header, or a round: the server turns to one rank after the other."""
    return of_two + (ranks - 2) * further if ranks > 1 else 0.0


def _reports(work: RoundWork, constants: Constants) -> float:
    return work.clients * constants.report_s if work.ranks > 1 else 0.0


def _down(work: RoundWork, site: Site, constants: Constants) -> float:
    if not work.down:
        return 0.0
    busy = _processor(work.down, work.ranks, constants)
    depth = math.ceil(math.log2(work.ranks)) if site.nodes == 1 else 1  # between hosts it goes in pieces
    alone = depth * work.down_bytes * constants.flow_s
    moved = max(site.carried(work.down) / site.bytes_per_s, site.on_cores(busy), alone)
    return moved + site.on_cores([0.0] + [work.down_bytes * constants.digest_s] * (work.ranks - 1))


def _up(work: RoundWork, site: Site, constants: Constants) -> float:
    """Window by window: while one is on its way the next one is added up, and the one before is taken in.

    So of all but the longest of these, one window's is seen; a vector of one window has nothing beside it. Messages are
    taken to be many windows.
    """
    adding = [_adding(work, constants, rank) for rank in range(work.ranks)]
    network = _processor(work.up, work.ranks, constants)
    moving = [sent + each.between for sent, each in zip(network, adding, strict=True)]
    # a rank's own network threads work beside the thread that adds
    together = site.shared([sent + sum(each) for sent, each in zip(network, adding, strict=True)])
    waits = max((flow.bytes for flow in work.up), default=0.0) * constants.flow_s
    if work.way == "reduce" and work.ranks > 1:
        hops = -(-work.numbers // WINDOW) * (len(work.leaders) - 1) / _REDUCING
        waits = max(waits, hops * constants.hop_s)
    waits = max(waits, site.carried(work.up) / site.bytes_per_s)
    longest = max(waits, together, *network, *(sum(each) for each in adding))
    if work.message is not None:
        return longest
    before, after = (site.on_cores(each) for each in ([a.before for a in adding], [a.after for a in adding]))
    in_turn = before + max(waits, site.on_cores(moving)) + after
    share = min(1.0, WINDOW / max(1, work.numbers))  # of the vector, in a window
    return share * in_turn + (1 - share) * longest


class _Adding(NamedTuple):
    """Processor seconds of a rank for a sum, those of digests included."""

    before: float
    """What is sent is made."""
    between: float
    """What ring and leaders add."""
    after: float
    """What has come is added, and the sum is written."""


def _adding(work: RoundWork, constants: Constants, rank: int) -> _Adding:
    size, hosts, counted = work.numbers, work.hosted[rank], work.counted(rank)
    own = size * hosts * constants.add_s
    digests, result = counted.up * constants.digest_s, size * constants.result_s
    if work.message is not None:
        entries = work.message_bytes / 8 * (work.clients if rank == 0 or work.way == "replicated" else 0)
        return _Adding(digests, 0.0, entries * constants.add_s + result)
    if work.way == "reduce":  # a projection before and, on the server, after it
        led = sum(1 for flow in work.up if flow.target == rank and work.is_within(flow))
        more = size * constants.add_sum_s
        between = more * (led + (0 if work.is_led(rank) else 1))
        return _Adding(own + more, between, 0.0 if rank else more + result)
    if rank == 0 and work.way == "sums":
        return _Adding(own, 0.0, counted.up / 8 * constants.add_sum_s + result)
    if rank == 0:
        return _Adding(own, 0.0, counted.up / work.item_bytes * constants.add_s + digests + result)
    return _Adding(own + result + digests if work.way == "sums" and hosts else digests, 0.0, 0.0)


def _processor(flows: Sequence[Flow], ranks: int, constants: Constants) -> list[float]:
    """Processor seconds of every rank for what it sends and receives."""
    found = [0.0] * ranks
    for source, target, amount in flows:
        found[source] += amount * constants.send_s
        found[target] += amount * constants.receive_s
    return found


@dataclass(frozen=True)
class ModelSize:
    """Sizes of a model that a rank keeps."""

    shared: int
    """Numbers that are exchanged, of one vector."""
    private: int
    """Numbers that stay with clients."""
    item_bytes: int
    """Of a number."""
    state: float
    """Numbers of the optimiser per trained number."""
    server_state: int
    """Vectors that the server's optimiser keeps."""
    update_bytes: int
    """`system.update_memory_mb`, in bytes: more updates than that wait in files."""
    keeps_initial: bool = True
    """Are the initial weights kept, `Limits.reads_initial`?"""


def memory(work: RoundWork, model: ModelSize, constants: Constants, rank: int) -> int:
    """Bytes of a rank at its fullest, without activations."""
    total, width = model.shared + model.private, model.item_bytes
    hosts, vector = work.hosted[rank], work.numbers * width
    initial = total if model.keeps_initial else model.private
    held = constants.process_bytes + (total + initial) * width + vector  # the module, both; what was received
    if hosts:
        held += int(total * width * (1 + model.state))  # gradients, optimiser
        each = work.message_bytes or vector
        held += min(max(each, model.update_bytes), hosts * each)
    window = 8 * min(work.numbers, WINDOW)
    if work.message is not None:
        return held + (3 + model.server_state) * vector
    if rank == 0:
        held += vector + model.server_state * vector  # the sum
    if work.way == "reduce":
        return held + 4 * window
    if rank == 0:
        senders = sum(map(bool, work.hosted[1:]))
        return held + window + 4 * senders * (window if work.way == "sums" else window // 2)
    return held + (4 * window if hosts and work.way == "sums" else 0)
