"""`fedtorch predict RUN FILE`: what a run's model says of new rows, as JSON lines in their order."""

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

from fedtorch.config import load as yaml_config
from fedtorch.config.schema import Config
from fedtorch.core.errors import CheckpointError, ConfigError, FedtorchError, print_error
from fedtorch.core.model_folder import model_folder
from fedtorch.core.shown import plain
from fedtorch.core.terminal import log_to_terminal
from fedtorch.setup.data_check import own_task
from fedtorch.setup.engine import device
from fedtorch.tasks.new_rows import new_rows
from fedtorch.tasks.own import OwnTask


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.setup.predict") -> int:
    """Write the answers; returns the exit code (0, 2 run or option is wrong, 3 the rows are, 8 no room)."""
    args = _parser(prog).parse_args(arguments)
    log_to_terminal(logging.WARNING)
    try:
        config = _config(args.run)
        task = own_task(config.task, config.task_name).trained(model_folder(args.run, args.client))
        form = task.new_form(perplexity=args.perplexity)
        torch.set_num_threads(config.system.threads)
        model = task.build_model(config.run.seed).to(device(config.system.device)).eval()
        with _output(args.out) as file:
            answers = _answers(task, model, new_rows(args.file, task.data, form), config.eval.batch_size)
            for row, answer in enumerate(answers, start=1):
                file.write(plain(json.dumps({"row": row, **answer}, ensure_ascii=False)) + "\n")
        return 0
    except BrokenPipeError:  # such as `| head`, which wants no more; without a stream Python would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except FedtorchError as error:
        return print_error(error)


def _answers(task: OwnTask, model: Any, blocks: Iterator[list[Any]], size: int) -> Iterator[dict[str, Any]]:
    for rows in blocks:
        with torch.inference_mode():
            yield from task.answers(model, rows, size)


def _config(run: Path) -> Config:
    path = run / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; name the folder of a run, such as runs/my_run")
    return yaml_config.load(path)


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
        "as in training; an answer column is not needed. `row` counts from 1.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("file", metavar="FILE", help="JSONL, JSON, CSV, TSV, Parquet, Arrow or text; glob; folder")
    parser.add_argument("--client", metavar="NAME", help="with the model that this client was evaluated with")
    parser.add_argument(
        "--perplexity", action="store_true", help="causal_lm: of each row's answer, or text, in place of a new answer"
    )
    parser.add_argument("--out", type=Path, metavar="JSONL", help="the file to write (standard output)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
