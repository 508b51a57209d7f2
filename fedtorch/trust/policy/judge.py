"""Compares a policy with what a run asks for, line by line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fedtorch.core.errors import PolicyError
from fedtorch.trust.policy.asked import Asked
from fedtorch.trust.policy.file import Policy
from fedtorch.trust.policy.kinds import KINDS, NAMES, SCORES
from fedtorch.trust.policy.noised import shown_deviations

Verdict = Literal["allowed", "refused", "not asked for"]
_SHOWN = 3


@dataclass(frozen=True)
class Line:
    """Judgement by one line of a policy."""

    key: str
    """Of the policy; empty: no line of it speaks of what is asked."""
    where: str
    """`file:line`."""
    verdict: Verdict
    """What the policy says to the run."""
    about: str
    """What the run asks for, in words."""

    @property
    def text(self) -> str:
        """One line for people."""
        return f"{self.verdict:13}  {self.key or 'no line'}: {self.about}"


def judge(policy: Policy, asked: Asked) -> list[Line]:
    """Judgements of all lines, in the order of the policy's sections; what no line names comes last and is refused."""
    parts: Sequence[Callable[[Policy, Asked], Iterator[Line]]] = (
        _parameters,
        _reports,
        _scores,
        _secure_sum,
        _privacy,
        _noise,
        _clip,
        _verified,
        _limits,
        judge_code,
        judge_members,
        _initial,
        _unnamed,
    )
    return [line for part in parts for line in part(policy, asked)]


def refuse(lines: Sequence[Line]) -> None:
    """Raises PolicyError with the lines that refuse the run, if any does."""
    refused = [line for line in lines if line.verdict == "refused"]
    if refused:
        said = "; ".join(f"{line.where}: {line.key or 'no line of it'}: {line.about}" for line in refused)
        raise PolicyError(f"the policy refuses this run, nothing has left this side: {said}")


def told_of(name: str) -> str:
    """All that the other parties hear of a violation."""
    return f"{name} {PolicyError.heard}"


def _line(policy: Policy, key: str, verdict: Verdict, about: str) -> Line:
    return Line(key, policy.where(key), verdict, about)


def _is(fits: bool) -> Verdict:
    return "allowed" if fits else "refused"


