"""Talk to the model of a run: a decoder, or an assistant whose side runs in another process than the user's.

    python -m fedtorch.chat RUN [--client NAME] [--show-wire] [--max-new N]

Of two sides, what is typed never leaves this process: keys and values of the user's turns go one way, token ids of the
answers come back. A line is a turn; `/new` begins a new dialog, the end of the input ends the chat.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedtorch.chat.decoder import can_decode, open_decoder
from fedtorch.chat.model import check_run, chosen_device, computing, load_side, model_folder, passing_of
from fedtorch.chat.user import UserSide, Wire, talk
from fedtorch.compression.payload import PayloadError
from fedtorch.core import devices
from fedtorch.core.errors import ConfigError, FedtorchError, print_error
from fedtorch.core.version import PACKAGE
from fedtorch.models.socket_link import LinkClosed, SocketLink
from fedtorch.text.gpt2_bpe import load_bpe
from fedtorch.tracking.run_folder import Run, read_run

_LEAVE_S = 20.0  # the other side is given so long to end by itself


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.chat") -> int:
    """Chat until the input ends; returns the exit code (0 done, 2 the run or an option is wrong)."""
    args = _parser(prog).parse_args(arguments)
    try:
        _check(args)
        found = read_run(args.run)
        if can_decode(found):
            _talk_to_decoder(found, args)
            return 0
        args.max_new = args.max_new or 40
        run = check_run(found, args.client)
        device = chosen_device(args.device)
        model = load_side(run, args.client, "user").to(device)
        vocabulary = load_bpe(model_folder(run.folder, args.client) / "user")
        wire = Wire(sys.stdout, args.show_wire)
        with _assistant(args, int(vocabulary.eos_token_id)) as sock, computing(run, device):
            user = UserSide(model, vocabulary, SocketLink(sock, wire), passing_of(run), args.reply == "keys")
            talk(user, _typed(), sys.stdout)
        wire.sum_up()
        return 0
    except FedtorchError as error:
        return print_error(error)
    except PayloadError as error:
        print(f"fedtorch: what came from the assistant side is damaged: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _talk_to_decoder(run: Run, args: argparse.Namespace) -> None:
    if args.show_wire or args.reply != "tokens":
        option = "--show-wire" if args.show_wire else "--reply"
        raise ConfigError(f"{option} is given, but {run.folder} has one model, so nothing crosses; leave it out")
    settings = {"max_new": args.max_new, "temperature": args.temperature, "seed": args.seed}
    device = chosen_device(args.device)
    decoder = open_decoder(run, args.client, device=device, **settings)
    with computing(run, device):
        talk(decoder, _typed(), sys.stdout)


@contextmanager
def _assistant(args: argparse.Namespace, separator: int) -> Iterator[socket.socket]:
    """Start the other side; closing the socket ends it.

    Raises:
        FedtorchError: it ended by itself.
    """
    ours, theirs = socket.socketpair()
    given = {
        "run": args.run,
        "client": args.client,
        "reply": args.reply,
        "device": args.device,
        "socket": theirs.fileno(),
    }
    given |= {"separator": separator, "max-new": args.max_new, "seed": args.seed, "temperature": args.temperature}
    command = [sys.executable, "-m", "fedtorch.chat.assistant", *(f"--{key}={value}" for key, value in given.items())]
    package = str(PACKAGE.parent)
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
    if (args.folder is None) == (args.run is None):
        raise ConfigError("name the folder of one run, such as runs/my_run")
    args.run = args.run or args.folder
    if args.max_new is not None and args.max_new < 1:
        raise ConfigError(f"--max-new is {args.max_new}; an answer has at least 1 token")
    if args.temperature < 0:
        raise ConfigError(f"--temperature is {args.temperature}; set it to 0 (the likeliest word) or above")


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", metavar="RUN", help="folder of a finished run")
    parser.add_argument("--run", type=Path, metavar="DIR", help="the same")
    clients = parser.add_mutually_exclusive_group()
    clients.add_argument("--client", metavar="NAME", help="client whose model is used, where clients have their own")
    clients.add_argument("--holder", dest="client", help=argparse.SUPPRESS)  # scripts may say it
    parser.add_argument("--show-wire", action="store_true", help="print what crosses between the processes")
    parser.add_argument(
        "--max-new", type=int, metavar="N", help="most tokens of an answer (as the run generates; for two sides 40)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0: the likeliest word each time (default)"
    )
    parser.add_argument(
        "--device", choices=devices.CHOICES, default="auto", help="auto: a GPU where torch finds one (default)"
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
