"""The prepared folder: which row goes where, what is noticed on the way, and what is left behind."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from own_rows import classifier, own, weather, write_rows

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.folder import read_manifest
from fedtorch.data.folder import read_rows as read_prepared
from fedtorch.data.own.client_rule import ClientRule, Dirichlet
from fedtorch.data.own.keys import OwnData, SplitRule
from fedtorch.data.own.prepare import Dealt, deal_rows, folder_of, prepare
from fedtorch.tasks.labelled_texts import LabelledTexts

FORM = LabelledTexts("single_label", ())
Row = dict[str, Any]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def label_of(row: Mapping[str, Any]) -> Any:
    return row["label"]


def deal(rows: Sequence[Row], *, source: str = "rows.jsonl", **changes: Any) -> Dealt:
    data = own(write_rows(Path(source), rows) if rows else source, **changes)
    return deal_rows(data, FORM, Path(), label_of)


def places(dealt: Dealt) -> dict[str, tuple[str, str]]:
    """Text -> (client, split)."""
    return {
        row["text"]: (client, split)
        for client, splits in dealt.clients.items()
        for split, rows in splits.items()
        for row in rows
    }


def sizes(dealt: Dealt) -> dict[str, list[int]]:
    return {
        client: [len(splits[name]) for name in ("train", "dev", "test")] for client, splits in dealt.clients.items()
    }


def test_each_client_gives_its_share_with_labels_alike() -> None:
    dealt = deal(weather(120), splits=SplitRule(0.1, 0.2))
    assert sizes(dealt) == dict.fromkeys(("north", "south", "west"), [28, 4, 8])
    for splits in dealt.clients.values():
        for name in splits:
            labels = Counter(row["label"] for row in splits[name])
            assert labels["good"] == labels["bad"]
    assert len(places(dealt)) == 120


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_labels_of_one_row_each_leave_dev_its_share(count: int) -> None:
    rows = [{"text": f"t{i}", "label": f"l{i}", "home": "a"} for i in range(10 * count)]
    assert sizes(deal(rows, splits=SplitRule(0.2, 0.2)))["a"] == [6 * count, 2 * count, 2 * count]


def test_the_order_of_rows_in_a_file_changes_nothing() -> None:
    rows = weather(90)
    assert places(deal(rows)) == places(deal(rows[::-1]))


def test_rows_that_are_added_move_no_rows_of_other_clients_and_few_of_their_own() -> None:
    rows = weather(90)
    more = [{"text": f"new {i}", "label": "good", "home": "north"} for i in range(6)]
    before, after = places(deal(rows)), places(deal(rows + more))
    moved = [text for text in before if before[text] != after[text]]
    assert {before[text][0] for text in moved} <= {"north"}
    assert len(moved) <= 2 * len(more)  # one row changes at most who is last in dev and who is last in test


def test_another_seed_draws_other_splits() -> None:
    assert places(deal(weather(90))) != places(deal(weather(90), seed=1))


def test_an_id_keeps_a_row_in_its_split_when_its_text_is_corrected() -> None:
    rows = [row | {"number": i} for i, row in enumerate(weather(90))]
    corrected = [row | {"text": row["text"].upper()} for row in rows]
    before, after = places(deal(rows, id="number")), places(deal(corrected, id="number"))
    assert {text.upper(): place for text, place in before.items()} == after


def test_a_column_says_which_split() -> None:
    rows = [row | {"part": ("train", "validation", "test")[i % 3]} for i, row in enumerate(weather(90, ("a",)))]
    assert sizes(deal(rows, splits=SplitRule(column="part"))) == {"a": [30, 30, 30]}


def test_a_file_of_test_rows_with_the_column_of_clients_is_dealt_by_it(caplog: pytest.LogCaptureFixture) -> None:
    """Else every client is evaluated on everybody's rows, which looks like scores of its own."""
    rows = weather(40)
    write_rows(Path("exam.jsonl"), [*rows[:12], {"text": "only here", "label": "good", "home": "new"}])
    dealt = deal(rows[12:], splits=SplitRule(0.0, "exam.jsonl"))
    own_rows = Counter(row["home"] for row in rows[:12])
    assert {name: found[2] for name, found in sizes(dealt).items()} == {**own_rows, "new": 1}
    assert all(client == row["home"] for row in rows[:12] for client, split in [places(dealt)[row["text"]]])
    assert sizes(dealt)["new"] == [0, 0, 1]
    assert "1 of the clients in task.data.splits.test have no rows in task.data.source (new)" in caplog.text


