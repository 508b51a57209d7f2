"""What docs/stats.md prints is what its commands print, on the rows that docs/your-data.md has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fedtorch.cli.__main__ import main
from fedtorch.setup.init import main as init
from fedtorch.stats.proposals import as_yaml
from fedtorch.stats.table import Stats

PAGE = (Path(__file__).parents[2] / "docs" / "stats.md").read_text()


def printed(command: str) -> list[str]:
    """The stretches of its output that the page shows, between the lines `...`."""
    block = re.search(rf"^```\n\$ {re.escape(command)}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert block is not None
    return [part.strip("\n") for part in re.split(r"^\.\.\.$", block[1], flags=re.MULTILINE) if part.strip()]


def bare(text: str) -> str:
    """The text without spaces at the ends of its lines."""
    return "\n".join(line.rstrip() for line in text.splitlines())


@pytest.mark.long
def test_the_tables_proposals_and_the_tokenizer_of_the_page_are_what_its_commands_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs" / "examples"))
    from own_files import write

    write(Path())
    assert init(["notes.jsonl"]) == 0
    commands = [line.removeprefix("$ ") for line in PAGE.splitlines() if line.startswith("$ fedtorch ")]
    words, tables, proposed = (commands[k] for k in (2, 0, 1))
    assert "words" in words and "hospitals" in tables and "--from-stats" in proposed and len(commands) == 3
    for command in (words, tables, proposed):
        if command is proposed:
            Path("notes.yaml").unlink()
        capsys.readouterr()
        assert main(shlex.split(command)[1:]) == 0
        told = bare(capsys.readouterr().out)
        for part in printed(command):
            assert bare(part) in told
    run = Path("runs/hospitals-stats")
    assert f"```\n{as_yaml(Stats.read(run), run).rstrip()}\n```" in PAGE
