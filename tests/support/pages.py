"""What a page of the documentation points to: links, headings, files, modules and names of configs."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

FENCE = re.compile(r"^ {0,3}(```+|~~~+)[^\n]*\n.*?^ {0,3}\1[ \t]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[(?:[^\[\]]|!?\[[^\]]*\]\([^)]*\))*\]\(<?([^()\s<>]+)>?(?: \"[^\"]*\")?\)")
TAG = re.compile(r"<(?:img|source|a)\b[^>]*?\b(?:src|srcset|href)=\"([^\"]+)\"")
CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
COMMAND = re.compile(r"(?:python3?|torchrun|\$\(BIN\)/python)\b[^\n`]*?\s-m\s+([\w.]+)")
IMPORT = re.compile(r"^\s*from ((?:fedtorch|launchers)[\w.]*) import ([\w, ]+)", re.MULTILINE)
DIRECTIVE = re.compile(r"^::: ([\w.]+)", re.MULTILINE)
PLACEHOLDER = re.compile(r"\b(?!README|CONTRIBUTING|CHANGELOG|LICENSE)[A-Z]{2,}\b")
"""A word such as FILE, which the reader fills in."""
TOP = ("benchmarks", "configs", "docs", "fedtorch", "launchers", "slurm", "tests")
"""Folders of the repository; a path in a command that begins with one of them must be there."""
INSTALLED = re.compile(r"^fedtorch/(?=(?:configs|launchers)\b)")
"""These two lie in the package once it is installed, and beside it in the repository."""
SUFFIXES = (".py", ".yaml", ".yml", ".md", ".sbatch", ".svg", ".toml")


def without_code(text: str) -> str:
    """The page without what is shown as code, in which nothing is a link or a heading."""
    return CODE.sub("", FENCE.sub("", text))


def links(text: str) -> list[str]:
    """Targets of links and images, in order; those to other sites left out."""
    text = without_code(text)
    found = [*LINK.findall(text), *TAG.findall(text)]
    return [target for target in found if not re.match(r"[a-z][a-z0-9+.-]*:", target)]


def anchors(text: str) -> set[str]:
    """What headings are called in an address, the second of two equal ones with a `-1`."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^ {0,3}#{1,6}[ \t]+(.+?)[ \t#]*$", FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(slug if not seen[slug] else f"{slug}-{seen[slug]}")
        seen[slug] += 1
    return found


def code(text: str) -> Iterator[str]:
    """Every piece of code on the page, blocks and words in backticks."""
    for block in FENCE.finditer(text):
        yield block.group()
    for match in CODE.finditer(FENCE.sub("", text)):
        yield match.group(2)


def paths(text: str) -> list[str]:
    """Files and folders of the repository that the page names in code; words with gaps to fill in are left out."""
    found = []
    for piece in code(text):
        for word in re.split(r"[\s'\"=,;()|]+", piece):
            word = word.removeprefix("./").rstrip(".:")
            if not re.fullmatch(r"[\w.-]+(?:/[\w.-]+)+/?", word) or PLACEHOLDER.search(word):
                continue
            if word.split("/")[0] in TOP or word.endswith(SUFFIXES):
                found.append(INSTALLED.sub("", word))
    return found


def modules(text: str) -> list[str]:
    """Modules of ours that a command on the page runs."""
    named = [name for piece in code(text) for name in COMMAND.findall(piece)]
    ours = [name for name in named if name.split(".")[0] in ("fedtorch", "launchers")]
    return [name for name in ours if not PLACEHOLDER.search(name)]


def documented(text: str) -> list[str]:
    """Names whose docstrings the page takes into the site (`::: name`)."""
    return DIRECTIVE.findall(text)


def imported(text: str) -> list[str]:
    """Names of ours that a piece of Python on the page imports, dotted."""
    found = [match for piece in code(text) for match in IMPORT.findall(piece)]
    return [f"{module}.{name.strip()}" for module, names in found for name in names.split(",")]


def configs(text: str) -> list[str]:
    """What stands behind `--config` in commands, without placeholders (`FILE`, `$row`) and files without a folder,
    which are the reader's own.
    """
    found = []
    for piece in code(text):
        for line in piece.replace("\\\n", " ").splitlines():
            for rest in re.findall(r"--config[ =]([^#|;&]*)", line):
                for word in rest.split():
                    if word.startswith("-"):
                        break
                    if "/" in word and not re.search(r"[${}<>*…]", word) and not PLACEHOLDER.search(word):
                        found.append(word.strip("'\""))
    return found


def has_module(name: str, root: Path) -> bool:
    """Is there such a module, or package that can be run?"""
    place = root.joinpath(*name.split("."))
    return place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()


def has_name(name: str, root: Path) -> bool:
    """Is there such a module, or does one bind that name?"""
    place = root.joinpath(*name.split("."))
    if place.with_suffix(".py").is_file() or (place / "__init__.py").is_file():
        return True
    module = place.parent.with_suffix(".py")
    module = module if module.is_file() else place.parent / "__init__.py"
    if not module.is_file():
        return False
    bound = set()
    body = ast.parse(module.read_text()).body
    for node in [*body, *(inner for outer in body if isinstance(outer, ast.If) for inner in outer.body)]:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound |= {inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)}
    return place.name in bound


def broken(page: Path, root: Path) -> list[str]:
    """Everything on a page that points to nothing, one line each."""
    text, found = page.read_text(), []
    for target in links(text):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists():
            found.append(f"link to {target}: no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            found.append(f"link to {target}: no such heading")
    for word in paths(text):
        if not any((place / word).exists() for place in (root, root / "fedtorch", page.parent)):
            found.append(f"`{word}`: no such file")
    found += [f"-m {name}: no such module" for name in modules(text) if not has_module(name, root)]
    found += [f"import of {name}: no such name" for name in imported(text) if not has_name(name, root)]
    found += [f"::: {name}: no such name" for name in documented(text) if not has_name(name, root)]
    return found