def test_a_file_of_test_rows_without_that_column_is_everybodys() -> None:
    bare = [{"text": row["text"], "label": row["label"]} for row in weather(6)]
    write_rows(Path("exam.jsonl"), bare)
    dealt = deal(weather(40)[6:], splits=SplitRule(0.0, "exam.jsonl"))
    assert {found[2] for found in sizes(dealt).values()} == {6}


def test_files_of_test_rows_that_are_named_after_clients_are_dealt_by_their_names() -> None:
    rows, by_file = weather(40), {"clients": ClientRule(by="file")}
    for name in ("west", "north"):
        write_rows(Path("exam") / f"{name}.jsonl", [row for row in rows[:12] if row["home"] == name])
        write_rows(Path("train") / f"{name}.jsonl", [row for row in rows[12:] if row["home"] == name])
    dealt = deal([], source="train/*.jsonl", splits=SplitRule(0.0, "exam/*.jsonl"), **by_file)
    for client, splits in dealt.clients.items():
        assert [row["text"] for row in splits["test"]] == [r["text"] for r in rows[:12] if r["home"] == client]


def test_a_file_of_test_rows_names_no_client_that_looks_like_one_of_training() -> None:
    write_rows(Path("exam.jsonl"), [{"text": "alone", "label": "good", "home": "NORTH"}])
    with pytest.raises(DataError, match="'NORTH' look alike"):
        deal(weather(40), splits=SplitRule(0.0, "exam.jsonl"))


def test_clients_that_are_held_out_are_never_trained() -> None:
    dealt = deal(weather(60), splits=SplitRule(0.25, 0.25, held_out=("west",)))
    assert sizes(dealt)["west"] == [0, 0, 20] and sizes(dealt)["north"] == [10, 5, 5]
    name = write_rows(Path("rows.jsonl"), weather(60))
    with pytest.raises(ConfigError, match="task.data.splits.held_out names 'wst', who is no client; there are north"):
        classifier(name, data={"splits": SplitRule(held_out=("wst",))}).manifest()


@pytest.mark.parametrize(
    ("names", "expected"),
    [(("train", "validation", "test"), [40, 40, 40]), (("train", "test"), [30, 10, 40]), (("train",), [20, 10, 10])],
)
def test_what_a_saved_data_set_has_no_split_for_is_drawn_from_its_train(
    names: tuple[str, ...], expected: list[int]
) -> None:
    from datasets import Dataset, DatasetDict

    rows = {name: [row | {"text": f"{name} {row['text']}"} for row in weather(40, ("a",))] for name in names}
    DatasetDict({name: Dataset.from_list(found) for name, found in rows.items()}).save_to_disk("saved")
    assert sizes(deal([], source="saved")) == {"a": expected}


