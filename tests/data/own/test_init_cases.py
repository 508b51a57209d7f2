"""`fedtorch init` over data sets as people have them: what it proposes, and that it can be trained as it is."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
import yaml
from init_cases import FOURTEEN, MORE, NOTES, Case, jsonl, kind, proposal, rows, table, text
from own_rows import ARCHITECTURES, BERT

from fedtorch.config import load as yaml_config
from fedtorch.data.own.split_files import split_files
from fedtorch.main import main as run
from fedtorch.setup.data_check import main as data_check
from fedtorch.setup.data_check import own_task
from fedtorch.setup.init import main
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules import check_plan
from fedtorch.tasks.own_overview import overview
from fedtorch.text.byte_bpe import train_subwords

CASES = FOURTEEN | MORE
KINDS = {**ARCHITECTURES, "bert": {key: value for key, value in BERT.items() if key != "random"}}
TRIED = ("several labels", "spans", "chat with tools", "nested Parquet", "rare labels", "own T5", "own Llama")
"""Cases of which a round is trained in every run of the tests; of the others among the slow ones."""


def model_folder(kind: str, folder: Path) -> None:
    """A model of a few hundred weights with a tokenizer, as `save_pretrained` writes both."""
    train_subwords(map(text, range(50)), folder, size=300)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    if kind == "modernbert":
        special |= {"cls_token_id": tokenizer.eos_token_id, "sep_token_id": tokenizer.eos_token_id}
    config = transformers.AutoConfig.for_model(kind, vocab_size=len(tokenizer), **special, **KINDS[kind])
    head = {"t5": "AutoModelForSeq2SeqLM", "gpt2": "AutoModelForCausalLM", "llama": "AutoModelForCausalLM"}
    loader = getattr(transformers, head.get(kind, "AutoModelForMaskedLM"))
    if kind == "t5":
        config.decoder_start_token_id = tokenizer.pad_token_id
    loader.from_config(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in sorted({case.model for case in CASES.values() if case.model}):
        model_folder(name, folder / name)
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield


def proposed(case: Case, models: Path) -> tuple[str, dict[str, Any]]:
    """The options for `init`, and what it wrote."""
    source = case.write(Path())
    options = [source, *case.options, "--out", "data.yaml"]
    if case.model:
        Path("model").symlink_to(models / case.model)
        options += ["--model", "model"]
    assert main(options) == 0
    return source, yaml.safe_load(Path("data.yaml").read_text())


def at(tree: Any, path: str) -> Any:
    for step in path.split("."):
        tree = tree.get(step) if isinstance(tree, dict) else None
    return tree


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_what_is_proposed_fits_the_data_and_passes_the_check(
    name: str, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    _, found = proposed(case, models)
    told = capsys.readouterr().out
    task = found["task"]
    assert (task["name"], task["data"]["columns"]) == (case.task, case.columns), told
    assert task["data"]["clients"] == case.clients, told
    for key, value in case.also.items():
        assert at(task, key) == value, key
    for line in case.said:
        assert line in told
    config = yaml_config.load(Path("data.yaml"))
    looked = overview(own_task(config.task, config.task_name))
    assert looked.problems == [] and sum(sum(rows.rows.values()) for rows in looked.clients.values()) > 0
    check_plan(Plan.of(config, 1))


def train_a_round(name: str, models: Path) -> None:
    proposed(CASES[name], models)
    written = Path("data.yaml").read_text()
    small = [{"random": kind, **keys} for kind, keys in KINDS.items() if f"random: {kind}," in written]
    sets = ["rounds=1", "client.epochs=1", "track.tensorboard=false", "task.data.tokenizer_size=280"]
    sets += [f"task.model={json.dumps(keys)}" for keys in small]
    assert run(["--config", "data.yaml", "--set", *sets]) == 0
    assert json.loads(Path("runs/data/results.json").read_text())["averages"] is not None


@pytest.mark.long
@pytest.mark.parametrize("name", TRIED)
def test_what_is_proposed_trains(name: str, models: Path) -> None:
    train_a_round(name, models)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in TRIED])
def test_what_is_proposed_for_the_others_trains_too(name: str, models: Path) -> None:
    train_a_round(name, models)


def test_the_page_shows_what_is_proposed() -> None:
    page = (Path(__file__).parents[3] / "docs" / "your-data.md").read_text()
    for name, case in FOURTEEN.items():
        assert f"| {name} | {proposal(case)} |" in page, proposal(case)


def test_the_check_draws_its_picture_over_what_was_proposed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([jsonl(NOTES)(Path())]) == 0
    assert data_check(["data.yaml"]) == 0
    assert "picture: data.check.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--label", "diagnoses"],
            "--label is 'diagnoses', but data.jsonl has no such column with values; did you mean",
        ),
        (["--text", "nothing"], "there are note, diagnosis, hospital"),
        (["--client", "x"], "there are note, diagnosis, hospital, file or none"),
        (["--label", "note", "--text", "note"], "--text and --label are both 'note'"),
        (["--task", "token_classification"], "data.jsonl has no columns that fit --task token_classification"),
        (["--encoding", "klingon"], "task.data.encoding is 'klingon', which Python knows no encoding of texts by"),
        (["--separator", "abc"], "task.data.separator is 'abc' but should be one character"),
        (["--client", "note"], None),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_with_what_there_is(
    options: list[str], said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([jsonl(NOTES)(Path()), *options])
    assert code == (2 if said else 0)
    assert said is None or said in capsys.readouterr().err
    assert Path("data.yaml").exists() == (said is None)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [{"tokens": ["a", "b"], "pos_tags": ["NOUN", "VERB"]}] * 9,
            "`pos_tags` has 2 tags, such as 'NOUN', that are none of O",
        ),
        ([{"tokens": ["a", "b"], "ner_tags": [0, 1]}] * 9, "`ner_tags` holds numbers in place of tags"),
        (
            [{"text": f"a b {i}", "spans": [{"start": 0, "end": 99, "label": "X"}]} for i in range(9)],
            "no row can be used:\n  data.jsonl:1: span 1 is characters 0 to 99 of a text of 5",
        ),
        (
            [
                {"text": f"a b {i}", "spans": [{"start": 0, "end": 1 + 98 * (i % 4 > 0), "label": "X"}]}
                for i in range(12)
            ],
            "9 of 12 rows cannot be used as token_classification:",
        ),
    ],
)
def test_rows_that_cannot_be_used_are_told_before_a_config_is_written(
    rows: list[dict[str, Any]], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([jsonl(rows)(Path())]) == 3
    assert said in capsys.readouterr().err
    assert not Path("data.yaml").exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "data.csv",
            b"PK\x03\x04\x14\0",
            "data.csv is a ZIP archive, as Excel files are; save it as CSV, or unpack it",
        ),
        ("data.jsonl", b"\x1f\x8b\x08\0", "data.jsonl is compressed with gzip; unpack it"),
        ("data.csv", b"PAR1\0\0", "data.csv is a Parquet file; let its name end in .parquet"),
        ("data.csv", b'{"a": 1, "b": 2}\n{"a": 1, "b": 3}\n', "data.csv:1: JSON in place of a header"),
        ("data.json", b'{"data": [{"text": "a"}, {"text": "b"}]}', "it has data (lists of objects)"),
        ("data.xlsx", b"PK\x03\x04", "data.xlsx is a ZIP archive, as Excel files are; save it as CSV, or unpack it"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_told_by_its_kind(
    name: str, content: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_bytes(content)
    assert main([name]) == 3
    assert said in capsys.readouterr().err


def test_a_table_without_a_header_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data.csv").write_text("".join(f"{text(i)},{'ab'[i % 2]}\n" for i in range(40)))
    assert main(["data.csv"]) == 0
    assert "no header?           the column of labels is called 'a' as one of its values is" in capsys.readouterr().out


@pytest.mark.parametrize("mark", ["\n", "\u2028", "\x85", "\x07", "\ufeff", "\N{GRINNING FACE}", ": #", "\\"])
def test_strange_characters_in_names_and_labels_end_no_line_of_the_config(
    mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {f"a{mark}b": text, f"label{mark}1": lambda i: f"{kind(i)}{mark}x", f"c{mark}d": lambda i: text(i, 3)}
    source = jsonl(rows(**columns), f"a{mark}b.jsonl")(Path())
    assert main([source, "--out", "data.yaml"]) == 0
    data = yaml.safe_load(Path("data.yaml").read_text())["task"]["data"]
    assert data["source"] == source and data["columns"] == {"text": f"a{mark}b", "label": f"label{mark}1"}
    assert all(line.isprintable() for line in capsys.readouterr().out.split("\n"))


@pytest.mark.parametrize(
    ("name", "lines", "said"),
    [
        ("data.txt", [json.dumps(row) for row in NOTES], "every value of `text` begins as an object does"),
        (
            "data.csv",
            ["tokens;tags", *(f"{text(i).split()};{['O'] * 8}" for i in range(30))],
            "every value of `tokens` is a list as a text that is no JSON",
        ),
    ],
)
def test_texts_that_look_like_objects_and_lists_are_told(
    name: str, lines: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_text("\n".join(lines))
    assert main([name]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("stray", [5, ["x"], {"y": 1}, "[1, 2]"])
@pytest.mark.parametrize("place", [0, 20])
def test_a_few_values_of_another_kind_change_no_guess(stray: Any, place: int) -> None:
    found = [{"text": stray if i == place else text(i), "label": kind(i)} for i in range(48)]
    assert main([jsonl(found)(Path())]) == 0
    data = yaml.safe_load(Path("data.yaml").read_text())["task"]["data"]
    assert data["columns"] == {"text": "text", "label": "label"}
    assert data.get("skip_bad_rows", 0) == (not isinstance(stray, str))


def test_a_stray_text_in_a_column_of_lists_is_left_out() -> None:
    found = [{"text": text(i), "labels": "none" if i == 3 else json.dumps(["a", "b"][: 1 + i % 2])} for i in range(48)]
    assert main([table(found)(Path())]) == 0
    task = yaml.safe_load(Path("data.yaml").read_text())["task"]
    assert (task["problem"], task["data"]["skip_bad_rows"]) == ("multi_label", 1)


def test_of_many_columns_ten_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([jsonl(rows(text=text, label=kind, more=lambda i: {f"k{j}": 1 for j in range(50)}))(Path())]) == 0
    assert "`more.k9`, one value; and 40 more\n" in capsys.readouterr().out


def test_a_damaged_parquet_file_is_told_in_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    Path("data.parquet").write_bytes(b"no parquet")
    assert main(["data.parquet"]) == 3
    assert capfd.readouterr().err.startswith("fedtorch: data.parquet cannot be read: ")


def test_a_name_that_is_no_unicode_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([jsonl(NOTES, "a\udcffb.jsonl")(Path()), "--out", "data.yaml"]) == 2
    assert "the name 'a\\udcffb.jsonl' is no text in UTF-8" in capsys.readouterr().err


def test_pipes_are_no_files(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("data.jsonl")
    assert main(["data.jsonl"]) == 2
    assert "'data.jsonl' is no file, no folder with files" in capsys.readouterr().err


def test_a_file_in_another_encoding_is_named_with_byte_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    FOURTEEN["German CSV"].write(Path())
    assert main(["data.csv"]) == 3
    said = capsys.readouterr().err
    assert re.match(
        r"fedtorch: data\.csv: line 2, byte 4 is not UTF-8 \(0xfc\); give the encoding with --encoding", said
    )


def test_a_model_that_cannot_do_the_task_is_refused_before_a_config_is_written(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("model").symlink_to(models / "bert")
    assert main([jsonl([{"text": text(i)} for i in range(9)])(Path()), "--model", "model"]) == 2
    assert "--model is a bert, which cannot do causal_lm, what the columns `text` are for" in capsys.readouterr().err


def test_other_splits_beside_a_file_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train", "test"):
        jsonl(NOTES, f"{name}.jsonl")(Path())
    assert main(["train.jsonl"]) == 0
    assert "passed over" in (told := capsys.readouterr().out) and "test.jsonl beside it; give the folder" in told


@pytest.mark.parametrize(
    ("model", "said", "is_written"),
    [
        ("model", "chat template  the model's", False),
        (
            "hub:some/model",
            "the model's is used; if it has none, the run says so: give one in task.chat_template",
            False,
        ),
        (None, "", True),
    ],
)
def test_a_chat_template_is_written_where_there_is_none(
    model: str | None, said: str, is_written: bool, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(models / "llama", "model")
    Path("model/chat_template.jinja").write_text("{{ messages }}")
    source = FOURTEEN["chat with tools"].write(Path())
    assert main([source, *(["--model", model] if model else [])]) == 0
    assert said in capsys.readouterr().out
    assert Path("data.jinja").exists() == ("chat_template: data.jinja" in Path("data.yaml").read_text()) == is_written


def test_positions_that_are_for_padding_are_no_room_for_tokens() -> None:
    Path("model").mkdir()
    Path("model/config.json").write_text('{"model_type": "roberta", "max_position_embeddings": 26}')
    assert main([jsonl(NOTES)(Path()), "--model", "./model"]) == 0
    assert yaml.safe_load(Path("data.yaml").read_text())["task"]["max_length"] == 24


@pytest.mark.parametrize(
    ("names", "train", "splits"),
    [
        (["train.csv", "dev.csv", "test.csv"], "d/train.csv", {"dev": "d/dev.csv", "test": "d/test.csv"}),
        (["a-train.jsonl", "a.valid.jsonl"], "d/a-train.jsonl", {"dev": "d/a.valid.jsonl"}),
        (["train/x.jsonl", "train/y.jsonl", "test/x.jsonl"], "d/train", {"test": "d/test/x.jsonl"}),
        (["train-0.jsonl", "train-1.jsonl"], "d/train*.jsonl", {}),
        (["train.jsonl", "readme.txt"], "d", {}),
        (["dev.jsonl", "test.jsonl"], "d", {}),
        (["train.jsonl"], "d", {}),
        (["train-test.jsonl", "train.jsonl"], "d", {}),
        (["train/deep/x.jsonl", "test/x.jsonl"], "d", {}),
    ],
)
def test_files_are_splits_where_all_their_names_say_so(names: list[str], train: str, splits: dict[str, str]) -> None:
    for name in names:
        jsonl(NOTES[:3], f"d/{name}")(Path())
    assert split_files("d") == (train, splits)


def test_labels_are_never_taken_from_a_column_of_clients_but_where_that_is_said() -> None:
    found = [{"text": text(i), "country": "ab"[i % 2], "author": f"p{i % 3}"} for i in range(48)]
    assert main([jsonl(found)(Path())]) == 0
    task = yaml.safe_load(Path("data.yaml").read_text())["task"]
    assert (task["name"], task["data"]["columns"]) == ("causal_lm", {"text": "text"})
    assert task["data"]["clients"] == {"by": "author"}
    assert main(["data.jsonl", "--label", "country", "--out", "b.yaml"]) == 0
    assert yaml.safe_load(Path("b.yaml").read_text())["task"]["data"]["columns"]["label"] == "country"


def test_rounds_are_fewer_where_texts_are_read_in_windows() -> None:
    short, long = ([{"text": text(i, words), "label": "ab"[i % 2]} for i in range(90)] for words in (20, 900))
    rounds = []
    for number, found in enumerate((short, long)):
        assert main([jsonl(found, f"{number}.jsonl")(Path()), "--out", f"{number}.yaml"]) == 0
        rounds.append(yaml.safe_load(Path(f"{number}.yaml").read_text())["rounds"])
    assert rounds == [10, 2]