def _parameters(policy: Policy, asked: Asked) -> Iterator[Line]:
    key, allows = "may_leave.parameters", policy.may_leave.allows
    if not asked.parameters:
        yield _line(policy, key, "not asked for", "no update leaves")
        return
    names = [name for name, _ in asked.parameters]
    refused = [name for name in names if not allows(name)]
    if allowed := [name for name in names if name not in refused]:
        yield _line(policy, key, "allowed", f"updates of {_listed(allowed)}")
    if refused:
        yield _line(policy, key, "refused", f"updates of {_listed(refused)}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _reports(policy: Policy, asked: Asked) -> Iterator[Line]:
    for kind in (kind for kind in KINDS if kind.name in NAMES):
        is_named, is_asked = kind.name in policy.may_leave.reports, kind.name in asked.kinds
        if is_asked or is_named:
            verdict: Verdict = _is(is_named) if is_asked else "not asked for"
            yield _line(policy, kind.line, verdict, f"{kind.name}: {kind.about}")


def _scores(policy: Policy, asked: Asked) -> Iterator[Line]:
    if SCORES.name in asked.kinds:
        yield _line(policy, SCORES.line, _is(policy.may_leave.scores), SCORES.about)
    elif policy.may_leave.scores:
        yield _line(policy, SCORES.line, "not asked for", SCORES.about)


def _secure_sum(policy: Policy, asked: Asked) -> Iterator[Line]:
    if (wanted := policy.require.secure_sum) is not None:
        there = "no secure sum" if asked.parties is None else f"a sum of at least {asked.parties} silos"
        fits = asked.parties is not None and asked.parties >= wanted
        yield _line(policy, "require.secure_sum", _is(fits), f"{there}, and {wanted} are required")


def _privacy(policy: Policy, asked: Asked) -> Iterator[Line]:
    wanted, key = policy.require.privacy, "require.privacy"
    if wanted is None:
        return
    yield _line(policy, key, _is(asked.promise == wanted.kind), f"kind {asked.promise}, and {wanted.kind} is required")
    if asked.epsilon is None or asked.delta is None:
        return
    fits, ledger = asked.epsilon <= wanted.max_epsilon, ", by this site's ledger" if wanted.kind == "record" else ""
    said = f"epsilon {asked.epsilon:.4g}{ledger}, of at most {wanted.max_epsilon:g}"
    yield _line(policy, key, _is(fits), said)
    yield _line(policy, key, _is(asked.delta <= wanted.delta), f"delta {asked.delta:g}, of at most {wanted.delta:g}")


def _noise(policy: Policy, asked: Asked) -> Iterator[Line]:
    for client, _, kind, exponent, rounds in asked.noise:
        deviations = {math.ldexp(each, -exponent) for blocks in rounds for *_, each in blocks if each}
        there = f"{kind} noise with a standard deviation of {shown_deviations(deviations)}"
        yield _line(policy, "require.privacy", "allowed", f"{there}, which the gate adds to the sum of `{client}`")


def _clip(policy: Policy, asked: Asked) -> Iterator[Line]:
    if (most := policy.require.clip) is not None:
        there = "no clip, or one that moves" if asked.clip is None else f"a clip of {asked.clip:g}"
        fits = asked.clip is not None and asked.clip <= most
        yield _line(policy, "require.clip", _is(fits), f"{there}, of at most {most:g}")


def _verified(policy: Policy, asked: Asked) -> Iterator[Line]:
    if (least := policy.require.verified) is not None:
        said = f"a share of {asked.verified:g} of the server's work is checked, of at least {least:g}"
        yield _line(policy, "require.verified", _is(asked.verified >= least), said)


def _limits(policy: Policy, asked: Asked) -> Iterator[Line]:
    limits = policy.limits
    if limits.rounds is not None:
        said = f"{asked.rounds} rounds, of at most {limits.rounds}"
        yield _line(policy, "limits.rounds", _is(asked.rounds <= limits.rounds), said)
    if limits.bytes_per_round is not None:
        said = f"{asked.bytes_per_round} bytes of updates in a round, of at most {limits.bytes_per_round}"
        fits = asked.bytes_per_round <= limits.bytes_per_round
        yield _line(policy, "limits.bytes_per_round", _is(fits), said)
    if limits.between is not None:
        begin, end = limits.between
        said = f"whenever the others are there; outside of {begin:%H:%M} to {end:%H:%M} nothing leaves and the run ends"
        yield _line(policy, "limits.between", "allowed", said)


def judge_code(policy: Policy, asked: Asked) -> Iterator[Line]:
    """Lines on code, which can be asked before any of it is imported."""
    for digest, what in asked.code if policy.code is not None else ():
        yield _line(policy, "code", _is(digest in (policy.code or ())), what)


def judge_members(policy: Policy, asked: Asked) -> Iterator[Line]:
    """Lines on the list of members."""
    if policy.members is not None:
        said = f"the list with {asked.members or 'no digest'}"
        yield _line(policy, "members", _is(asked.members == policy.members), said)


def _initial(policy: Policy, asked: Asked) -> Iterator[Line]:
    if policy.initial is not None:
        said = f"weights to start from, by this side's own config {asked.initial or 'not known'}"
        yield _line(policy, "initial", _is(asked.initial == policy.initial), said)


def _unnamed(policy: Policy, asked: Asked) -> Iterator[Line]:
    for kind in KINDS:
        if not kind.line and kind.name in asked.kinds:
            yield Line("", str(policy.path), "refused", f"{kind.name}: {kind.about}")
