"""Every file and config of the page on own data, written as it stands there, gives what the page prints, and trains."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedtorch.main import main as run
from fedtorch.setup.data_check import main as data_check
from fedtorch.setup.init import main as init

PAGE = (Path(__file__).parents[2] / "docs" / "your-data.md").read_text()
KINDS = PAGE.partition("\n## Each kind of rows")[2].partition("\n## ")[0]
SECTIONS = dict(
    zip(re.findall(r"^### (.+)$", KINDS, re.MULTILINE), re.split(r"^### .+$", KINDS, flags=re.MULTILINE)[1:])
)
FILE = re.compile(r"^\$ cat (\S+)\n(.*?)(?=^\$ cat |\Z)", re.MULTILINE | re.DOTALL)


def blocks(section: str) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def test_the_page_has_all_kinds() -> None:
    assert list(SECTIONS) == [
        "Pairs of texts", "Several labels a row", "A number", "Words with tags", "Spans of a text", "CoNLL files",
        "Messages, with tools", "Two conversations", "Answers, good or not", "Texts to go on with",
        "Files for train, dev and test",
        "Separators, encodings, decimals", "Columns within columns",
    ]  # fmt: skip


def test_the_first_config_of_the_page_is_the_one_that_init_writes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs" / "examples"))
    from own_files import write  # type: ignore[import-not-found]

    write(Path())
    capsys.readouterr()
    assert init(["notes.jsonl"]) == 0
    assert f"$ fedtorch init notes.jsonl\n{capsys.readouterr().out}```" in PAGE
    assert f"```yaml\n{Path('notes.yaml').read_text()}```" in PAGE


@pytest.mark.long
@pytest.mark.parametrize("title", SECTIONS)
def test_what_is_copied_from_the_page_gives_what_it_prints_and_trains(
    title: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files, config, check = blocks(SECTIONS[title])
    for name, content in FILE.findall(files):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content)
    (name,) = re.findall(r"^# (\w+\.yaml)$", config, re.MULTILINE)
    Path(name).write_text(config)
    command, *printed = check.splitlines()
    assert command == f"$ fedtorch data check {name}" and printed[0] == printed[-1] == "..."
    assert data_check([name]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "\n".join(printed[1:-1]) in "\n".join(lines)
    assert run(["--config", name, "--set", "rounds=1", "track.tensorboard=false"]) == 0
    assert json.loads(Path(f"runs/{Path(name).stem}/results.json").read_text())["rounds"] == 1
