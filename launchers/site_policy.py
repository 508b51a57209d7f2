"""`fedtorch join --policy FILE`: a site's policy beside what the run asks for, before any rank meets another."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError, FedtorchError, PolicyError, error_of_code
from fedtorch.core.version import PACKAGE
from fedtorch.lifecycle.asked_run import asked_of
from fedtorch.lifecycle.parties import parties_of
from fedtorch.lifecycle.policy_refusal import VARIABLE as REFUSES
from fedtorch.setup.code import codes_of
from fedtorch.trust.members import read_members
from fedtorch.trust.policy.asked import Asked
from fedtorch.trust.policy.decisions import Decisions
from fedtorch.trust.policy.file import Policy, read_policy
from fedtorch.trust.policy.gate import Side
from fedtorch.trust.policy.judge import Line, judge, judge_code, refuse, told_of
from fedtorch.trust.policy.remote import VARIABLE as GATE
from fedtorch.trust.policy.remote import ask

from .fork_server import CLOSE_S, SIGNALS


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--policy` and `--dry-run`."""
    about = "what may leave this site, a file of its own (docs/trust.md); needs trust.members"
    parser.add_argument("--policy", type=Path, metavar="FILE", help=about)
    about = "with --policy: say line by line what the run would ask for, and meet nobody"
    parser.add_argument("--dry-run", action="store_true", help=about)


@dataclass
class Site:
    """This side of a run, where it has a policy."""

    policy: Policy
    """As its file says."""
    code: tuple[tuple[str, str], ...]
    """Digests of all code that runs, which the policy names."""
    resume: str
    """As on the command line."""
    is_dry: bool
    """Is all of it only said?"""
    lines: list[Line]
    """What the policy says to the run; of code alone until all is known."""
    gate: Process | None = None
    """Holds this side's key; None: all is only said."""
    asked: Asked | None = None
    """What the run asks for, once that is known."""

    @classmethod
    def of(cls, args: argparse.Namespace) -> Site | None:
        """The side that a command line describes; None: it has no policy. Nothing that a config names is imported.

        Raises:
            ConfigError: the policy cannot be, or `--dry-run` stands alone.
            PolicyError: it does not name some of the code; then nobody is told, for that would take the code.
        """
        if getattr(args, "policy", None) is None:
            if getattr(args, "dry_run", False):
                raise ConfigError("--dry-run goes with --policy FILE; what a run does shows `fedtorch run --dry-run`")
            return None
        policy = read_policy(args.policy)
        code = tuple((each.digest, each.what) for each in codes_of(args.config, args.set))
        lines = list(judge_code(policy, replace(_NOTHING, code=code)))
        site = cls(policy, code, args.resume, args.dry_run, lines)
        if site.is_dry and site.is_refused:
            site.show()
        refuse(site.lines)
        if not site.is_dry:
            site.gate = Process.start(args.policy)
        return site

    @property
    def is_refused(self) -> bool:
        """Does a line refuse the run?"""
        return any(line.verdict == "refused" for line in self.lines)

    def judge(self, config: Config, clients: Sequence[str], *, size: int) -> None:
        """Find out what the run asks of these clients' silo, and what the policy says to it. size: ranks of the job.

        Raises:
            ConfigError: the run has no list of members, by which others know what this side has let out.
            FedtorchError: the run cannot be.
        """
        if config.trust.members is None:
            raise ConfigError(
                "--policy is given but trust.members is not set; with one secret for all, others could write in this "
                "side's name what it does not let out: set trust.members (docs/trust.md)"
            )
        find = asked_of if self.is_dry else _ask_apart
        found = find(config, clients, size, is_new=self.resume == "never")
        members = read_members(Path(config.trust.members)).digest
        self.asked = replace(found, code=self.code, members=f"sha256:{members}")
        self.lines = judge(self.policy, self.asked)
        if self.gate is not None and config.trust.key is not None:
            self.gate.ask({"ask": "key", "path": str(Path(config.trust.key).absolute())})

    def show(self) -> int:
        """Print all lines; returns the exit code, that of a refusal if one of them is one."""
        print("\n".join(line.text for line in self.lines))
        refused = sum(line.verdict == "refused" for line in self.lines)
        print(f"{refused} of {len(self.lines)} lines refuse the run" if refused else "no line refuses the run")
        return PolicyError.exit_code if refused else 0

    @property
    def environ(self) -> dict[str, str]:
        """Variables for a process of this side, by which it finds the gate."""
        return {} if self.gate is None else self.gate.environ

    def taking_part(self, config: Config, party: str, rank: int) -> dict[str, str]:
        """Tell the gate what it is the gate of; variables for the rank, which where the site refuses only says so.

        party: name of this side's member.
        """
        assert self.gate is not None and self.asked is not None and config.trust.members is not None
        Decisions(config.folder).judged(self.lines)
        names = tuple(config.system.pinned)
        clients = tuple(name for name in names if config.system.pinned[name] == rank)
        members = read_members(Path(config.trust.members))
        public = tuple((other, members.by_name[n].key.hex()) for other, n in parties_of(config, members).items())
        side = Side(members.federation, party, rank, clients, names, public)
        about = {"side": asdict(side), "asked": asdict(self.asked), "folder": str(config.folder.absolute())}
        begun = self.gate.ask({"ask": "begin", "is_new": self.resume == "never", **about})
        if not (self.is_refused or begun["is_refused"]):
            return self.environ
        print("the policy refuses this run; the others are told so once they are there", flush=True)
        return {**self.environ, REFUSES: told_of(party)}

    def check(self) -> None:
        """Raises PolicyError if the site refuses the run; names its lines."""
        refuse(self.lines)

    def close(self) -> None:
        """End the gate."""
        if self.gate is not None:
            self.gate.close()


