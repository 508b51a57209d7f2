"""Command line: runs -> a paper's table, with the published figures beside ours, and plots.

    python -m fedtorch.report RUN [RUN ...] [--out DIR] [--metric NAME] [--format markdown|csv] [--html]

RUN may be a folder with runs in it, such as a sweep's. Reads only metrics.jsonl and config.yaml of each run. A further
report is a further entry of COMMANDS, called as `python -m fedtorch.report NAME ...`; without a name it is `table`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtorch.core.errors import FedtorchError, print_error
from fedtorch.core.files import replace_file
from fedtorch.core.shown import plain
from fedtorch.report import apir as apir_report
from fedtorch.report import privacy, timeline
from fedtorch.report import significance as paired
from fedtorch.report import sweep as sweep_report
from fedtorch.report.adapters import adapters_markdown
from fedtorch.report.compared import counted_once, out_folder, read_all, say_left_out, say_written, show_page
from fedtorch.report.find_runs import NamedRun, find_runs
from fedtorch.report.groups import make_groups
from fedtorch.report.html_page import html_page
from fedtorch.report.overlay import plot_comparison
from fedtorch.report.perplexity import perplexity_markdown
from fedtorch.report.plots import plot_run
from fedtorch.report.published import unknown_row
from fedtorch.report.robust import robust_markdown
from fedtorch.report.score_table import as_csv, build, markdown
from fedtorch.report.timeline import write_timeline
from fedtorch.report.wikisql import measures_markdown

DEFAULT_OUT = "RUN/report, and of several runs a folder below `report` beside the first"
"""For the help of `--out`, see `compared.out_folder`."""


@dataclass(frozen=True)
class Command:
    """A report that `python -m fedtorch.report NAME` makes."""

    about: str
    """a line for the help"""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    """adds the command's own options to its parser"""
    make: Callable[[argparse.Namespace], None]
    """reads the runs, writes files, prints"""


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `table`."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, such as runs/my_run, or of a sweep"
    )
    parser.add_argument("--out", type=Path, help=f"folder for tables, plots and page; default: {DEFAULT_OUT}")
    parser.add_argument("--metric", help="score to show; default: the one the first run was selected by")
    parser.add_argument("--format", choices=("markdown", "csv"), default="markdown", help="of what is printed")
    parser.add_argument("--no-plots", action="store_true", help="write the table only")
    parser.add_argument("--html", action="store_true", help="write one page, report.html, in place of the plots")


def make_table(args: argparse.Namespace) -> None:
    """Print the table; write it and the plots: of one run its clients, of several runs their comparison.

    Raises:
        ConfigError: a folder has no run, or no run has the metric.
    """
    found = counted_once(find_runs(args.runs))
    found.left_out += map(unknown_row, (run for _, run in found.runs if unknown_row(run)))
    say_left_out(found)
    runs = found.runs
    table = build(runs, args.metric)
    texts = {"markdown": markdown(table), "csv": as_csv(table)}
    sys.stdout.write(plain(texts[args.format]))
    out = out_folder(args.out, args.runs)
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text(texts["markdown"])
    (out / "table.csv").write_text(texts["csv"])
    paths = [out / "table.md", out / "table.csv"]
    if args.html:
        title = ", ".join(folder.resolve().name for folder in args.runs)
        replace_file(out / "report.html", html_page(title, make_groups(runs), table.metric, found))
        paths.append(out / "report.html")
    elif not args.no_plots:
        is_one = len({path.resolve() for path in args.runs}) == 1 and runs[0][1].folder == args.runs[0]
        paths += [*plot_run(runs[0][1], out), *write_timeline(runs[0][1], out)] if is_one else []
        paths += plot_comparison(make_groups(runs), out) if len(runs) > 1 else []
    say_written(paths)


def page(about: str, name: str, whose: str, markdown_of: Callable[[Sequence[NamedRun]], str]) -> Command:
    """A report that is one page, printed and written as `name`.md.

    whose: the runs that it is for. markdown_of: raises ConfigError if a run is none of them.
    """

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=f"folder of a run {whose}")
        parser.add_argument("--out", type=Path, help=f"folder for {name}.md; default: {DEFAULT_OUT}")

    def make(args: argparse.Namespace) -> None:
        text = markdown_of(read_all(args.runs))
        say_written([show_page(text, out_folder(args.out, args.runs) / f"{name}.md")])

    return Command(about, add_arguments, make)


COMMANDS = {
    "table": Command("scores of every client, beside the published ones", add_table_arguments, make_table),
    "sweep": Command("score over a swept key, a line for each client", sweep_report.add_arguments, sweep_report.make),
    "apir": Command("few-shot tasks against a base run (FewFedWeight)", apir_report.add_arguments, apir_report.make),
    "ttest": Command("paired t-test between two runs, over single examples", paired.add_arguments, paired.make),
    "measures": page(
        "WikiSQL's measures, beside those of the FedParsing paper", "measures", "of the task wikisql", measures_markdown
    ),
    "adapters": page(
        "bytes, errors of averaging and scores of adapters", "adapters", "with task.model.adapter", adapters_markdown
    ),
    "privacy": Command("epsilon of runs, and of all on the same data", privacy.add_arguments, privacy.make),
    "time_to": Command("when asynchronous runs reached a score", timeline.add_arguments, timeline.make),
    "robust": page(
        "how often a robust rule left out or shrank a client", "robust", "with algorithm.robust", robust_markdown
    ),
    "perplexity": page(
        "perplexities and bytes of dialog runs, beside those of the FedAssistant paper",
        "perplexity",
        "of the task dialog",
        perplexity_markdown,
    ),
}


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.report") -> int:
    """Make a report; returns the exit code (0 done, 2 a folder or option is wrong, 8 the disk refused)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = words.pop(0) if words and words[0] in COMMANDS else "table"
    others = "; ".join(f"{key}: {command.about}" for key, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog=f"{prog} {name}", description=f"{COMMANDS[name].about}.", epilog=f"Reports: {others}"
    )
    COMMANDS[name].add_arguments(parser)
    args = parser.parse_args(words)
    try:
        COMMANDS[name].make(args)
    except FedtorchError as error:
        return print_error(error)
    except OSError as error:
        print(f"fedtorch: could not write the report: {error}; set --out to another folder", file=sys.stderr)
        return 8
    except ModuleNotFoundError as error:
        print(f"fedtorch: the plots need {error.name}: install it, or give --no-plots", file=sys.stderr)
        return 2
    return 0
