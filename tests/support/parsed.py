"""A text in YAML is parsed once in a process: runs of tests read the same few configs, in milliseconds each."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from typing import Any

import pytest
import yaml

from fedtorch.core import yaml_tree

parse = yaml_tree._parse
"""Parser of the package itself, which remembers no text."""
LONGEST = 20_000
"""Characters of a text that is kept; those of tests about long ones are not."""


def parse_once() -> None:
    """Let this process, and those that it forks, remember what a text came to, under all that it depends on."""

    @lru_cache(maxsize=1000)
    def parsed(text: str, source: str, numbered: bool) -> tuple[Any, dict[yaml_tree.Key, str]]:
        marks: dict[yaml_tree.Key, str] = {}
        return parse(text, source, marks, numbered=numbered), marks

    def instead(text: str, source: str, marks: dict[yaml_tree.Key, str], *, numbered: bool) -> Any:
        if len(text) > LONGEST:
            return parse(text, source, marks, numbered=numbered)
        value, known = parsed(text, source, numbered)
        marks.update(known)
        return deepcopy(value)

    yaml_tree._parse = instead


class _WithoutLibyaml(yaml.BaseLoader):
    yaml_implicit_resolvers = yaml_tree._Loader.yaml_implicit_resolvers


def read_without_libyaml(patch: pytest.MonkeyPatch) -> None:
    """Texts that were not parsed yet are read by PyYAML's own parser, as where it was built without libyaml."""
    patch.setattr(yaml_tree, "_Loader", _WithoutLibyaml)