@dataclass(frozen=True)
class Process:
    """A gate as a process of its own, started before anything that a config names is imported."""

    process: subprocess.Popen[bytes]
    """The gate."""
    connection: socket.socket
    """To it."""

    @classmethod
    def start(cls, policy: Path) -> Process:
        """A gate that has yet to be told what it is the gate of.

        Raises:
            ConfigError: this system has no sockets for it.
        """
        try:
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except (OSError, AttributeError) as error:
            raise ConfigError(
                f"--policy is given, and this system has no sockets for a gate ({error}); use Linux"
            ) from None
        command = [sys.executable, "-m", "fedtorch.lifecycle.gate", "--policy", str(policy)]
        # nothing from the working directory, nor from where plug-ins lie
        environ = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "PYTHONSAFEPATH": "1"}
        with there:
            process = subprocess.Popen(
                [*command, "--socket", str(there.fileno())],
                pass_fds=[there.fileno()],
                env=environ,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # the terminal's Ctrl-C is the rank's to answer, which signs until it ends
            )
        os.set_inheritable(here.fileno(), True)
        return cls(process, here)

    @property
    def environ(self) -> dict[str, str]:
        """Variables for a process that was forked from this one."""
        return {GATE: str(self.connection.fileno())}

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The gate's answer; FedtorchError where it refuses, or has ended."""
        return ask(self.connection, question)

    def close(self) -> None:
        """End it; it ends by itself once nobody has the other end."""
        self.connection.close()
        try:
            self.process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_NOTHING = Asked((), 0, (), 0, 0)


def _ask_apart(config: Config, clients: Sequence[str], size: int, *, is_new: bool) -> Asked:
    """`asked_of` in a process of its own, for it builds the model, and this one is to fork again."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        _answer(writer, config, clients, size, is_new)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        told = answer.read()
    os.waitpid(pid, 0)
    try:
        found: dict[str, Any] = json.loads(told)
    except ValueError:
        raise FedtorchError("the process that was to find out what the run asks for was killed") from None
    if "error" in found:
        raise error_of_code(found["code"], found["error"])
    return Asked.read(found)


def _answer(writer: int, config: Config, clients: Sequence[str], size: int, is_new: bool) -> None:
    """In the process apart: write the answer, and end."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    try:
        told: dict[str, Any] = asdict(asked_of(config, clients, size, is_new=is_new))
    except FedtorchError as error:
        told = {"error": str(error), "code": error.exit_code}
    except BaseException as error:
        told = {"error": f"what the run asks for could not be found out: {type(error).__name__}: {error}", "code": 1}
    with os.fdopen(writer, "wb") as answer:
        answer.write(json.dumps(told).encode())
    os._exit(0)
