"""Gives a rank that missed the run's end its clients' models. Nothing is trained, recorded or saved."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fedtorch.comm.base import Communicator
from fedtorch.core.model_folder import MODEL
from fedtorch.lifecycle.signals import StopFlag
from fedtorch.lifecycle.start import begin, lasting_facts, telling_refusal
from fedtorch.rounds.export import has_own_models
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import BuiltRun
from fedtorch.setup.mechanism import make_mechanism

log = logging.getLogger(__name__)


def catch_up(runs: Sequence[BuiltRun], comm: Communicator, stop: StopFlag) -> None:
    """Runs that have ended, for the server and the ranks that missed it; all call it alike.

    Each rank's clients have the states that it saved last, and get the models that they would be evaluated with.
    """
    for at, built in enumerate(runs):
        checkpoints, start = begin(built, comm, "auto")
        with telling_refusal(comm):
            mechanism = make_mechanism(built, is_server=comm.is_server, start=start, resume="auto")
        components = built.components(
            comm,
            checkpoints,
            stop=stop,
            facts=lasting_facts(built),
            mechanism=mechanism,
            is_engine_shared=any(later.engine is built.engine for later in runs[at + 1 :]),
        )
        runner, folder = Runner(components), built.config.folder / MODEL
        runner.catch_up(start or 0)
        writes = built.config.run.export == "all" and has_own_models(components)
        if writes:
            runner.export(folder)
        runner.context.remove_spill()
        if not comm.is_server:
            models = f"; its models, of the states that it saved last, are in {folder}" if writes else ""
            log.warning("the run ended after %d rounds while this rank was away%s", start or 0, models)
