"""The runs of one command on this rank: built, joined with the other ranks, trained one after the other."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, NoReturn

from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.job.parties import Identity
from fedtorch.comm.job.ports import check_ports
from fedtorch.comm.job.rejoin import stay, stay_again
from fedtorch.comm.job.signing import VARIABLE, forget_secret, job_secret
from fedtorch.comm.job.store import STAY, JobMember, Store
from fedtorch.comm.local import LocalCommunicator
from fedtorch.comm.options import Network
from fedtorch.comm.transport.backend import log_if_shared
from fedtorch.config.load import companions
from fedtorch.config.schema import Config
from fedtorch.config.system import port_range
from fedtorch.core import devices
from fedtorch.core.errors import ConfigError, FedtorchError, LostRankError, PolicyError
from fedtorch.core.model_folder import MODEL
from fedtorch.core.names import Names
from fedtorch.core.weights import release
from fedtorch.lifecycle.after_end import catch_up
from fedtorch.lifecycle.counted import show_counted, write_counted
from fedtorch.lifecycle.exit import last_words
from fedtorch.lifecycle.losing import saying_what_is_here, who
from fedtorch.lifecycle.losses import agree_on_left_out, note_losses
from fedtorch.lifecycle.model_cards import write_cards
from fedtorch.lifecycle.parties import bind_to_party, identity_of
from fedtorch.lifecycle.policy_refusal import refusal
from fedtorch.lifecycle.results import show_beside, table
from fedtorch.lifecycle.run_files import open_run
from fedtorch.lifecycle.signals import StopFlag
from fedtorch.lifecycle.silo_status import SiloRounds, silo
from fedtorch.lifecycle.start import RESUME_MODES, begin, lasting_facts, telling_refusal
from fedtorch.lifecycle.status import write_status
from fedtorch.lifecycle.unheard import Unheard, remember, remembered
from fedtorch.rounds.membership import Returned
from fedtorch.rounds.placement import own_device, server_serves
from fedtorch.rounds.residence import why_on_host
from fedtorch.rounds.result import Result
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import BuiltRun, build
from fedtorch.setup.engine import share_engine
from fedtorch.setup.mechanism import make_mechanism
from fedtorch.setup.pinned_data import adopt, check_task, exchange_sizes, is_pinned
from fedtorch.tracking.console import duration
from fedtorch.tracking.tracker import Tracker

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Again:
    """With what a rank takes part once more."""

    member: JobMember
    """its place in the job, which it has joined already"""
    config: Config
    """Where clients' data are pinned to ranks, with the sizes of all clients."""


