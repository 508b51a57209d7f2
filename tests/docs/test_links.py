"""Every link, path, module and config that the documentation names is there; nothing is fetched."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from pages import anchors, broken, configs, documented, has_name, links, modules, paths

import fedtorch
from fedtorch.cli.__main__ import COMMANDS
from fedtorch.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
TEMPLATES = [ROOT / "benchmarks" / f"{name}.md" for name in ("adapter_results", "defences", "robust_scores")]
"""Pages of docs/ before a benchmark fills in its figures; their links are those of docs/."""
BENCHMARKS = [page for page in sorted((ROOT / "benchmarks").glob("[a-z]*.md")) if page not in TEMPLATES]
PAGES = [*TOP, *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("[!.]*/README.md")), *BENCHMARKS]


def test_everything_a_page_points_to_is_there() -> None:
    assert {page.name: found for page in PAGES if (found := broken(page, ROOT))} == {}


def test_every_config_that_a_command_names_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    find_all = pytest.importorskip("fedtorch.config.find").find_all
    monkeypatch.chdir(ROOT)
    missing = []
    for page in PAGES:
        for name in configs(page.read_text()):
            try:
                find_all(Path(name))
            except ConfigError as error:
                missing.append(f"{page.relative_to(ROOT)}: {error}")
    assert missing == []


def test_the_reference_has_every_module_of_the_public_names() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    assert [module for module in sorted({*fedtorch._PUBLIC.values()}) if f"::: {module}\n" not in page] == []


def test_every_page_can_be_reached_from_the_index() -> None:
    start = ROOT / "docs" / "index.md"
    seen, ways = {start}, [start]
    while ways:
        page = ways.pop()
        for target in links(page.read_text()):
            file = (page.parent / target.partition("#")[0]).resolve()
            if file.suffix == ".md" and file.exists() and file not in seen:
                seen.add(file)
                ways.append(file)
    assert set(PAGES) - seen == set()


def test_every_page_is_in_the_menu_of_the_site() -> None:
    menu = (ROOT / "docs" / "site" / "mkdocs.yml").read_text()
    shown = re.findall(r"(?:benchmarks/)?[\w-]+\.md$", yaml.safe_dump(yaml.safe_load(menu)["nav"]), re.MULTILINE)
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - set(shown) == set()
    assert {f"benchmarks/{page.name}" for page in BENCHMARKS} - set(shown) == set()


def test_the_index_says_which_module_each_command_is() -> None:
    said = re.findall("`([^`]+)`", (ROOT / "docs" / "index.md").read_text().partition("## Commands as modules")[2])
    assert set(COMMANDS) - set(said) == set()
    for name in (name for name in said if name.startswith("fedtorch.")):
        spec = find_spec(name)
        assert spec is not None and (not spec.submodule_search_locations or find_spec(f"{name}.__main__")), name


GOOD = """# One: `two` & three
## Same
## Same
[a](other.md#a-heading), [b](#same-1), ![picture](images/p.svg), [out](https://example.org/x), `fedtorch/main.py`

```
python -m fedtorch.main --config smoke/fedavg overlays/zero2 --set rounds=3
python tests/FILE.py --config FILE; python -m pytest tests
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "p.svg").touch()
    (tmp_path / "other.md").write_text("# A heading\n")
    (tmp_path / "page.md").write_text(GOOD)
    return tmp_path / "page.md"


def test_a_good_page_has_nothing_broken(page: Path) -> None:
    assert broken(page, ROOT) == []


@pytest.mark.parametrize(
    ("addition", "said"),
    [
        ("[x](missing.md)", "link to missing.md: no such file"),
        ("![x](images/gone.svg)", "link to images/gone.svg: no such file"),
        ('<img alt="x" src="images/gone.svg">', "link to images/gone.svg: no such file"),
        ("[![x](images/gone.svg)](other.md)", None),
        ("[x](other.md#another)", "link to other.md#another: no such heading"),
        ("[x](#nowhere)", "link to #nowhere: no such heading"),
        ("see `fedtorch/gone.py`", "`fedtorch/gone.py`: no such file"),
        ("see `comm/gone.py`", "`comm/gone.py`: no such file"),
        ("```\npython tests/gone.py\n```", "`tests/gone.py`: no such file"),
        ("`python -m fedtorch.gone --help`", "-m fedtorch.gone: no such module"),
        ("```\ntorchrun --nproc_per_node=3 -m launchers.gone\n```", "-m launchers.gone: no such module"),
        ("```python\nfrom fedtorch.update import Report\n```", "import of fedtorch.update.Report: no such name"),
        (
            "```python\nfrom fedtorch.core.update import Report, Gone\n```",
            "import of fedtorch.core.update.Gone: no such name",
        ),
        ("::: fedtorch.core.update.Gone", "::: fedtorch.core.update.Gone: no such name"),
        ("`[x](missing.md)`, `comm/base.py`, `tests/test_*.py`, `RUN/log.py`", None),
        ("installed: `fedtorch/configs`, `fedtorch/launchers/plan.py`", None),
        ("installed: `fedtorch/launchers/gone.py`", "`launchers/gone.py`: no such file"),
        ("`python -m launchers.NAME --config PAPER/ROW`, `benchmarks/README.md`", None),
        ("`fedtorch/README.md`", "`fedtorch/README.md`: no such file"),
        ("::: fedtorch.core.update.Report", None),
    ],
)
def test_a_bad_line_is_found(page: Path, addition: str, said: str | None) -> None:
    page.write_text(f"{GOOD}\n{addition}\n")
    assert broken(page, ROOT) == ([] if said is None else [said])


def test_what_is_read_off_a_page() -> None:
    assert links(GOOD) == ["other.md#a-heading", "#same-1", "images/p.svg"]
    assert anchors(GOOD) == {"one-two--three", "same", "same-1"}
    assert modules(GOOD) == ["fedtorch.main"]
    assert configs(GOOD) == ["smoke/fedavg", "overlays/zero2"]
    assert paths(GOOD) == ["fedtorch/main.py"]
    assert documented("::: a.b\n    options:\n") == ["a.b"]
    assert has_name("fedtorch.core", ROOT) and not has_name("fedtorch.nothing.at.all", ROOT)


def test_a_config_that_is_not_there_is_found() -> None:
    find_all = pytest.importorskip("fedtorch.config.find").find_all
    for name in configs("`--config smoke/fedavgg`, `--config configs/smoke/gone.yaml`"):
        with pytest.raises(ConfigError):
            find_all(Path(name))
