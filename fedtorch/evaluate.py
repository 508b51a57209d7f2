"""Who is judged on what, by which worker, and which model is the best so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from fedtorch.client import ClientState
from fedtorch.rank import Rank
from fedtorch.tasks.base import Scores, Task
from fedtorch.train.engine import Engine, to_device

# The entries of a ClientState that a client is judged with; kept a second time, under `best/`, for its best round.
JUDGED = ("private", "personal")
# Clients whose tokenised data a rank keeps; a rank's memory must not grow with the clients it hosts.
CACHED_CLIENTS = 64

# Batches judged between two signs of life; within them, examples of similar length are put together.
BATCHES_PER_BEAT = 2


class Evaluation:
    """Judges every client at its home, with the model it would use, and keeps the best model.

    Where something is exchanged, the server chooses one best round by the dev scores of all clients together; every
    client keeps what it is judged with beside the server's best weights. Where nothing is exchanged, each client
    chooses its own best round. All methods are called by all ranks alike.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.metric = rank.config.eval.select_by or rank.setting.task.main_metric
        self._load = lru_cache(maxsize=CACHED_CLIENTS)(rank.setting.task.load)

    def during_training(self) -> dict[str, Scores]:
        """Judge on `eval.split` and update the best; scores per client on the server, elsewhere of own clients."""
        rank = self.rank
        rank.broadcast()
        with rank.timed("evaluate"):
            own = self._judge(rank.config.eval.split, at_best=False)
            rank.arrive("scores")  # the last chance to stop: from here on the evaluation counts
            if not rank.algorithm.exchanged:
                self._keep_own_best(own)
            scores = self._gather(own)
            self._keep_best(scores)
        return scores

    def at_the_end(self) -> dict[str, Scores]:
        """Judge the best model on `eval.final_split`; the server's weights become the best ones."""
        rank = self.rank
        if rank.comm.is_server and "best" in rank.server.tensors:
            rank.server.weights.copy_(rank.server.tensors["best"])
        rank.is_fresh = rank.comm.size == 1
        rank.broadcast()
        with rank.timed("evaluate"):
            own = self._judge(rank.config.eval.final_split, at_best=True)
            rank.arrive("scores")
            return self._gather(own)

    def _judge(self, split: str, *, at_best: bool) -> dict[str, Scores]:
        """Scores of the clients at home here."""
        rank, setting = self.rank, self.rank.setting
        results: dict[str, Scores] = {}
        for name, sizes in setting.task.manifest().items():
            if not rank.hosts(rank.judges[name]) or not sizes.get(split):
                continue
            rank.comm.heartbeat(phase="evaluate", round=rank.round, client=name)
            rank.working(f"judging {name}")
            state = rank.store.get(name)
            state = _at_best(state) if at_best else state
            setting.engine.load(rank.algorithm.judged_weights(rank.shared, state), state.tensors.get("private"))
            examples, size = self._load(name, split), rank.config.eval.batch_size
            for start in range(0, len(examples), size * BATCHES_PER_BEAT):
                part = examples[start : start + size * BATCHES_PER_BEAT]
                results[name] = added(results.get(name, {}), judge(setting.task, setting.engine, part, size))
                rank.comm.heartbeat(phase="evaluate", round=rank.round, client=name, step=start)
        return results

    def _gather(self, own: Mapping[str, Scores]) -> dict[str, Scores]:
        rank = self.rank
        messages = [
            rank.message(
                "score", name, lists={metric: (total, float(count)) for metric, (total, count) in pairs.items()}
            )
            for name, pairs in own.items()
        ]
        return {
            rank.name(message): {metric: (pair[0], int(pair[1])) for metric, pair in message.lists.items()}
            for message in rank.comm.gather(messages, round=rank.round)
        }

    def _keep_best(self, scores: Mapping[str, Scores]) -> None:
        """One best round for all, chosen by the server."""
        rank, config = self.rank, self.rank.config.eval
        is_best = False
        if rank.comm.is_server and rank.algorithm.exchanged:
            macro, micro, count = averages(scores, self.metric)
            selection = Selection(rank.server.numbers, config.patience)
            is_best = bool(count) and selection.offer(micro if config.merge else macro, rank.round)
            if is_best:
                best = rank.server.tensors.setdefault("best", torch.empty_like(rank.server.weights))
                best.copy_(rank.server.weights)
        if not rank.algorithm.exchanged and self._all_have_stopped():
            rank.server.numbers["stopped"] = 1
        stopped = int(rank.server.numbers.get("stopped", 0))
        answer = [rank.message("decision", numbers={"is_best": int(is_best), "stopped": stopped})]
        (answered,) = rank.comm.share(answer if rank.comm.is_server else [], round=rank.round)
        if answered.numbers["stopped"]:
            rank.server.numbers["stopped"] = 1
        if answered.numbers["is_best"] and rank.is_stateful:
            for name in rank.store.clients():
                rank.store.stage(name, _with_best(rank.store.get(name)))
                rank.store.commit([name])

    def _all_have_stopped(self) -> bool:
        """On the server: does every client rest? Called by all ranks."""
        rank = self.rank
        resting = [
            rank.message("numbers", name)
            for name in rank.store.clients()
            if rank.store.get(name).numbers.get("stopped")
        ]
        return len(rank.comm.gather(resting, round=rank.round)) == len(rank.setting.clients)

    def _keep_own_best(self, scores: Mapping[str, Scores]) -> None:
        """Every client's best round by its own dev score; a client that stopped gaining rests from then on."""
        rank = self.rank
        for name, pairs in scores.items():
            state = rank.store.get(name)
            if state.numbers.get("stopped") or not state.numbers.pop("unjudged", 0):
                continue  # it has not trained since it was judged last
            total, count = pairs[self.metric]
            if Selection(state.numbers, rank.config.eval.patience).offer(total / count, rank.round):
                state = _with_best(state)
            rank.store.stage(name, state)
            rank.store.commit([name])


