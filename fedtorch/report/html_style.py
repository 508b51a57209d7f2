"""Looks of every page of a report, and the script that sorts tables. Nothing in it comes from elsewhere."""

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1250px; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
th, td { padding: 3px 9px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { cursor: pointer; background: var(--soft); user-select: none; }
thead th[aria-sort=ascending]::after { content: " \\25B2"; }
thead th[aria-sort=descending]::after { content: " \\25BC"; }
td.text { text-align: left; font-family: ui-monospace, monospace; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(430px, 1fr)); gap: 1.5em; }
figure { margin: 0; } figcaption { font-weight: 600; }
.chart { width: 100%; height: auto; } .chart text { font-size: 11px; fill: currentColor; }
.bars { max-width: 620px; display: block; margin-top: 1em; }
.grid { stroke: var(--line); stroke-width: 0.7; fill: none; } .error { stroke: currentColor; stroke-width: 1; }
.heat td { border: 1px solid var(--line); } .note { opacity: 0.75; font-size: 14px; }
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