def test_a_client_with_one_row_trains_on_it() -> None:
    dealt = deal([*weather(30), {"text": "alone", "label": "good", "home": "islet"}])
    assert sizes(dealt)["islet"] == [1, 0, 0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a/b", "is refused: it contains"),
        ("NORTH", "look alike"),
        ("ｎorth", "look alike"),
        ("x" * 101, "has 101 characters"),
        ("a\u200bb", "invisible"),
    ],
)
def test_names_that_cannot_name_a_client_are_refused(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        deal([*weather(6), {"text": "alone", "label": "good", "home": name}])


def test_clients_can_be_made() -> None:
    dealt = deal(weather(60), clients=ClientRule(dirichlet=Dirichlet(0.5, 4, min_size=2)))
    assert list(dealt.clients) == [f"client_{i:03}" for i in range(4)] and sum(map(sum, sizes(dealt).values())) == 60


def test_rows_that_stand_twice_and_rows_that_leak_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"text": f"text {i}", "label": "good", "home": home, "part": "train"} for i in range(3) for home in "ab"]
    rows += [
        {"text": "TEXT  0", "label": "bad", "home": "a", "part": "train"},  # a second time at a
        {"text": "Text 1", "label": "good", "home": "b", "part": "test"},  # b trains on it, and so does a
        {"text": "new", "label": "good", "home": "b", "part": "test"},
    ]
    dealt = deal(rows, splits=SplitRule(column="part"))
    assert dealt.duplicates == {"a": 1, "b": 1} and dealt.leaks == 1
    assert "most (1) in test of b" in caplog.text and "most of them (1) at" in caplog.text


def test_rows_of_a_shared_test_that_leak_are_counted_once() -> None:
    exam = [{"text": row["text"], "label": row["label"]} for row in weather(60)[:5]]  # no client's, so everybody's
    write_rows(Path("exam.jsonl"), exam)
    dealt = deal(weather(60), splits=SplitRule(0.0, "exam.jsonl"))
    assert dealt.leaks == 5 and len(dealt.clients) > 1


def test_a_folder_that_is_prepared_says_what_is_in_it(tmp_path: Path) -> None:
    rows = [*weather(30), {"text": "", "label": "good", "home": "west"}]
    data = own(write_rows(Path("rows.jsonl"), rows), skip_bad_rows=1)
    prepare(tmp_path / "out", "notes", data, FORM, label_of=label_of)
    manifest = read_manifest(tmp_path / "out")
    assert list(manifest["clients"]) == ["north", "south", "west"]
    assert manifest["clients"]["west"]["splits"]["test"]["examples"] == 3
    assert manifest["clients"]["west"]["labels"] == {"bad": 2, "good": 2}
    assert (manifest["record"]["left_out"], manifest["record"]["leaks"]) == (1, 0)
    found = read_prepared(tmp_path / "out", "west", "train", fields=("text", "label"))
    assert {tuple(row) for row in found} == {("text", "label")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "rows.jsonl"]


def test_nothing_is_left_where_preparing_fails(tmp_path: Path) -> None:
    data = own(write_rows(Path("rows.jsonl"), [{"text": "", "label": "a", "home": "b"}]))
    with pytest.raises(DataError):
        prepare(tmp_path / "data" / "out", "notes", data, FORM)
    assert not list((tmp_path / "data").iterdir())


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    with pytest.raises(DataError, match="is where prepared rows go, but it or a folder above is a file"):
        classifier(write_rows(Path("rows.jsonl"), weather(6))).manifest()


def test_a_source_without_a_usable_row_is_an_error() -> None:
    with pytest.raises((ConfigError, DataError), match="rows.jsonl"):
        deal([], source=write_rows(Path("rows.jsonl"), []))


def test_a_changed_file_or_setting_makes_another_folder() -> None:
    rows = weather(30)
    name = write_rows(Path("rows.jsonl"), rows)
    write_rows(Path("exam.jsonl"), rows[:2])
    data = own(name, splits=SplitRule(0.1, "exam.jsonl"))
    times = os.stat(name)
    seen = [folder_of(data, "n", {}), folder_of(own(name), "n", {}), folder_of(data, "n", {"labels": ["a"]})]
    write_rows(Path("rows.jsonl"), [*rows[:-1], rows[-1] | {"text": rows[-1]["text"][::-1]}])  # of the same size
    os.utime(name, ns=(times.st_atime_ns, times.st_mtime_ns))
    seen.append(folder_of(data, "n", {}))
    write_rows(Path("exam.jsonl"), rows[2:4])
    seen.append(folder_of(data, "n", {}))
    assert len(set(seen)) == 5


