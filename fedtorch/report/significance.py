"""`python -m fedtorch.report ttest`: do two runs differ by more than chance, over the examples of both?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedtorch.core.errors import ConfigError
from fedtorch.core.extras import require
from fedtorch.core.shown import for_markdown, markdown_row
from fedtorch.metrics.significance import TTest, paired_t_test
from fedtorch.tracking.run_folder import Run, read_run

Values = dict[str, list[float | None]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `ttest`."""
    parser.add_argument("--base", type=Path, required=True, metavar="RUN", help="the run that others are compared with")
    parser.add_argument("--new", type=Path, nargs="+", required=True, metavar="RUN", help="runs to compare with it")
    parser.add_argument("--metric", help="score to compare; default: the one the first run was selected by")


def make(args: argparse.Namespace) -> None:
    """Print one row per run and client, and one over all clients' examples together.

    Raises:
        ConfigError: a run has no scores of single examples, or not of the same ones as the other; or scipy is not
            installed.
    """
    require("the paired t-test", "scipy", extra="fedmatch")
    base = read_run(args.base)
    metric = args.metric or base.metric() or ""
    theirs = single_scores(base, metric)
    sys.stdout.write(
        f"{for_markdown(metric)}: difference to {for_markdown(base.name)}, two-tailed paired t-test over examples\n\n"
    )
    sys.stdout.write("| run | client | examples | difference | t | p |\n|---|---|---:|---:|---:|---:|\n")
    for folder in args.new:
        run = read_run(folder)
        for client, test in compare(run, single_scores(run, metric), base, theirs).items():
            stars = " *" if test.p < 0.05 else ""
            figures = f"{test.mean_difference:+.4f}", f"{test.t:.2f}"
            sys.stdout.write(markdown_row([run.name, client, test.count, *figures, f"{test.p:.4f}{stars}"]) + "\n")
    sys.stdout.write("\n* p < 0.05. Over all examples, every question counts alike, whichever client it is from.\n")


def single_scores(run: Run, metric: str) -> Values:
    """client -> the score of each example of the final split, None where it does not count.

    Clients without the metric are left out: a few-shot task belongs to some clients only.

    Raises:
        ConfigError: none were recorded.
    """
    found = {record["client"]: record["metrics"].get(metric) for record in run.of_kind("examples")}
    found = {client: list(values) for client, values in found.items() if values is not None}
    if not found:
        known = sorted({name for record in run.of_kind("examples") for name in record["metrics"]})
        raise ConfigError(
            f"{run.folder} has no scores of single examples for the metric {metric!r}"
            + (f"; it has {', '.join(known)}" if known else "; run it with `eval.per_example: true`")
        )
    return found


def compare(run: Run, ours: Values, base: Run, theirs: Values) -> Mapping[str, TTest]:
    """client, and at last `all` -> the test; examples that do not count in either run are left out.

    Raises:
        ConfigError: the runs were not evaluated on the same examples.
    """
    sizes = [{client: len(values) for client, values in scores.items()} for scores in (ours, theirs)]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"{run.folder} and {base.folder} were not evaluated on the same examples: {sizes[0]} and {sizes[1]}; a "
            "paired test needs the same data and the same limits (`task.max_test`)"
        )
    pairs = {
        client: [(a, b) for a, b in zip(ours[client], theirs[client], strict=True) if a is not None and b is not None]
        for client in ours
    }
    pairs["all"] = [pair for found in pairs.values() for pair in found]
    return {client: _test(found) for client, found in pairs.items() if len(found) > 1}


def _test(pairs: Sequence[tuple[float, float]]) -> TTest:
    return paired_t_test([a for a, _ in pairs], [b for _, b in pairs])
