"""The assistant side of a chat, in a process of its own that `python -m fedtorch.chat` starts.

It hears keys and values and answers with token ids. It has no tokenizer, so it sees no text, not even its own.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedtorch.chat.model import chosen_device, computing, load_side, open_run, passing_of
from fedtorch.compression.payload import PayloadError
from fedtorch.core.errors import FedtorchError, print_error
from fedtorch.core.seeds import seed_for
from fedtorch.models.side import Passing, Side
from fedtorch.models.socket_link import SocketLink


def answer(
    model: Any,
    link: SocketLink,
    passing: Passing,
    *,
    separator: int,
    max_new: int,
    temperature: float,
    seed: int,
    sends_keys: bool,
) -> None:
    """Answer every turn that is heard, until the other end goes; turn 0 begins a new dialog.

    Raises:
        FedtorchError: the other side is out of step.
    """
    side: Side | None = None
    while (turn := link.next_turn()) is not None:
        if turn == 0:
            side = Side(model, link, passing)
        if side is None:
            raise FedtorchError(f"keys and values of turn {turn} came first; a dialog begins with turn 0")
        with torch.no_grad():
            side.hear(turn, 1)
            ids = side.generate(
                turn + 1,
                separator,
                max_tokens=max_new,
                temperature=temperature,
                seed=seed_for(seed, "chat", turn),
                is_sent=sends_keys,
            )
        link.send_tokens(turn + 1, ids)


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer over the socket that was inherited; returns the exit code."""
    parser = argparse.ArgumentParser(prog="fedtorch.chat.assistant", description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--client", required=True)
    parser.add_argument("--reply", choices=("tokens", "keys"), required=True)
    for name in ("--socket", "--separator", "--max-new", "--seed"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--temperature", type=float, required=True)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both sides; the user's decides
    try:
        with socket.socket(fileno=args.socket) as sock:
            run = open_run(args.run, args.client)
            device = chosen_device(args.device)
            model = load_side(run, args.client, "assistant").to(device)
            with computing(run, device):
                answer(
                    model,
                    SocketLink(sock),
                    passing_of(run),
                    separator=args.separator,
                    max_new=args.max_new,
                    temperature=args.temperature,
                    seed=args.seed,
                    sends_keys=args.reply == "keys",
                )
    except FedtorchError as error:
        return print_error(error, "fedtorch: the assistant side")
    except PayloadError as error:
        print(f"fedtorch: the assistant side: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
