"""`fedtorch audit RUN`, or `fedtorch audit --config FILE`: attacks on a run of one's own, a page of what they found."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtorch.audit import canary_clients, embedding_rows, keys_values, membership, span_check, text_canaries
from fedtorch.audit.finding import Finding
from fedtorch.audit.page import WARNING, page
from fedtorch.audit.subject import Options, Subject, opened
from fedtorch.core.errors import CheckpointError, FedtorchError
from fedtorch.core.files import replace_file


@dataclass(frozen=True)
class Attack:
    """One kind of attack."""

    about: str
    """a line for the help and the page"""
    needs: str
    """what an attacker has to have"""
    why_not: Callable[[Subject], str]
    """why it does not apply; empty if it does"""
    run: Callable[[Subject], Finding]
    """the attack"""


ATTACKS = {
    module.NAME: Attack(module.ABOUT, module.NEEDS, module.why_not, module.attack)
    for module in (embedding_rows, span_check, keys_values, canary_clients, text_canaries, membership)
}


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.audit") -> int:
    """Attack, print, write; returns the exit code (0 done, 2 run, config or option is wrong, 3 data, 8 disk)."""
    parser = _parser(prog)
    args = parser.parse_args(arguments)
    if problem := _wrong(args):
        parser.error(problem)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    options = Options(
        args.clip,
        args.noise,
        args.delta,
        args.canaries,
        args.clients,
        places=args.places,
        show=args.show,
        trains="secrets" in (args.attacks or ()),
    )
    try:
        findings, facts = audit(args.run, args.config or [], args.set, options, args.attacks or list(ATTACKS))
        title = f"Audit of {args.run or ', '.join(map(str, args.config))}"
        print(_text(title, facts, findings))
        for path in write(args.out or (args.run or Path()) / "audit", title, facts, findings):
            print(f"wrote {path}")
        return 0
    except FedtorchError as error:
        print(f"fedtorch: {error}", file=sys.stderr)
        return error.exit_code


def audit(
    run: Path | None, config: Sequence[str | Path], settings: Sequence[str], options: Options, names: Sequence[str]
) -> tuple[list[Finding], dict[str, Any]]:
    """What the named attacks find, in their order, and facts about what was attacked.

    Raises:
        FedtorchError: as `opened`.
    """
    findings = []
    with opened(run, config, settings, options) as subject:
        for number, name in enumerate(names, start=1):
            print(f"audit {number}/{len(names)}: {name}", file=sys.stderr)
            attack = ATTACKS[name]
            why = attack.why_not(subject)
            findings.append(Finding(name, attack.about, attack.needs, "", skipped=why) if why else attack.run(subject))
        hp = subject.context.config.client
        facts = {
            "task": subject.context.config.task_name,
            "algorithm": type(subject.context.algorithm).__name__,
            "rounds": subject.rounds,
            "numbers": subject.context.components.engine.shared.size,
            "optimizer": hp.optimizer,
            "batch": hp.batch_size,
            "clients": len(subject.context.components.clients),
            "the server sees": seen_by_server(subject.options),
        }
    return findings, facts


def seen_by_server(options: Options) -> str:
    """What a run of these tells its server, whatever the attacks look at."""
    if not options.hidden:
        return "each update"
    if options.promised is not None:
        return "a round's sum before its noise, and who was drawn; an update its worker alone"
    return (
        "a round's sum, who took part, of each its rows, steps and seconds, and the scores of evaluations; "
        "an update its worker alone"
    )


def write(out: Path, title: str, facts: dict[str, Any], findings: Sequence[Finding]) -> list[Path]:
    """`audit.json` and `audit.html` in a folder.

    Raises:
        CheckpointError: they cannot be written.
    """
    record = {"about": facts, "warning": WARNING, "findings": [finding.record() for finding in findings]}
    paths = [out / "audit.json", out / "audit.html"]
    try:
        out.mkdir(parents=True, exist_ok=True)
        replace_file(paths[0], json.dumps(record, indent=1, allow_nan=False, default=str) + "\n")
        replace_file(paths[1], page(title, facts, findings))
    except OSError as error:
        raise CheckpointError(f"{out} could not be written ({error}); make room, or set --out") from error
    return paths


def _text(title: str, facts: dict[str, Any], findings: Sequence[Finding]) -> str:
    lines = [title, "; ".join(f"{key} {value}" for key, value in facts.items()), ""]
    lines += [f"{found.attack:11} {found.said or f'not run: {found.skipped}'}" for found in findings]
    return "\n".join([*lines, "", WARNING])


def _wrong(args: argparse.Namespace) -> str:
    if args.noise is not None and args.clip is None:
        return "--noise goes with --clip, which it is a multiple of"
    for name in ("clip", "noise", "clients", "places"):
        if (value := getattr(args, name)) is not None and not 0 < value < 1e12:
            return f"--{name} is {value}; give a number above 0"
    if not 0 < args.delta < 1:
        return f"--delta is {args.delta}; give a number between 0 and 1"
    return f"--canaries is {args.canaries}; give at least 2" if args.canaries < 2 else ""


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Attack a run of your own: what could be read from what its clients send, and from its model. "
        "Writes audit.json and audit.html, with numbers only.",
        epilog="; ".join(f"{name}: {attack.about}" for name, attack in ATTACKS.items()),
    )
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="folder of a run, finished or interrupted")
    parser.add_argument(
        "--config", nargs="+", metavar="FILE", help="a config in place of a run, before its first round"
    )
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="override one key")
    parser.add_argument(
        "--attacks", nargs="+", choices=list(ATTACKS), metavar="NAME", help="only these; all that apply"
    )
    parser.add_argument("--clients", type=int, default=4, metavar="N", help="attack the updates of so many clients (4)")
    parser.add_argument("--places", type=int, default=32, metavar="N", help="span: first tokens of a text (32)")
    parser.add_argument("--clip", type=float, metavar="C", help="a defence to try: updates made as short as this")
    parser.add_argument("--noise", type=float, metavar="Z", help="with it: noise of Z times C on the cohort's sum")
    parser.add_argument("--delta", type=float, default=1e-5, metavar="D", help="at which epsilon is told (1e-5)")
    parser.add_argument("--canaries", type=int, default=200, metavar="K", help="clients that join to estimate it (200)")
    parser.add_argument("--show", action="store_true", help="write the recovered tokens, too: they are clients' text")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="for page and numbers (RUN/audit, or ./audit)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
