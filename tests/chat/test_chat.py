"""Talking to a trained assistant: two sides over a socket, what crosses it, and whose models they are."""

from __future__ import annotations

import io
import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from ranks import start_ranks
from transformers import GPT2Config, GPT2LMHeadModel

from fedtorch.chat.assistant import answer
from fedtorch.chat.assistant import main as assistant_main
from fedtorch.chat.command_line import main
from fedtorch.chat.model import load_side, open_run
from fedtorch.chat.user import UserSide, talk
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.compression.payload import HEADER_BYTES, PayloadError
from fedtorch.core.errors import CheckpointError, ConfigError, FedtorchError
from fedtorch.core.weights import Layout
from fedtorch.main import main as train
from fedtorch.models.link import Increment, Traffic, link_pair
from fedtorch.models.side import Passing, Side
from fedtorch.models.socket_link import Crossing, LinkClosed, SocketLink
from fedtorch.text.gpt2_bpe import load_bpe
from fedtorch.tracking.run_folder import Run


class Encoded(NamedTuple):
    input_ids: list[int]


class Letters:
    """A vocabulary of the letters; 0 separates."""

    eos_token_id = 0

    def __call__(self, text: str) -> Encoded:
        return Encoded([ord(letter) - 96 for letter in text])

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(96 + word) for word in ids)


def tiny(seed: int, positions: int = 48) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=27, n_embd=8, n_layer=2, n_head=2, n_positions=positions, initializer_range=0.5)
    return GPT2LMHeadModel(config).eval()


@contextmanager
def chatting(
    models: tuple[Any, Any], *, keys: bool = False, passing: Passing | None = None, max_new: int = 5
) -> Iterator[tuple[UserSide, list[Crossing]]]:
    """The user's side here, the assistant's in a thread."""
    passing = passing or Passing()
    ours, theirs = socket.socketpair()
    settings = {"separator": 0, "max_new": max_new, "temperature": 0.0, "seed": 0, "sends_keys": keys}
    other = threading.Thread(target=answer, args=(models[1], SocketLink(theirs), passing), kwargs=settings)
    other.start()
    crossed: list[Crossing] = []
    with ours:
        yield UserSide(models[0], Letters(), SocketLink(ours, crossed.append), passing, keys), crossed
    other.join(30)
    theirs.close()
    assert not other.is_alive()


def walk(models: tuple[Any, Any], turns: list[list[int]], separator: int = 0, max_new: int = 5) -> list[list[int]]:
    """The same dialog over a link inside the process, keys and values both ways."""
    user, assistant = (Side(m, end, Passing()) for m, end in zip(models, link_pair(Traffic()), strict=True))
    answers = []
    with torch.no_grad():
        for turn, ids in enumerate(turns):
            inputs = torch.tensor([[separator, *ids]])
            segment = {"inputs": inputs, "targets": inputs, "lengths": torch.tensor([len(ids) + 1])}
            user.speak(2 * turn, segment, 1, is_last=False)
            assistant.hear(2 * turn, 1)
            answers.append(assistant.generate(2 * turn + 1, separator, max_tokens=max_new))
            user.hear(2 * turn + 1, 1)
    return answers


TURNS = [[3, 5, 7], [4, 9], [11, 2, 6, 8]]


@pytest.mark.parametrize("transfer", ["increment", "full"])
def test_with_keys_back_a_chat_is_the_one_process_dialog(transfer: Any) -> None:
    models = (tiny(1), tiny(2))
    with chatting(models, keys=True, passing=Passing(kv_transfer=transfer)) as (user, _):
        answers = [user.say(ids) for ids in TURNS]
    assert answers == walk(models, TURNS)
    assert len({tuple(words) for words in answers}) > 1 and all(answers)


def test_with_equal_models_words_alone_come_to_the_same() -> None:
    models = (tiny(2), tiny(2))
    with chatting(models) as (user, _):
        assert [user.say(ids) for ids in TURNS] == walk(models, TURNS)


def test_only_keys_go_one_way_and_only_words_the_other() -> None:
    with chatting((tiny(1), tiny(2))) as (user, crossed):
        answers = [user.say(ids) for ids in TURNS]
    assert [(c.is_sent, c.what, c.turn) for c in crossed] == [
        (turn % 2 == 0, "tokens" if turn % 2 else "keys and values", turn) for turn in range(6)
    ]
    for ids, words, sent, received in zip(TURNS, answers, crossed[::2], crossed[1::2], strict=True):
        columns = len(ids) + 1
        assert sent.shape == (2, 2, 1, 2, columns, 4)
        assert sent.num_bytes == HEADER_BYTES + 64 + columns * (2 * 2 * 8 * 4 + 1)  # two headers, data and mask
        assert received.num_bytes == HEADER_BYTES + 4 * len(words) and received.dtype == torch.int32


