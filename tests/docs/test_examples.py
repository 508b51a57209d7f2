"""The examples of the documentation that are no algorithms do what their page says (algorithms: `test_third_party`)."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml

from fedtorch.config.load import load
from fedtorch.core.errors import DataError
from fedtorch.main import main
from fedtorch.models.t5 import T5Model
from fedtorch.tasks.text2sql import Text2SQL

DOCS = Path(__file__).parents[2] / "docs"


def test_own_clients_are_a_prepared_folder_whose_every_query_survives_the_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    from own_clients import write  # type: ignore[import-not-found]

    write(tmp_path / "own")
    task = Text2SQL(data=str(tmp_path / "own"), model=T5Model(d_model=16))
    assert task.manifest() == {
        "rivers": {"train": 32, "dev": 4, "test": 4},
        "lakes": {"train": 16, "dev": 4, "test": 4},
    }
    assert [task.check(client) for client in task.manifest()] == [None, None]
    assert len(task.load("lakes", "train")) == 16
    with pytest.raises(DataError):
        task.load("ponds", "train")


def test_a_task_in_one_file_trains_as_its_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    monkeypatch.chdir(tmp_path)
    from weekday_task import write  # type: ignore[import-not-found]

    write(Path("data/weekdays"))
    block = (DOCS / "adding-a-task.md").read_text().split("```yaml\n")[1].split("```")[0]
    Path("weekday.yaml").write_text(block)
    assert main(["--config", "weekday.yaml", "--set", "track.tensorboard=false"]) == 0
    results = json.loads(Path("runs/weekday/results.json").read_text())
    assert set(results["clients"]) == {"north", "south", "west"}
    assert results["averages"]["accuracy"]["micro"] >= 2 / 3 and results["averages"]["accuracy"]["count"] == 9


def test_the_picture_is_drawn_within_its_frame_and_takes_nothing_from_elsewhere() -> None:
    picture = ElementTree.parse(DOCS / "images" / "round.svg").getroot()
    _, _, width, height = (float(number) for number in picture.attrib["viewBox"].split())
    boxes = [box for box in picture.iter("{http://www.w3.org/2000/svg}rect") if "x" in box.attrib and "y" in box.attrib]
    assert boxes
    for box in boxes:
        left, top, wide, high = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
        assert 0 <= left and left + wide <= width and 0 <= top and top + high <= height
    assert not [element.tag for element in picture.iter() if any("href" in key for key in element.attrib)]


def test_the_files_of_the_page_on_own_data_have_the_columns_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    from own_files import write  # type: ignore[import-not-found]

    write(tmp_path)
    page = (DOCS / "your-data.md").read_text()
    first = (tmp_path / "notes.jsonl").read_text().splitlines()[0]
    assert f"$ head -1 notes.jsonl\n{first}\n" in page
    assert (tmp_path / "questions.csv").read_text().splitlines()[0] == "prompt,completion,department"
    assert (tmp_path / "pairs.tsv").read_text().splitlines()[0] == "source\ttarget"
    assert (tmp_path / "saved" / "dataset_info.json").is_file()


def test_the_configs_of_the_page_on_own_data_are_valid(tmp_path: Path) -> None:
    page = (DOCS / "your-data.md").read_text()
    found = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    assert len(found) == 18
    for text in found:
        (tmp_path / "page.yaml").write_text(text)
        load(tmp_path / "page.yaml")


def test_metrics_in_one_file_are_measured_as_their_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    monkeypatch.chdir(tmp_path)
    from own_files import write
    from own_metrics import FoundMalignant  # type: ignore[import-not-found]

    write(tmp_path)
    page, file = (DOCS / "adding-a-metric.md").read_text(), (DOCS / "examples" / "own_metrics.py").read_text()
    for block in page.split("```python\n# own_metrics.py\n")[1:]:
        assert block.split("```")[0] in file
    first = (DOCS / "your-data.md").read_text().split("```yaml\n")[1].split("```")[0]
    Path("notes.yaml").write_text(first.replace("rounds: 6", "rounds: 1"))
    Path("more.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    assert main(["--config", "notes.yaml", "more.yaml", "--set", "track.tensorboard=false", "run.name=m"]) == 0
    averages = json.loads(Path("runs/m/results.json").read_text())["averages"]
    assert {"macro_f1", "short_answers", "found_malignant"} < set(averages)
    both = FoundMalignant().sums(["malignant", "benign"], ["malignant", "malignant"])
    assert FoundMalignant().score(both) == 0.5


def test_the_page_on_reports_shows_code_of_its_example() -> None:
    page, file = (DOCS / "reports.md").read_text(), (DOCS / "examples" / "own_tracker.py").read_text()
    (block,) = page.split("```python\n# own_tracker.py\n")[1:]
    assert block.split("```")[0] in file
    assert yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])["run"]["trackers"][0] == "tensorboard"