@torch.inference_mode()
def judge(task: Task, engine: Engine, examples: Sequence[Any], batch_size: int) -> Scores:
    """Scores of the loaded weights on some examples: per metric (sum, count); `loss` per term of the loss."""
    engine.module.eval()
    total, terms = 0.0, 0
    for start in range(0, len(examples), batch_size):
        batch = task.collate([examples[i] for i in range(start, min(start + batch_size, len(examples)))], False)
        loss, count = task.loss(engine.module, to_device(batch, engine.device))
        total, terms = total + float(loss), terms + int(count)
    scores = task.score(examples, task.predict(engine.module, examples, batch_size))
    return {**scores, "loss": (total, terms)}  # the main metric first, as readers of the records expect


def added(one: Scores, other: Scores) -> Scores:
    """Scores over the examples of both."""
    names = {**one, **other}
    return {n: tuple(map(sum, zip(one.get(n, (0.0, 0)), other.get(n, (0.0, 0)), strict=True))) for n in names}  # type: ignore[misc]


def averages(scores: Mapping[str, Scores], metric: str) -> tuple[float, float, int]:
    """(macro, micro, count) of a metric: mean over clients, and over all their examples together.

    Clients without examples do not count. (nan, nan, 0) if there are none.
    """
    pairs = [client[metric] for client in scores.values() if client.get(metric, (0.0, 0))[1] > 0]
    if not pairs:
        return math.nan, math.nan, 0
    count = sum(n for _, n in pairs)
    return sum(total / n for total, n in pairs) / len(pairs), sum(total for total, _ in pairs) / count, count


class Selection:
    """Keeps the best score in a `numbers` dictionary: the server's for a shared model, a client's for its own.

    A later score replaces an earlier one only if it is higher: ties go to the earlier round (lorar.md section 6).
    `patience` evaluations in a row without gain set `stopped`.
    """

    def __init__(self, numbers: dict[str, int | float], patience: int | None) -> None:
        self.numbers, self.patience = numbers, patience

    def offer(self, score: float, round: int) -> bool:
        """Is this the best score so far? (NaN never is.)"""
        better = score > self.numbers.get("best_score", -math.inf)
        if better:
            self.numbers.update(best_score=score, best_round=round, evaluations_without_gain=0)
        else:
            self.numbers["evaluations_without_gain"] = int(self.numbers.get("evaluations_without_gain", 0)) + 1
        if self.patience is not None and self.numbers["evaluations_without_gain"] >= self.patience:
            self.numbers["stopped"] = 1
        return better


def _with_best(state: ClientState) -> ClientState:
    """The state with what it is judged with kept as the best."""
    best = {f"best/{name}": state.tensors[name] for name in JUDGED if name in state.tensors}
    return ClientState({**state.tensors, **best}, state.numbers)


def _at_best(state: ClientState) -> ClientState:
    """The state as it was judged in its best round; itself if none was kept."""
    best = {name: state.tensors[f"best/{name}"] for name in JUDGED if f"best/{name}" in state.tensors}
    return ClientState({**state.tensors, **best}, state.numbers)