@dataclass(frozen=True)
class Session:
    """State of the command that a rank was started with.

    1. Every rank builds the config's run and its companions, which checks all that one rank alone can see; whatever
       fails until here ends this rank before it meets the others.
    2. The ranks join, and compare what they built. Where clients' data are pinned to ranks, they join before they
       build, to tell each other the sizes; an error in building then ends all of them at once.
    3. They train one run after the other. An error on any rank leaves through the communicator, which tells the
       others; what was saved so far stays.
    4. Where they have gone on without a rank and it is back, they save and do all of this once more together with it,
       from what was saved.
    """

    rank: int
    """of this process; 0 is the server"""
    num_ranks: int
    """as the launcher started them, whether or not all are left"""
    resume: str
    """auto, never, force, or the folder of a checkpoint to begin from."""
    command: str
    """The one that continues the runs."""
    stop: StopFlag
    """Set by the first signal to stop."""
    stacks: IO[str]
    """This rank's log file, for where it stands when it is stopped."""

    def train(self, config: Config) -> None:
        """All runs that `config` describes, from the first check to the last table."""
        if told := refusal():
            self._refuse(config, told)
        missed = None if self.rank or self.resume != "auto" or STAY not in os.environ else remembered(config)
        again = self._take_part(config, None) if missed is None else self._stay_again(config, missed)
        while again is not None:
            gc.collect()  # before the model is built once more
            member, known = again.member, again.config
            try:
                again = self._take_part(config, again)
            except FedtorchError as error:
                if self.rank or not member.entry.is_over:
                    raise
                log.warning("a rank that came back after the run's end was lost again, or has failed: %s", error)
                again = self._stay(member, member.entry.hosts, known)

    def _refuse(self, config: Config, told: str) -> NoReturn:
        """Meet the others, if they come, to tell them that this side takes no part."""
        try:
            with self._join(config, tuple(config.system.pinned), None) as comm:
                comm.refuse(told, PolicyError.exit_code)
                raise PolicyError(told)
        except FedtorchError as error:
            raise PolicyError(told) from error

    def _stay(self, member: JobMember | None, hosts: tuple[str, ...], config: Config) -> _Again | None:
        """On the server, after the run's end: with what it takes part for those that missed it, once there are some."""
        if member is None or self.rank or not member.store.stays_s:
            return None
        remember(config, member, hosts)
        back = stay(member, hosts, self.stop)
        if back is None:
            remember(config, member, hosts)
        return None if back is None else _Again(back, config)

    def _stay_again(self, config: Config, missed: Unheard) -> _Again | None:
        """On a server that is started anew, whose run has ended but not for all: as `_stay`."""
        system = config.system
        member = Store.join(os.environ, system.timeout, self._secret(config), system.start_timeout)
        stay_again(member, missed.ranks, missed.left_s)
        return self._stay(member, missed.hosts, missed.known(config))

    def _take_part(self, config: Config, again: _Again | None) -> _Again | None:
        """Train until lost ranks are back; then return the state needed to go on together with them."""
        with ExitStack() as joined:
            device = own_device(config, self.num_ranks)
            joined.enter_context(devices.deterministic(config.system.deterministic, device))
            joined.enter_context(devices.tf32(config.engine.precision == "tf32", device))
            if why := devices.why_slow(config.engine.precision, device):
                log.warning("engine.precision is %s but %s", config.engine.precision, why)
            if facts := devices.versions(device):
                log.info("device: %s", ", ".join(f"{name} {value}" for name, value in facts.items()))
            comm: Communicator | None = None
            if is_pinned(config):
                check_task(config)
                comm = joined.enter_context(self._join(config, tuple(config.system.pinned), again))
                config = exchange_sizes(config, comm, None if again is None else again.config)
            with telling_refusal(comm):
                runs = build_all(config, num_ranks=self.num_ranks, rank=self.rank)
            if comm is None:
                comm = joined.enter_context(self._join(config, _names(runs), again))
            try:
                self._run_all(runs, comm, "auto" if again else self.resume)
            except Returned:
                if comm.is_server:
                    log.info("rank %s is back; all go on together", ", ".join(map(str, sorted(comm.returned))))
                return _Again(comm.reopen(), config)
        return self._stay(comm.member, comm.hosts, config)

    def _join(self, config: Config, names: Sequence[str], again: _Again | None) -> Communicator:
        names = Names.of(names)
        if self.num_ranks == 1:
            if config.trust.members is not None:
                raise ConfigError(
                    "trust.members is set but this is one process, without other parties; start the server with "
                    "`fedtorch serve` and the silos with `fedtorch join`, or remove trust"
                )
            return LocalCommunicator(names)
        system = config.system
        own = own_device(config, self.num_ranks)
        log_if_shared(own, server_serves=server_serves(config, self.num_ranks))
        with saying_what_is_here(config):
            return DistributedCommunicator.join(
                names,
                system.timeout,
                system.exchange,
                self.stacks,
                recovers=config.clients.on_loss == "continue",
                backend=system.backend,
                device=own,
                secret=self._secret(config),
                network=_network(config),
                member=None if again is None else again.member,
            )

    def _secret(self, config: Config) -> str | Identity:
        """The proof that this rank belongs to the job: the secret that all have, or a key of its own."""
        if (party := identity_of(config, self.rank)) is not None:
            log.info("%s", party.described)
            return party
        secret = job_secret(os.environ, config.folder)
        if not secret and self.rank == 0:
            where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            log.warning(
                "the job has no secret: whoever reaches %s may write into its store, and end or mislead the run; "
                "set %s to the same on all ranks (openssl rand -hex 32), see docs/safety.md",
                where,
                VARIABLE,
            )
        return secret

    def _run_all(self, runs: Sequence[BuiltRun], comm: Communicator, resume: str) -> None:
        """One run after the other; the table of the first, with the others beside it, comes last."""
        for built in runs:
            shares = built.config.system.shared_memory == "auto"
            comm.preflight(built.facts(), crosses=why_on_host(built) if shares else "")
        _release_bases(runs, self.rank)
        if comm.is_server:
            forget_secret(runs[0].config.folder)  # every rank has it
        if comm.has_ended:
            catch_up(runs, comm, self.stop)
            return
        if (trust := runs[0].config.trust).members is not None:
            comm.begin_checks(has_records=trust.verify is not None, has_tags=runs[0].config.has_tags)
        first, *others = runs
        tracker, result = self._run(runs, 0, comm, resume)
        for at, built in enumerate(others, start=1):
            # a checkpoint given by path is the first run's
            mode = resume if resume in RESUME_MODES else "auto"
            if (beside := self._run(runs, at, comm, mode))[0] is not None:
                self._say_done(built, beside[1])
        if tracker is not None:
            show_beside(first.config)
            self._say_done(first, result)  # not before: a job that dies at a companion is to be started again
            if not show_counted(first.config):
                tracker.show()
        elif silo():
            show_counted(first.config)

    def _run(self, runs: Sequence[BuiltRun], at: int, comm: Communicator, resume: str) -> tuple[Tracker | None, Result]:
        """Train the run at a place; its tracker, closed, on the server, and what it came to."""
        built = runs[at]
        config = built.config
        checkpoints, start = begin(built, comm, resume)
        left_out = agree_on_left_out(built, comm, start)
        begun, tracker = time.monotonic(), None
        with telling_refusal(comm):
            mechanism = make_mechanism(built, is_server=comm.is_server, start=start, resume=resume)
            bind_to_party(config, comm, mechanism, is_new=start is None and resume == "never")
            if comm.is_server:
                tracker = _opened(runs, at, comm, start, self.command, checkpoints.aside)
        components = built.components(
            comm,
            checkpoints,
            stop=self.stop,
            tracker=tracker,
            facts=lasting_facts(built),
            mechanism=mechanism,
            left_out=left_out,
            is_engine_shared=any(later.engine is built.engine for later in runs[at + 1 :]),
        )
        runner = Runner(components)
        if comm.is_server:
            log.debug("checkpoints: %s", runner.context.schedule)
        folders = [runs[0].config.folder, config.folder]
        self.stop.last_words = partial(last_words, config, folders, comm.rank, self.command, runner)
        try:
            with _shown(runner, start or 0, runs[0].config, self.command):
                result = runner.run(start)
            _write_results(runs, at, runner, result, tracker, time.monotonic() - begun)
        except LostRankError as error:
            note_losses(config, error, is_server=comm.is_server, saved=runner.saving.saved)
            raise
        finally:
            runner.context.remove_spill()
            if tracker is not None:
                tracker.close()
        if tracker is not None:
            write_cards(config, config.folder, config.folder / MODEL)
        return tracker, result

    def _say_done(self, built: BuiltRun, result: Result) -> None:
        lost = list(result.lost)
        reason = f"done without {len(lost)} lost clients: {', '.join(lost[:10])}" if lost else "done"
        self.stop.last_words = None
        folder, has_time = built.config.folder, built.config.tells_times
        write_status(folder, code=0, reason=reason, command=self.command, round=result.rounds, has_time=has_time)


