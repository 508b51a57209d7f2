"""Talk to a trained assistant: the user's side runs here, the assistant's in another process.

    python -m fedtorch.chat --run DIR --holder NAME [--show-wire] [--max-new N]

What is typed never leaves this process: keys and values of the user's turns go one way, token ids of the answers come
back. A line is a turn; `/new` begins a new dialog, the end of the input ends the chat.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

import fedtorch
from fedtorch.chat.model import computing, load_side, open_run, passing_of
from fedtorch.compression.payload import PayloadError
from fedtorch.core.errors import ConfigError, FedtorchError
from fedtorch.models.side import Passing, Side
from fedtorch.models.socket_link import Crossing, LinkClosed, SocketLink
from fedtorch.text.gpt2_bpe import load_bpe

_NEW = "/new"
_LEAVE_S = 20.0  # the other side is given so long to end by itself


@dataclass
class Wire:
    """Prints what crosses, if it is to be shown, and sums it up."""

    out: TextIO
    is_shown: bool
    totals: Counter[str] = field(default_factory=Counter)

    def __call__(self, crossing: Crossing) -> None:
        """See `SocketLink.watch`."""
        way = _way(crossing.is_sent)
        self.totals[way] += crossing.num_bytes
        if self.is_shown:
            dtype = str(crossing.dtype).removeprefix("torch.")
            shape = "x".join(map(str, crossing.shape))
            text = f"{crossing.what}, turn {crossing.turn}, {dtype} {shape}, {crossing.num_bytes} bytes"
            print(f"wire: {way}: {text}", file=self.out, flush=True)

    def sum_up(self) -> None:
        """Print the totals of both ways."""
        if self.is_shown:
            sums = [f"{_way(is_sent)} {self.totals[_way(is_sent)]} bytes" for is_sent in (True, False)]
            print(f"wire: in all {', '.join(sums)}", file=self.out, flush=True)


@dataclass
class UserSide:
    """The user's end of a dialog. receives_keys: do the keys and values of answers come too, beside their words?"""

    model: Any
    vocabulary: PreTrainedTokenizerBase
    link: SocketLink
    passing: Passing
    receives_keys: bool = False
    side: Side = field(init=False)
    turn: int = 0

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a new dialog."""
        self.side, self.turn = Side(self.model, self.link, self.passing), 0

    def room(self, num_tokens: int) -> bool:
        """Is there a position left for so many tokens and an answer of one?"""
        context = self.side.context(1)
        used = 0 if context is None else context[1].shape[1]
        return bool(used + num_tokens + 1 < self.model.config.n_positions - 1)

    @torch.no_grad()
    def say(self, ids: Sequence[int]) -> list[int]:
        """Speak a turn; the words of the answer. Waits for the other side.

        Raises:
            LinkClosed: it has ended.
        """
        self.side.speak(self.turn, self._segment(ids), 1, is_last=False)
        if self.receives_keys:
            self.side.hear(self.turn + 1, 1)
        answer = self.link.receive_tokens(self.turn + 1)
        if not self.receives_keys:
            self.side.read(self._segment(answer))
        self.turn += 2
        return answer

    def _segment(self, ids: Sequence[int]) -> dict[str, Tensor]:
        inputs = torch.tensor([[int(self.vocabulary.eos_token_id), *ids]])
        return {"inputs": inputs, "targets": torch.full_like(inputs, -100), "lengths": torch.tensor([len(ids) + 1])}


def talk(user: UserSide, lines: Iterable[str], out: TextIO) -> None:
    """Answer every line; a dialog that has no position left is followed by a new one."""
    for line in lines:
        text = line.strip()
        if text == _NEW:
            user.begin()
            continue
        ids = user.vocabulary(text).input_ids if text else []
        if not ids:
            continue
        if not user.room(len(ids)):
            user.begin()
            if not user.room(len(ids)):
                limit = user.model.config.n_positions
                print(f"(too long: {len(ids)} tokens, the model has {limit} positions)", file=out, flush=True)
                continue
            print("(no position is left; a new dialog begins)", file=out, flush=True)
        answer = user.say(ids)
        print(f"assistant: {user.vocabulary.decode(answer).strip()}", file=out, flush=True)


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.chat") -> int:
    """Chat until the input ends; returns the exit code (0 done, 2 the run or an option is wrong)."""
    args = _parser(prog).parse_args(arguments)
    try:
        _check(args)
        run = open_run(args.run, args.holder)
        model = load_side(run, args.holder, "user")
        vocabulary = load_bpe(run.folder / "model" / "user")
        wire = Wire(sys.stdout, args.show_wire)
        with _assistant(args, int(vocabulary.eos_token_id)) as sock, computing(run):
            user = UserSide(model, vocabulary, SocketLink(sock, wire), passing_of(run), args.reply == "keys")
            talk(user, _typed(), sys.stdout)
        wire.sum_up()
        return 0
    except FedtorchError as error:
        print(f"fedtorch: {error}", file=sys.stderr)
        return error.exit_code
    except PayloadError as error:
        print(f"fedtorch: what came from the assistant side is damaged: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


@contextmanager
def _assistant(args: argparse.Namespace, separator: int) -> Iterator[socket.socket]:
    """Start the other side; closing the socket ends it.

    Raises:
        FedtorchError: it ended by itself.
    """
    ours, theirs = socket.socketpair()
    given = {"run": args.run, "holder": args.holder, "reply": args.reply, "socket": theirs.fileno()}
    given |= {"separator": separator, "max-new": args.max_new, "seed": args.seed, "temperature": args.temperature}
    command = [sys.executable, "-m", "fedtorch.chat.assistant", *(f"--{key}={value}" for key, value in given.items())]
    package = str(Path(fedtorch.__file__).parents[1])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}
    )
    theirs.close()
    try:
        with ours:
            yield ours
    except LinkClosed as error:
        raise FedtorchError(f"the assistant side ended with code {_leave(process)}; see its message above") from error
    finally:
        _leave(process)


def _leave(process: subprocess.Popen[bytes]) -> int:
    """Wait until the process has ended, as it does when the socket is closed; its exit code."""
    try:
        return process.wait(_LEAVE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _typed() -> Iterator[str]:
    is_terminal = sys.stdin.isatty()
    while True:
        if is_terminal:
            print("you: ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        yield line


def _check(args: argparse.Namespace) -> None:
    if args.max_new < 1:
        raise ConfigError(f"--max-new is {args.max_new}; an answer has at least 1 token")
    if args.temperature < 0:
        raise ConfigError(f"--temperature is {args.temperature}; set it to 0 (the likeliest word) or above")


def _way(is_sent: bool) -> str:
    return "user -> assistant" if is_sent else "assistant -> user"


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="folder of a finished run")
    parser.add_argument("--holder", required=True, metavar="NAME", help="data holder whose models are used")
    parser.add_argument("--show-wire", action="store_true", help="print what crosses between the processes")
    parser.add_argument("--max-new", type=int, default=40, metavar="N", help="most tokens of an answer (40)")
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0: the likeliest word each time (default)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws with a temperature (0)")
    parser.add_argument(
        "--reply",
        choices=("tokens", "keys"),
        default="tokens",
        help="what comes back of an answer: its words, which the user's model reads itself; or its keys and values "
        "too, as in training",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
