"""Tells the world of a run: metrics.jsonl, TensorBoard, the console, results.json. One writer, on the server."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtorch.core.errors import CheckpointError
from fedtorch.core.files import replace_file
from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.names import Names
from fedtorch.core.scores import COUNT, LOSS, are_shared_by_all, number_behind, told
from fedtorch.core.update import Report
from fedtorch.tracking import records
from fedtorch.tracking.cohort import attack_record, attackers, cohort_record, norms_record
from fedtorch.tracking.console import Console
from fedtorch.tracking.memory import Memory
from fedtorch.tracking.plugin import RunStart, RunTracker, flat
from fedtorch.tracking.record_log import Log, take_up
from fedtorch.tracking.records import Record, Scores, totals
from fedtorch.tracking.run_folder import RESULTS
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.summary import show_results
from fedtorch.tracking.tensorboard import TensorBoard

logger = logging.getLogger(__name__)

OF_CLIENTS = ("per_client.", "system.pinned.")
"""Keys of a config that trackers are not told: there may be one for each client."""

REFUSALS = (OSError, ValueError)
"""What a terminal or pipe raises that is gone, closed, or cannot encode a client's name."""


class Tracker:
    """Records, curves and console of one run; made on the server only, blocks on no other rank.

    1. Every number becomes a record, written to metrics.jsonl at once.
    2. Trackers such as TensorBoard and the console's lines draw records, so a resumed run draws its past from the file.
    3. On a resume after round k, records of later rounds are dropped first: those rounds will be trained again.

    Nothing here stops a run: if a disk, a tracker or the terminal refuses, there is one warning and that output ends
    or has gaps. Rounds are passed as the loop counts them, from 0, and are recorded and shown from 1.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        clients: Sequence[str],
        rounds: int,
        settings: TrackConfig | None = None,
        resume_round: int | None = None,
        metric: str | None = None,
        trackers: Sequence[RunTracker] = (),
        config: Mapping[str, Any] | None = None,
        has_times: bool = True,
    ) -> None:
        """resume_round: rounds done in the checkpoint; None begins anew, in an old folder too.

        settings: None: the defaults. metric: the score in the console's line; by default each evaluation's first.
        trackers: beside TensorBoard. config: nested, secrets masked, for them. has_times: False where it must not be
        told how long a round took.
        """
        self.run_dir, self.metric = run_dir, metric
        self.settings = settings = settings or TrackConfig()
        self._attackers = attackers(config or {})
        past = take_up(run_dir / records.NAME, resume_round)
        self._log = Log(run_dir / records.NAME)
        self.memory = Memory(past)
        """of all rounds so far, whatever becomes of the file"""
        self._unknown = records.missing_rounds(past, resume_round or 0)
        self._has_times = has_times
        self._console: Console | None = Console(settings.progress, rounds, resume_round or 0, has_times=has_times)
        self._shown_round, self._score, self._is_done = resume_round or 0, ("", 0), False
        keys = {key: value for key, value in flat(config or {}).items() if not key.startswith(OF_CLIENTS)}
        start = RunStart(run_dir, clients, rounds, keys, resume_round, past, settings.client_limit, has_times)
        self._trackers: list[RunTracker] = [*([TensorBoard()] if settings.tensorboard else []), *trackers]
        self._tell("is off", lambda tracker: tracker.start(start))
        if resume_round is None:
            self._record({"kind": "run", "clients": list(clients) if trackers else Names.of(clients), "rounds": rounds})
        else:
            self._record({"kind": "resume", "round": resume_round, "rounds": rounds})

    def round(self, round: int, facts: RoundFacts) -> None:
        """Round `round` (0-based) is over.

        The sums of its traffic over all rounds so far are the record's `total`, drawn as `total/<name>`.
        """
        for arrival in facts.arrivals:
            self._record({"kind": "arrival", "round": round + 1, **arrival})
        for report in facts.reports or ():
            self._client(round, report, facts.weights.get(report.client))
        of_clients: Record = {"loss": facts.loss}
        norms: Record = {}
        if facts.reports is not None:
            of_clients = cohort_record(facts.reports)
            norms = norms_record(facts.reports) | attack_record(facts.reports, self._attackers)
        record = self._record(
            {
                "kind": "round",
                "round": round + 1,
                **of_clients,
                "seconds": dict(facts.seconds),
                **({} if facts.reports is None else self._add_up(facts.traffic)),
                "total": dict(self.memory.traffic),
                "traffic": _by_phase(facts.traffic),
                **norms,
                "extra": dict(facts.figures),
            }
        )
        self._flush()
        self._shown_round = round + 1
        self._show_round(record, facts.shown)

    def end(self, round: int, traffic: Mapping[str, float]) -> None:
        """Record what follows the last round (0-based): the last checkpoint, the best model, its evaluation."""
        sums = self._add_up(traffic)
        total = {"total": dict(self.memory.traffic), "traffic": _by_phase(traffic)}
        self._record({"kind": "end", "round": round + 1, **sums, **total})

    def _add_up(self, traffic: Mapping[str, float]) -> dict[str, float]:
        sums = {"bytes_up": 0, "bytes_down": 0, **{name: n for name, n in traffic.items() if "/" not in name}}
        self.memory.traffic.update(records.counted(sums))
        return sums

    def _client(self, round: int, report: Report, weight: float | None) -> None:
        """A client's numbers of the round, and its losses step by step."""
        base: Record = {"kind": "client", "round": round + 1, "client": report.client, "status": report.status}
        base |= {"weight": weight, **attack_record([report], self._attackers)}
        self._record({**base, **report.numbers(), **base})
        if self.settings.step_curves and report.curve:
            first = self.memory.steps[report.client]
            steps = {"kind": "steps", "round": round + 1, "client": report.client, "first_step": first}
            self._record({**steps, "loss": list(report.curve)})

    def _show_round(self, record: Record, shown: Sequence[tuple[str, str]]) -> None:
        """The round's line on the console, with the last score."""
        facts = [("loss", "-     " if record["loss"] is None else f"{record['loss']:.4f}"), *shown]
        if "clients_ok" in record:
            facts.insert(0, ("clients", f"{record['clients_ok']}/{record['clients_ok'] + record['clients_failed']}"))
        if self._score[0]:
            text, evaluated = self._score
            facts.append((text, "" if evaluated == record["round"] else f"(round {evaluated})"))
        if self._console is not None:
            try:
                logger.debug(self._console.round(record["round"], facts))
            except REFUSALS as error:
                self._console = None
                self._warn("the console is off", error)

    def evaluation(
        self,
        round: int,
        split: str,
        scores: Scores,
        label: str = "global",
        pooled: Mapping[str, float] | None = None,
        late: bool = False,
        weights_of: int | None = None,
        own_rounds: Mapping[str, int] | None = None,
        shared: Collection[str] = (),
        behind: Mapping[str, Mapping[str, int]] | None = None,
    ) -> dict[str, Any]:
        """The scores of a model after round `round` (0-based; −1: before the first round).

        scores: client -> metric -> (sum over examples, examples). label: which model, such as `global`, `training`
        (both drawn under the same tags), `personal`, `final`. pooled: of metrics that are no means, the figure of all
        examples together, which takes the place of their micro average. Called before `round` of the same round, the
        score is part of that round's line; otherwise it gets its own. late: the next round is under way, and a resume
        after round `round` will evaluate again (`eval.overlap`). weights_of: the round (from 1) whose weights were
        evaluated, where they are not those after `round`; recorded, and shown in the line. own_rounds: the same by
        client, of those that have chosen for themselves. shared: clients that have the same rows in this split, which
        count once; recorded. behind: client -> metric -> examples, where that is not the second number of the pair; see
        `core.scores.told`.

        Returns metric -> {macro, micro, count}; what only counts (`core.scores.COUNT`) is left out.
        """
        base = {"round": round + 1, "split": split, "label": label, **({"late": True} if late else {})}
        if weights_of is not None:
            base["weights_of"] = weights_of
        own_rounds, behind = own_rounds or {}, behind or {}
        for client, metrics in scores.items():
            chosen = {"weights_of": own_rounds[client]} if client in own_rounds else {}
            shown = told(metrics, behind.get(client, {}))
            pairs = {name: list(pair) for name, pair in shown.items() if not name.startswith(COUNT)}
            is_shared = {"shared": True} if client in shared else {}
            self._record({"kind": "eval", **base, **chosen, **is_shared, "client": client, "metrics": pairs})
        result = _averages(scores, pooled or {}, behind, shared)
        are_shared = {"shared": True} if are_shared_by_all(scores, shared) else {}
        self._record({"kind": "eval_total", **base, **are_shared, "metrics": result})
        self._flush()
        self._say_scores(round + 1, label, split, result, _scored(weights_of, own_rounds))
        return result

    def _say_scores(self, round: int, label: str, split: str, result: Mapping[str, Any], scored: str) -> None:
        """Part of the line of a round (from 1) that is yet to come, or a line of its own with what was scored."""
        names = [name for name in _shown(self.metric, result) if result[name]["count"]]
        if not names:
            return
        texts = [f"{name} {result[name]['micro']:.4f} of {result[name]['count']}" for name in names]
        self._score = (f"{split} {'  '.join(texts)}", round)
        if round <= self._shown_round:
            width = len(str(self._console.rounds)) if self._console is not None else 1
            texts = [
                f"{name} micro {total['micro']:.4f} macro {total['macro']:.4f} of {total['count']}"
                for name in names
                for total in [result[name]]
            ]
            self.say(f"round {round:>{width}}  {label} {split} {'  '.join(texts)}{scored}")

    def examples(self, round: int, split: str, each: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
        """The scores of single examples: client -> metric -> one value per example (NaN: it does not count)."""
        for client, metrics in each.items():
            self._record({"kind": "examples", "round": round + 1, "split": split, "client": client, "metrics": metrics})

    def working(self, text: str) -> None:
        """Show progress inside a round, such as `atis step 34, geoquery step 7`; may be called at every step."""
        if self._has_times:
            self._show(lambda console: console.working(text))

    def say(self, line: str) -> None:
        """Show a line and log it at debug level."""
        logger.debug(line)
        self._show(lambda console: console.say(line))

    def result(self, table: Mapping[str, Any]) -> None:
        """Record the final table and write it to results.json in one step; also works after `close`.

        Where records of rounds are missing, for want of room or because somebody took them, it says so in `records`.

        Raises:
            CheckpointError: the disk refuses results.json, which is what the run was made for.
        """
        self._record({"kind": "result", **table})
        self._is_done = True
        if gap := self._log.gap(self._shown_round):
            unknown = {"unknown_rounds": records.as_ranges(self._unknown)} if self._unknown else {}
            table = {**table, "records": (gap := gap | unknown)}
            logger.warning("%s: %s", self.run_dir / records.NAME, records.about_gap(gap))
        path = self.run_dir / RESULTS
        try:
            replace_file(path, json.dumps(records.plain(table), indent=1) + "\n")
        except OSError as error:
            raise CheckpointError(
                f"could not write {path} ({error}); the last round is saved: free some space, and start the run again"
            ) from error

    def show(self) -> None:
        """Print the final table of the run, and of those inside its folder beside it."""
        try:
            show_results(self.run_dir, metric=self.metric)
        except (Exception, SystemExit) as error:  # rich leaves the program when nobody reads what it prints
            self._warn("the table could not be shown", error)

    def close(self) -> None:
        """Finish all files and give the terminal back."""
        if self._console is not None:
            try:
                self._console.close()
            except REFUSALS as error:
                self._warn("the console is off", error)
        self._tell("may lack the end", lambda tracker: tracker.end(self._is_done))
        self._trackers = []
        self._log.close()

    def _record(self, record: Record) -> Record:
        """Write and draw one record; returns it as a reader will see it."""
        record = records.plain({**record, **({"time": time.time()} if self._has_times else {})})
        self._log.append(record)
        self.memory.see(record)
        self._tell("is off from here on", lambda tracker: tracker.record(record))
        return record

    def _flush(self) -> None:
        self._log.sync()
        self._tell("is off from here on", lambda tracker: tracker.flush())

    def _tell(self, lost: str, what: Callable[[RunTracker], None]) -> None:
        """Every tracker; one that raises is told nothing more."""
        for tracker in list(self._trackers):
            try:
                what(tracker)
            except Exception as error:  # whatever it is, it is not worth a training run
                self._trackers = [other for other in self._trackers if other is not tracker]
                self._warn(f"{type(tracker).__name__} {lost}", error)

    def _show(self, what: Callable[[Console], None]) -> None:
        """On the console; one that refuses is shown nothing more."""
        if self._console is not None:
            try:
                what(self._console)
            except REFUSALS as error:
                self._console = None
                self._warn("the console is off", error)

    def _warn(self, what: str, error: BaseException) -> None:
        logger.warning("%s: %s: %s; training goes on", what, type(error).__name__, error)


def _scored(weights_of: int | None, own_rounds: Mapping[str, int]) -> str:
    """The end of the line of a score: of which weights it is; empty where they are those of its round."""
    rounds = sorted(own_rounds.values()) or ([] if weights_of is None else [weights_of])
    if not rounds:
        return ""
    first, last = rounds[0], rounds[-1]
    of = f"round {first}" if first == last else f"rounds {first} to {last}, each client's best"
    return f"  scored: weights of {of}"


def _averages(
    scores: Scores, pooled: Mapping[str, float], behind: Mapping[str, Mapping[str, int]], shared: Collection[str]
) -> dict[str, dict[str, Any]]:
    """metric -> macro, micro and count, as they are told."""
    found = {name: mean for name, mean in totals(scores, shared).items() if not name.startswith(COUNT)}
    for name, mean in found.items():
        count = number_behind(name, behind, int(mean["count"] or 0), shared)
        found[name] = {"macro": mean["macro"], "micro": pooled.get(name, mean["micro"]), "count": count}
    return found


def _shown(metric: str | None, found: Mapping[str, Any]) -> list[str]:
    """The score by which the best model is chosen, or the first one; beside the loss the first of the others."""
    name = metric if metric in found else next(iter(found), None)
    others = [other for other in found if other != LOSS][:1] if name == LOSS else []
    return [*([] if name is None else [name]), *others]


def _by_phase(traffic: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in traffic.items() if "/" in name}