def test_a_new_dialog_knows_nothing_of_the_last_and_a_full_one_is_followed_by_it() -> None:
    models = (tiny(1, 24), tiny(2, 24))
    long = "abcdefghijklmnopqrstuvwxyz"
    out = io.StringIO()
    with chatting(models) as (user, crossed):
        talk(user, ["abc", "", "/new", "abc", "defghij", "abcdefghij", long], out)
    lines = out.getvalue().splitlines()
    first = "assistant: " + Letters().decode(walk(models, [[1, 2, 3]])[0])
    assert lines[0] == lines[1] == first and lines[2].startswith("assistant: ")
    assert lines[3] == "(no position is left; a new dialog begins)"
    assert lines[4] == "assistant: " + Letters().decode(walk(models, [list(range(1, 11))])[0])
    assert lines[5:] == ["(too long: 26 tokens, the model has 24 positions)"]
    assert [c.turn for c in crossed if c.is_sent] == [0, 0, 2, 0]


def test_drawn_answers_depend_on_the_seed() -> None:
    def drawn(seed: int) -> list[int]:
        ours, theirs = socket.socketpair()
        settings = {"separator": 0, "max_new": 8, "temperature": 3.0, "seed": seed, "sends_keys": False}
        other = threading.Thread(target=answer, args=(tiny(2), SocketLink(theirs), Passing()), kwargs=settings)
        other.start()
        with ours:
            words = UserSide(tiny(1), Letters(), SocketLink(ours), Passing()).say([3])
        other.join(30)
        theirs.close()
        return words

    assert drawn(1) == drawn(1) and len({tuple(drawn(seed)) for seed in range(4)}) > 1


# --- the wire


def increment(turn: int = 0) -> Increment:
    data = torch.randn(2, 2, 1, 2, 3, 4)
    return Increment(turn, False, torch.tensor([[1, 1, 0]], dtype=torch.uint8), data)


