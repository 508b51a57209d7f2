"""`fedtorch.audit_run`: what `fedtorch audit` does, from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedtorch.api.guest import alone
from fedtorch.api.result import RunResult
from fedtorch.audit.attacks import attack_run
from fedtorch.audit.result import AuditResult
from fedtorch.audit.subject import AuditOptions
from fedtorch.config.python_configs import Given, Overrides, all_given, assignments
from fedtorch.core.errors import ConfigError


def audit_run(
    run: RunResult | Path | str | None = None,
    attacks: Sequence[str] | None = None,
    *,
    config: Given | Sequence[Given] | None = None,
    overrides: Overrides = (),
    clip: float | None = AuditOptions.clip,
    noise: float | None = AuditOptions.noise,
    delta: float = AuditOptions.delta,
    canaries: int = AuditOptions.canaries,
    clients: int = AuditOptions.clients,
    places: int = AuditOptions.places,
    show: bool = AuditOptions.show,
) -> AuditResult:
    """Attack a run of your own, or a config before its first round, and return what was found.

    Nothing in the run's folder is changed, and nothing is written: that is `AuditResult.write`.

    Args:
        run: what `fedtorch.run` or `open_run` returned, or a run's folder: attacked is what its clients would send in
            the round after its last checkpoint, and its model.
        attacks: names, as `fedtorch audit --help` has them. None: all that apply, but `secrets`, which trains the run
            anew and has to be named.
        config: in place of a run, as `fedtorch.run` takes it.
        overrides: of the run's config or of that one.
        clip, noise: a defence to try: updates made as short as `clip`, noise of `noise` times it on their sum. Of a run
            with `privacy.kind: client` both are its own unless they are given.
        delta: at which epsilon is told. canaries: clients of which half are left out.
        clients: of how many clients the updates are attacked. places: the first tokens of a text that `span` tries.
        show: keep the recovered tokens in the findings too; they are clients' text.

    Torch's threads and seed and the logging of the process are put back afterwards.

    Raises:
        ConfigError: neither or both of run and config; no such run or attack; a key or an argument is wrong.
        DataError: the rows are missing or malformed.
        CheckpointError: the run has no checkpoint.
        PreflightError: a run is under way in this process.
    """
    if isinstance(attacks, str):
        raise ConfigError(f"attacks is {attacks!r}; give a list of names, such as [{attacks!r}]")
    trains = "secrets" in (attacks or ())
    options = AuditOptions(clip, noise, delta, canaries, clients, places=places, show=show, trains=trains)
    folder = run.paths.folder if isinstance(run, RunResult) else None if run is None else Path(run)
    with alone("fedtorch.audit_run"):
        return attack_run(folder, all_given(config), assignments(overrides), options, attacks)
