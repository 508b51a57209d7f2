"""Which attacks there are, and one audit: some of them on one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtorch.audit import canary_clients, embedding_rows, keys_values, membership, span_check, text_canaries
from fedtorch.audit.finding import Finding
from fedtorch.audit.result import AuditResult
from fedtorch.audit.subject import AuditOptions, Subject, opened
from fedtorch.config.python_configs import Given
from fedtorch.core.errors import ConfigError


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


def attack_run(
    run: Path | None,
    config: Sequence[Given],
    settings: Sequence[str],
    options: AuditOptions,
    names: Sequence[str] | None = None,
    *,
    note: Callable[[str], None] = lambda line: None,
) -> AuditResult:
    """Run the named attacks, in their order, and return what they find; None: all of them.

    settings: overrides of the config, as `--set` has them. note: is told which attack begins.

    Raises:
        FedtorchError: as `opened`.
        ConfigError: there is no such attack.
    """
    names = list(ATTACKS) if names is None else list(names)
    if unknown := [name for name in names if name not in ATTACKS]:
        raise ConfigError(f"there is no attack {unknown[0]!r}; there are {', '.join(ATTACKS)}")
    findings = []
    with opened(run, config, settings, options) as subject:
        for number, name in enumerate(names, start=1):
            note(f"audit {number}/{len(names)}: {name}")
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
        folder = subject.context.config.run.name
    what = run or ", ".join(str(one) for one in config if isinstance(one, str | Path)) or folder
    return AuditResult(f"Audit of {what}", facts, {found.attack: found for found in findings})


def seen_by_server(options: AuditOptions) -> str:
    """Say what a run of these options tells its server, whatever the attacks look at."""
    if options.silo is not None:
        return "a round's noised sum" if options.hidden else "each update, of steps with noise of its silo's own"
    if not options.hidden:
        return "each update"
    if options.promised is not None:
        return "a round's sum before its noise, and who was drawn; an update its worker alone"
    return (
        "a round's sum, who took part, of each its rows, steps and seconds, and the scores of evaluations; "
        "an update its worker alone"
    )
