"""Hooks of mkdocs: pages that lie beside what they describe become pages of the site, and links to them follow.

Notebooks become pages too: their text, their code and what it shows.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
BENCHMARKS = ("speed", "training", "memory", "scale", "sparse", "privacy", "peers")
"""Pages of benchmarks/, one per question."""
BESIDE = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "LICENSE",
    "benchmarks/README.md": "benchmarks.md",
    **{f"benchmarks/{name}.md": f"benchmarks/{name}.md" for name in BENCHMARKS},
    "configs/README.md": "configs.md",
}
"""Path in the repository -> page of the site."""


def on_files(files: Files, config: Any) -> Files:
    """The pages of docs/, and those of `BESIDE`."""
    for source, page in BESIDE.items():
        if (ROOT / source).is_file():
            files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        page = f"notebooks/{notebook.stem}.md"
        files.append(File.generated(config, page, content=page_of(json.loads(notebook.read_text()))))
    return files


def page_of(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown; of what a cell shows the picture, or else the text."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            shown = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in shown:
                parts.append(f"![What the cell shows](data:image/png;base64,{shown['image/png'].strip()})")
            elif output.get("name") != "stderr":
                parts.append(f"```text\n{''.join(shown['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with links in the repository turned into links in the site; wider where it has no headings to list."""
    if "\n## " not in markdown:
        page.meta.setdefault("hide", ["toc"])
    sources = {site: source for source, site in BESIDE.items()}
    here = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def follow(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), match["path"]))
        site = BESIDE.get(target, target.removeprefix("docs/"))
        site = site.removesuffix(".ipynb") + ".md" if site.endswith(".ipynb") else site
        return f"]({posixpath.relpath(site, posixpath.dirname(page.file.src_uri) or '.')}{match['rest'] or ''})"

    return re.sub(r"\]\((?![a-z]+:|#)(?P<path>[^()#\s]+)(?P<rest>#[^()\s]*)?\)", follow, markdown)