def test_a_task_prepares_once_and_anew_when_the_file_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    name = write_rows(Path("rows.jsonl"), weather(30))
    first = classifier(name).folder
    assert classifier(name).folder == first and caplog.text.count("preparing") == 1
    write_rows(Path("rows.jsonl"), weather(33))
    second = classifier(name)
    assert second.folder != first and sum(sum(sizes.values()) for sizes in second.manifest().values()) == 33


HOMELESS = """
import os, socket, sys
def refuse(*args, **kwargs):
    raise AssertionError(f"asked the network: {args}")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from pathlib import Path
from fedtorch.data.own.prepare import prepare
from fedtorch.data.own.client_rule import ClientRule
from fedtorch.data.own.keys import OwnData, SplitRule
from fedtorch.tasks.labelled_texts import LabelledTexts
for source in sys.argv[1:]:
    data = OwnData(source, clients=ClientRule(by="home"))
    prepare(Path("data") / Path(source).name, "notes", data, LabelledTexts("single_label", ()))
    assert ("datasets" in sys.modules) == (source != "rows.jsonl")  # it costs a second at every start
"""


@pytest.mark.processes
def test_nothing_goes_below_the_home_folder_and_nobody_is_asked(tmp_path: Path) -> None:
    """A Parquet file, of which `datasets` makes a copy, and a saved data set, where the hub is not switched off."""
    from datasets import Dataset

    Dataset.from_list(weather(30)).to_parquet("rows.parquet")
    Dataset.from_list(weather(30)).save_to_disk("saved")
    write_rows(Path("rows.jsonl"), weather(30))
    shutil.rmtree(tmp_path / "home", ignore_errors=True)
    (tmp_path / "home").mkdir()
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "TRANSFORMERS"))}
    script = [sys.executable, "-c", HOMELESS, "rows.jsonl", "rows.parquet", "saved"]
    subprocess.run(script, env=environ | {"HOME": str(tmp_path / "home")}, check=True, timeout=120)
    assert not list((tmp_path / "home").rglob("*"))
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["rows.jsonl", "rows.parquet", "saved"]


def test_shares_that_leave_nothing_to_train_on_are_refused() -> None:
    with pytest.raises(ValueError, match="dev and test take 1 of every client's rows"):
        SplitRule(0.5, 0.5)


@pytest.mark.long
def test_memory_does_not_grow_with_the_length_of_rows(tmp_path: Path) -> None:
    """60 rows of 80 kB, 5 MB in all, dealt to 10 clients."""
    with Path("rows.jsonl").open("w") as file:
        for i in range(60):
            file.write(json.dumps({"text": f"{i:03} " * 20_000, "label": ("good", "bad")[i % 2], "home": "a"}) + "\n")
    data = OwnData("rows.jsonl", clients=ClientRule(iid=10))
    tracemalloc.start()
    try:
        prepare(tmp_path / "out", "notes", data, FORM, label_of=label_of)
        assert tracemalloc.get_traced_memory()[1] < 2.5e6
    finally:
        tracemalloc.stop()
    splits = [entry["splits"] for entry in read_manifest(tmp_path / "out")["clients"].values()]
    assert sum(split["examples"] for one in splits for split in one.values()) == 60


def test_the_settings_are_kept_with_the_rows(tmp_path: Path) -> None:
    data = OwnData(write_rows(Path("rows.jsonl"), weather(12)), clients=ClientRule(iid=2))
    prepare(tmp_path / "out", "notes", data, FORM)
    options = json.loads((tmp_path / "out" / "manifest.json").read_text())["record"]["options"]
    assert options["source"] == "rows.jsonl" and options["clients"]["iid"] == 2