def _shown(runner: Runner, done: int, config: Config, command: str) -> AbstractContextManager[object]:
    """Shows a silo the rounds that it takes part in; other ranks have the server's records."""
    return SiloRounds(runner, done, config, command) if silo() else nullcontext()


def _opened(
    runs: Sequence[BuiltRun], at: int, comm: Communicator, start: int | None, command: str, aside: Path
) -> Tracker:
    """The tracker of the run at a place, which has said which of several runs begins. aside: see `open_run`."""
    tracker = open_run(runs[at], comm, start, command, aside)
    if len(runs) > 1:
        run, number = runs[at].config.run, runs[at].config.rounds
        before = f", {start} done" if start else ""
        tracker.say(f"run {at + 1} of {len(runs)}: {run.name}, {number} round{'s' * (number != 1)}{before}")
    return tracker


def _write_results(
    runs: Sequence[BuiltRun], at: int, runner: Runner, result: Result, tracker: Tracker | None, seconds: float
) -> None:
    """The exported model where it is wanted, the server's results, and of one of several runs how long it took.

    Of a run that counts, the tables of each party.
    """
    built, comm = runs[at], runner.context.comm
    write_counted(built, runner, keeps=comm.is_server or bool(silo() or comm.party))
    if built.config.run.export == "all":
        runner.export(built.config.folder / MODEL)
    if tracker is None:
        return
    tracker.result(table(built, result, tracker.memory))
    if len(runs) > 1 and built.config.tells_times:
        tracker.say(f"run {at + 1} of {len(runs)}: done in {duration(seconds)}")


def _release_bases(runs: Sequence[BuiltRun], rank: int) -> None:
    """A server that only serves lets go of bases, now that they were compared; not of one that another run needs."""
    for engine in {id(built.engine): built.engine for built in runs}.values():
        idle = [set(built.idle_base(rank)) for built in runs if built.engine is engine]
        release(engine.module, set.intersection(*idle))


def _names(runs: Sequence[BuiltRun]) -> Names:
    return runs[0].names if len(runs) == 1 else Names(dict.fromkeys(name for run in runs for name in run.names))


def _network(config: Config) -> Network:
    system = config.system
    if (ports := port_range(system.ports)) is not None:
        check_ports(ports)
    whole = "" if system.ranks_per_worker == 1 else "its worker has several ranks, which are built together; start all"
    shares = system.shared_memory == "auto" and config.trust.verify is None  # silos step on copies of their own
    return Network(system.interface, system.trust_network, system.start_timeout, whole, who(config), shares, ports)


def build_all(config: Config, *, num_ranks: int, rank: int, is_for_count: bool = False) -> list[BuiltRun]:
    """The run and its companions, which share the model where they can. is_for_count: see `build`."""
    first = build(config, num_ranks=num_ranks, rank=rank, is_for_count=is_for_count)
    runs = [first]
    for label, other in companions(config).items():
        if is_pinned(config):
            other = adopt(config, other)
        engine = first.engine if share_engine(config, other) else None
        try:
            built = build(other, num_ranks=num_ranks, rank=rank, engine=engine, is_for_count=is_for_count)
        except ConfigError as error:
            raise ConfigError(f"in the run `{label}` of `compare`: {error}") from error
        known = {line for run in runs for line in run.remarks}
        runs.append(replace(built, remarks=tuple(line for line in built.remarks if line not in known)))
    return runs
