from __future__ import annotations

import json
import logging
import threading
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prepared_files import seal

from fedtorch.core.errors import DataError
from fedtorch.data import folder as f
from fedtorch.data.paths import RESERVED

ROWS = [{"question": "how many ½ “é” ?", "sql": "SELECT 1 ;"}, {"question": "a\u2028b", "sql": "SELECT 2 ;"}]


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    entry = f.write_client(tmp_path, "atis", {"train": ROWS, "dev": []}, facts={"schema": "| a : b"})
    f.write_manifest(tmp_path, "demo", clients={"atis": entry}, record={"db_content": False})
    return tmp_path


def train_file(root: Path) -> Path:
    return root / "atis" / "train.jsonl"


def test_what_was_written_is_read_back_in_order(prepared: Path) -> None:
    assert f.read_rows(prepared, "atis", "train") == ROWS
    assert f.read_rows(prepared, "atis", "dev") == []
    assert f.read_client(prepared, "atis") == {"schema": "| a : b"}
    manifest = f.read_manifest(prepared)
    assert manifest["name"] == "demo" and manifest["record"] == {"db_content": False}
    split = manifest["clients"]["atis"]["splits"]["train"]
    assert split["examples"] == 2
    assert split["characters"] == sum(len(text) for row in ROWS for text in row.values())
    assert f.hashlib.sha256(train_file(prepared).read_bytes()).hexdigest() == split["sha256"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"question": "q", "sql": ', "not JSON"),
        (b'["question", "sql"]', "a JSON list, not an object"),
        (b'{"question": "q"}', "the field 'sql' is missing"),
        (b'{"question": "q", "sql": 3}', "the field 'sql' is a int, not a str"),
        (b'{"question": "q", "sql": null}', "the field 'sql' is a NoneType, not a str"),
        (b'{"question": "\xff", "sql": "s"}', "byte 15 is not UTF-8"),
        (b'{"question": "\\ud800", "sql": "s"}', "half of a surrogate pair"),
        (b"[" * 100_000, "not usable JSON"),
        (b'{"question": "q", "sql": ' + b"9" * 10_000 + b"}", "not usable JSON"),
        (b'\xef\xbb\xbf{"question": "q", "sql": "s"}', "not JSON"),
    ],
)
def test_a_bad_line_is_named_with_file_and_line_and_can_be_skipped(
    prepared: Path, line: bytes, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = train_file(prepared).read_bytes()
    train_file(prepared).write_bytes(good + line + b"\n" + good * 100)
    seal(prepared)
    with pytest.raises(DataError) as caught:
        f.read_rows(prepared, "atis", "train")
    assert f"{train_file(prepared)}:3: " in str(caught.value) and problem in str(caught.value)
    assert "expected a JSON object in UTF-8 with question (str), sql (str)" in str(caught.value)
    with caplog.at_level(logging.WARNING):
        rows = f.read_rows(prepared, "atis", "train", on_bad_line="skip")
    assert len(rows) == 202
    assert "1 of 203 lines" in caplog.text and ":3: " in caplog.text


def test_more_bad_lines_than_the_ceiling_are_an_error_even_when_skipping(prepared: Path) -> None:
    good = train_file(prepared).read_bytes()
    train_file(prepared).write_bytes(good * 49 + b"{\n" * 2)  # 2 of 100
    seal(prepared)
    assert len(f.read_rows(prepared, "atis", "train", on_bad_line="skip", ceiling=0.02)) == 98
    with pytest.raises(DataError, match="2 of 100 lines .* more than 1.0% are not skipped"):
        f.read_rows(prepared, "atis", "train", on_bad_line="skip")


def test_errors_about_a_line_do_not_contain_its_text(prepared: Path) -> None:
    for line in (
        '{"question": "canary", "sql": 1}',
        '{"question": "canary" "sql"',
        '"canary"',
        '{"question": "canary"}',
    ):
        train_file(prepared).write_text(line)
        with pytest.raises(DataError) as caught:
            f.read_rows(prepared, "atis", "train")
        assert "canary" not in str(caught.value)


def test_a_mapping_of_fields_gives_their_exact_types(prepared: Path) -> None:
    train_file(prepared).write_text('{"label": 1, "more": [2]}\n\n{"label": true}\n')
    with pytest.raises(DataError, match="jsonl:3: the field 'label' is a bool, not a int"):
        f.read_rows(prepared, "atis", "train", fields={"label": int})
    train_file(prepared).write_text('{"label": 1, "more": [2]}\n\n')
    seal(prepared)
    assert f.read_rows(prepared, "atis", "train", fields={"label": int}) == [{"label": 1, "more": [2]}]


def test_missing_folders_clients_and_splits_say_what_there_is_and_what_to_run(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fedtorch data prepare"):
        f.read_manifest(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no client 'yelp'; it has atis"):
        f.read_rows(prepared, "yelp", "train")
    with pytest.raises(DataError, match=r"test.jsonl is missing"):
        f.read_rows(prepared, "atis", "test")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 2}', '{"format": 1}', '{"format": 1, "clients": []}'])
def test_a_manifest_of_another_format_is_refused(prepared: Path, text: str) -> None:
    (prepared / "manifest.json").write_text(text)
    with pytest.raises(DataError, match="manifest.json"):
        f.read_manifest(prepared)


def test_a_manifest_with_a_bad_client_name_is_refused(prepared: Path) -> None:
    manifest = {"format": 1, "name": "x", "clients": {"../x": {}}, "record": {}}
    (prepared / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="refused"):
        f.read_manifest(prepared)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a..b", "a\0b", "a\nb", "a\u200bb", " a", "x" * 101])
def test_dangerous_client_names_are_refused(name: str) -> None:
    if name == ".":  # harmless: it never names a folder as it is
        assert f.folder_name(name).startswith("client-")
        return
    with pytest.raises(DataError, match="refused"):
        f.check_client_name(name)


@pytest.mark.parametrize("pair", [("atis", "ATIS"), ("atis", "\uff41tis"), ("stra\xdfe", "STRASSE"), ("a", "a")])
def test_names_that_look_alike_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(DataError, match="look alike"):
        f.check_client_names(pair)


def test_a_name_that_is_anothers_folder_is_refused() -> None:
    with pytest.raises(DataError, match="look alike"):
        f.check_client_names(["Köln Süd", f.folder_name("Köln Süd")])


def test_safe_names_are_their_own_folders_and_others_get_a_hash() -> None:
    assert f.folder_name("c0412") == "c0412"
    assert f.folder_name("Köln Süd").startswith("k-ln-s-d-")
    assert f.folder_name("ATIS") != "atis" and f.folder_name("名前").startswith("client-")
    assert not {f.folder_name(name) for name in RESERVED} & RESERVED


@given(st.text(max_size=120))
def test_every_accepted_name_has_a_portable_folder_directly_below_the_root(name: str) -> None:
    try:
        f.check_client_name(name)
    except DataError as error:
        assert name.isprintable() or str(error).isprintable()
        return
    folder = f.folder_name(name)
    assert folder.isascii() and folder == folder.lower() and 0 < len(folder) <= 64
    assert f.inside(Path("/data"), folder).parent == Path("/data").resolve()


@given(st.lists(st.sampled_from(["..", "a", ".", "/etc", "b/../.."]), max_size=6))
def test_a_joined_path_is_below_the_root_or_refused(parts: list[str]) -> None:
    try:
        assert f.inside(Path("/data/x"), *parts).is_relative_to("/data/x")
    except DataError as error:
        assert "leads out of" in str(error)


@given(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60))
def test_different_names_have_different_folders(first: str, second: str) -> None:
    try:
        f.check_client_names([first, second])
    except DataError:
        return
    assert f.folder_name(first) != f.folder_name(second)
    assert unicodedata.normalize("NFKC", first) != unicodedata.normalize("NFKC", second)


def test_a_link_out_of_the_folder_is_not_followed(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "train.jsonl").write_text("{}")
    (prepared / "yelp").symlink_to(elsewhere)
    with pytest.raises(DataError, match="leads out of"):
        f.read_rows(prepared, "yelp", "train")


def test_writing_refuses_a_client_twice_and_rows_that_are_not_plain_json(tmp_path: Path) -> None:
    f.write_client(tmp_path, "a", {"train": []}, facts={})
    with pytest.raises(DataError, match="written twice"):
        f.write_client(tmp_path, "a", {"train": []}, facts={})
    for index, value in enumerate(["\ud800", float("nan"), object()]):
        with pytest.raises(DataError, match="not plain JSON"):
            f.write_client(tmp_path, f"b{index}", {"train": [{"x": value}]}, facts={})
    with pytest.raises(DataError, match="split name"):
        f.write_client(tmp_path, "c", {"../train": []}, facts={})


def test_an_atomic_folder_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with f.atomic_folder(out) as temporary:
        (temporary / "a").write_text("1")
        assert not out.exists()
    assert (out / "a").read_text() == "1"
    with pytest.raises(RuntimeError), f.atomic_folder(tmp_path / "other") as temporary:
        raise RuntimeError
    with pytest.raises(DataError, match="is a file"), f.atomic_folder(out / "a"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["deep"] and [path.name for path in out.parent.iterdir()] == [
        "out"
    ]


def test_of_several_writers_one_wins_and_the_others_leave_and_say_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    barrier = threading.Barrier(4)

    def write(number: int) -> None:
        with f.atomic_folder(tmp_path / "out") as temporary:
            for name in "ab":
                (temporary / name).write_text(str(number))
            barrier.wait()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "a").read_text() == (tmp_path / "out" / "b").read_text()
    assert not caplog.messages
