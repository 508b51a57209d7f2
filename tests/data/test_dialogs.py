"""Readers and preparation of two-side dialogs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.dialogs import read_sgd, read_taskmaster_1, read_taskmaster_4
from fedtorch.data.folder import read_manifest, read_rows
from fedtorch.data.prepare import main
from fedtorch.data.prepare_dialog import prepare_dialog, split_randomly
from fedtorch.data.synthetic.dialogs import generate
from fedtorch.text.gpt2_bpe import EOS, load_bpe, train_bpe


def written(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def tm1(instruction: str, *utterances: tuple[str, str]) -> dict[str, Any]:
    listed = [{"index": i, "speaker": speaker, "text": text} for i, (speaker, text) in enumerate(utterances)]
    return {"conversation_id": "dlg-1", "instruction_id": instruction, "utterances": listed}


def test_taskmaster_1_with_its_dirt(tmp_path: Path) -> None:
    path = written(
        tmp_path / "self-dialogs.json",
        [
            tm1("auto-repair-2", ("ASSISTANT", "Hi. "), ("ASSISTANT", "How  can\nI help?"), ("USER", "My car.")),
            tm1("uber-lyft-1", ("USER", "A ride."), ("USER", "A ride."), ("USER", "(deleted)"), ("ASSISTANT", "OK")),
            tm1("coffee-ordering-1"),
            tm1("coffee-ordering-1", ("USER", "hello?"), ("USER", "anyone?")),
            tm1("pizza-ordering-1", ("USER", " "), ("ASSISTANT", "(deleted)")),
        ],
    )
    found = read_taskmaster_1([path])
    assert found.clients == {
        "repair": [[["assistant", "Hi. How can I help?"], ["user", "My car."]]],
        "ride": [[["user", "A ride."], ["assistant", "OK"]]],
    }
    assert found.dropped == {"empty": 2, "one_side": 1, "deleted": 2, "repeated": 1}
    apart = read_taskmaster_1([path], merge=False).clients["repair"][0]
    assert apart[:2] == [["assistant", "Hi."], ["assistant", "How can I help?"]]


def test_a_single_dialog_is_a_list_of_one(tmp_path: Path) -> None:
    path = written(tmp_path / "sample.json", tm1("movie-tickets-1", ("USER", "a"), ("ASSISTANT", "b")))
    assert list(read_taskmaster_1([path]).clients) == ["movie"]


def test_taskmaster_4_and_sgd_name_their_sides_differently(tmp_path: Path) -> None:
    utterances = [{"speaker": "user", "text": "a"}, {"speaker": "assistant", "text": "b"}]
    path = written(tmp_path / "four.json", [{"vertical": "Coffee", "utterances": utterances}])
    assert read_taskmaster_4([path]).clients == {"coffee": [[["user", "a"], ["assistant", "b"]]]}
    turns = [{"speaker": "USER", "utterance": "a", "frames": []}, {"speaker": "SYSTEM", "utterance": "b"}]
    dialogs = [{"services": ["Hotels_2"], "turns": turns}, {"services": ["Hotels_2", "Media_1"], "turns": turns}]
    found = read_sgd([written(tmp_path / "sgd.json", dialogs)])
    assert found.clients == {"hotels": [[["user", "a"], ["assistant", "b"]]]}
    assert found.dropped == {"several_services": 1}


def test_a_domain_without_any_dialog_left_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [tm1("movie-tickets-1", ("USER", f"seat {i} ?"), ("ASSISTANT", "yes")) for i in range(30)]
    written(tmp_path / "self-dialogs.json", [*lines, tm1("coffee-ordering-1", ("USER", "hello?"))])
    command = ["prepare", "dialog", "--source", "taskmaster1", "--raw", str(tmp_path), "--vocab-size", "300"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert "left out of the clients: 1 of 2 domains (no dialog is left: coffee)" in capsys.readouterr().out


SECRET = "secret words of a client"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x", "holds a str; expected a list of dialogs"),
        ([3], "dialog 1: a int; expected an object"),
        ([tm1(SECRET, ("USER", "a"))], "dialog 1: no known `instruction_id`; expected one that begins with auto, coff"),
        ([tm1("pizza-1", ("USER", "a"), (SECRET, "b"))], "dialog 1, utterance 2: expected `speaker`"),
        ([{"instruction_id": "pizza-1"}], "dialog 1: `utterances` is missing or no list"),
        ([{"instruction_id": "pizza-1", "utterances": [{"speaker": "USER", "text": 3}]}], "utterance 1: expected `sp"),
    ],
)
def test_what_is_malformed_is_named_by_number_not_by_text(tmp_path: Path, content: Any, message: str) -> None:
    path = written(tmp_path / "bad.json", content)
    with pytest.raises(DataError) as caught:
        read_taskmaster_1([path])
    assert message in str(caught.value) and str(path) in str(caught.value) and SECRET not in str(caught.value)


def test_a_file_that_is_no_json_and_services_that_are_no_names(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        read_taskmaster_1([tmp_path / "bad.json"])
    with pytest.raises(DataError, match="dialog 1: `services` is no list of names"):
        read_sgd([written(tmp_path / "sgd.json", [{"services": [3]}])])


def test_a_random_split_is_an_eleventh_each_and_does_not_change() -> None:
    dialogs = [[["user", str(i)], ["assistant", "x"]] for i in range(2200)]
    split = split_randomly(dialogs, 0, "pizza")
    assert [len(split[name]) for name in ("train", "dev", "test")] == [1800, 200, 200]
    assert sorted(int(d[0][1]) for part in split.values() for d in part) == list(range(2200))
    assert split == split_randomly(dialogs, 0, "pizza") != split_randomly(dialogs, 1, "pizza")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    dialogs = [
        tm1(f"{name}-1", ("USER", f"one {name} {i}"), ("ASSISTANT", "fine")) for name in ("coffee", "uber")
        for i in range(11)
    ]  # fmt: skip
    alone = tm1("pizza-1", ("USER", "anybody there"), ("USER", "(deleted)"))
    written(tmp_path / "raw" / "self-dialogs.json", [*dialogs[:15], alone])
    written(tmp_path / "raw" / "woz-dialogs.json", dialogs[15:])
    return tmp_path / "raw"


def test_the_command_prepares_clients_and_a_vocabulary(raw: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    command = ["prepare", "dialog", "--raw", str(raw), "--source", "taskmaster1", "--out", str(out)]
    assert main([*command, "--vocab-size", "300"]) == 0
    out_text = " ".join(capsys.readouterr().out.split())
    assert "coffee" in out_text and "cannot be labelled" not in out_text
    assert "left out of all files: 1 deleted (utterances `(deleted)`), 1 one_side (only one side speaks)" in out_text
    manifest = read_manifest(out)
    assert list(manifest["clients"]) == ["coffee", "ride"]
    sizes = {split: facts["examples"] for split, facts in manifest["clients"]["ride"]["splits"].items()}
    assert sizes == {"train": 9, "dev": 1, "test": 1}
    assert manifest["clients"]["ride"]["splits"]["train"]["characters"] > 9 * len("one uber fine")
    assert read_rows(out, "ride", "test", fields={"turns": list})[0]["turns"][1] == ["assistant", "fine"]
    tokenizer = load_bpe(out / "tokenizer")
    assert tokenizer.eos_token_id == 0 and 257 <= len(tokenizer) <= 300
    assert main([*command, "--vocab-size", "300"]) == 0
    assert main([*command, "--vocab-size", "301"]) == 3
    assert "was prepared before with other vocab_size" in capsys.readouterr().err


def test_a_folder_without_the_sets_files_says_what_it_should_hold(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no dialogs \(all\); --raw must be the folder with self-dialogs"):
        prepare_dialog(tmp_path, tmp_path / "out", source="taskmaster1")
    with pytest.raises(DataError, match=r"no dialogs \(train, dev, test\); --raw must be the folder with train/"):
        prepare_dialog(tmp_path, tmp_path / "out", source="sgd")


def test_a_vocabulary_keeps_every_text_and_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train_bpe(["two lattes to go", "a latte"] * 3, tmp_path / name, size=280)
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (tmp_path / "b" / "tokenizer.json").read_bytes()
    tokenizer = load_bpe(tmp_path / "a")
    for text in ("two lattes", "  spaces  ", "héllo 中文 🙂\n\t", "", EOS):
        assert tokenizer.decode(tokenizer(text).input_ids, clean_up_tokenization_spaces=False) == text
    assert len(tokenizer("latte").input_ids) < 5


def test_vocabularies_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="256 entries cannot hold 256 bytes"):
        train_bpe(["a"], tmp_path / "x", size=256)
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        with pytest.raises(ConfigError, match="has none of tokenizer.json|is not a folder"):
            load_bpe(tmp_path / name)


def test_synthetic_dialogs_alternate_and_either_side_may_begin(tmp_path: Path) -> None:
    clients = generate()
    assert len(clients) == 6 and clients == generate() != generate(seed=1)
    every = [turns for splits in clients.values() for dialogs in splits.values() for turns in dialogs]
    assert {turns[0][0] for turns in every} == {"user", "assistant"}
    assert all(a[0] != b[0] for turns in every for a, b in zip(turns, turns[1:]))
    out = tmp_path / "synthetic"
    assert main(["prepare", "synthetic-dialog", "--out", str(out)]) == 0
    assert main(["prepare", "synthetic-dialog", "--out", str(out), "--seed", "1"]) == 3


@pytest.mark.data
def test_the_real_sets_are_read_whole(shared_data: Path) -> None:
    sgd = shared_data / "dialog" / "sgd"
    found = read_sgd(sorted((sgd / "test").glob("dialogues_*.json")))
    sizes = {"flights": 87, "events": 76, "services": 167, "hotels": 177, "restaurants": 73, "movies": 132}
    assert {name: len(dialogs) for name, dialogs in found.clients.items()} == sizes and not found.dropped
    taskmaster = shared_data / "dialog" / "taskmaster"
    four = read_taskmaster_4(sorted((taskmaster / "TM-4-2024" / "data").glob("*.json")))
    assert {name: len(dialogs) for name, dialogs in four.clients.items()} == {"coffee": 1500}
    assert all(turns[0][0] == "user" and 2 <= len(turns) <= 8 for turns in four.clients["coffee"])
    folder = taskmaster / "TM-1-2019"
    one = read_taskmaster_1([folder / "self-dialogs.first5.json", folder / "sample.json"])
    assert {name: len(dialogs) for name, dialogs in one.clients.items()} == {"restaurant": 2, "movie": 2, "pizza": 2}
