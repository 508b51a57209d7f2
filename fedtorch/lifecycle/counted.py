"""Tables of a counting run in the run folder of each of its parties."""

from __future__ import annotations

import logging
from pathlib import Path

from fedtorch.algorithms.counts import Counts
from fedtorch.config.schema import Config
from fedtorch.core.errors import CheckpointError, ConfigError, DataError
from fedtorch.core.terminal import PlainConsole
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import BuiltRun
from fedtorch.setup.counting import terms_of, unit_named
from fedtorch.stats.broken import remarks
from fedtorch.stats.reading import read
from fedtorch.stats.settings import Words
from fedtorch.stats.shown import show
from fedtorch.stats.table import FILE, Stats
from fedtorch.stats.tokenizer import FOLDER as TOKENIZER
from fedtorch.stats.tokenizer import train_from
from fedtorch.tasks.counted import Counted, has_tokens

log = logging.getLogger(__name__)


def write_counted(built: BuiltRun, runner: Runner, *, keeps: bool) -> None:
    """Write the tables, if it is a run that counts; every party has the same. keeps: is this run folder a party's own?

    Raises:
        CheckpointError: the disk refuses.
    """
    if not (keeps and isinstance(built.algorithm, Counts)):
        return
    folder = built.config.folder
    stats, words = stats_of(built, runner), built.config.stats.words
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        stats.write(folder)
        if words is not None and words.tokenizer is not None:
            _make_tokenizer(stats, folder, words)
    except OSError as error:
        raise CheckpointError(
            f"{folder / FILE} cannot be written ({error}); free some space, and start the run again"
        ) from error


def _make_tokenizer(stats: Stats, folder: Path, words: Words) -> None:
    """Train it; where no word was found, or so few pieces are wanted that there is none, say so and leave it."""
    assert words.tokenizer is not None
    try:
        train_from(stats, folder / TOKENIZER, kind=words.tokenizer, size=words.pieces, lower=words.lower)
    except (DataError, ConfigError) as error:
        log.warning("no tokenizer is made: %s", error)


def show_counted(config: Config) -> bool:
    """Show the tables, on the server; False: it is no run that counts."""
    if config.paradigm != "stats":
        return False
    tell(config.folder)
    return True


def tell(folder: Path) -> None:
    """Print the tables of a run that has counted, what looks wrong with silos, and where all of it is.

    Raises:
        DataError: it has not.
    """
    stats, console = Stats.read(folder), PlainConsole()
    show(stats, console)
    for line in remarks(stats):
        console.print(line, soft_wrap=True)
    console.print(f"tables:     {folder / FILE}", soft_wrap=True)
    console.print(f"page:       fedtorch stats {folder} --html", soft_wrap=True)
    console.print(f"proposals:  fedtorch init FILE --from-stats {folder}", soft_wrap=True)


def stats_of(built: BuiltRun, runner: Runner) -> Stats:
    """Tables of the vector that all ranks have after the last round."""
    config, task = built.config, built.task
    assert isinstance(built.algorithm, Counts) and isinstance(task, Counted)
    rule, vector = built.algorithm.rule, runner.context.vectors.first.numpy()
    settings, promise = config.stats.privacy, {}
    if settings is not None:
        promise = {
            "unit": unit_named(settings),
            "epsilon": terms_of(config, rule).epsilon(rule.releases(vector)),
            "delta": settings.delta,
            "noise_multiplier": rule.noise.multiplier,
            "noise_at": settings.noise_at,
            "tables": rule.releases(vector),
        }
    return read(
        rule,
        vector,
        min_count=config.stats.min_count,
        unit=unit_named(settings),
        tokenizer=task.rows_of.tokenizer if has_tokens(task.rows_of) else None,
        max_length=task.rows_of.max_length,
        privacy=promise,
        task=config.task_name,
        masked=config.privacy.secure_sum is not None,
    )