@pytest.fixture
def ends() -> Iterator[tuple[SocketLink, SocketLink]]:
    one, other = socket.socketpair()
    with one, other:
        yield SocketLink(one), SocketLink(other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_what_is_sent_arrives(ends: tuple[SocketLink, SocketLink], dtype: torch.dtype) -> None:
    one, other = ends
    sent = increment(4)
    one.send(Increment(4, True, sent.mask, sent.data.to(dtype)))
    assert other.next_turn() == 4
    found = other.receive()
    assert (found.turn, found.is_last) == (4, True) and torch.equal(found.mask, sent.mask)
    assert found.data.dtype == dtype and torch.equal(found.data, sent.data.to(dtype))
    other.send_tokens(5, [])
    other.send_tokens(7, [3, 1, 2_000_000_000])
    assert one.receive_tokens(5) == [] and one.receive_tokens(7) == [3, 1, 2_000_000_000]


def test_another_message_than_expected_is_refused(ends: tuple[SocketLink, SocketLink]) -> None:
    one, other = ends
    one.send_tokens(1, [3])
    with pytest.raises(PayloadError, match="a message of kind 17 came; expected keys and values"):
        other.receive()
    one.send_tokens(1, [3])
    with pytest.raises(PayloadError, match="expected the words of turn 3"):
        other.receive_tokens(3)
    one.send(increment())
    with pytest.raises(PayloadError, match="a message of kind 16 came; expected the words of turn 1"):
        other.receive_tokens(1)
    one.sock.sendall(bytes(HEADER_BYTES))
    with pytest.raises(PayloadError, match="header is damaged"):
        other.next_turn()


def test_a_link_that_closes_says_so(ends: tuple[SocketLink, SocketLink]) -> None:
    one, other = ends
    one.sock.sendall(bytes(10))  # ends in the middle of a message
    one.sock.close()
    with pytest.raises(LinkClosed):
        other.receive_tokens(1)
    assert other.next_turn() is None
    with pytest.raises(LinkClosed):
        other.send(increment())


def test_a_dialog_that_does_not_begin_with_turn_0_is_refused(ends: tuple[SocketLink, SocketLink]) -> None:
    ends[0].send(increment(2))
    with pytest.raises(FedtorchError, match="keys and values of turn 2 came first"):
        answer(tiny(1), ends[1], Passing(), separator=0, max_new=1, temperature=0.0, seed=0, sends_keys=False)


# --- a trained run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedA on made-up dialogs: assistants shared, every client with a user model of its own."""
    folder = tmp_path_factory.mktemp("chat")
    target = folder / "run"
    data = f"task.data={folder / 'data'}"
    from fedtorch.data.synthetic.dialogs import prepare

    prepare(folder / "data")
    changes = [data, f"run.dir={target}", "task.max_train=4", "rounds=1", "track.tensorboard=false"]
    changes += ["server.lr=0.1", "client.lr=0.1"]  # so that models differ after one step
    assert train(["--config", "smoke/feda", "--set", *changes]) == 0
    return next(path.parent for path in folder.rglob("metrics.jsonl"))


@pytest.mark.long
def test_the_user_side_is_the_clients_own_and_the_assistant_is_shared(run_dir: Path) -> None:
    run = open_run(run_dir, "pizza")
    checkpoints = Checkpoints(run_dir / "checkpoints", keep=1)
    found = checkpoints.latest()
    assert found is not None
    users = {client: load_side(run, client, "user") for client in ("pizza", "ride")}
    for client, user in users.items():
        parameters = dict(user.named_parameters())
        kept = checkpoints.load_client(found, client).tensors["best/private"]
        assert torch.equal(Layout.of(parameters).flatten(parameters), kept)
    assistants = [dict(load_side(run, client, "assistant").named_parameters()) for client in users]
    flat = [Layout.of(parameters).flatten(parameters) for parameters in assistants]
    assert torch.equal(flat[0], flat[1]) and torch.equal(flat[0], checkpoints.load_server(found).tensors["best"])
    assert not torch.equal(flat[0], kept)


def run_assistant(arguments: list[str], sock: socket.socket) -> int:
    given = [argument for argument in arguments if not argument.startswith("--socket=")]
    return assistant_main([*given, f"--socket={sock.detach()}"])


class Forked:
    """In place of Popen: the assistant's process comes from the tests' fork server, which has imported torch."""

    def __init__(self, command: list[str], *, pass_fds: tuple[int], **_: Any) -> None:
        assert command[1:3] == ["-m", "fedtorch.chat.assistant"]
        with socket.socket(fileno=os.dup(*pass_fds)) as sock:
            self.ranks = start_ranks(run_assistant, 1, command[3:], sock)

    def wait(self, timeout: float) -> int | None:
        """Its exit code, which must be that of its main function."""
        (outcome,) = self.ranks.outcomes or self.ranks.join(timeout)
        assert not outcome.error, outcome.error
        return outcome.result if outcome.exit_code == 0 else outcome.exit_code


@pytest.mark.processes
@pytest.mark.parametrize("is_forked", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_chat_in_two_processes(
    is_forked: bool, run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_forked:
        monkeypatch.setattr("subprocess.Popen", Forked)
    typed = ["i want a pizza", "large please"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(typed)))
    command = ["--run", str(run_dir), "--client", "pizza", "--show-wire", "--max-new", "6", "--reply", "keys"]
    assert main(command) == 0
    out = capsys.readouterr().out
    run = open_run(run_dir, "pizza")
    vocabulary = load_bpe(run_dir / "model" / "pizza" / "user")
    turns = [vocabulary(text).input_ids for text in typed]
    models = (load_side(run, "pizza", "user"), load_side(run, "pizza", "assistant"))
    expected = walk(models, turns, int(vocabulary.eos_token_id), 6)
    # an answer may hold line breaks: any byte can come from a model that has learned nothing
    assert all(f"assistant: {vocabulary.decode(words).strip()}\n" in out for words in expected)
    assert not any(text in out for text in typed)
    columns = len(turns[0]) + 1
    size = HEADER_BYTES + 64 + columns * (2 * 16 * 4 + 1)
    assert f"wire: user -> assistant: keys and values, turn 0, float32 1x2x1x2x{columns}x8, {size} bytes" in out
    assert f"wire: assistant -> user: tokens, turn 1, int32 {len(expected[0])}," in out
    sums = {
        way: sum(int(n) for n in re.findall(rf"wire: {way}: .*, (\d+) bytes", out))
        for way in ("user -> assistant", "assistant -> user")
    }
    assert f"wire: in all {', '.join(f'{way} {total} bytes' for way, total in sums.items())}" in out


@pytest.mark.processes
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16|float32")])
def test_a_chat_computes_as_its_run_did(
    precision: str,
    dtype: str,
    run_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or in fp32, where this CPU has no fp16."""
    shutil.copytree(run_dir, tmp_path / "run")
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    config["engine"] = {"precision": precision}
    (tmp_path / "run/config.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setattr("subprocess.Popen", Forked)
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nyes"))
    assert main(["--run", str(tmp_path / "run"), "--client", "pizza", "--show-wire", "--reply", "keys"]) == 0
    out = capsys.readouterr().out
    for way, turns in (("user -> assistant", (0, 2)), ("assistant -> user", (1, 3))):
        for turn in turns:
            assert re.search(rf"wire: {way}: keys and values, turn {turn}, ({dtype}) ", out)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.processes
def test_an_assistant_that_ends_by_itself_ends_the_chat(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    assert main(["--run", str(run_dir), "--client", "pizza"]) == 1
    assert "the assistant side ended with code 1; see its message above" in capsys.readouterr().err


def copy_without(run_dir: Path, folder: Path, **settings: Any) -> Path:
    """A copy of the run with other settings in its config."""
    shutil.copytree(run_dir, folder, ignore=shutil.ignore_patterns("checkpoints"))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["task"] |= settings
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_a_run_that_cannot_be_talked_to_is_refused(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name the folder of a run"):
        open_run(tmp_path, "pizza")
    with pytest.raises(ConfigError, match="--client is sushi but the run's clients are repair, coffee, movie"):
        open_run(run_dir, "sushi")
    with pytest.raises(
        ConfigError, match=r"is a run of task.name qa, whose model does not talk; name a run of causal_lm"
    ):
        open_run(copy_without(run_dir, tmp_path / "qa", name="qa"), "pizza")
    with pytest.raises(ConfigError, match="--client is missing; name one of repair, coffee"):
        open_run(run_dir, None)
    copied = copy_without(run_dir, tmp_path / "copied")
    (copied / "model" / "pizza" / "user" / "model.safetensors").write_bytes(b"none")
    with pytest.raises(ConfigError, match="holds no GPT-2"):
        load_side(open_run(copied, "pizza"), "pizza", "user")
    shutil.rmtree(copied / "model")
    with pytest.raises(ConfigError, match="model/user is missing; .* fedtorch export .*/copied --client pizza"):
        open_run(copied, "pizza")


def test_in_runs_of_version_0_1_the_clients_own_part_comes_from_the_checkpoint(run_dir: Path, tmp_path: Path) -> None:
    """There `model/` had what is shared, and in place of the private parts others."""
    old = tmp_path / "old"
    shutil.copytree(run_dir, old, ignore=shutil.ignore_patterns("model"))
    shutil.copytree(run_dir / "model" / "ride", old / "model")
    for side in ("user", "assistant"):
        found, own = (
            dict(load_side(open_run(run, "pizza"), "pizza", side).named_parameters()) for run in (old, run_dir)
        )
        assert all(torch.equal(found[name], tensor) for name, tensor in own.items())
    shutil.rmtree(old / "checkpoints")
    with pytest.raises(CheckpointError, match="has no model of pizza that fits"):
        load_side(open_run(old, "pizza"), "pizza", "user")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("option", "message"),
    [(["--max-new", "0"], "--max-new is 0"), (["--temperature", "-1"], "--temperature is -1.0"), ([], "--client is x")],
)
def test_options_that_cannot_work_are_error_two(
    option: list[str], message: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--run", str(run_dir), "--client", "x", *option]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.processes
def test_holder_is_another_word_for_client(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--run", str(run_dir), "--holder", "x"]) == 2
    assert "--client is x" in capsys.readouterr().err


def test_the_assistant_process_says_what_is_wrong(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    given = ["--reply=tokens", "--separator=0", "--max-new=3", "--seed=0", "--temperature=0"]
    with ours:
        code = assistant_main(["--run", str(run_dir), "--client", "x", f"--socket={theirs.detach()}", *given])
    assert code == 2 and "the assistant side: --client is x" in capsys.readouterr().err


def test_a_model_that_is_shared_needs_no_checkpoint(run_dir: Path, tmp_path: Path) -> None:
    run = open_run(run_dir, "pizza")
    config = {**run.config, "partition": {"private": [], "frozen": ["user.*"]}}
    bare = Run(copy_without(run_dir, tmp_path / "bare"), config, [], clients=run.clients)
    shutil.rmtree(bare.folder / "model")
    shutil.copytree(run_dir / "model" / "pizza", bare.folder / "model")
    loaded = dict(load_side(bare, "pizza", "user").named_parameters())
    saved = GPT2LMHeadModel.from_pretrained(run_dir / "model" / "pizza" / "user")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.named_parameters())
