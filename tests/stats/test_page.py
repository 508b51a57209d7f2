"""The page: every table, a heat map, bars of lengths, proposals, and no name that is markup."""

from __future__ import annotations

import re
from dataclasses import replace

from counted_tables import exact, hidden, labels, lengths, noised, noised_by_silo, table

from fedtorch.report.html_style import POLICY
from fedtorch.report.stats_page import MOST_DRAWN, MOST_ROWS, page
from fedtorch.stats.said import who_sees


def sections(text: str) -> dict[str, str]:
    """Heading -> what stands below it."""
    parts = text.split("<section><h2>")[1:]
    return {heading: body for heading, _, body in (part.partition("</h2>") for part in parts)}


def cells(part: str) -> list[list[str]]:
    rows = re.findall("<tr>(.*?)</tr>", part.replace("<wbr>", ""))
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


def test_every_question_has_a_section_and_the_page_loads_nothing() -> None:
    text = page(exact(), "task: # a <b>\n")
    found = sections(text)
    heads = ["What each number tells about whom", "What 3 silos have together (unit: row)", "labels", "tokens", "words"]
    assert list(found) == [*heads, "Proposals"]
    assert (
        POLICY in text
        and "http" not in text.replace("http-equiv", "")
        and "<h1>What 3 silos have together</h1>" in text
    )
    assert all(line in found[heads[0]].replace("&#x27;", "'") for line in who_sees(exact()))
    assert ["all", "200", "20", "10", "200", "4", ""] in cells(found[heads[1]])
    assert ["cough", "73", "60", "10", "3"] in cells(found["words"])
    assert (
        "<pre class='wide'>task: # a &lt;b&gt;\n</pre>" in found["Proposals"] and "--from-stats" in found["Proposals"]
    )
    assert "Proposals" not in sections(page(exact()))
    assert "<h1>What one silo has</h1>" in page(exact(silos=("east",)))


def test_silos_by_labels_are_a_heat_map() -> None:
    part = sections(page(exact()))["labels"]
    heat = part.partition("</table>")[0]
    assert cells(heat)[:2] == [["silo", "rows", "bad", "good"], ["east", "100", "75", "25"]]
    assert 'style="background:rgba(31,119,180,0.75)" title="east, bad: 75% of its rows">75<' in heat
    few = sections(page(hidden(exact(labels({"east": (9, 1), "north": (9, 9)})))))["labels"]
    assert 'title="east, good: not shown">*<' in few
    near = sections(page(noised_by_silo(exact(labels({"east": (9.2, -1.4), "north": (9, 9)})))))["labels"]
    assert "Each number is ± 2." in near and 'title="east, good: 0% of its rows">-1<' in near
    assert "class='heat'" not in page(noised(exact()))


def test_lengths_are_bars_of_silos_or_of_all_with_the_noise() -> None:
    part = sections(page(exact()))["tokens"]
    assert "<title>east, [1, 17)</title>" not in part and "<title>[1, 17), east: 0.1</title>" in part
    assert "[0, 1)" not in part.partition("</svg>")[0] and "[129, inf)" not in part.partition("</svg>")[0]
    whole = sections(page(noised(exact())))["tokens"]
    assert "<title>[17, 33), all: 66 (60 to 72)</title>" in whole
    many = lengths({f"s{i}": (0, 9, 3, 0, 0, 0) for i in range(MOST_DRAWN + 1)})
    assert "[1, 17), all: 63<" in page(exact(many))
    assert "[1, 17), s0: 0.75<" in page(exact(replace(many, silos=dict(list(many.silos.items())[:MOST_DRAWN]))))
    assert "<svg" not in sections(page(exact(lengths({"east": (0,) * 6}))))["tokens"]
    assert "[1, 17), east: 1<" in page(exact(lengths({"east": (0, 1, 0, 0, 0, 0)})))
    assert "[17, 33), east: 0<" in page(exact(lengths({"east": (0, 1, -1, 9, 0, 0)}))) and MOST_DRAWN == 6
    assert "[129, inf), east: 1<" in page(exact(lengths({"east": (0, 0, 0, 0, 0, 7)})))
    apart = page(exact(lengths({"east": (0, 9, 0, 0, 0, 0), "north": (0, 0, 9, 0, 0, 0)})))
    assert "[1, 17), east: 1<" in apart and "[17, 33), north: 1<" in apart
    near = page(noised(exact(lengths({"east": (0, 2, 66, 0, 0, 0)}))))
    assert "<title>[1, 17), all: 2 (-4 to 8)</title>" in near and "[0, 1), all" not in near
    few = hidden(exact(lengths({"east": (0, 9, 1, 9, 0, 0)})))
    assert "[33, 65), east" in page(few) and "[17, 33), east" not in page(few)


def test_names_are_no_markup_and_many_of_them_are_cut() -> None:
    odd = table("words", ("<script>x</script>", *(f"w{i}" for i in range(MOST_ROWS))), {"<i>": (5,) * (MOST_ROWS + 1)})
    text = page(exact(odd, silos=("<i>",)))
    assert "<script>x" not in text and "<i>" not in text and "1 more stand in the file." in text
    assert len(cells(sections(text)["words"])) == 1 + MOST_ROWS == 1001
    whole = table("words", odd.cells[1:], {"east": (5,) * MOST_ROWS})
    assert "more stand in the file" not in page(exact(whole))
