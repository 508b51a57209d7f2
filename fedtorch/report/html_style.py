"""A page that needs nothing else: looks, the script that sorts tables, and what a browser may load."""

from __future__ import annotations

from html import escape

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""What a browser may load: nothing but what stands in the page, whatever else should be in it."""
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5em auto; max-width: 1720px; padding: 0 16px; }
h1 { font-size: 1.5em; overflow-wrap: anywhere; } h2 { font-size: 1.2em; margin-top: 2em; }
h3 { font-size: 1em; overflow-wrap: anywhere; } p { max-width: 80em; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
th, td { padding: 3px 9px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: Canvas; }
td:first-child { white-space: normal; min-width: 6em; }
thead th { cursor: pointer; user-select: none; vertical-align: bottom; white-space: normal; }
thead th, thead th:first-child { background: linear-gradient(var(--soft), var(--soft)), Canvas; }
thead th[aria-sort=ascending]::after { content: " \\25B2"; }
thead th[aria-sort=descending]::after { content: " \\25BC"; }
td.text { text-align: left; font-family: ui-monospace, monospace; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(360px, 100%), 1fr)); gap: 1.5em; }
figure { margin: 0; min-width: 0; } figcaption { font-weight: 600; overflow-wrap: anywhere; }
.chart { width: 100%; height: auto; display: block; max-width: 560px; }
.chart text { font-size: 11px; fill: currentColor; }
.bars { margin-top: 1em; max-width: 460px; }
.frame { fill: none; stroke: var(--line); } .grid { stroke: var(--line); stroke-width: 0.7; fill: none; }
.error { stroke: currentColor; stroke-width: 1; } .chosen { stroke-width: 1; stroke-dasharray: 2 3; }
.legend { display: flex; flex-wrap: wrap; gap: 0 1em; font-size: 12px; max-width: 560px; }
.legend span { display: inline-flex; align-items: center; gap: 0.5em; overflow-wrap: anywhere; }
.legend i { min-width: 14px; flex: none; }
.heat td { border: 1px solid var(--line); } .note { opacity: 0.75; font-size: 14px; }
@media (max-width: 500px) { th, td { padding: 3px 6px; } }
"""

SORT = """
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => row.cells[column].dataset.v ?? "";
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === "");  // what is missing comes last
      const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
      return down ? -order : order;
    };
    body.append(...[...body.rows].sort(compare));
  }));
}
"""


def document(title: str, *parts: str) -> str:
    """A whole page of parts that are HTML already, under a heading."""
    return "".join(
        [
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *parts,
            f"<script>{SORT}</script></body></html>\n",
        ]
    )
