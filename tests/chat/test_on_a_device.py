"""A chat on a device says what it says on the CPU: one decoder, and the two sides of a dialog."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
import torch
from pretended_device import install
from ranks import run_ranks
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import GPT2Config, GPT2LMHeadModel

from fedtorch.chat.assistant import answer
from fedtorch.chat.command_line import _parser
from fedtorch.chat.decoder import Decoder
from fedtorch.chat.model import chosen_device
from fedtorch.chat.user import UserSide
from fedtorch.core import devices
from fedtorch.core.errors import ConfigError
from fedtorch.models.side import Passing
from fedtorch.models.socket_link import SocketLink

CPU = torch.device("cpu")
SPOKEN = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]


class Letters:
    """A vocabulary of the letters; 0 separates."""

    eos_token_id = pad_token_id = 0
    bos_token_id = None

    def __call__(self, text: str, **_: Any) -> Any:
        return type("Encoded", (), {"input_ids": [ord(letter) - 60 for letter in text]})

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(chr(number + 60) for number in ids if number)


def model(seed: int, device: torch.device) -> Any:
    torch.manual_seed(seed)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=70, **sizes, **ends)).eval().to(device)


def decoded(device: torch.device, temperature: float) -> list[str]:
    made = Decoder(model(1, device), Letters(), "turns", None, 60, 5, temperature=temperature)  # type: ignore[arg-type]
    return [made.reply(text) for text in ("AB", "CDE")]


def two_sided(device: torch.device, replies: str) -> list[list[int]]:
    ours, theirs = socket.socketpair()
    settings: dict[str, Any] = {"separator": 0, "max_new": 4, "temperature": 0.5, "seed": 3}
    other = threading.Thread(
        target=answer,
        args=(model(2, device), SocketLink(theirs), Passing()),
        kwargs={**settings, "sends_keys": replies == "keys"},
    )
    other.start()
    with ours:
        side = UserSide(model(1, device), Letters(), SocketLink(ours), Passing(), replies == "keys")  # type: ignore[arg-type]
        said = [side.say(ids) for ids in SPOKEN]
    other.join(20)
    theirs.close()
    return said


def on_both() -> list[Any]:
    device = install()
    with sdpa_kernel(SDPBackend.MATH):
        decoders = [[decoded(place, t) for place in (CPU, device)] for t in (0.0, 2.0)]
        sides = [[two_sided(place, replies) for place in (CPU, device)] for replies in ("tokens", "keys")]
    return decoders + sides


@pytest.mark.processes
def test_the_answers_are_those_of_the_cpu() -> None:
    found = run_ranks(on_both, 1)[0]
    assert all(cpu == device and any(cpu) for cpu, device in found), found


def test_a_gpu_that_is_not_there_is_refused_by_the_options_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "count", lambda *_: 0)
    assert chosen_device("cpu") == chosen_device(_parser("chat").parse_args(["RUN"]).device) == CPU
    with pytest.raises(ConfigError, match="--device is cuda but torch finds no GPU .* set it to auto or cpu"):
        chosen_device("cuda")
