"""`fedtorch predict RUN FILE`: answers of a run's model to new rows, as JSON lines in their order.

A row that cannot be answered keeps its line, with the reason under `error`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import torch

from fedtorch.core import devices
from fedtorch.core.errors import CheckpointError, DataError, FedtorchError, print_error
from fedtorch.core.model_folder import model_folder
from fedtorch.core.shown import plain
from fedtorch.core.terminal import log_to_terminal
from fedtorch.setup.data_check import own_task
from fedtorch.setup.run_config import at_home, open_config
from fedtorch.tasks.new_rows import NewRow, new_rows
from fedtorch.tasks.own import OwnTask
from fedtorch.train.precision import asking

ERROR = "error"
"""In an answer: why there is none."""
_SHOWN = 20  # reasons on stderr


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.setup.predict") -> int:
    """Write the answers; returns the exit code.

    0; 2: run or option is wrong; 3: no row can be answered, or with --strict one cannot; 8: no room.
    """
    args = _parser(prog).parse_args(arguments)
    log_to_terminal(logging.WARNING)
    try:
        with at_home(args.run) as run:
            config = open_config(run)
        folder = model_folder(args.run, args.client)
        task = own_task(config.task, config.task_name).trained(folder.absolute())
        form = task.new_form(perplexity=args.perplexity)
        torch.set_num_threads(config.system.threads)
        device = devices.own(config.system.device)
        model = task.build_model(config.run.seed).to(device).eval()
        with _output(args.out) as file, asking(config.engine.precision, device):
            answers = _answers(task, model, new_rows(args.file, task.data, form), config.eval.batch_size)
            unanswered, rows = list[str](), 0
            for rows, answer in enumerate(answers, start=1):
                file.write(plain(json.dumps({"row": rows, **answer}, ensure_ascii=False)) + "\n")
                unanswered += [answer[ERROR]] if ERROR in answer else []
        if unanswered:
            print(f"{prog}: {_said(unanswered, rows)}", file=sys.stderr)
        return DataError.exit_code if unanswered and (args.strict or len(unanswered) == rows) else 0
    except BrokenPipeError:  # such as `| head`, which wants no more; without a stream Python would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except FedtorchError as error:
        return print_error(error)


def _answers(task: OwnTask, model: Any, blocks: Iterator[list[NewRow]], size: int) -> Iterator[dict[str, Any]]:
    """Answer each row, or give its error, in their order."""
    for block in blocks:
        with torch.inference_mode():
            found = iter(_answered(task, model, [row.values for row in block if row.values is not None], size))
        yield from ({ERROR: row.problem} if row.values is None else next(found) for row in block)


def _answered(task: OwnTask, model: Any, rows: list[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """The answers; a row that the task refuses, as too long say, is found by halves and has an error in its place."""
    if not rows:
        return []
    try:
        return task.answers(model, rows, size)
    except DataError as error:
        if len(rows) == 1:
            where, why = rows[0]["where"], str(error)
            return [{ERROR: why if where in why else f"{where}: {why}"}]
    half = len(rows) // 2
    return _answered(task, model, rows[:half], size) + _answered(task, model, rows[half:], size)


def _said(unanswered: list[str], rows: int) -> str:
    shown, more = unanswered[:_SHOWN], len(unanswered) - _SHOWN
    rest = f"\n  and {more} more, which are in the output under `{ERROR}`" if more > 0 else ""
    return "\n  ".join([f"{len(unanswered)} of {rows} rows have no answer:", *shown]) + rest


@contextmanager
def _output(out: Path | None) -> Iterator[TextIO]:
    """Stdout, or a file that appears when it is complete."""
    if out is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    partial = out.with_name(f"{out.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            yield file
        partial.replace(out)
    except OSError as error:
        raise CheckpointError(f"{out} could not be written ({error}); make room, or set --out") from error
    finally:
        partial.unlink(missing_ok=True)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Answers of a run's model to new rows, a JSON object a line in their order. The columns are called "
        "as in training; an answer column is not needed. `row` counts from 1. A row that cannot be answered has "
        "`error` in place of an answer, and a line on stderr.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("file", metavar="FILE", help="JSONL, JSON, CSV, TSV, Parquet, Arrow or text; glob; folder")
    parser.add_argument("--client", metavar="NAME", help="with the model that this client was evaluated with")
    parser.add_argument(
        "--perplexity", action="store_true", help="causal_lm: of each row's answer, or text, in place of a new answer"
    )
    parser.add_argument(
        "--strict", action="store_true", help="code 3 where a row has no answer; what is written is the same"
    )
    parser.add_argument("--out", type=Path, metavar="JSONL", help="the file to write (standard output)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
