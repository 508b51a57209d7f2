"""Command line: runs -> a paper's table, with the published figures beside ours, and plots.

    python -m fedtorch.report RUN [RUN ...] [--out DIR] [--metric NAME] [--format markdown|csv]

Reads only metrics.jsonl and config.yaml of each run. A further report is a further entry of REPORTS, called as
`python -m fedtorch.report NAME ...`; without a name it is `table`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtorch.core.errors import FedtorchError
from fedtorch.report import apir as apir_report
from fedtorch.report import significance as paired
from fedtorch.report.perplexity import perplexity_markdown
from fedtorch.report.plots import plot_run
from fedtorch.report.score_table import as_csv, build, markdown, read_all
from fedtorch.report.wikisql import measures_markdown
from fedtorch.tracking.run_folder import Run


@dataclass(frozen=True)
class Report:
    """A kind of report. add: declares its arguments; make: reads the runs, writes files, prints."""

    about: str
    add: Callable[[argparse.ArgumentParser], None]
    make: Callable[[argparse.Namespace], None]


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `table`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, such as runs/my_run")
    parser.add_argument("--out", type=Path, help="folder for table.md, table.csv and the plots; default: RUN/report")
    parser.add_argument("--metric", help="score to show; default: the one the first run was selected by")
    parser.add_argument("--format", choices=("markdown", "csv"), default="markdown", help="of what is printed")
    parser.add_argument("--no-plots", action="store_true", help="write the table only")


def make_table(args: argparse.Namespace) -> None:
    """Print the table; write it and the plots of every run.

    Raises:
        ConfigError: a folder is no run, or no run has the metric.
    """
    runs = read_all(args.runs)
    table = build(runs, args.metric)
    texts = {"markdown": markdown(table), "csv": as_csv(table)}
    sys.stdout.write(texts[args.format])
    out: Path = args.out or args.runs[0] / "report"
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text(texts["markdown"])
    (out / "table.csv").write_text(texts["csv"])
    paths = [out / "table.md", out / "table.csv"]
    for (_, run), prefix in zip([] if args.no_plots else runs, _prefixes(runs), strict=False):
        paths += plot_run(run, out, prefix)
    print("\n".join(["", *(f"wrote {path}" for path in paths)]), file=sys.stderr)


def add_measures_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `measures`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run of the task wikisql")
    parser.add_argument("--out", type=Path, help="folder for measures.md; default: RUN/report")


def make_measures(args: argparse.Namespace) -> None:
    """Print and write the table of measures.

    Raises:
        ConfigError: a folder is no run.
    """
    text = measures_markdown(read_all(args.runs))
    sys.stdout.write(text)
    out: Path = args.out or args.runs[0] / "report"
    out.mkdir(parents=True, exist_ok=True)
    (out / "measures.md").write_text(text)
    print(f"\nwrote {out / 'measures.md'}", file=sys.stderr)


def add_perplexity_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `perplexity`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run of the task dialog")
    parser.add_argument("--out", type=Path, help="folder for perplexity.md; default: RUN/report")


def make_perplexity(args: argparse.Namespace) -> None:
    """Print and write the tables of perplexities and of bytes.

    Raises:
        ConfigError: a folder is no run of the task dialog.
    """
    text = perplexity_markdown(read_all(args.runs))
    sys.stdout.write(text)
    out: Path = args.out or args.runs[0] / "report"
    out.mkdir(parents=True, exist_ok=True)
    (out / "perplexity.md").write_text(text)
    print(f"\nwrote {out / 'perplexity.md'}", file=sys.stderr)


REPORTS = {
    "table": Report("scores of every client, beside the published ones", add_table_arguments, make_table),
    "apir": Report("few-shot tasks against a base run (FewFedWeight)", apir_report.add_arguments, apir_report.make),
    "ttest": Report("paired t-test between two runs, over single examples", paired.add_arguments, paired.make),
    "measures": Report(
        "WikiSQL's measures, beside those of the FedParsing paper", add_measures_arguments, make_measures
    ),
    "perplexity": Report(
        "perplexities and bytes of dialog runs, beside those of the FedAssistant paper",
        add_perplexity_arguments,
        make_perplexity,
    ),
}


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.report") -> int:
    """Make a report; returns the exit code (0 done, 2 a folder or option is wrong, 8 the disk refused)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = words.pop(0) if words and words[0] in REPORTS else "table"
    others = "; ".join(f"{key}: {report.about}" for key, report in REPORTS.items())
    parser = argparse.ArgumentParser(
        prog=f"{prog} {name}", description=f"{REPORTS[name].about}.", epilog=f"Reports: {others}"
    )
    REPORTS[name].add(parser)
    args = parser.parse_args(words)
    try:
        REPORTS[name].make(args)
    except FedtorchError as error:
        print(f"fedtorch: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"fedtorch: could not write the report: {error}; set --out to another folder", file=sys.stderr)
        return 8
    except ModuleNotFoundError as error:
        print(f"fedtorch: the plots need {error.name}: install it, or give --no-plots", file=sys.stderr)
        return 2
    return 0


def _prefixes(runs: Sequence[tuple[str, Run]]) -> list[str]:
    """In front of the plots' names: nothing for one run, else the run's name, numbered where two share it."""
    if len(runs) == 1:
        return [""]
    names = [name.replace("/", "-") for name, _ in runs]
    return [
        f"{name}-" if names.count(name) == 1 else f"{name}-{names[: i + 1].count(name)}-"
        for i, name in enumerate(names)
    ]


if __name__ == "__main__":
    sys.exit(main())
