"""Pictures of the documentation are those that its text comes to."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.test_rules import ROOMS

IMAGES = Path(__file__).parents[2] / "docs" / "images"
PACKAGE = IMAGES.parents[1] / "fedtorch"


@pytest.fixture(scope="module")
def draw() -> ModuleType:
    """The script that draws them."""
    spec = importlib.util.spec_from_file_location("draw_pictures", IMAGES / "draw.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_they_are_drawn_from_the_text_as_it_is_now(draw: ModuleType, tmp_path: Path) -> None:
    draw.draw(tmp_path)
    drawn = sorted(tmp_path.iterdir())
    names = ["gate.svg", "members.svg", "rooms.svg", "sequence.svg", "units.svg", "update.svg"]
    assert [path.name for path in drawn] == names
    stale = [path.name for path in drawn if path.read_text() != (IMAGES / path.name).read_text()]
    assert not stale, "run `python docs/images/draw.py`"


def test_a_room_stands_above_all_that_it_may_import(draw: ModuleType) -> None:
    levels = draw.floors(draw.rooms_of((IMAGES.parent / "architecture.md").read_text()))
    floor = {room: number for number, rooms in enumerate(levels) for room in rooms}
    assert set(floor) == set(ROOMS) == set(draw.PURPOSES)
    assert all(floor[room] > floor[below] for room, allowed in ROOMS.items() for below in allowed)


def test_files_that_a_picture_names_are_there() -> None:
    lanes = yaml.safe_load((IMAGES / "pictures.yaml").read_text())["update"]["lanes"]
    named = [name for lane in lanes for _, text in lane["boxes"] for name in re.findall(r"[\w/]+\.py", text)]
    assert len(named) >= 7
    assert not [name for name in named if not list(PACKAGE.rglob(name))]
