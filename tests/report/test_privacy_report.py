"""Runs on the same data add up, in a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedtorch.core.errors import ConfigError
from fedtorch.privacy.accounting import Accountant, total_epsilon
from fedtorch.privacy.data_ledger import DataLedger
from fedtorch.privacy.ledger import Ledger
from fedtorch.privacy.release import Release
from fedtorch.report.command_line import main
from fedtorch.report.privacy import privacy_markdown

pytestmark = pytest.mark.usefixtures("exact_accounts")


def run(folder: Path, data: str, releases: int, *, copied: int = 0, **terms: float) -> Path:
    """A folder with a ledger of so many releases, of which the first ones are of another run."""
    terms = {"rate": 0.5, "clients": 20, "noise_multiplier": 3.0, "delta": 1e-3, **terms}
    folder.mkdir()
    ledger = Ledger.begin(folder / "privacy", terms, [Release(round, 0, "x") for round in range(copied)])
    for round in range(copied, releases):
        ledger.enter(round, 0, str(round))
    (folder / "env.json").write_text(json.dumps({"data": data}))
    return folder


def test_releases_of_several_runs_on_the_same_data_are_composed(tmp_path: Path) -> None:
    folders = [
        run(tmp_path / "a", "d1", 3),
        run(tmp_path / "b", "d1", 5, since=2, copied=2),
        run(tmp_path / "c", "d2", 1),
    ]
    text = privacy_markdown(folders)
    lines = [line.strip("| ").split(" | ") for line in text.splitlines()[2:6]]
    account = Accountant(0.5, 3.0, 1e-3)
    shown = [(Path(name).name, int(count), float(epsilon)) for name, count, *_, epsilon in lines]
    assert shown[0] == ("a", 3, round(account.epsilon(3), 4))
    assert shown[1] == ("b", 5, round(account.epsilon(5), 4))
    assert shown[2] == ("**all 2 on the same data**", 6, pytest.approx(account.epsilon(6), abs=2e-4))
    assert shown[3] == ("c", 1, round(account.epsilon(1), 4))
    assert f"{tmp_path / 'c'}: its data have no ledger, so what other runs released of them is not counted" in text


def test_a_ledger_of_the_data_that_is_gone_is_said(tmp_path: Path) -> None:
    folder, path = run(tmp_path / "a", "d1", 3), tmp_path / "d.privacy.jsonl"
    Ledger.open(folder / "privacy").attach(DataLedger(path), folder)
    assert "gone" not in privacy_markdown([folder])
    path.unlink()
    assert f"{folder}: the ledger of its data, {path}, is gone, so what other runs" in privacy_markdown([folder])


def test_attempts_of_an_earlier_version_on_one_cohort_are_shown_at_their_true_cost(tmp_path: Path) -> None:
    """Three attempts at a round of one cohort are one release with noise z/√3."""
    folder = run(tmp_path / "a", "d1", 1)
    with (folder / "privacy" / "ledger.jsonl").open("a") as file:
        file.writelines(json.dumps({"round": 0, "attempt": n, "digest": f"{n}"}) + "\n" for n in (1, 2))
    assert privacy_markdown([folder]).splitlines()[2].endswith(f"| {Accountant(0.5, 3**0.5, 1e-3).epsilon(1):.4f} |")


def test_releases_of_two_kinds() -> None:
    alone = Accountant(0.5, 3.0, 1e-3)
    both = total_epsilon([(0.5, 3.0, 4), (0.5, 4.0, 4)], 1e-3)
    assert alone.epsilon(4) < both < alone.epsilon(8)
    assert total_epsilon([(0.5, 3.0, 0)], 1e-3) == 0.0


def test_runs_without_privacy_have_no_total(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none of these runs has promised anything"):
        privacy_markdown([tmp_path])


def test_the_total_of_a_ledger_of_data_is_at_its_least_delta(tmp_path: Path) -> None:
    data = DataLedger(tmp_path / "d.privacy.jsonl")
    folders = [run(tmp_path / name, "d1", 2, delta=delta) for name, delta in (("a", 1e-5), ("b", 1e-3))]
    for folder in folders:
        Ledger.open(folder / "privacy").attach(data, folder)
    total = privacy_markdown(folders).splitlines()[4]
    assert total.startswith(f"| **all 2 in {data.path}** | 4 |  |  |  | 1e-05 |")
    assert total.endswith(f" {Accountant(0.5, 3.0, 1e-5).epsilon(4):.4f} |")


def test_all_rounds_of_a_ledger_that_does_not_say_since_when_are_its_own(tmp_path: Path) -> None:
    folders = [run(tmp_path / name, "d1", 2) for name in "ab"]
    assert privacy_markdown(folders).splitlines()[4].startswith("| **all 2 on the same data** | 4 |")


def test_the_page_lies_in_the_runs_folder_or_where_a_ledger_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, data = run(tmp_path / "a", "d1", 2), DataLedger(tmp_path / "d.privacy.jsonl")
    (folder / "metrics.jsonl").write_text('{"kind": "run", "clients": [], "rounds": 2}\n')
    Ledger.open(folder / "privacy").attach(data, folder)
    assert main(["privacy", str(folder)]) == 0 and (folder / "report" / "privacy.md").is_file()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["privacy", str(data.path)]) == 0 and (tmp_path / "here" / "report" / "privacy.md").is_file()
